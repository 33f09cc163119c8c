//! Hashes of the files of an entry, so that damage on disk is found before they are used.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::layout::HASHES;
use crate::error::{DataError, Result};
use crate::hashing::hash_file;
use runner_files::read_regular;

/// Writes the hashes of all files in `folder` beside them.
pub(super) fn write_hashes(folder: &Path) -> Result<()> {
    let path = folder.join(HASHES);
    let bytes = serde_json::to_vec(&file_hashes(folder)?).map_err(|error| DataError::file(&path, error.to_string()))?;
    fs::write(&path, bytes).map_err(DataError::io(&path))
}

/// Checks that the files of `folder` are those whose hashes were written.
///
/// # Errors
/// `Damaged` if one differs or is missing, or there are no hashes.
pub(super) fn check_hashes(folder: &Path) -> Result<()> {
    let known = read_regular(&folder.join(HASHES)).ok();
    let known = known.and_then(|bytes| serde_json::from_slice::<BTreeMap<String, String>>(&bytes).ok());
    let Some(known) = known else { return Err(DataError::damaged(folder, format!("{HASHES} cannot be read"))) };
    let found = file_hashes(folder)?;
    match known.iter().find(|(name, hash)| found.get(*name) != Some(hash)) {
        None => Ok(()),
        Some((name, _)) => Err(DataError::damaged(folder, format!("{name} does not match its hash"))),
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
