//! JSON objects whose last field, `content_hash`, is the BLAKE3 hash of all bytes before the comma that precedes the field.

use serde::de::IgnoredAny;
use serde::ser::Error as _;
use serde::{Deserialize, Serialize};

/// The last field of a sealed object.
pub const CONTENT_HASH: &str = "content_hash";

/// The result of checking the hash in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    Intact,
    /// The text does not match its hash.
    Broken,
    /// The text has no hash.
    Absent,
}

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

/// Compares `text`, a JSON object, with its hash.
///
/// # Errors
/// If it has no hash that it matches, and is not a JSON object.
pub fn check_seal(text: &str) -> serde_json::Result<Seal> {
    #[derive(Deserialize)]
    struct SealedFields {
        content_hash: Option<IgnoredAny>,
    }
    let end_bytes = end_of(&[]).len();
    let parts = text.len().checked_sub(end_bytes).and_then(|at| text.split_at_checked(at));
    if parts.is_some_and(|(content, end)| end == end_of(content.as_bytes())) {
        return Ok(Seal::Intact);
    }
    let fields: SealedFields = serde_json::from_str(text)?;
    Ok(if fields.content_hash.is_some() { Seal::Broken } else { Seal::Absent })
}
