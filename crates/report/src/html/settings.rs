//! In which settings runs differ, from their resolved files.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_yaml::Value;

/// Keys below this depth are one value: no file of ours is deeper.
const DEEPEST: usize = 32;
/// Rows beyond this many say nothing: the runs are different experiments.
const MOST: usize = 200;

/// One key in which runs differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// `optimizer.adamw.lr`.
    pub key: String,
    /// Of each run; `None`: it has no such key, or its file cannot be read.
    pub values: Vec<Option<String>>,
}

/// The keys in which the runs with these resolved files differ, in the order of the first file that has them. Runs without
/// a file do not count.
#[must_use]
pub fn differences(files: &[Option<&str>]) -> Vec<Difference> {
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
    let mut seen = std::collections::BTreeSet::new();
    order.retain(|key| seen.insert(key.clone()));
    let differs = |key: &String| {
        let mut values = parsed.iter().flatten().map(|keys| keys.get(key));
        let first = values.next();
        known > 1 && values.any(|value| Some(value) != first)
    };
    let row =
        |key: String| Difference { values: parsed.iter().map(|keys| keys.as_ref()?.get(&key).cloned()).collect(), key };
    order.into_iter().filter(differs).take(MOST).map(row).collect()
}

/// Calls `leaf` with the path and the text of everything in `value` that is no mapping.
fn flatten(value: &Value, path: String, depth: usize, leaf: &mut dyn FnMut(String, String)) {
    match value {
        Value::Mapping(mapping) if !mapping.is_empty() && depth < DEEPEST => {
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
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_the_files_order() {
        let a = "seed: 1\nmodel: {layers: 2, heads: 2}\noptimizer: {adamw: {lr: 0.001, betas: [0.9, 0.95]}}\n";
        let b = "seed: 1\nmodel: {layers: 4, heads: 2}\noptimizer: {sgd: {lr: 0.1}}\n";
        let found = differences(&[Some(a), None, Some(b)]);
        let keys: Vec<&str> = found.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(keys, ["model.layers", "optimizer.adamw.lr", "optimizer.adamw.betas", "optimizer.sgd.lr"]);
        assert_eq!(found[0].values, [Some("2".to_owned()), None, Some("4".to_owned())]);
        assert_eq!(found[2].values[0].as_deref(), Some("[0.9,0.95]"));
        assert_eq!(found[2].values[2], None);
    }

    #[test]
    fn one_run_and_damaged_files_differ_in_nothing() {
        assert_eq!(differences(&[Some("a: 1\n")]), []);
        assert_eq!(differences(&[Some("a: 1\n"), Some("a: [")]), []);
        assert_eq!(differences(&[Some("a: 1\n"), Some("a: 1\n")]), []);
    }
}
