//! Hashes of what the cache keeps, so that damage on disk is found before a value is used.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::layout::HASHES;
use crate::error::{DataError, Result};
use crate::fingerprint::{hash_file, hash_parts};

/// A small value, and a hash of it and of its name.
#[derive(Serialize, Deserialize)]
pub(super) struct SealedMemo {
    value: Value,
    blake3: String,
}

impl SealedMemo {
    /// Seals `value` under its name; `None` if it has no form in JSON.
    pub(super) fn new(kind: &str, name: &str, value: &impl Serialize) -> Option<Self> {
        let value = serde_json::to_value(value).ok()?;
        let blake3 = Self::hash(kind, name, &value);
        Some(Self { value, blake3 })
    }

    /// The value; `None` if it does not have its hash, or is of another type.
    pub(super) fn open<T: DeserializeOwned>(self, kind: &str, name: &str) -> Option<T> {
        if self.blake3 != Self::hash(kind, name, &self.value) {
            return None;
        }
        serde_json::from_value(self.value).ok()
    }

    fn hash(kind: &str, name: &str, value: &Value) -> String {
        hash_parts([kind, name, &value.to_string()])
    }
}

/// Writes the hashes of all files in `folder` beside them.
pub(super) fn write_hashes(folder: &Path) -> Result<()> {
    let path = folder.join(HASHES);
    let bytes = serde_json::to_vec(&file_hashes(folder)?).map_err(|error| DataError::file(&path, error.to_string()))?;
    fs::write(&path, bytes).map_err(DataError::io(&path))
}

/// Checks that the files of `folder` are those whose hashes were written.
///
/// # Errors
/// `Damaged` if one differs or is missing, or there are no hashes, as in entries of earlier versions.
pub(super) fn check_hashes(folder: &Path) -> Result<()> {
    let known = fs::read(folder.join(HASHES)).ok();
    let known = known.and_then(|bytes| serde_json::from_slice::<BTreeMap<String, String>>(&bytes).ok());
    let Some(known) = known else { return Err(DataError::damaged(folder, format!("it has no {HASHES}"))) };
    let found = file_hashes(folder)?;
    match known.iter().find(|(name, hash)| found.get(*name) != Some(hash)) {
        None => Ok(()),
        Some((name, _)) => Err(DataError::damaged(folder, format!("{name} does not have its hash"))),
    }
}

fn file_hashes(folder: &Path) -> Result<BTreeMap<String, String>> {
    let mut hashes = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(DataError::io(folder))? {
        let entry = entry.map_err(DataError::io(folder))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != HASHES && entry.file_type().is_ok_and(|kind| kind.is_file()) {
            hashes.insert(name, hash_file(&entry.path(), &|_| ())?);
        }
    }
    Ok(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memo_is_opened_under_its_name_only_and_unchanged() {
        let text = serde_json::to_string(&SealedMemo::new("scans", "a", &(7_u64, u64::MAX)).unwrap()).unwrap();
        let open =
            |text: &str, name| serde_json::from_str::<SealedMemo>(text).unwrap().open::<(u64, u64)>("scans", name);
        assert_eq!(open(&text, "a"), Some((7, u64::MAX)));
        assert_eq!(open(&text, "b"), None);
        assert_eq!(open(&text.replacen('7', "3", 1), "a"), None);
    }
}
