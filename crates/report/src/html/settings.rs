//! The settings in which runs differ, from their resolved files.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_yaml::Value;

/// Keys below this depth are one value. No file of this program is deeper.
const MAX_DEPTH: usize = 32;
/// Differences that are listed at most. Runs with more are different experiments.
const MAX_DIFFERENCES: usize = 200;

/// One key in which runs differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct SettingDifference {
    /// For example `optimizer.adamw.lr`.
    pub(super) key: String,
    /// The value of each run; `None` if the run has no such key, or its file cannot be read.
    pub(super) values: Vec<Option<String>>,
}

/// The keys in which the runs with these resolved files differ, in the order of the first file that has them. Runs without a
/// readable file are not compared.
pub(super) fn setting_differences(files: &[Option<&str>]) -> Vec<SettingDifference> {
    let mut order: Vec<String> = Vec::new();
    let parsed: Vec<Option<BTreeMap<String, String>>> = files
        .iter()
        .map(|file| {
            let mut keys = BTreeMap::new();
            flatten(&serde_yaml::from_str((*file)?).ok()?, String::new(), 0, &mut |key, value| {
                if !keys.contains_key(&key) {
                    order.push(key.clone());
                }
                keys.insert(key, value);
            });
            Some(keys)
        })
        .collect();
    let known = parsed.iter().flatten().count();
    let mut seen = BTreeSet::new();
    order.retain(|key| seen.insert(key.clone()));
    let differs = |key: &String| {
        let mut values = parsed.iter().flatten().map(|keys| keys.get(key));
        let first = values.next();
        known > 1 && values.any(|value| Some(value) != first)
    };
    let row = |key: String| SettingDifference {
        values: parsed.iter().map(|keys| keys.as_ref()?.get(&key).cloned()).collect(),
        key,
    };
    order.into_iter().filter(differs).take(MAX_DIFFERENCES).map(row).collect()
}

/// Calls `leaf` with the path and the text of each value in `value` that is not a mapping.
fn flatten(value: &Value, path: String, depth: usize, leaf: &mut dyn FnMut(String, String)) {
    match value {
        Value::Mapping(mapping) if !mapping.is_empty() && depth < MAX_DEPTH => {
            for (key, value) in mapping {
                let key = scalar(key);
                let path = if path.is_empty() { key } else { format!("{path}.{key}") };
                flatten(value, path, depth + 1, leaf);
            }
        }
        other => leaf(path, scalar(other)),
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => b.to_string(),
        Value::Number(n) => n.to_string(),
        Value::String(s) => s.clone(),
        // JSON lacks some keys that YAML has.
        other => serde_json::to_string(other).unwrap_or_else(|_| format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_the_files_order() {
        let a = "seed: 1\nmodel: {layers: 2, heads: 2}\noptimizer: {adamw: {lr: 0.001, betas: [0.9, 0.95]}}\n";
        let b = "seed: 1\nmodel: {layers: 4, heads: 2}\noptimizer: {sgd: {lr: 0.1}}\n";
        let found = setting_differences(&[Some(a), None, Some(b)]);
        let keys: Vec<&str> = found.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(keys, ["model.layers", "optimizer.adamw.lr", "optimizer.adamw.betas", "optimizer.sgd.lr"]);
        assert_eq!(found[0].values, [Some("2".to_owned()), None, Some("4".to_owned())]);
        assert_eq!(found[2].values[0].as_deref(), Some("[0.9,0.95]"));
        assert_eq!(found[2].values[2], None);
    }

    #[test]
    fn one_run_and_damaged_files_differ_in_nothing() {
        assert_eq!(setting_differences(&[Some("a: 1\n")]), []);
        assert_eq!(setting_differences(&[Some("a: 1\n"), Some("a: [")]), []);
        assert_eq!(setting_differences(&[Some("a: 1\n"), Some("a: 1\n")]), []);
    }
}
