//! Reading the small files of a run directory that other rooms do not read: absent, damaged and huge ones are words, no
//! failures, since the rest of the page can still be shown.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

/// A step's timeline of many ranks has some 100 bytes a span.
const MOST: u64 = 64 << 20;

/// The text of `path`; `None` if there is no such file.
///
/// # Errors
/// In words, if it cannot be read or is no text of ours.
pub fn text(path: &Path) -> Result<Option<String>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{name}: {error}")),
    };
    let mut bytes = Vec::new();
    file.take(MOST + 1).read_to_end(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
    if bytes.len() as u64 > MOST {
        return Err(format!("{name}: larger than {} MiB", MOST >> 20));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| format!("{name}: not UTF-8 text"))
}

/// The JSON file `path`; `None` if there is no such file.
///
/// # Errors
/// As `text`, and if it is not what it should be.
pub fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parse = |text: String| serde_json::from_str(&text).map_err(|error| format!("{name}: {error}"));
    text(path)?.map(parse).transpose()
}

/// What tells whether a file has changed: its length and when it was written.
#[must_use]
pub fn stamp(path: &Path) -> Option<(u64, std::time::SystemTime)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.len(), meta.modified().ok()?))
}
