//! Files that are whole or absent: they are written under a temporary name, synced, and renamed. Also which files the program wrote, and
//! the strict readers of JSON, YAML and safetensors headers that other programs may have written.

#![forbid(unsafe_code)]

mod freed_bytes;
mod output_file;
mod own;
mod regular;
pub mod safetensors_header;
pub mod sealed_json;
pub mod strict_json;

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

pub use freed_bytes::{FreedBytes, bytes_freed};
pub use output_file::OutputFile;
use own::RANDOM_CHARACTERS;
pub use own::{
    TEMPORARY_PREFIX, children, foreign_path, has_only, is_number, is_older_than, is_real_folder, is_temporary_name,
    leftovers, remove_abandoned, remove_all, temporary_prefix,
};
pub use regular::{
    append_owned, create_owned_dir, open_owned, open_regular, read_log_end, read_regular, read_regular_text,
    special_file_kind,
};
pub use tempfile::{NamedTempFile, TempDir};

/// Some editors write this character in front of UTF-8. It is not part of the text.
pub const BYTE_ORDER_MARK: char = '\u{FEFF}';

/// The text `bytes` without the byte order mark in front of it.
pub fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    let mut mark = [0; 4];
    bytes.strip_prefix(BYTE_ORDER_MARK.encode_utf8(&mut mark).as_bytes()).unwrap_or(bytes)
}

/// The folder that holds `path`: `.` for a bare file name.
pub fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

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

fn new_temporary_file(folder: &Path, prefix: &str, private: bool) -> io::Result<NamedTempFile> {
    // By default, only the owner could read a temporary file.
    let mode = if private { 0o600 } else { 0o666 };
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).rand_bytes(RANDOM_CHARACTERS).permissions(fs::Permissions::from_mode(mode));
    builder.tempfile_in(folder).map_err(|error| without_temporary_name(&error))
}

/// The result of an operation on a file or folder; `None` if that is missing.
///
/// # Errors
/// Those of the operation, apart from `NotFound`.
pub fn if_present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// True if there is nothing at `path`. A path that cannot be looked at counts as present, so that opening it says why.
pub fn is_absent(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

/// True if `path` is a file that its owner alone may read and write.
pub fn is_private_file(path: &Path) -> bool {
    const GROUP_AND_OTHERS: u32 = 0o077;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & GROUP_AND_OTHERS == 0)
}

/// Makes the content of `file` durable and renames it to `path` in the same folder. Without `replace`, an existing file stays.
///
/// # Errors
/// `AlreadyExists` if `path` exists and `replace` is false; `InvalidInput` if it is a folder, a pipe, a device or a socket; or if the file
/// cannot be synced or renamed.
pub fn put_in_place(file: NamedTempFile, path: &Path, replace: bool) -> io::Result<()> {
    if let Some(kind) = special_file_kind(path) {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("this is {kind}, which no file replaces")));
    }
    file.as_file().sync_all()?;
    let renamed = if replace { file.persist(path) } else { file.persist_noclobber(path) };
    renamed.map_err(|error| error.error)?;
    sync_dir(parent_folder(path))
}

/// The text of an error of reading or writing a file, with what to do about a full disk.
pub fn explain_io_error(error: &io::Error) -> String {
    // A writer of a format may have wrapped the error of the operating system.
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |&cause| cause.source());
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    let is_limit =
        |kind: &ErrorKind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
    match kinds.find(is_limit) {
        Some(ErrorKind::FileTooLarge) => "the file is larger than `ulimit -f` or the file system allows".to_owned(),
        Some(ErrorKind::StorageFull) => "the disk is full: make room first".to_owned(),
        Some(_) => "the disk quota is used up: make room first".to_owned(),
        None => error.to_string(),
    }
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

/// Creates the folder `path` and the missing folders above it, and makes their entries durable.
///
/// # Errors
/// If one of them cannot be created or synced.
pub fn create_dir_all(path: &Path) -> io::Result<()> {
    // The empty path is the working directory.
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = parent_folder(path);
    create_dir_all(parent)?;
    match fs::create_dir(path) {
        // Another process may have been faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => {}
        created => created?,
    }
    sync_dir(parent)
}

/// `error` without the path of the temporary file, which says nothing to a user.
fn without_temporary_name(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.split_once(" at path ").map_or(text.as_str(), |(before, _)| before);
    io::Error::new(error.kind(), text.to_owned())
}

/// Makes the entries of the folder `path` durable.
///
/// # Errors
/// If the folder cannot be opened or synced.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
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

    #[test]
    fn folders_are_created_where_they_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/c");
        create_dir_all(&path).unwrap();
        create_dir_all(&path).unwrap();
        create_dir_all(Path::new("")).unwrap();
        assert!(path.is_dir());
        fs::write(path.join("file"), "").unwrap();
        assert!(create_dir_all(&path.join("file")).is_err() && create_dir_all(&path.join("file/d")).is_err());
    }

    #[test]
    fn a_full_disk_is_explained_whatever_wraps_its_error() {
        #[derive(Debug, thiserror::Error)]
        #[error("the format's writer failed")]
        struct Wrapped(#[source] io::Error);
        let full = || io::Error::from(ErrorKind::StorageFull);
        assert_eq!(explain_io_error(&full()), "the disk is full: make room first");
        assert_eq!(explain_io_error(&io::Error::other(Wrapped(full()))), "the disk is full: make room first");
        let other = io::Error::other(Wrapped(ErrorKind::TimedOut.into()));
        assert_eq!(explain_io_error(&other), "the format's writer failed");
    }
}
