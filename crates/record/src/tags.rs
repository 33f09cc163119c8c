//! `tags.json`: the tags of a run. They are in a separate file, so that a run can be tagged while it trains.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::RecordError;
use super::files::{check_format, if_present, read_json, write_json};
use runner_spec::error::PlainError;

/// The file in a run directory.
pub const TAGS: &str = "tags.json";

/// Version of the file.
const FORMAT: u32 = 1;

/// The largest length of a tag, in characters.
const MAX_TAG_LENGTH: usize = 64;

#[derive(Serialize, Deserialize)]
struct TagsFile {
    format: u32,
    tags: BTreeSet<String>,
}

/// Checks that `tag` can be a tag: up to 64 letters, digits and `_ . : / -`, beginning with a letter or a digit.
///
/// # Errors
/// The reason why it cannot.
pub fn check(tag: &str) -> Result<(), PlainError> {
    let shown = tag.escape_default();
    let rule = match tag.chars().find(|c| !c.is_alphanumeric() && !"_.:/-".contains(*c)) {
        _ if tag.is_empty() => "have at least one character".to_owned(),
        _ if tag.chars().count() > MAX_TAG_LENGTH => {
            format!("have at most {MAX_TAG_LENGTH} characters, got \"{shown}\"")
        }
        _ if !tag.starts_with(char::is_alphanumeric) => format!("start with a letter or a digit, got \"{shown}\""),
        Some(c) => {
            let c = c.escape_default();
            format!("consist of letters, digits and _ . : / -, but \"{shown}\" contains '{c}'")
        }
        None => return Ok(()),
    };
    Err(PlainError::request(format!("a tag must {rule}")))
}

/// The tags of the run directory `run`, in alphabetical order.
///
/// # Errors
/// If the file is there and cannot be read.
pub fn read(run: &Path) -> Result<Vec<String>, RecordError> {
    Ok(read_set(run)?.into_iter().collect())
}

fn read_set(run: &Path) -> Result<BTreeSet<String>, RecordError> {
    let path = run.join(TAGS);
    let Some(file): Option<TagsFile> = if_present(read_json(&path))? else { return Ok(BTreeSet::new()) };
    check_format(&path, file.format, FORMAT)?;
    // A tag from an edited file must not bring control characters to a terminal.
    Ok(file.tags.into_iter().filter(|tag| check(tag).is_ok()).collect())
}

/// Adds and removes tags of the run directory `run`, and returns the tags that it then has. Other processes may change tags or
/// train the run at the same time. The caller has checked the tags with `check`.
///
/// # Errors
/// If the file is damaged or cannot be written; then it is unchanged.
pub fn change(run: &Path, add: &[String], remove: &[String]) -> Result<Vec<String>, RecordError> {
    // The folder itself is locked: the lock of the run belongs to the process that trains it, for hours.
    let folder = File::open(run).map_err(RecordError::io("opening", run))?;
    match folder.lock() {
        Err(error) if error.kind() != ErrorKind::Unsupported => return Err(RecordError::io("locking", run)(error)),
        _ => {}
    }
    let before = read_set(run)?;
    let mut tags = before.clone();
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add.iter().cloned());
    if tags != before {
        let (path, file) = (run.join(TAGS), TagsFile { format: FORMAT, tags: tags.clone() });
        // A process that opens the run removes leftovers. If it has removed the temporary file of this write, the tags are written again.
        write_json(&path, &file).or_else(|error| match error {
            RecordError::Io { source, .. } if source.kind() == ErrorKind::NotFound => write_json(&path, &file),
            other => Err(other),
        })?;
    }
    Ok(tags.into_iter().collect())
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
        assert!(!check("a\x1b[2J").unwrap_err().text.contains('\x1b'));
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
    fn concurrent_taggers_lose_nothing() {
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
