//! `tags.json`: words that a person put on a run. It is the run's own file beside its record, so that a run can be tagged while
//! it is trained, and an older program reads the run as before.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::StoreError;
use super::files::{read_json, sync_dir};
use runner_files::TEMPORARY;

/// The file in a run directory.
pub const TAGS: &str = "tags.json";

/// Version of the file.
const FORMAT: u32 = 1;

/// No tag is longer, in characters.
const LONGEST: usize = 64;

#[derive(Serialize, Deserialize)]
struct TagsFile {
    format: u32,
    tags: BTreeSet<String>,
}

/// What is wrong with `tag` as a tag's name.
///
/// # Errors
/// Why it is none: letters, digits and `_ . : / -` are, up to 64 of them, and the first is a letter or a digit.
pub fn check(tag: &str) -> Result<(), String> {
    let shown = tag.escape_default();
    if tag.is_empty() {
        return Err("a tag has at least one letter".to_owned());
    }
    if tag.chars().count() > LONGEST {
        return Err(format!("the tag \"{shown}\" is longer than {LONGEST} characters"));
    }
    if !tag.starts_with(char::is_alphanumeric) {
        return Err(format!("the tag \"{shown}\" begins with neither a letter nor a digit"));
    }
    match tag.chars().find(|c| !c.is_alphanumeric() && !"_.:/-".contains(*c)) {
        Some(c) => {
            Err(format!("the tag \"{shown}\" holds '{}': letters, digits and _ . : / - make a tag", c.escape_default()))
        }
        None => Ok(()),
    }
}

/// The tags of the run directory `run`, in alphabetical order.
///
/// # Errors
/// If the file is there and cannot be read.
pub fn read(run: &Path) -> Result<Vec<String>, StoreError> {
    Ok(load(run)?.into_iter().collect())
}

fn load(run: &Path) -> Result<BTreeSet<String>, StoreError> {
    let path = run.join(TAGS);
    let file: TagsFile = match read_json(&path) {
        Err(StoreError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        other => other?,
    };
    if file.format != FORMAT {
        let message = format!("format {}, this version reads format {FORMAT}", file.format);
        return Err(StoreError::damaged(&path, message));
    }
    // Whoever edits the file by hand must not bring in what steers a terminal.
    Ok(file.tags.into_iter().filter(|tag| check(tag).is_ok()).collect())
}

/// Adds and removes tags of the run directory `run`, whatever other process does the same or trains the run; the tags that
/// it then has. Names are checked by the caller.
///
/// # Errors
/// If the file is damaged or cannot be written; it is as before then.
pub fn change(run: &Path, add: &[String], remove: &[String]) -> Result<Vec<String>, StoreError> {
    // The folder itself is the lock of this file; the run's own lock is another's, for hours.
    let folder = File::open(run).map_err(StoreError::io("opening", run))?;
    match folder.lock() {
        Err(error) if error.kind() != ErrorKind::Unsupported => return Err(StoreError::io("locking", run)(error)),
        _ => {}
    }
    let before = load(run)?;
    let mut tags = before.clone();
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add.iter().cloned());
    if tags != before {
        write(run, &TagsFile { format: FORMAT, tags: tags.clone() })?;
    }
    Ok(tags.into_iter().collect())
}

fn write(run: &Path, file: &TagsFile) -> Result<(), StoreError> {
    let path = run.join(TAGS);
    let mut bytes = serde_json::to_vec_pretty(file).map_err(|e| StoreError::damaged(&path, e.to_string()))?;
    bytes.push(b'\n');
    let once = || -> std::io::Result<()> {
        let mut out = tempfile::Builder::new().prefix(&format!("{TEMPORARY}tags-")).tempfile_in(run)?;
        out.write_all(&bytes)?;
        out.as_file().sync_all()?;
        out.persist(&path)?;
        Ok(())
    };
    // A process that takes the run over removes what looks left behind, this file perhaps: then it is written once more.
    once()
        .or_else(|error| if error.kind() == ErrorKind::NotFound { once() } else { Err(error) })
        .map_err(StoreError::io("writing", &path))?;
    sync_dir(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn names_of_tags() {
        for good in ["a", "good", "lr:3e-4", "v1.0", "größer", "paper/fig-2", "7"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "-x", "+x", "a b", "a,b", "a\x1b[2J", "a\n", ".a", &"x".repeat(65)] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        assert!(!check("a\x1b[2J").unwrap_err().contains('\x1b'));
    }

    #[test]
    fn tags_come_and_go() {
        let run = tempfile::tempdir().unwrap();
        assert!(read(run.path()).unwrap().is_empty());
        assert_eq!(change(run.path(), &words("b a"), &[]).unwrap(), ["a", "b"]);
        assert_eq!(change(run.path(), &words("c"), &words("a x")).unwrap(), ["b", "c"]);
        assert_eq!(read(run.path()).unwrap(), ["b", "c"]);
        assert_eq!(std::fs::read_dir(run.path()).unwrap().count(), 1, "nothing temporary stays");
        std::fs::write(run.path().join(TAGS), "{\"format\":1,\"tags\":[\"ok\",\"\\u001b[2J\"]}").unwrap();
        assert_eq!(read(run.path()).unwrap(), ["ok"]);
        std::fs::write(run.path().join(TAGS), "{").unwrap();
        assert!(change(run.path(), &words("a"), &[]).is_err());
        assert_eq!(std::fs::read_to_string(run.path().join(TAGS)).unwrap(), "{", "a damaged file is left for a look");
    }

    #[test]
    fn taggers_at_once_lose_nothing() {
        let run = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for i in 0..8 {
                let run = run.path();
                scope.spawn(move || change(run, &[format!("t{i}")], &[]).unwrap());
            }
        });
        assert_eq!(read(run.path()).unwrap().len(), 8);
    }
}
