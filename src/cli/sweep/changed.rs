//! What has changed since a sweep started.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_yaml::Value;

use runner_lab::sweep::frozen::SourceHash;

/// Keys of the sweep that may change: they say how it is run, not what it is.
const FREE: [&str; 2] = ["parallel", "retries"];
/// At most this many changes are told.
const SHOWN: usize = 5;

/// What is different between two versions of a sweep file, in words; nothing of keys that may change.
pub(super) fn between(was: &str, is: &str) -> Vec<String> {
    let (Some(was), Some(is)) = (parsed(was), parsed(is)) else { return vec!["the text".to_owned()] };
    let mut out = Vec::new();
    compare("", Some(&was), Some(&is), &mut out);
    let more = out.len().saturating_sub(SHOWN);
    out.truncate(SHOWN);
    if more > 0 {
        out.push(format!("{more} more"));
    }
    out
}

fn parsed(text: &str) -> Option<Value> {
    let mut value: Value = serde_yaml::from_str(text.strip_prefix('\u{FEFF}').unwrap_or(text)).ok()?;
    if let Some(sweep) = value.get_mut("sweep").and_then(Value::as_mapping_mut) {
        for key in FREE {
            sweep.remove(key);
        }
    }
    Some(value)
}

fn compare(path: &str, was: Option<&Value>, is: Option<&Value>, out: &mut Vec<String>) {
    match (was, is) {
        (Some(Value::Mapping(a)), Some(Value::Mapping(b))) => {
            let keys = a.keys().chain(b.keys().filter(|key| !a.contains_key(key)));
            for key in keys {
                let name = key.as_str().map_or_else(|| flow(key), str::to_owned);
                let inner = if path.is_empty() { name } else { format!("{path}.{name}") };
                compare(&inner, a.get(key), b.get(key), out);
            }
        }
        (Some(a), Some(b)) if a == b => {}
        (Some(_), None) => out.push(format!("{path} is gone")),
        (None, Some(b)) => out.push(format!("{path} is new: {}", flow(b))),
        (Some(a), Some(b)) => out.push(format!("{path} was {}, is {}", flow(a), flow(b))),
        (None, None) => {}
    }
}

/// On one line, and short.
fn flow(value: &Value) -> String {
    let text = serde_json::to_string(value).unwrap_or_else(|_| "…".to_owned());
    if text.chars().count() <= 60 { text } else { format!("{}…", text.chars().take(57).collect::<String>()) }
}

/// The content hash of a file, without a byte order mark, as those are read; of one that is not there, of nothing.
pub(super) fn digest(path: &Path) -> SourceHash {
    let content = fs::read(path).unwrap_or_default();
    SourceHash { path: path.to_owned(), blake3: hash(content.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&content)) }
}

/// As `digest`, of a file's text.
pub(super) fn hash(content: &[u8]) -> String {
    blake3::hash(content).to_hex().to_string()
}

/// Of the files that points were made of, those that are no longer what they were.
pub(super) fn sources(sources: &[SourceHash]) -> Vec<PathBuf> {
    sources.iter().filter(|source| digest(&source.path) != **source).map(|source| source.path.clone()).collect()
}

/// Variables that are no longer what they were: `was` are those that were read, `set` those that set keys of experiments now.
pub(super) fn environment(
    was: &BTreeMap<String, String>,
    set: &[(String, String)],
    now: &dyn Fn(&str) -> Option<String>,
) -> Vec<String> {
    let read = was.iter().filter(|(name, value)| now(name).as_ref() != Some(value)).map(|(name, _)| name.clone());
    let new = set.iter().map(|(name, _)| name.clone()).filter(|name| !was.contains_key(name));
    read.chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "sweep:\n  base: a.yaml\n  grid: {lr: [1e-3, 2e-3]}\n  parallel: 2\n";

    #[test]
    fn how_it_is_run_may_change_and_so_may_comments() {
        let other = "# why\nsweep:\n  base: a.yaml\n  retries: 3\n  grid:\n    lr: [0.001, 2e-3]\n";
        assert!(between(FILE, other).is_empty(), "{:?}", between(FILE, other));
    }

    #[test]
    fn changes_are_named() {
        let other = "sweep:\n  base: b.yaml\n  exclude: [\"lr > 1\"]\n";
        assert_eq!(
            between(FILE, other),
            ["sweep.base was \"a.yaml\", is \"b.yaml\"", "sweep.grid is gone", "sweep.exclude is new: [\"lr > 1\"]"]
        );
        assert_eq!(between(FILE, "sweep: ["), ["the text"]);
    }

    #[test]
    fn files_that_changed_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b) = (dir.path().join("a"), dir.path().join("b"));
        fs::write(&a, "1").unwrap();
        fs::write(&b, "2").unwrap();
        let was = [digest(&a), digest(&b), digest(&dir.path().join("none"))];
        assert!(sources(&was).is_empty());
        fs::write(&b, "3").unwrap();
        assert_eq!(sources(&was), [b]);
    }

    #[test]
    fn variables_that_changed_are_found() {
        let was = BTreeMap::from([("RUNNER_A".to_owned(), "1".to_owned()), ("RUNNER_B".to_owned(), "2".to_owned())]);
        let is = [("RUNNER_B".to_owned(), "2".to_owned()), ("RUNNER_C".to_owned(), "3".to_owned())];
        let now = |name: &str| is.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        assert_eq!(environment(&was, &is, &now), ["RUNNER_A", "RUNNER_C"]);
    }
}
