//! Files that a source has twice, and files that two sources share.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use super::error::{DataError, Result};
use super::source::LocatedSource;

/// Refuses a file that is in both sources, under whatever name. Validation on training text measures memory, and a test on text by which
/// checkpoints are chosen measures luck. A file of which the sources read different parts, such as two columns, gets a warning.
pub(super) fn check_disjoint(known: &LocatedSource, other: &LocatedSource, why: &str) -> Result<Option<String>> {
    let is_shared = |hash: &str| known.files.iter().any(|file| file.size > 0 && file.hash == hash);
    let Some(file) = other.files.iter().find(|file| is_shared(&file.hash)) else { return Ok(None) };
    let (path, known_key) = (file.path.display(), known.split.key());
    if known.documents == other.documents {
        return Err(DataError::setting(other.split.key(), format!("{path} is also in {known_key}{why}")));
    }
    let key = other.split.key();
    Ok(Some(format!(
        "{key}: {path} is also in {known_key}, which reads a different part of it; make sure that the texts do not overlap"
    )))
}

/// Refuses a training source of which a part is held out, if it has a file twice: the part that is held out would be trained on.
pub(super) fn check_no_repeated_file(train: &LocatedSource) -> Result<()> {
    let Some(repetition) = repetition(train) else { return Ok(()) };
    let message = format!(
        "{repetition}, so held-out text would be trained on; list each file once, or take the validation data from another source"
    );
    Err(DataError::setting(train.split.key(), message))
}

/// The warning about a source that has a file twice, by its name, through a pattern or a link, or as a copy.
pub(super) fn describe_repeated_files(source: &LocatedSource) -> Option<String> {
    let repetition = repetition(source)?;
    Some(format!("{repetition}, so its documents are read again; list each file once, unless they should count more"))
}

/// A file with the content of an earlier one.
struct Repetition<'a> {
    path: &'a Path,
    first: &'a Path,
    /// Further files like that.
    others: usize,
}

impl fmt::Display for Repetition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, first, others } = self;
        if path == first {
            write!(f, "{} is listed more than once", path.display())?;
        } else {
            write!(f, "{} has the same content as {}", path.display(), first.display())?;
        }
        if *others > 0 { write!(f, " (and {others} more)") } else { Ok(()) }
    }
}

/// The first file of `source` that has the content of an earlier one, if there is any. Empty files have no content.
fn repetition(source: &LocatedSource) -> Option<Repetition<'_>> {
    let mut known: HashMap<&str, &Path> = HashMap::new();
    let mut found: Option<Repetition<'_>> = None;
    for file in source.files.iter().filter(|file| file.size > 0) {
        match (known.get(&*file.hash), &mut found) {
            (None, _) => {
                known.insert(&file.hash, &file.path);
            }
            (Some(_), Some(found)) => found.others += 1,
            (Some(first), None) => found = Some(Repetition { path: &file.path, first, others: 0 }),
        }
    }
    found
}
