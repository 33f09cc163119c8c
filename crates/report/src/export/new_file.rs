//! Exported files appear whole, and replace others only when the user asks for it.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::Path;

use super::error::ExportError;
use runner_files::{parent_folder, put_in_place, temporary_file};

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
    let temporary = temporary_file(parent_folder(path)).map_err(io)?;
    let mut writer = BufWriter::with_capacity(1 << 20, File::create(&temporary).map_err(io)?);
    let filled = fill(&mut writer)?;
    writer.flush().map_err(io)?;
    let bytes = temporary.as_file().metadata().map_err(io)?.len();
    put_in_place(temporary, path, force).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists(),
        _ => io(error),
    })?;
    Ok((filled, bytes))
}
