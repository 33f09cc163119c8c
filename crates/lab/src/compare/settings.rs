//! The settings of an experiment as keys and values, and those in which two differ. What a difference means is for `effect`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use runner_spec::experiment::Experiment;
use runner_spec::experiment::Family;

/// Where one of several things is chosen, each with settings of its own: `optimizer: {adamw: {…}}`.
pub const CHOICES: [&str; 7] =
    ["data.layout", "data.tokenizer", "data.train", "data.validation", "model.init", "optimizer", "schedule.decay"];

/// The part of an experiment that a key belongs to, in the order in which parts are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingGroup {
    Seed,
    Model,
    Data,
    Batch,
    Optimizer,
    Schedule,
    Train,
    Precision,
    Parallel,
    Evaluation,
    Bookkeeping,
}

impl SettingGroup {
    /// The group of `key`.
    #[must_use]
    pub fn of(key: &str) -> Self {
        match key.split('.').next().unwrap_or(key) {
            _ if key == "parallel.max_restarts" => Self::Bookkeeping,
            "seed" => Self::Seed,
            "model" => Self::Model,
            "data" => Self::Data,
            "batch" => Self::Batch,
            "optimizer" => Self::Optimizer,
            "schedule" => Self::Schedule,
            "train" => Self::Train,
            "precision" | "master_weights" => Self::Precision,
            "parallel" | "device" => Self::Parallel,
            "eval" => Self::Evaluation,
            _ => Self::Bookkeeping,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Seed => "seed",
            Self::Model => "model",
            Self::Data => "data",
            Self::Batch => "batch",
            Self::Optimizer => "optimizer",
            Self::Schedule => "schedule",
            Self::Train => "train",
            Self::Precision => "precision",
            Self::Parallel => "parallel",
            Self::Evaluation => "evaluation",
            Self::Bookkeeping => "bookkeeping",
        }
    }
}

/// A key in which two experiments differ: `None` on a side that does not have it.
#[derive(Debug, Clone, PartialEq)]
pub struct SettingDifference {
    pub key: String,
    pub group: SettingGroup,
    pub a: Option<Value>,
    pub b: Option<Value>,
}

/// The experiment as a document: keys are those of the file. (`model.rope_theta` stands in it for every family.)
#[must_use]
pub fn document(experiment: &Experiment) -> Value {
    runner_spec::format::json_value(experiment)
}

/// Keys and values as `runner validate --explain` has them; lists are values, and so is what a choice has chosen.
#[must_use]
pub fn settings(experiment: &Experiment) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    visit(&document(experiment), "", &mut out);
    if experiment.model.family == Family::Gpt2 {
        out.remove("model.rope_theta");
    }
    out
}

fn visit(value: &Value, path: &str, out: &mut BTreeMap<String, Value>) {
    let Value::Object(map) = value else {
        out.insert(path.to_owned(), value.clone());
        return;
    };
    if is_choice(path) {
        out.extend(map.keys().next().map(|chosen| (path.to_owned(), Value::from(chosen.as_str()))));
    }
    for (key, inner) in map {
        visit(inner, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, out);
    }
}

/// Whether `key` stands for which of several things is chosen.
#[must_use]
pub fn is_choice(key: &str) -> bool {
    CHOICES.contains(&key)
}

/// The keys in which the two differ: by group, then by name.
#[must_use]
pub fn differences(a: &Experiment, b: &Experiment) -> Vec<SettingDifference> {
    let (a, mut b) = (settings(a), settings(b));
    let mut out = Vec::new();
    let mut differ = |key: String, a: Option<Value>, b: Option<Value>| {
        if a != b {
            out.push(SettingDifference { group: SettingGroup::of(&key), key, a, b });
        }
    };
    for (key, value) in a {
        let other = b.remove(&key);
        differ(key, Some(value), other);
    }
    for (key, value) in b {
        differ(key, None, Some(value));
    }
    out.sort_by(|x, y| (x.group, &x.key).cmp(&(y.group, &y.key)));
    out
}

/// What is under `path` in `document`.
pub fn get<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |value, key| value.get(key))
}

/// `document` with what `other` has under each of `paths`.
#[must_use]
pub fn with(document: &Value, other: &Value, paths: &[&str]) -> Value {
    let mut out = document.clone();
    for path in paths {
        let (parents, last) = path.rsplit_once('.').map_or((None, *path), |(parents, last)| (Some(parents), last));
        let parent = match parents {
            None => Some(&mut out),
            Some(parents) => parents.split('.').try_fold(&mut out, |value, key| value.get_mut(key)),
        };
        let Some(Value::Object(parent)) = parent else { continue };
        match get(other, path) {
            Some(value) => parent.insert(last.to_owned(), value.clone()),
            None => parent.remove(last),
        };
    }
    out
}

/// A value on one line, as in a file.
#[must_use]
pub fn shown(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", ")),
        Value::String(text) => text.escape_debug().to_string(),
        Value::Number(n) => match n.as_f64() {
            Some(x) if n.is_f64() && x != 0.0 && !(1e-3..1e6).contains(&x.abs()) => format!("{x:e}"),
            _ => n.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::experiment;
    use runner_spec::experiment as e;

    #[test]
    fn a_choice_is_a_key_and_its_settings_are_keys_of_one_side() {
        let a = experiment();
        let mut b = experiment();
        b.optimizer = e::Optimizer::Sgd { lr: 0.1, momentum: 0.9 };
        b.data.tokenizer = e::Tokenizer::Chars {};
        let found = differences(&a, &b);
        let keys: Vec<&str> = found.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(
            keys,
            [
                "data.tokenizer",
                "optimizer",
                "optimizer.adamw.betas",
                "optimizer.adamw.eps",
                "optimizer.adamw.lr",
                "optimizer.adamw.weight_decay",
                "optimizer.sgd.lr",
                "optimizer.sgd.momentum"
            ]
        );
        assert_eq!((found[1].a.clone(), found[1].b.clone()), (Some("adamw".into()), Some("sgd".into())));
        assert_eq!(found[6].a, None);
        assert!(differences(&a, &a).is_empty());
    }

    #[test]
    fn settings_of_the_other_side_are_put_in_and_taken_out() {
        let a = experiment();
        let mut b = experiment();
        b.train = e::Train { steps: None, epochs: Some(2.0), clip_norm: None, ..b.train };
        let swapped = with(&document(&a), &document(&b), &["train.steps", "train.epochs", "train.tokens"]);
        let experiment: Experiment = serde_json::from_value(swapped).unwrap();
        assert_eq!(experiment.train, e::Train { clip_norm: Some(1.0), ..b.train });
    }

    #[test]
    fn values_read_as_in_a_file() {
        let all = [
            (serde_json::json!([1, "a\n", 0.9]), "[1, a\\n, 0.9]"),
            (serde_json::json!(6e-4), "6e-4"),
            (serde_json::json!(null), "null"),
            (serde_json::json!({}), "{}"),
        ];
        for (value, text) in all {
            assert_eq!(shown(&value), text);
        }
    }
}
