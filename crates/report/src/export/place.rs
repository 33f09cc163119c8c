//! Files that appear whole, and replace others only when told to.

use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tempfile::NamedTempFile;

use super::error::ExportError;

/// A file in the making beside its place.
pub(super) type Draft = BufWriter<NamedTempFile>;

/// # Errors
/// `Exists`, unless `force`; if the folder cannot be written.
pub(super) fn begin(path: &Path, force: bool) -> Result<Draft, ExportError> {
    if !force && path.symlink_metadata().is_ok() {
        return Err(ExportError::Exists { path: path.to_owned() });
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // As any new file: the user's umask says who may read it.
    let permissions = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().prefix(".tmp-").permissions(permissions).tempfile_in(folder);
    Ok(BufWriter::with_capacity(1 << 20, file.map_err(ExportError::io(path))?))
}

/// Puts the file in place, all of it on disk; the number of its bytes.
///
/// # Errors
/// `Exists`, if one came there meanwhile and not `force`; if it cannot be written.
pub(super) fn finish(draft: Draft, path: &Path, force: bool) -> Result<u64, ExportError> {
    let io = |source| ExportError::io(path)(source);
    let file = draft.into_inner().map_err(|error| io(error.into_error()))?;
    file.as_file().sync_all().map_err(io)?;
    let bytes = file.as_file().metadata().map_err(io)?.len();
    let persisted = if force { file.persist(path) } else { file.persist_noclobber(path) };
    persisted.map(|_| bytes).map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => ExportError::Exists { path: path.to_owned() },
        _ => io(error.error),
    })
}

/// `draft` flushed, for writers that want a file of their own.
pub(super) fn flush(draft: &mut Draft, path: &Path) -> Result<(), ExportError> {
    draft.flush().map_err(ExportError::io(path))
}
