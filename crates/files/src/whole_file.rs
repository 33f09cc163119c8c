//! Writes files under temporary names and renames them once they are complete.

use std::fs;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::{NamedTempFile, TempDir};

use super::file_system::{is_private_file, parent_folder, sync_dir};
use super::own::{RANDOM_CHARACTERS, TEMPORARY_PREFIX};
use super::regular::special_file_kind;

/// Creates a file in `folder` under a temporary name that no other process uses. The umask decides who may read it. It is removed
/// when it is dropped before `put_in_place`.
///
/// # Errors
/// If the file cannot be created.
pub fn temporary_file(folder: &Path) -> io::Result<NamedTempFile> {
    new_temporary_file(folder, TEMPORARY_PREFIX, false)
}

/// Creates a file as [`temporary_file`] does. Only its owner may read and write it.
///
/// # Errors
/// If the file cannot be created.
pub fn private_temporary_file(folder: &Path) -> io::Result<NamedTempFile> {
    new_temporary_file(folder, TEMPORARY_PREFIX, true)
}

pub(crate) fn new_temporary_file(folder: &Path, prefix: &str, private: bool) -> io::Result<NamedTempFile> {
    // By default, only the owner could read a temporary file.
    let mode = if private { 0o600 } else { 0o666 };
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).rand_bytes(RANDOM_CHARACTERS).permissions(fs::Permissions::from_mode(mode));
    builder.tempfile_in(folder).map_err(|error| without_temporary_name(&error))
}

/// Makes the content of `file` durable and renames it to `path` in the same folder. Without `replace`, an existing file stays.
///
/// # Errors
/// `AlreadyExists` if `path` exists and `replace` is false; `InvalidInput` if it is a folder, a pipe, a device or a socket; or if the file
/// cannot be synced or renamed.
pub fn put_in_place(file: NamedTempFile, path: &Path, replace: bool) -> io::Result<()> {
    if let Some(kind) = special_file_kind(path) {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("this is {kind}, which a file cannot replace")));
    }
    file.as_file().sync_all()?;
    let renamed = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    renamed.map_err(|error| error.error)?;
    sync_dir(parent_folder(path))
}

/// Creates a folder in `folder` under a temporary name that begins with `prefix` and that no other process uses. It is removed when
/// it is dropped.
///
/// # Errors
/// If the folder cannot be created.
pub fn temporary_dir(folder: &Path, prefix: &str) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix(prefix)
        .rand_bytes(RANDOM_CHARACTERS)
        .tempdir_in(folder)
        .map_err(|error| without_temporary_name(&error))
}

/// `error` without the path of the temporary file, which means nothing to a user.
fn without_temporary_name(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split_once(" at path ").map_or(text.as_str(), |(before, _)| before);
    io::Error::new(error.kind(), text.to_owned())
}

/// Replaces the file `path` with `bytes`. After a kill at any moment it holds the old content or the new. Several processes may
/// write the same file at the same time: the last one wins. A private file stays private.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic_as(path, bytes, is_private_file(path))
}

/// Does what [`write_atomic`] does. If `private` is true, only the owner of the file may read it.
///
/// # Errors
/// If the folder cannot be written to.
pub fn write_atomic_as(path: &Path, bytes: &[u8], private: bool) -> io::Result<()> {
    let folder = parent_folder(path);
    let mut file = if private { private_temporary_file(folder) } else { temporary_file(folder) }?;
    // The errors of the file itself do not name its temporary path.
    file.as_file_mut().write_all(bytes)?;
    put_in_place(file, path, true)
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
    fn a_private_file_stays_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_atomic_as(&path, b"1", true).unwrap();
        write_atomic(&path, b"2").unwrap();
        assert!(is_private_file(&path) && fs::read(&path).unwrap() == b"2");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn an_existing_file_stays_unless_it_may_be_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "old").unwrap();
        let kept = put_in_place(temporary_file(dir.path()).unwrap(), &path, false).unwrap_err();
        assert_eq!(kept.kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(parent_folder(Path::new("a")), Path::new("."));
    }
}
