//! The changes between two versions of a sweep file.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::read::parse_value;

/// Keys of a sweep that determine how it is run. They may change during the sweep.
const CHANGEABLE_KEYS: [&str; 2] = ["parallel", "retries"];

/// The keys in which the sweep files `old` and `new` differ, apart from keys that may change.
#[must_use]
pub fn changed_keys(old: &str, new: &str) -> Vec<String> {
    let (Some(old), Some(new)) = (definition(old), definition(new)) else { return vec!["the text".to_owned()] };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

/// The keys of a sweep file with their values, without those that may change; `None` if it is not YAML.
fn definition(text: &str) -> Option<BTreeMap<String, Value>> {
    let value = parse_value(text)?;
    let mut out = BTreeMap::new();
    for section in ["sweep", "ladder"] {
        let keys = value.get(section).and_then(Value::as_object).into_iter().flatten();
        for (key, value) in keys.filter(|(key, _)| !CHANGEABLE_KEYS.contains(&key.as_str())) {
            out.insert(format!("{section}.{key}"), value.clone());
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "sweep:\n  base: a.yaml\n  grid: {lr: [1e-3, 2e-3]}\n  parallel: 2\n";

    #[test]
    fn comments_and_keys_of_execution_may_change() {
        let other = "# why\nsweep:\n  base: a.yaml\n  retries: 3\n  grid:\n    lr: [0.001, 2e-3]\n";
        assert!(changed_keys(FILE, other).is_empty(), "{:?}", changed_keys(FILE, other));
    }

    #[test]
    fn changes_are_named() {
        let other = "sweep:\n  base: b.yaml\n  exclude: [\"lr > 1\"]\n";
        assert_eq!(changed_keys(FILE, other), ["sweep.base", "sweep.exclude", "sweep.grid"]);
        assert_eq!(changed_keys(FILE, "sweep: ["), ["the text"]);
    }
}
