//! The origin of each value of an experiment, and the experiment as YAML.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use runner_yaml::document::{self, Value};

use crate::layers::Layers;
use crate::shape::join;
use runner_spec::experiment::{Experiment, Family};
use runner_spec::format::{json_value, setting_text};
use runner_spec::model::options::{OptionKey, option_keys};

/// One final value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The path of the key, such as `optimizer.adamw.lr`.
    pub key: String,
    pub value: String,
    /// `default`, `preset gpt2-124m`, `exp.yaml:12:7`, `RUNNER_SEED` or `--set seed=3`.
    pub source: String,
}

/// `resolved.yaml`: an experiment file that loads to the same experiment from anywhere.
#[must_use]
#[expect(clippy::expect_used, reason = "a YAML value whose keys are text has a text")]
pub fn to_yaml(experiment: &Experiment) -> String {
    document::to_string(&document(experiment)).expect("an experiment's document is plain YAML")
}

/// The experiment as a document with the keys of the file, each with its value.
#[expect(
    clippy::expect_used,
    reason = "paths in an experiment are UTF-8: the folder is checked, the rest is YAML text"
)]
fn document(experiment: &Experiment) -> Value {
    // A choice is a mapping with one key, not a tag.
    let mut value = document::to_value(experiment).expect("an experiment serializes");
    if let Some(model) = value.get_mut("model").and_then(Value::as_mapping_mut) {
        for key in experiment.model.family.hidden_keys() {
            model.remove(key);
        }
    }
    for (section, key, default) in unserialized_defaults(experiment.model.family) {
        let mut keys = section.split('.').filter(|key| !key.is_empty());
        if let Some(Value::Mapping(map)) = keys.try_fold(&mut value, |value, key| value.get_mut(key)) {
            map.entry(Value::String(key.to_owned())).or_insert(default);
        }
    }
    value
}

/// Sections, and those of their keys that have no value by default, separated by blanks.
const NULL_DEFAULTS: [(&str, &str); 24] = [
    ("model", "init"),
    ("data.train.hub", "config"),
    ("data.train.tokens", "dtype"),
    ("data.validation.hub", "config"),
    ("data.validation.tokens", "dtype"),
    ("data", "epoch_rows position"),
    ("data.layout.columns", "eval_count"),
    ("batch", "warmup"),
    ("batch.warmup", "increment"),
    ("parallel", "shard"),
    ("train", "transfer"),
    ("train.groups", "lr_scale weight_decay"),
    ("train.stages", "sequences micro_batch length"),
    ("train.transfer", "layers tokens"),
    ("schedule", "cooldown"),
    ("schedule.decay.cosine", "steps"),
    ("schedule.decay.inverse_sqrt", "steps"),
    ("schedule.decay.linear", "steps"),
    ("schedule.decay.sqrt", "steps"),
    ("eval", "tasks test test_rows"),
    ("eval.hellaswag", "every context choices answer labels"),
    ("eval.samples", "every"),
    ("eval.test.hub", "config"),
    ("eval.test.tokens", "dtype"),
];

/// The keys that an experiment does not serialize where they have their defaults, because hashes of older plans do not have them:
/// section, key and default.
#[expect(clippy::expect_used, reason = "a default is a text, a number or a truth value")]
fn unserialized_defaults(family: Family) -> Vec<(&'static str, &'static str, Value)> {
    let text = |word: &str| Value::String(word.to_owned());
    let mut out = vec![
        ("", "master_weights", Value::Bool(true)),
        ("data", "shuffle", Value::Bool(true)),
        ("data", "drop_last", Value::Bool(false)),
        ("data.layout.packed", "separator", text("end_of_text")),
        ("data.layout.columns", "separator", text("end_of_text")),
        ("data.layout.padded", "mask", text("causal")),
        ("train", "groups", Value::Sequence(Vec::new())),
        ("train", "recompute", text("none")),
        ("train", "stages", Value::Sequence(Vec::new())),
        ("train.stages", "windows", Value::Sequence(Vec::new())),
        ("optimizer.adamw", "decays", text("matrices")),
        ("optimizer.muon.adamw", "decays", text("matrices")),
        ("optimizer.muon", "cautious_decay", Value::Bool(false)),
        ("schedule", "start", Value::from(0)),
        ("schedule.cooldown", "at", Value::Sequence(Vec::new())),
        ("schedule.decay.cosine", "repeat", text("never")),
        ("schedule.decay.cosine", "period_factor", Value::from(1)),
    ];
    for (section, keys) in NULL_DEFAULTS {
        out.extend(keys.split(' ').map(|key| (section, key, Value::Null)));
    }
    for OptionKey { key, default, .. } in option_keys(family) {
        if family.lacked(key).is_none() {
            out.push(("model", key, document::to_value(&default).expect("JSON is YAML")));
        }
    }
    out
}

