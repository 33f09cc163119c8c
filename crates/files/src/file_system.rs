//! Looks at paths, creates folders, makes entries durable, and explains what went wrong.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// The folder that holds `path`: `.` for a bare file name.
pub fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
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

/// True if there is nothing at `path`. A path that cannot be looked at counts as present, so that opening it reports the reason.
pub fn is_absent(path: &Path) -> bool {
    fs::metadata(path).is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
}

/// True if `path` is a file that its owner alone may read and write.
pub fn is_private_file(path: &Path) -> bool {
    const GROUP_AND_OTHERS: u32 = 0o077;
    fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & GROUP_AND_OTHERS == 0)
}

/// True if the file system has locks in principle, and gives none now.
#[must_use]
pub fn is_lock_service_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENOLCK)
}

/// The text of an error of reading or writing a file, with what to do about a full disk, or about NFS without locks.
pub fn explain_io_error(error: &io::Error) -> String {
    // A writer of a format may have wrapped the error of the operating system.
    let causes = std::iter::successors(Some(error as &(dyn Error + 'static)), |&cause| cause.source());
    let mut kinds = causes.filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    let is_limit =
        |kind: &ErrorKind| matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge);
    if is_lock_service_gone(error) {
        return "file locks are unavailable (ENOLCK): on NFS the lock service may not run; start it, or mount with \
                `local_lock=flock` if only this machine uses the folder"
            .to_owned();
    }
    match kinds.find(is_limit) {
        Some(ErrorKind::FileTooLarge) => "the file is larger than `ulimit -f` or the file system allows".to_owned(),
        Some(ErrorKind::StorageFull) => "the disk is full; free some space first".to_owned(),
        Some(_) => "the disk quota is used up; free some space first".to_owned(),
        None => error.to_string(),
    }
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

/// Makes the entries of the folder `path` durable.
///
/// # Errors
/// If the folder cannot be opened or synced.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(explain_io_error(&full()), "the disk is full; free some space first");
        assert_eq!(explain_io_error(&io::Error::other(Wrapped(full()))), "the disk is full; free some space first");
        let other = io::Error::other(Wrapped(ErrorKind::TimedOut.into()));
        assert_eq!(explain_io_error(&other), "the format's writer failed");
    }
}
