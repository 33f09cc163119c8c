//! Files that a source has twice, and files that two sources share.

use std::collections::HashMap;
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
    let Some(repetition) = describe_repetition(train) else { return Ok(()) };
    let message = format!(
        "{repetition}, so held-out text would be trained on; list each file once, or take the validation data from another source"
    );
    Err(DataError::setting(train.split.key(), message))
}

/// The warning about a source that has a file twice, by its name, through a pattern or a link, or as a copy.
pub(super) fn describe_repeated_files(source: &LocatedSource) -> Option<String> {
    let repetition = describe_repetition(source)?;
    Some(format!("{repetition}, so its documents are read again; list each file once, unless they should count more"))
}

/// Names the first file of `source` that has the content of an earlier one, if there is any. Empty files have no content.
fn describe_repetition(source: &LocatedSource) -> Option<String> {
    let mut known: HashMap<&str, &Path> = HashMap::new();
    let files = source.files.iter().filter(|file| file.size > 0);
    let mut again = files.filter_map(|file| Some((&*file.path, known.insert(&file.hash, &file.path)?)));
    let (path, first) = again.next()?;
    let what = if path == first {
        format!("{} is listed more than once", path.display())
    } else {
        format!("{} has the same content as {}", path.display(), first.display())
    };
    Some(match again.count() {
        0 => what,
        others => format!("{what} (and {others} more)"),
    })
}
