//! Settings of flags that have no effect, because a later flag replaces them.

use std::fmt;

use serde_json::{Map, Value};

use crate::layers::{Layer, LayerOrigin, prune};
use crate::shape::join;
use crate::shape::root;
use runner_yaml::source::SourceKind;

/// A setting that a later one replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverriddenSetting {
    /// `key.path=value`, in the words of the command line.
    pub setting: String,
    /// The key whose value is lost, such as `optimizer.adamw.lr`.
    pub key: String,
    /// The later setting, in the same form.
    pub by: String,
}

impl fmt::Display for OverriddenSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setting, key, by } = self;
        let is_whole = setting.strip_prefix(&**key).is_some_and(|rest| rest.starts_with('='));
        let part = if is_whole { String::new() } else { format!("`{key}` of ") };
        write!(f, "{part}`--set {setting}` has no effect, because `--set {by}` replaces it")
    }
}

/// The settings of flags that lose a value to a later flag. `layers` are not merged yet, the lowest first.
pub(crate) fn find_overridden(layers: &[Layer]) -> Vec<OverriddenSetting> {
    let flags: Vec<(&str, &Value)> = layers.iter().filter_map(flag).collect();
    let mut overridden = Vec::new();
    for (i, &(setting, given)) in flags.iter().enumerate() {
        let loss = flags[i + 1..].iter().find_map(|&(by, above)| {
            let mut kept = given.clone();
            prune(&mut kept, above, root());
            let key = lost_key(given, Some(&kept), Some(above), "")?;
            // A number that stands for several keys is lost as a whole to another value of the same section.
            let [own, other] = [setting, by].map(|flag| flag.split('=').next().unwrap_or(flag));
            let is_whole = own == other && !setting.contains('{') && !by.contains('{');
            Some((if is_whole { own.to_owned() } else { key }, by))
        });
        overridden.extend(loss.map(|(key, by)| OverriddenSetting {
            setting: setting.to_owned(),
            key,
            by: by.to_owned(),
        }));
    }
    overridden
}

fn flag(layer: &Layer) -> Option<(&str, &Value)> {
    match &layer.from {
        LayerOrigin::Text { source, .. } if source.kind == SourceKind::Set => Some((&source.text, &layer.value)),
        _ => None,
    }
}

