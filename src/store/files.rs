//! Files that are whole or not there: written beside their place, synced, renamed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::error::StoreError;

/// Marks what is not finished; such names are never read, and removed by whoever holds the run.
pub(super) const TEMPORARY: &str = ".tmp-";

/// Small JSON files are not read past this many bytes.
const MAX_SMALL: u64 = 64 << 20;

/// A plan of the most that is planned, a million passes, takes about this many.
const MAX_PLAN: u64 = 4 << 30;

/// A new file in `folder` for what is written there: under a name that no other process has, readable as the user's files
/// are. Dropped without being put in place, it is removed.
pub(crate) fn temporary_file(folder: &Path) -> std::io::Result<tempfile::TempPath> {
    let mut builder = tempfile::Builder::new();
    // By itself it would be the user's alone.
    builder.prefix(TEMPORARY).permissions(fs::Permissions::from_mode(0o666));
    Ok(builder.tempfile_in(folder)?.into_temp_path())
}

/// As `temporary_file`, a folder.
pub(crate) fn temporary_dir(folder: &Path) -> std::io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(folder)
}

/// Makes a folder's entries durable.
pub(super) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    File::open(path).and_then(|f| f.sync_all()).map_err(StoreError::io("syncing", path))
}

/// Replaces `path` with `bytes`; after a kill at any moment it holds the old content or the new.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut name = std::ffi::OsString::from(TEMPORARY);
    name.push(path.file_name().unwrap_or_default());
    let temporary = parent.join(name);
    let write = || -> std::io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().map_err(|source| {
        let _ = fs::remove_file(&temporary);
        StoreError::io("writing", path)(source)
    })?;
    sync_dir(parent)
}

/// `value` as indented JSON, atomically.
pub(super) fn write_json(path: &Path, value: &impl serde::Serialize) -> Result<(), StoreError> {
    let mut bytes = serde_json::to_vec_pretty(value).map_err(|e| StoreError::damaged(path, e.to_string()))?;
    bytes.push(b'\n');
    write_atomic(path, &bytes)
}

/// A small text file; one that is larger than any of ours is refused.
pub(super) fn read_small(path: &Path) -> Result<String, StoreError> {
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
pub(super) fn read_plan<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let text = read_up_to(path, MAX_PLAN)?;
    serde_json::from_str(&text).map_err(|e| StoreError::damaged(path, e.to_string()))
}

pub(super) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let text = read_small(path)?;
    serde_json::from_str(&text).map_err(|e| StoreError::damaged(path, e.to_string()))
}

/// Gives the file `from` a second name, or where the file system cannot, copies it and makes the copy durable. For files
/// that nobody changes in place.
pub(super) fn link_or_copy(from: &Path, to: &Path) -> Result<(), StoreError> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let copy = || -> std::io::Result<()> {
        std::io::copy(&mut File::open(from)?, &mut File::create_new(to)?)?;
        File::open(to)?.sync_all()
    };
    copy().map_err(StoreError::io("copying", from))
}

/// Removes what an earlier, killed process left unfinished in `folder`.
pub(super) fn remove_leftovers(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            let path = entry.path();
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
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
    fn leftovers_go_and_the_rest_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(".tmp-step-1/deep")).unwrap();
        fs::write(dir.path().join(".tmp-x"), "").unwrap();
        fs::write(dir.path().join("kept"), "").unwrap();
        remove_leftovers(dir.path());
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }

    #[test]
    fn full_and_forbidden_disks_are_explained() {
        let full = StoreError::io("writing", Path::new("a"))(std::io::ErrorKind::StorageFull.into());
        assert!(full.to_string().contains("the disk is full"));
        let denied = StoreError::io("creating", Path::new("runs"))(std::io::ErrorKind::PermissionDenied.into());
        assert!(denied.to_string().contains("must be writable"));
    }
}
