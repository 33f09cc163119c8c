//! Frees space in the cache: finds entries that no run needs, and removes those that no process uses.
//!
//! A note under `uses/` lists the entries that the data of a run consists of. Its name is [`data_key`] of the content hashes in the run's
//! manifest. Entries without a note stay while the data of a run has none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::cache::layout::USES;
use super::cache::{self, DataCache, EntryKind};
use super::error::DataError;
use super::hashing::{hash_parts, is_hash};
use runner_files::{bytes_freed, children, is_older_than, is_real_folder};
use runner_spec::data::DataPart;

/// The name of a run's data, made of the content hashes in the run's manifest, which `hash_of` returns. Weights are not in the cache, and the
/// tokenizer is a part of the other hashes.
#[must_use]
pub fn data_key<'a>(hash_of: impl Fn(DataPart) -> Option<&'a str>) -> String {
    let parts = [DataPart::Train, DataPart::Validation, DataPart::Choice].map(|part| hash_of(part).unwrap_or(""));
    hash_parts(parts.into_iter().chain(hash_of(DataPart::Test)))
}

/// A part of the cache that can be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnneededPart {
    pub path: PathBuf,
    pub bytes: u64,
    /// Kind and key of an entry; `None` for a leftover of a killed process.
    entry: Option<(EntryKind, String)>,
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
/// nothing. Only what the program itself wrote counts.
///
/// # Errors
/// If `root` is not a cache.
pub fn survey(root: &Path, runs: &BTreeSet<String>, older_than: Option<Duration>) -> Result<Survey, DataError> {
    cache::check_cache(root)?;
    let notes = notes(root);
    let all_noted = runs.iter().all(|data| notes.contains_key(data));
    let noted: BTreeSet<&String> = notes.values().flatten().collect();
    let needed: BTreeSet<&String> =
        notes.iter().filter(|(data, _)| runs.contains(*data)).flat_map(|(_, e)| e).collect();
    let mut survey = Survey::default();
    for kind in EntryKind::ALL {
        for path in children(&root.join(kind.folder())).into_iter().filter(|path| kind.is_own(path)) {
            let key = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = format!("{}/{key}", kind.folder());
            if needed.contains(&name) || older_than.is_some_and(|age| !is_older_than(&path, age)) {
                continue;
            }
            if !noted.contains(&name) && !all_noted {
                survey.unknown += 1;
                continue;
            }
            survey.unneeded.push(UnneededPart { bytes: bytes_freed(&path), path, entry: Some((kind, key)) });
        }
    }
    let left =
        cache::leftovers(root).into_iter().map(|path| UnneededPart { bytes: bytes_freed(&path), path, entry: None });
    survey.unneeded.extend(left);
    Ok(survey)
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
            Some((kind, key)) => cache.evict(*kind, key)?,
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
        let data = path.file_name()?.to_str()?.strip_suffix(".json").filter(|name| is_hash(name))?.to_owned();
        Some((data, serde_json::from_slice(&runner_files::read_regular(&path).ok()?).ok()?))
    };
    if !is_real_folder(&root.join(USES)) {
        return BTreeMap::new();
    }
    children(&root.join(USES)).into_iter().filter_map(note).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::SystemTime;

    use super::*;

    /// A hash by which tests name something.
    fn hash(name: &str) -> String {
        blake3::hash(name.as_bytes()).to_hex().to_string()
    }

    /// Uses the entry `key` of tokens as data known as `data`, and lets go of it.
    fn use_entry(root: &Path, key: &str, data: Option<&str>) -> Vec<fs::File> {
        let cache = DataCache::open(root).unwrap();
        let mut build = |path: &Path| fs::write(path.join("tokens.bin"), "12345").map_err(DataError::io(path));
        cache.open_or_build(EntryKind::Tokens, &hash(key), &|_| (), &|_| Ok(()), &mut build).unwrap();
        data.map(|data| cache.take_locks(&hash(data))).unwrap_or_default()
    }

    fn survey_of(root: &Path, runs: &[&str], older_than: Option<Duration>) -> Survey {
        survey(root, &runs.iter().map(|run| hash(run)).collect(), older_than).unwrap()
    }

    fn found(root: &Path, runs: &[&str], older_than: Option<Duration>) -> (Vec<PathBuf>, usize) {
        let survey = survey_of(root, runs, older_than);
        (survey.unneeded.into_iter().map(|item| item.path).collect(), survey.unknown)
    }

    #[test]
    fn removes_entries_that_no_run_needs() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (key, data) in [("a", "first"), ("b", "second"), ("b", "third")] {
            use_entry(root, key, Some(data));
        }
        let left = root.join("tmp/stage-a1B2c3");
        fs::create_dir(&left).unwrap();
        let entry = |key: &str| root.join("tokens").join(hash(key));
        assert_eq!(found(root, &["first", "third"], None), (vec![left.clone()], 0));
        assert_eq!(found(root, &["first"], None), (vec![entry("b"), left.clone()], 0));
        let day = Some(Duration::from_hours(24));
        assert_eq!(found(root, &["first"], day), (vec![left.clone()], 0), "used a moment ago");
        // One without a note, while a run's data has none.
        fs::create_dir(entry("old")).unwrap();
        fs::write(entry("old").join("tokens.bin"), "12345").unwrap();
        assert_eq!(found(root, &["first", "else"], None), (vec![entry("b"), left.clone()], 1));
        let mut expected = [entry("b"), entry("old")];
        expected.sort();
        assert_eq!(found(root, &["first"], None).0, [&expected[..], &[left]].concat());

        let in_use = use_entry(root, "b", Some("second"));
        let unneeded = survey_of(root, &["first"], None).unneeded;
        assert_eq!(unneeded[0].bytes, 5);
        let gone: Vec<PathBuf> = free(root, &unneeded).unwrap().into_iter().map(|item| item.path).collect();
        assert_eq!(gone, [entry("old")], "another process uses b, and opening the cache cleared the rest");
        drop(in_use);
        free(root, &survey_of(root, &["first"], None).unneeded).unwrap();
        assert!(entry("a").exists() && !entry("b").exists());
        let notes = root.join(USES);
        let first = notes.join(format!("{}.json", hash("first")));
        assert_eq!(children(&notes), [first], "notes of what is gone go, too");
    }

    /// The files below `folder`, with their content; links are not followed.
    fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        for path in children(folder) {
            match fs::symlink_metadata(&path).unwrap() {
                meta if meta.is_dir() => files.extend(files_below(&path)),
                meta if meta.is_symlink() => {
                    files.insert(path.clone(), fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes());
                }
                _ => {
                    files.insert(path.clone(), fs::read(&path).unwrap());
                }
            }
        }
        files
    }

    #[test]
    fn keeps_files_that_the_program_did_not_write() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, outside) = (dir.path(), elsewhere.path());
        use_entry(root, "a", Some("first"));
        let put = |path: PathBuf| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "mine").unwrap();
        };
        // Beside entries: other names, and the name of an entry with other content.
        for kind in EntryKind::ALL {
            put(root.join(kind.folder()).join("notes.txt"));
            put(root.join(kind.folder()).join("models/weights.bin"));
            put(root.join(kind.folder()).join(hash("foreign")).join("weights.bin"));
            fs::create_dir_all(root.join(kind.folder()).join(hash("empty"))).unwrap();
        }
        put(root.join("corpora/stories-mine/train.parquet"));
        // Inside entries of the program, as a file and as a folder.
        put(root.join("tokens").join(hash("b")).join("tokens.bin"));
        put(root.join("tokens").join(hash("b")).join("notes.txt"));
        put(root.join("tokens").join(hash("c")).join("tokens.bin"));
        put(root.join("tokens").join(hash("c")).join("documents.bin/mine"));
        // Behind links that have the name of an entry, or are in the place of the program's file.
        put(outside.join("tokens.bin"));
        symlink(outside, root.join("tokens").join(hash("d"))).unwrap();
        fs::create_dir(root.join("tokens").join(hash("e"))).unwrap();
        symlink(outside.join("tokens.bin"), root.join("tokens").join(hash("e")).join("tokens.bin")).unwrap();
        // In the folder of unfinished work.
        for path in ["project/a.txt", "stage-models/a.txt", "stage-a1B2c3/content/a.txt", "stage-a1B2c4/other/lock"] {
            put(root.join("tmp").join(path));
        }
        for path in ["notes.txt", ".tmp-notes", "stage-a1B2c5"] {
            put(root.join("tmp").join(path));
        }
        let long_ago = SystemTime::now() - Duration::from_hours(24 * 365);
        for path in ["notes.txt", ".tmp-notes"] {
            fs::File::options().write(true).open(root.join("tmp").join(path)).unwrap().set_modified(long_ago).unwrap();
        }
        fs::create_dir_all(outside.join("content")).unwrap();
        symlink(outside, root.join("tmp/stage-a1B2c6")).unwrap();
        symlink(outside.join("tokens.bin"), root.join("tmp/.tmp-a1B2c3")).unwrap();
        // Notes of other programs.
        put(root.join(USES).join("mine.json"));
        let (before, before_outside) = (files_below(root), files_below(outside));

        let unneeded = survey_of(root, &["first"], None).unneeded;
        assert_eq!(unneeded, []);
        let all = survey_of(root, &[], None).unneeded;
        assert_eq!(all.iter().map(|item| &item.path).collect::<Vec<_>>(), [&root.join("tokens").join(hash("a"))]);
        // Asked for by name, too.
        let entry = |key: &str| UnneededPart {
            path: root.join("tokens").join(hash(key)),
            bytes: 0,
            entry: Some((EntryKind::Tokens, hash(key))),
        };
        assert_eq!(free(root, &["b", "c", "d", "e", "foreign"].map(entry)).unwrap(), []);
        let mut after = files_below(root);
        // The files of locks are new, and empty.
        after.retain(|path, _| !path.starts_with(root.join("locks")) || before.contains_key(path));
        assert_eq!(after, before);
        assert_eq!(files_below(outside), before_outside);
    }

    #[test]
    fn folders_of_entries_that_are_links_and_foreign_folders_are_left_alone() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (root, other) = (dir.path(), elsewhere.path().join("cache"));
        use_entry(&other, "a", Some("first"));
        fs::create_dir(other.join("tmp/stage-a1B2c3")).unwrap();
        cache::claim_cache(root).unwrap();
        for folder in ["tokens", "tmp", USES] {
            symlink(other.join(folder), root.join(folder)).unwrap();
        }
        assert_eq!(survey_of(root, &[], None).unneeded, []);
        DataCache::open(root).unwrap();
        assert!(other.join("tmp/stage-a1B2c3").exists() && other.join("tokens").join(hash("a")).exists());

        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("tmp/stage-a1B2c3/content")).unwrap();
        fs::write(home.path().join("notes.txt"), "mine").unwrap();
        assert!(DataCache::open(home.path()).is_err() && survey(home.path(), &BTreeSet::new(), None).is_err());
        assert!(free(home.path(), &[]).is_err());
        assert!(home.path().join("tmp/stage-a1B2c3/content").exists());
    }
}