/// One row per value, in the order of the keys.
pub(crate) fn origins(
    experiment: &Experiment,
    layers: &Layers,
    notes: &BTreeMap<Cow<'static, str>, String>,
) -> Vec<Origin> {
    let mut out = Vec::new();
    visit(&document(experiment), "", &mut |key, value| {
        let source = layers.origin(key, value.is_null());
        let source = source.unwrap_or_else(|| notes.get(key).cloned().unwrap_or_else(|| "default".to_owned()));
        out.push(Origin { key: key.to_owned(), value: setting_text(&json_value(value)), source });
    });
    out
}

#[expect(clippy::expect_used, reason = "the document has the keys of the types of an experiment")]
fn visit(value: &Value, path: &str, out: &mut impl FnMut(&str, &Value)) {
    match value {
        Value::Mapping(map) if !map.is_empty() => {
            for (key, inner) in map {
                visit(inner, &join(path, key.as_str().expect("the keys of an experiment are text")), out);
            }
        }
        leaf => out(path, leaf),
    }
}

/// The table of `runner validate --explain`.
#[must_use]
pub fn explain(origins: &[Origin]) -> String {
    const WIDEST: usize = 48;
    let shown = |text: &str| -> String {
        if text.chars().count() > WIDEST {
            format!("{}…", text.chars().take(WIDEST - 1).collect::<String>())
        } else {
            text.to_owned()
        }
    };
    let width = |f: fn(&Origin) -> &str| origins.iter().map(|o| shown(f(o)).chars().count()).max().unwrap_or(0);
    let (keys, values) = (width(|o| &o.key), width(|o| &o.value));
    let mut out = String::new();
    for o in origins {
        let _ = writeln!(out, "{:keys$}  {:values$}  {}", shown(&o.key), shown(&o.value), o.source);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{LoadOptions, from_str};

    #[test]
    fn keys_that_are_not_serialized_are_recorded_and_explained_with_their_defaults() {
        let mut explained = 0;
        for preset in ["gpt2-micro", "llama-micro"] {
            let text = format!("model: {{preset: {preset}}}\ndata: {{train: {{builtin: {{corpus: stories}}}}}}\n");
            let load = |sets: Vec<String>| {
                from_str(&text, Path::new("e.yaml"), &LoadOptions { sets, ..LoadOptions::default() })
                    .unwrap_or_else(|mistakes| panic!("{mistakes}"))
            };
            let plain = load(Vec::new());
            for (section, key, default) in unserialized_defaults(plain.experiment.model.family) {
                let path = join(section, key);
                let Some(origin) = plain.origins.iter().find(|origin| origin.key == path) else { continue };
                let default = setting_text(&json_value(&default));
                assert_eq!((&origin.value, origin.source.as_str()), (&default, "default"), "{path}");
                assert_eq!(load(vec![format!("{path}={default}")]).experiment, plain.experiment, "{path}");
                let recorded: Value = document::from_str(&to_yaml(&plain.experiment)).unwrap();
                let recorded = path.split('.').try_fold(&recorded, |value, key| value.get(key));
                assert_eq!(recorded.map(|value| setting_text(&json_value(value))).as_ref(), Some(&default), "{path}");
                explained += 1;
            }
        }
        assert_eq!(explained, 44 + 33, "all but the keys of sections that the file leaves out");
    }
}
