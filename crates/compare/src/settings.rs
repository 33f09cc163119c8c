//! The settings of an experiment as keys and values, and the settings in which two experiments differ.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use runner_spec::experiment::Experiment;

/// The keys that choose one of several things, each with separate settings: `optimizer: {adamw: {…}}`.
pub const CHOICES: [&str; 7] =
    ["data.layout", "data.tokenizer", "data.train", "data.validation", "model.init", "optimizer", "schedule.decay"];

runner_record::named_enum! {
    /// The part of an experiment that a key belongs to, in the order in which parts are shown.
    pub enum SettingGroup {
        Seed = "seed",
        Model = "model",
        Data = "data",
        Batch = "batch",
        Optimizer = "optimizer",
        Schedule = "schedule",
        Train = "train",
        Precision = "precision",
        Parallel = "parallel",
        Evaluation = "evaluation",
        Bookkeeping = "bookkeeping",
    }
}

impl SettingGroup {
    /// The group of `key`.
    #[must_use]
    pub fn of_key(key: &str) -> Self {
        match key.split('.').next().unwrap_or(key) {
            _ if key == "parallel.max_restarts" => Self::Bookkeeping,
            "master_weights" => Self::Precision,
            "device" => Self::Parallel,
            "eval" => Self::Evaluation,
            section => Self::ALL.into_iter().find(|group| group.name() == section).unwrap_or(Self::Bookkeeping),
        }
    }
}

/// A key in which two experiments differ. The value is `None` in an experiment that does not have the key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingDifference {
    pub key: String,
    pub group: SettingGroup,
    /// In JSON, `null` is also the value of an experiment that does not have the key.
    pub a: Option<Value>,
    pub b: Option<Value>,
}

/// The experiment as a document with the keys of the file. It has `model.rope_theta` for every family.
#[must_use]
pub fn document(experiment: &Experiment) -> Value {
    runner_spec::format::json_value(experiment)
}

/// The keys and values that `runner validate --explain` shows. A list is one value, and so are the seeds. The value of a choice is the name of
/// what was chosen.
#[must_use]
pub fn settings(experiment: &Experiment) -> BTreeMap<String, Value> {
    let mut out = flatten(&document(experiment));
    for key in experiment.model.family.hidden_keys() {
        out.remove(&format!("model.{key}"));
    }
    out
}

/// The position in the data from which a fork reads. It is one value, and no setting of other runs.
pub const DATA_POSITION: &str = "data.position";

/// The keys and values of a document with the keys of the file, as [`settings`] returns them.
#[must_use]
pub fn flatten(document: &Value) -> BTreeMap<String, Value> {
    fn visit(value: &Value, path: &str, out: &mut BTreeMap<String, Value>) {
        let map = match value {
            Value::Null if path == DATA_POSITION => return,
            Value::Object(map) if !["seed", DATA_POSITION].contains(&path) => map,
            _ => {
                out.insert(path.to_owned(), value.clone());
                return;
            }
        };
        if is_choice(path) {
            out.extend(map.keys().next().map(|chosen| (path.to_owned(), Value::from(chosen.as_str()))));
        }
        for (key, inner) in map {
            visit(inner, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, out);
        }
    }
    let mut out = BTreeMap::new();
    visit(document, "", &mut out);
    out
}

/// The keys in which not all of `settings` are equal, sorted by group and name.
#[must_use]
pub fn differing_keys(settings: &[&BTreeMap<String, Value>]) -> Vec<String> {
    let mut keys: BTreeSet<(SettingGroup, &String)> = BTreeSet::new();
    for key in settings.iter().copied().flat_map(BTreeMap::keys) {
        if settings.iter().any(|other| other.get(key) != settings[0].get(key)) {
            keys.insert((SettingGroup::of_key(key), key));
        }
    }
    keys.into_iter().map(|(_, key)| key.clone()).collect()
}

/// True if `key` chooses one of several things.
#[must_use]
pub fn is_choice(key: &str) -> bool {
    CHOICES.contains(&key)
}

/// The keys in which the experiments differ, sorted by group and name.
#[must_use]
pub fn differences(a: &Experiment, b: &Experiment) -> Vec<SettingDifference> {
    let (mut a, mut b) = (settings(a), settings(b));
    let keys = differing_keys(&[&a, &b]);
    let difference = |key: String| SettingDifference {
        group: SettingGroup::of_key(&key),
        a: a.remove(&key),
        b: b.remove(&key),
        key,
    };
    keys.into_iter().map(difference).collect()
}

/// The changes from `a` to `b`, by the keys that a file of `b` changes: a choice, or a section that one of them lacks, is one value.
/// A key that an experiment does not have has its default there.
#[must_use]
pub fn changes(a: &Experiment, b: &Experiment) -> Vec<SettingDifference> {
    let hidden: Vec<String> = b.model.family.hidden_keys().map(|key| format!("model.{key}")).collect();
    let mut out = Vec::new();
    collect_changes(Some(&document(a)), Some(&document(b)), "", &mut out);
    out.retain(|change| !hidden.contains(&change.key));
    out.sort_by(|x, y| (x.group, &x.key).cmp(&(y.group, &y.key)));
    out
}

fn collect_changes(a: Option<&Value>, b: Option<&Value>, path: &str, out: &mut Vec<SettingDifference>) {
    if a == b {
        return;
    }
    if let (Some(Value::Object(x)), Some(Value::Object(y))) = (a, b)
        && (!is_choice(path) || x.keys().eq(y.keys()))
    {
        for key in x.keys().chain(y.keys()).collect::<BTreeSet<_>>() {
            let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            collect_changes(x.get(key), y.get(key), &inner, out);
        }
        return;
    }
    let (key, group) = (path.to_owned(), SettingGroup::of_key(path));
    out.push(SettingDifference { key, group, a: a.cloned(), b: b.cloned() });
}

/// The value at `path` in `document`.
pub fn value_at<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(document, |value, key| value.get(key))
}

#[cfg(test)]
mod tests {
    use runner_spec::format::setting_text;

    use super::*;
    use runner_plan::testing::experiment;
    use runner_spec::experiment as e;

    #[test]
    fn a_choice_is_a_key_and_its_settings_are_keys_of_one_side() {
        let a = experiment();
        let mut b = experiment();
        b.optimizer = e::Optimizer::Sgd(runner_spec::optimizer::Sgd { lr: 0.1, momentum: 0.9 });
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
        let changed: Vec<String> = changes(&a, &b).into_iter().map(|change| change.key).collect();
        assert_eq!(changed, ["data.tokenizer", "optimizer"], "a choice is one value");
        assert!(changes(&a, &a).is_empty());
    }

    #[test]
    fn the_position_of_a_fork_is_one_value_and_no_key_of_other_runs() {
        let (a, mut b) = (experiment(), experiment());
        b.data.position = Some(runner_spec::program::DataPosition { step: 7, row: 9, ..Default::default() });
        let found = differences(&a, &b);
        let [SettingDifference { key, a: None, b: Some(position), .. }] = &found[..] else { panic!("{found:?}") };
        assert_eq!((key.as_str(), &position["step"]), (DATA_POSITION, &Value::from(7)));
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
            assert_eq!(setting_text(&value), text);
        }
    }
}
