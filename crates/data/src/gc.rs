//! Frees space in the cache: finds entries that no run needs, and removes those that no process uses.
//!
//! A note under `uses/` lists the entries that the data of a run consists of. Its name is [`data_key`] of the content hashes in the run's
//! manifest. Entries of older versions of the program have no note; they stay while the data of a run has none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::cache::{self, DataCache, USES};
use super::fingerprint::hash_parts;

/// Folders of the cache with large entries. Hashes and counts of sources are small, and measurements of the machine belong to no run.
const ENTRY_FOLDERS: [&str; 3] = ["corpora", "tokenizers", "tokens"];

/// The name of a run's data, made of the content hashes in the run's manifest.
#[must_use]
pub fn data_key(train: &str, validation: Option<&String>, choice: Option<&String>, test: Option<&String>) -> String {
    let [validation, choice, test] = [validation, choice, test].map(|hash| hash.map(String::as_str));
    hash_parts([train, validation.unwrap_or(""), choice.unwrap_or("")].into_iter().chain(test))
}

/// A part of the cache that can be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnneededPart {
    pub path: PathBuf,
    pub bytes: u64,
    /// Kind and key of an entry; `None` for a leftover of a killed process.
    entry: Option<(String, String)>,
}

impl UnneededPart {
    /// True if a killed process left it.
    #[must_use]
    pub fn is_leftover(&self) -> bool {
        self.entry.is_none()
    }
}

/// The parts of the cache that can be removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    pub unneeded: Vec<UnneededPart>,
    /// The number of entries that a run may or may not need.
    pub unknown: usize,
}

/// Finds the parts of the cache `root` that none of `runs` needs, named by [`data_key`], and that were not used for `older_than`. Changes
/// nothing.
#[must_use]
pub fn survey(root: &Path, runs: &BTreeSet<String>, older_than: Option<Duration>) -> Survey {
    let notes = notes(root);
    let all_noted = runs.iter().all(|data| notes.contains_key(data));
    let noted: BTreeSet<&String> = notes.values().flatten().collect();
    let needed: BTreeSet<&String> =
        notes.iter().filter(|(data, _)| runs.contains(*data)).flat_map(|(_, e)| e).collect();
    let mut survey = Survey::default();
    for kind in ENTRY_FOLDERS {
        for path in children(&root.join(kind)) {
            let key = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{kind}/{key}");
            let real = fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir());
            if !real || needed.contains(&name) || older_than.is_some_and(|age| !unused_for(&path, age)) {
                continue;
            }
            if !noted.contains(&name) && !all_noted {
                survey.unknown += 1;
                continue;
            }
            survey.unneeded.push(UnneededPart { bytes: bytes(&path), path, entry: Some((kind.to_owned(), key)) });
        }
    }
    let left = cache::leftovers(root).into_iter().map(|path| UnneededPart { bytes: bytes(&path), path, entry: None });
    survey.unneeded.extend(left);
    survey
}

/// Removes what [`survey`] found, except for parts that a process uses by now. Returns the removed parts.
///
/// # Errors
/// If a part cannot be removed; earlier ones are gone by then.
pub fn free(root: &Path, unneeded: &[UnneededPart]) -> io::Result<Vec<UnneededPart>> {
    let cache = DataCache::open(root).map_err(io::Error::other)?;
    let mut gone = Vec::new();
    for item in unneeded {
        let went = match &item.entry {
            Some((kind, key)) => match cache.evict(kind, key) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => false,
                other => other?,
            },
            // Opening the cache removes them.
            None => !item.path.exists(),
        };
        if went {
            gone.push(item.clone());
        }
    }
    // A note whose entries are all gone is of no use.
    for (data, entries) in notes(root) {
        if !entries.is_empty() && entries.iter().all(|entry| !root.join(entry).exists()) {
            let _ = fs::remove_file(root.join(USES).join(format!("{data}.json")));
        }
    }
    Ok(gone)
}

/// The entries of data, by its name.
fn notes(root: &Path) -> BTreeMap<String, Vec<String>> {
    let note = |path: PathBuf| {
        let data = path.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
        Some((data, serde_json::from_slice(&fs::read(&path).ok()?).ok()?))
    };
    children(&root.join(USES)).into_iter().filter_map(note).collect()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let mut out: Vec<_> = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|e| e.path()).collect();
    out.sort();
    out
}

fn unused_for(path: &Path, age: Duration) -> bool {
    let used = fs::metadata(path).and_then(|m| m.modified()).unwrap_or_else(|_| SystemTime::now());
    used.elapsed().is_ok_and(|elapsed| elapsed > age)
}

/// Bytes of the files under `path`; links are not followed.
fn bytes(path: &Path) -> u64 {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => children(path).iter().map(|path| bytes(path)).sum(),
        Ok(meta) => meta.len(),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataError;

    /// Uses the entry `kind`/`key` as data known as `data`, and lets go of it.
    fn use_entry(root: &Path, kind: &str, key: &str, data: Option<&str>) -> Vec<fs::File> {
        let cache = DataCache::open(root).unwrap();
        let mut build = |path: &Path| fs::write(path.join("value"), "12345").map_err(DataError::io(path));
        cache.open_or_build(kind, key, &|_| (), &|_| Ok(()), &mut build).unwrap();
        data.map(|data| cache.take_locks(data)).unwrap_or_default()
    }

    fn found(root: &Path, runs: &[&str], older_than: Option<Duration>) -> (Vec<String>, usize) {
        let survey = survey(root, &runs.iter().map(|r| (*r).to_owned()).collect(), older_than);
        let name = |item: &UnneededPart| item.path.strip_prefix(root).unwrap().display().to_string();
        (survey.unneeded.iter().map(name).collect(), survey.unknown)
    }

    #[test]
    fn what_no_run_needs_goes() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (key, data) in [("a", "first"), ("b", "second"), ("b", "third")] {
            use_entry(root, "tokens", key, Some(data));
        }
        fs::create_dir(root.join("tmp/stage-dead")).unwrap();
        let left = "tmp/stage-dead".to_owned();
        assert_eq!(found(root, &["first", "third"], None), (vec![left.clone()], 0));
        assert_eq!(found(root, &["first"], None), (vec!["tokens/b".to_owned(), left.clone()], 0));
        let day = Some(Duration::from_hours(24));
        assert_eq!(found(root, &["first"], day), (vec![left.clone()], 0), "used a moment ago");
        // One that an older version made, while a run's data has no note.
        fs::create_dir(root.join("tokens/old")).unwrap();
        assert_eq!(found(root, &["first", "else"], None), (vec!["tokens/b".to_owned(), left.clone()], 1));
        assert_eq!(found(root, &["first"], None).0, ["tokens/b", "tokens/old", &left]);

        let in_use = use_entry(root, "tokens", "b", Some("second"));
        let unneeded = survey(root, &["first".to_owned()].into(), None).unneeded;
        assert_eq!(unneeded[0].bytes, 5);
        let gone: Vec<PathBuf> = free(root, &unneeded).unwrap().into_iter().map(|item| item.path).collect();
        assert_eq!(gone, [root.join("tokens/old")], "another process uses b, and opening the cache cleared the rest");
        drop(in_use);
        free(root, &survey(root, &["first".to_owned()].into(), None).unneeded).unwrap();
        assert!(root.join("tokens/a").exists() && !root.join("tokens/b").exists());
        assert_eq!(children(&root.join(USES)), [root.join(USES).join("first.json")], "notes of what is gone go, too");
    }
}
