//! The changes between two versions of a sweep file.

use serde_json::Value;

use crate::read::parse_value;

/// Keys of a sweep that determine how it is run. They may change during the sweep.
const CHANGEABLE_KEYS: [&str; 2] = ["parallel", "retries"];
const MAX_DESCRIBED_CHANGES: usize = 5;
const MAX_VALUE_CHARACTERS: usize = 60;

/// Describes how the sweep file `new` differs from `old`, one phrase for each key, apart from keys that may change.
#[must_use]
pub fn describe_changes(old: &str, new: &str) -> Vec<String> {
    let (Some(old), Some(new)) = (definition(old), definition(new)) else { return vec!["the text".to_owned()] };
    let mut changes = Vec::new();
    compare("", Some(&old), Some(&new), &mut changes);
    let more = changes.len().saturating_sub(MAX_DESCRIBED_CHANGES);
    changes.truncate(MAX_DESCRIBED_CHANGES);
    if more > 0 {
        changes.push(format!("{more} more"));
    }
    changes
}

/// The content of a sweep file without the keys that may change; `None` if it is not YAML.
fn definition(text: &str) -> Option<Value> {
    let mut value = parse_value(text)?;
    for key in ["sweep", "ladder"] {
        if let Some(sweep) = value.get_mut(key).and_then(Value::as_object_mut) {
            sweep.retain(|key, _| !CHANGEABLE_KEYS.contains(&key.as_str()));
        }
    }
    Some(value)
}

fn compare(path: &str, old: Option<&Value>, new: Option<&Value>, changes: &mut Vec<String>) {
    match (old, new) {
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let inner = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&inner, a.get(key), b.get(key), changes);
            }
        }
        (Some(a), Some(b)) if a == b => {}
        (Some(_), None) => changes.push(format!("{path} was removed")),
        (None, Some(b)) => changes.push(format!("{path} was added: {}", shortened(b))),
        (Some(a), Some(b)) => changes.push(format!("{path} changed from {} to {}", shortened(a), shortened(b))),
        (None, None) => {}
    }
}

/// `value` on one line, cut after some characters.
fn shortened(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= MAX_VALUE_CHARACTERS {
        return text;
    }
    format!("{}…", text.chars().take(MAX_VALUE_CHARACTERS - 3).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "sweep:\n  base: a.yaml\n  grid: {lr: [1e-3, 2e-3]}\n  parallel: 2\n";

    #[test]
    fn comments_and_keys_of_execution_may_change() {
        let other = "# why\nsweep:\n  base: a.yaml\n  retries: 3\n  grid:\n    lr: [0.001, 2e-3]\n";
        assert!(describe_changes(FILE, other).is_empty(), "{:?}", describe_changes(FILE, other));
    }

    #[test]
    fn changes_are_named() {
        let other = "sweep:\n  base: b.yaml\n  exclude: [\"lr > 1\"]\n";
        assert_eq!(
            describe_changes(FILE, other),
            [
                "sweep.base changed from \"a.yaml\" to \"b.yaml\"",
                "sweep.grid was removed",
                "sweep.exclude was \
                added: [\"lr > 1\"]"
            ]
        );
        assert_eq!(describe_changes(FILE, "sweep: ["), ["the text"]);
    }
}
