//! Reads and writes the small files of a run: whole, bounded in size, with errors that name the file.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::RecordError;
use runner_files::open_regular;
use runner_files::sealed_json::{CONTENT_HASH, is_intact, seal};
use runner_spec::format::quoted_line;
use runner_spec::safe_text::is_unsafe;

/// The recorded size and hash of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    pub bytes: u64,
    /// 64 hex digits.
    pub blake3: String,
}

/// A small file has at most this many bytes.
const MAX_SMALL_FILE_BYTES: u64 = 64 << 20;

/// The largest plan, of a million passes, takes about this many bytes.
const MAX_PLAN_BYTES: u64 = 4 << 30;

/// Makes a folder's entries durable.
pub fn sync_dir(path: &Path) -> Result<(), RecordError> {
    runner_files::sync_dir(path).map_err(RecordError::io("syncing", path))
}

/// Replaces `path` with `bytes`; after a kill at any moment it holds the old content or the new.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    runner_files::write_atomic(path, bytes).map_err(RecordError::io("writing", path))
}

/// `value` as indented JSON with an end of line, for the file `path`.
pub fn indented_json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, RecordError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| RecordError::damaged(path, e.to_string()))?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Replaces `path` with `value` as indented JSON, atomically.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), RecordError> {
    write_atomic(path, &indented_json(path, value)?)
}

/// `value`, an object, as sealed JSON for the file `path`.
pub fn sealed_json(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, RecordError> {
    seal(value).map_err(|e| RecordError::damaged(path, e.to_string()))
}

/// Replaces `path` with `value` as sealed JSON, atomically.
pub fn write_sealed_json(path: &Path, value: &impl Serialize) -> Result<(), RecordError> {
    write_atomic(path, &sealed_json(path, value)?)
}

/// Reads a small JSON file that [`write_sealed_json`] wrote.
///
/// # Errors
/// If it cannot be read or parsed, or does not match its `content_hash`.
pub fn read_sealed_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    let text = read_small(path)?;
    if !is_intact(&text) {
        // A file that was cut short is named as such.
        parse_json::<serde::de::IgnoredAny>(path, &text)?;
        let message = format!("it was changed after it was written: its content does not match its `{CONTENT_HASH}`");
        return Err(RecordError::damaged(path, message));
    }
    parse_json(path, &text)
}

/// True if the file `path` has the bytes that this program writes for its value of the type `T`.
///
/// # Errors
/// Those of [`read_sealed_json`].
pub fn is_as_sealed<T: Serialize + serde::de::DeserializeOwned>(path: &Path) -> Result<bool, RecordError> {
    let written = sealed_json(path, &read_sealed_json::<T>(path)?)?;
    Ok(written == read_small(path)?.as_bytes())
}

/// `text`, the content of a sealed file that a test has changed, with the hash of what it is now.
#[cfg(any(test, feature = "testing"))]
#[must_use]
pub fn resealed(text: &str) -> String {
    let content = text.rfind(&format!(",\n  \"{CONTENT_HASH}\"")).map_or(text, |at| &text[..at]);
    format!("{content},\n  \"{CONTENT_HASH}\": \"{}\"\n}}\n", blake3::hash(content.as_bytes()).to_hex())
}

/// Reads a small text file. A file larger than any of a run is refused.
pub fn read_small(path: &Path) -> Result<String, RecordError> {
    read_up_to(path, MAX_SMALL_FILE_BYTES)
}

