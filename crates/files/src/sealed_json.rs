//! JSON objects whose last field, `content_hash`, is the BLAKE3 hash of all bytes before the comma that precedes the field.

use serde::Serialize;
use serde::ser::Error as _;

/// The last field of a sealed object.
pub const CONTENT_HASH: &str = "content_hash";

/// `value`, an object with fields, as indented JSON with its hash.
///
/// # Errors
/// If it has another form in JSON, or none.
pub fn seal(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(value)?;
    if !bytes.ends_with(b"\n}") {
        return Err(serde_json::Error::custom("only an object with fields can be sealed"));
    }
    bytes.truncate(bytes.len() - 2);
    let end = end_of(&bytes);
    bytes.extend(end.as_bytes());
    Ok(bytes)
}

/// The end of a sealed text that begins with `content`.
fn end_of(content: &[u8]) -> String {
    format!(",\n  \"{CONTENT_HASH}\": \"{}\"\n}}\n", blake3::hash(content).to_hex())
}

/// True if `text` ends with the hash of what stands before it.
#[must_use]
pub fn is_intact(text: &str) -> bool {
    let parts = text.len().checked_sub(end_of(&[]).len()).and_then(|at| text.split_at_checked(at));
    parts.is_some_and(|(content, end)| end == end_of(content.as_bytes()))
}
