//! Exported files appear whole, and replace others only when the user asks for it.

use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use super::error::ExportError;

/// Writes the file `path` with `fill`. Returns what `fill` returns, and the length of the file in bytes. After an error there is
/// no new file.
///
/// # Errors
/// `Exists` if the file exists, unless `force`; the errors of `fill`; `Io` if the folder cannot be written.
pub(super) fn write_new_file<T>(
    path: &Path,
    force: bool,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<T, ExportError>,
) -> Result<(T, u64), ExportError> {
    let io = |source| ExportError::io(path)(source);
    let exists = || ExportError::Exists { path: path.to_owned() };
    if !force && path.symlink_metadata().is_ok() {
        return Err(exists());
    }
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = runner_files::temporary_file(folder).map_err(io)?;
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(&temporary).map_err(io)?);
    let filled = fill(&mut writer)?;
    let file = writer.into_inner().map_err(|error| io(error.into_error()))?;
    file.sync_all().map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let persisted = if force { temporary.persist(path) } else { temporary.persist_noclobber(path) };
    persisted.map_err(|error| match error.error.kind() {
        io::ErrorKind::AlreadyExists => exists(),
        _ => io(error.error),
    })?;
    Ok((filled, bytes))
}