fn read_up_to(path: &Path, most: u64) -> Result<String, RecordError> {
    let file = open_regular(path).map_err(RecordError::io("reading", path))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(RecordError::io("reading", path))?;
    if bytes.len() as u64 > most {
        return Err(RecordError::damaged(path, format!("too large for a file of a run: more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| RecordError::damaged(path, "not UTF-8 text"))
}

/// Reads a plan, which lists the instructions of every rank and may be large.
pub fn read_plan<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    const FREE: [&str; 6] = ["notes", "warnings", "shortage", "prompts", "path", "files"];
    let text = read_up_to(path, MAX_PLAN_BYTES)?;
    check_texts(path, &text, &FREE)?;
    parse_checked(path, &text)
}

/// The parser's messages quote the text.
fn parse_checked<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, RecordError> {
    serde_json::from_str(text).map_err(|e| RecordError::damaged(path, quoted_line(&e.to_string())))
}

fn parse_json<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> Result<T, RecordError> {
    check_texts(path, text, &FREE_TEXTS)?;
    parse_checked(path, text)
}

/// The keys of texts that come from users, from their files, or from the system: flags, values, paths, errors. Tags have their own check.
const FREE_TEXTS: [&str; 10] =
    ["error", "overrides", "environment", "vars", "values", "file", "experiment_file", "path", "url", "tags"];

/// Checks that the JSON `text`, the content of `path`, has no control characters, not even line ends, apart from texts below the keys
/// `free`: what strangers recorded is shown to people, and must not steer a terminal or look like a line of this program.
pub fn check_texts(path: &Path, text: &str, free: &[&str]) -> Result<(), RecordError> {
    // Control characters are escaped in JSON.
    if !text.contains('\\') && !text.contains(is_unsafe) {
        return Ok(());
    }
    let value = serde_json::from_str(text).map_err(|e| RecordError::damaged(path, e.to_string()))?;
    let Some((key, c)) = find_control_character(&value, free, false) else { return Ok(()) };
    let (key, c) = (quoted_line(&key), c.escape_unicode());
    Err(RecordError::damaged(path, format!("`{key}` contains the character {c}, which must not be there")))
}

/// The first control character of a key in `value`, or of a text that is neither below one of the keys `free` nor `is_free` itself, with the
/// keys that lead to it.
fn find_control_character(value: &Value, free: &[&str], is_free: bool) -> Option<(String, char)> {
    let find = |text: &str| text.chars().find(|c| c.is_control() || is_unsafe(*c));
    let below = |key: String, value: &Value, is_free: bool| {
        let (rest, c) = find_control_character(value, free, is_free)?;
        Some((if rest.is_empty() { key } else { format!("{key}.{rest}") }, c))
    };
    match value {
        Value::String(text) if !is_free => find(text).map(|c| (String::new(), c)),
        Value::Array(items) => items.iter().enumerate().find_map(|(i, item)| below(i.to_string(), item, is_free)),
        Value::Object(map) => map.iter().find_map(|(key, value)| match find(key) {
            Some(c) => Some((key.clone(), c)),
            None => below(key.clone(), value, is_free || free.contains(&key.as_str())),
        }),
        _ => None,
    }
}

/// Reads a small JSON file.
pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, RecordError> {
    parse_json(path, &read_small(path)?)
}

/// The result of reading a file; `None` if the file is missing.
///
/// # Errors
/// The other errors of reading.
pub fn if_present<T>(read: Result<T, RecordError>) -> Result<Option<T>, RecordError> {
    match read {
        Err(RecordError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// Refuses the file `path`, which has the format `format`, unless this program reads that format.
pub fn check_format(path: &Path, format: u32, supported: u32) -> Result<(), RecordError> {
    if format == supported {
        return Ok(());
    }
    let message = format!("it has format {format}, but this version of runner reads format {supported}");
    Err(RecordError::damaged(path, message))
}

/// The last component of `path`: the id of a run, where it is a run directory.
pub fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Gives the file `from` the second name `to`. Where the file system cannot, it copies the file durably. The file must be one
/// that is never changed in place.
pub fn link_or_copy(from: &Path, to: &Path) -> Result<(), RecordError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copy = || -> std::io::Result<()> {
        std::io::copy(&mut open_regular(from)?, &mut File::create_new(to)?)?;
        File::open(to)?.sync_all()
    };
    copy().map_err(RecordError::io("copying", from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_json(&path, &[1, 2]).unwrap();
        write_json(&path, &[3]).unwrap();
        assert_eq!(read_json::<Vec<u32>>(&path).unwrap(), [3]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn texts_that_would_steer_a_terminal_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read_json::<Value>(&path)
                .map(drop)
                .map_err(|error| error.to_string().split_once(": ").unwrap().1.to_owned())
        };
        let refused =
            |key: &str, c: &str| Err(format!("`{key}` contains the character \\u{{{c}}}, which must not be there"));
        assert_eq!(read(r#"{"id": "a\nverified"}"#), refused("id", "a"));
        assert_eq!(
            read(r#"{"sessions": [{}, {"machine": {"cpu": "\u001b[30m"}}]}"#),
            refused("sessions.1.machine.cpu", "1b")
        );
        assert_eq!(read("{\"id\": \"a\u{202e}b\"}"), refused("id", "202e"));
        assert_eq!(read(r#"{"environment": {"A": "\r"}, "a": {"b\t": 1}}"#), refused("a.b", "9"));
        assert_eq!(read(r#"{"error": "a\nb", "environment": {"A": "\t"}, "id": "C:\\new \"x\" é \u0041"}"#), Ok(()));
        assert_eq!(read(r#"{"environment": {"A\r": ""}}"#), refused("environment.A", "d"));
        assert!(read("{\"id\": \"a\\").is_err());
    }

    #[test]
    fn a_sealed_file_that_was_changed_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        let value = serde_json::json!({"text": "é", "loss": 0.1, "list": [1, {"content_hash": 2}]});
        write_sealed_json(&path, &value).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        // The hash that the page describes, found without the code above.
        let at = text.rfind(",\n  \"content_hash\"").unwrap();
        let hash = blake3::hash(&text.as_bytes()[..at]).to_hex();
        assert_eq!(&text[at..], format!(",\n  \"content_hash\": \"{hash}\"\n}}\n"));
        let read = || read_sealed_json::<Value>(&path).map(|read| read["loss"].clone());
        assert_eq!(read().unwrap(), 0.1);
        let compact = serde_json::from_str::<Value>(&text).unwrap().to_string();
        for changed in [text.replace("0.1", "0.2"), text.replace("\"text\"", " \"text\""), compact] {
            fs::write(&path, changed).unwrap();
            assert!(read().unwrap_err().to_string().contains("a.json: it was changed after it was written"));
        }
        for torn in [&text[..at], &text[..text.len() - 2], &format!("{}\n}}\n", &text[..at])] {
            fs::write(&path, torn).unwrap();
            assert!(read().is_err());
        }
        assert!(if_present(read_sealed_json::<Value>(&dir.path().join("none"))).unwrap().is_none());
    }

    #[test]
    fn an_unwritable_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let error = write_atomic(&dir.path().join("file/a.json"), b"x").unwrap_err().to_string();
        assert!(error.starts_with("writing ") && error.contains("file/a.json"), "{error}");
    }

    #[test]
    fn full_and_forbidden_disks_are_explained() {
        let full = RecordError::io("writing", Path::new("a"))(ErrorKind::StorageFull.into());
        assert!(full.to_string().contains("the disk is full"));
        let denied = RecordError::io("creating", Path::new("runs"))(ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().contains("change the permissions"));
    }
}
