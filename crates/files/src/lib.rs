//! Files that are whole or not there: written beside their place, synced, renamed. Every crate that writes a file goes through here.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The prefix of names of files and folders that are not finished. They are never read, and are removed by whoever owns the folder.
pub const TEMPORARY: &str = ".tmp-";

/// A new file in `folder`, under a name that no other process has, readable as the user's other files are. Dropped without being
/// put in place, it is removed.
///
/// # Errors
/// If it cannot be created.
pub fn temporary_file(folder: &Path) -> io::Result<tempfile::TempPath> {
    let mut builder = tempfile::Builder::new();
    // The default permissions of a temporary file are for its owner alone.
    builder.prefix(TEMPORARY).permissions(fs::Permissions::from_mode(0o666));
    Ok(builder.tempfile_in(folder)?.into_temp_path())
}

/// A new folder in `folder`, under a name that no other process has, removed when it is dropped.
///
/// # Errors
/// If it cannot be created.
pub fn temporary_dir(folder: &Path) -> io::Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(folder)
}

/// Makes the entries of the folder `path` durable.
///
/// # Errors
/// If the folder cannot be opened or synced.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Replaces the file `path` with `bytes`. After a kill at any moment it holds the old content or the new.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let parent = path.parent().unwrap_or(Path::new("."));
    let mut name = std::ffi::OsString::from(TEMPORARY);
    name.push(path.file_name().unwrap_or_default());
    let temporary = parent.join(name);
    let write = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    write().inspect_err(|_| {
        // The error of the write matters more than that of this removal.
        let _ = fs::remove_file(&temporary);
    })?;
    sync_dir(parent)
}

/// Removes what an earlier, killed process left unfinished in `folder`.
pub fn remove_leftovers(folder: &Path) {
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
        write_atomic(&path, b"1").unwrap();
        write_atomic(&path, b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn leftovers_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(".tmp-step-1/deep")).unwrap();
        fs::write(dir.path().join(".tmp-x"), "").unwrap();
        fs::write(dir.path().join("kept"), "").unwrap();
        remove_leftovers(dir.path());
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }
}
