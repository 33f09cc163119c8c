//! Files that are whole or not there: written beside their place, synced, renamed.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use super::error::StoreError;

/// Small JSON files are not read past this many bytes.
const MAX_SMALL: u64 = 64 << 20;

/// A plan of the most that is planned, a million passes, takes about this many.
const MAX_PLAN: u64 = 4 << 30;

/// Makes a folder's entries durable.
pub fn sync_dir(path: &Path) -> Result<(), StoreError> {
    runner_files::sync_dir(path).map_err(StoreError::io("syncing", path))
}

/// Replaces `path` with `bytes`; after a kill at any moment it holds the old content or the new.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    runner_files::write_atomic(path, bytes).map_err(StoreError::io("writing", path))
}

/// `value` as indented JSON, atomically.
pub fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StoreError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| StoreError::damaged(path, e.to_string()))?;
    bytes.push(b'\n');
    write_atomic(path, &bytes)
}

/// A small text file; one that is larger than any of ours is refused.
pub fn read_small(path: &Path) -> Result<String, StoreError> {
    read_up_to(path, MAX_SMALL)
}

fn read_up_to(path: &Path, most: u64) -> Result<String, StoreError> {
    let file = File::open(path).map_err(StoreError::io("reading", path))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(StoreError::io("reading", path))?;
    if bytes.len() as u64 > most {
        return Err(StoreError::damaged(path, format!("larger than {most} bytes: not a file of a run")));
    }
    String::from_utf8(bytes).map_err(|_| StoreError::damaged(path, "not UTF-8 text"))
}

/// A plan lists the instructions of every rank.
pub fn read_plan<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let text = read_up_to(path, MAX_PLAN)?;
    serde_json::from_str(&text).map_err(|e| StoreError::damaged(path, e.to_string()))
}

pub fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let text = read_small(path)?;
    serde_json::from_str(&text).map_err(|e| StoreError::damaged(path, e.to_string()))
}

/// Gives the file `from` a second name, or where the file system cannot, copies it and makes the copy durable. For files
/// that nobody changes in place.
pub fn link_or_copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copy = || -> std::io::Result<()> {
        std::io::copy(&mut File::open(from)?, &mut File::create_new(to)?)?;
        File::open(to)?.sync_all()
    };
    copy().map_err(StoreError::io("copying", from))
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
    fn an_unwritable_place_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let error = write_atomic(&dir.path().join("file/a.json"), b"x").unwrap_err().to_string();
        assert!(error.starts_with("writing ") && error.contains("file/a.json"), "{error}");
    }

    #[test]
    fn full_and_forbidden_disks_are_explained() {
        let full = StoreError::io("writing", Path::new("a"))(std::io::ErrorKind::StorageFull.into());
        assert!(full.to_string().contains("the disk is full"));
        let denied = StoreError::io("creating", Path::new("runs"))(std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().contains("must be writable"));
    }
}