/// The first key in `given` whose value is not that of the merged layers. `kept` is what pruning leaves of `given`, and `above` the
/// higher layer.
fn lost_key(given: &Value, kept: Option<&Value>, above: Option<&Value>, path: &str) -> Option<String> {
    let empty = Map::new();
    let (is_lost, inner) = match (given, above) {
        (Value::Object(map), Some(Value::Object(_)) | None) => (map.is_empty() && kept.is_none(), map),
        (Value::Object(_), Some(_)) => (true, &empty),
        // A null has nothing to lose to a key that excludes it.
        (Value::Null, above) => (above.is_some_and(|above| !above.is_null()), &empty),
        (_, above) => (kept.is_none() || above.is_some_and(|above| above != given), &empty),
    };
    if is_lost {
        return Some(path.to_owned());
    }
    let at = |value: Option<&'_ Value>, key: &str| value.and_then(|value| value.get(key)).cloned();
    inner
        .iter()
        .find_map(|(key, value)| lost_key(value, at(kept, key).as_ref(), at(above, key).as_ref(), &join(path, key)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{LoadOptions, from_str};

    /// The lost key of each overridden setting, and the setting that overrides it.
    fn overridden(sets: &[&str]) -> Vec<(String, String)> {
        let options =
            LoadOptions { sets: sets.iter().map(|set| (*set).to_owned()).collect(), ..LoadOptions::default() };
        let text =
            "model: {preset: gpt2-micro}\ndata: {train: {builtin: {corpus: stories}}}\noptimizer: {sgd: {lr: 1}}\n";
        let loaded = from_str(text, Path::new("e.yaml"), &options).unwrap_or_else(|error| panic!("{error}"));
        loaded.overridden.into_iter().map(|overridden| (overridden.key, overridden.by)).collect()
    }

    #[test]
    fn settings_that_exclude_each_other_are_found() {
        for (first, second, key) in [
            ("train.steps=5", "train.epochs=1", "train.steps"),
            ("train.epochs=1", "train.tokens=100000", "train.epochs"),
            ("batch.sequences=8", "batch.tokens=2048", "batch.sequences"),
            ("optimizer.adamw.lr=1e-4", "optimizer.sgd.lr=0.1", "optimizer.adamw.lr"),
            ("optimizer={sgd: {lr: 1}}", "optimizer.adamw.betas=[0.9, 0.95]", "optimizer.sgd.lr"),
            ("optimizer.adamw.lr=1e-4", "optimizer={adamw: {lr: 1e-3}}", "optimizer.adamw.lr"),
            ("schedule.decay.cosine.final=0.1", "schedule.decay.linear.final=0.1", "schedule.decay.cosine.final"),
            (
                "schedule.decay={step: {gamma: 0.5, every: 3}}",
                "schedule.decay.step.epochs=1",
                "schedule.decay.step.every.steps",
            ),
            ("schedule.decay={constant: {}}", "schedule.decay={cosine: {}}", "schedule.decay.constant"),
            ("data.validation=null", "data.validation.fraction=0.2", "data.validation"),
            (
                "data.validation.fraction=0.2",
                "data.validation={builtin: {corpus: stories}}",
                "data.validation.fraction",
            ),
            ("data.tokenizer={bytes: {}}", "data.tokenizer={chars: {}}", "data.tokenizer.bytes"),
            ("eval.loss.rows=8", "eval.loss.batches=2", "eval.loss.rows"),
            ("eval.loss.rows=8", "eval.loss=null", "eval.loss"),
            ("seed=1", "seed=2", "seed"),
            ("seed=1", "seed.init=2", "seed.init"),
            ("seed=1", "seed={data: 2}", "seed.data"),
        ] {
            assert_eq!(overridden(&[first, second]), [(key.to_owned(), second.to_owned())], "{first} {second}");
        }
        for fine in [
            ["optimizer.adamw.lr=1e-4", "optimizer.adamw.weight_decay=0.1"],
            ["optimizer={adamw: {}}", "optimizer.adamw.lr=1e-3"],
            ["train.steps=null", "train.epochs=1"],
            ["train.steps=5", "train.steps=5.0"],
            ["train={steps: 5}", "train.clip_norm=null"],
        ] {
            assert_eq!(overridden(&fine), [], "{fine:?}");
        }
        assert_eq!(
            overridden(&["seed=1", "train.steps=5", "train.epochs=1"]),
            [("train.steps".to_owned(), "train.epochs=1".to_owned())]
        );
    }

    #[test]
    fn a_warning_names_the_part_that_is_lost() {
        let warning = |setting: &str| {
            let (setting, key, by) =
                (setting.to_owned(), "optimizer.adamw.lr".to_owned(), "optimizer.adamw.lr=1".to_owned());
            OverriddenSetting { setting, key, by }.to_string()
        };
        assert!(warning("optimizer.adamw.lr=2").starts_with("`--set optimizer.adamw.lr=2` has no effect, because"));
        let part = warning("optimizer.adamw={lr: 2, eps: 1e-6}");
        assert!(
            part.starts_with("`optimizer.adamw.lr` of `--set optimizer.adamw={lr: 2, eps: 1e-6}` has no effect"),
            "{part}"
        );
    }

    /// Every pair of keys that the schema excludes, and every pair of choices, is found: the flags are read by the same rules as files.
    #[test]
    fn every_exclusive_pair_of_the_schema_is_found() {
        use crate::shape::{KeyShape, Shape, variants};
        fn visit(slot: KeyShape, path: &str, pairs: &mut Vec<(String, String)>) {
            let mut exclude = |names: &[&str]| {
                for (i, a) in names.iter().enumerate() {
                    pairs.extend(names[i + 1..].iter().map(|b| (join(path, a), join(path, b))));
                }
            };
            match slot.shape {
                Shape::Keys(keys) => {
                    exclude(&keys.exclusive());
                    for name in keys.names() {
                        visit(keys.get(name).unwrap(), &join(path, name), pairs);
                    }
                }
                Shape::Variants(of) => {
                    exclude(&variants(of).iter().map(|(name, _)| *name).collect::<Vec<_>>());
                    for (name, slot) in variants(of) {
                        visit(slot, &join(path, name), pairs);
                    }
                }
                _ => {}
            }
        }
        let mut pairs = Vec::new();
        visit(root(), "", &mut pairs);
        assert!(pairs.len() > 100, "{}", pairs.len());
        let value = |path: &str| path.rsplit('.').fold(Value::from(1), |inner, key| serde_json::json!({ key: inner }));
        for (a, b) in &pairs {
            for (low, high) in [(a, b), (b, a)] {
                let (given, above) = (value(low), value(high));
                let mut kept = given.clone();
                prune(&mut kept, &above, root());
                assert_eq!(lost_key(&given, Some(&kept), Some(&above), ""), Some(low.clone()), "{low} {high}");
            }
        }
    }
}
