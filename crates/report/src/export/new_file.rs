//! Exported files appear whole, and replace others only when the user asks for it.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, Write as _};
use std::path::Path;

use super::error::ExportError;
use runner_files::OutputFile;

/// Writes the file `path` with `fill`. Only its owner may read it if `private` is true. Returns what `fill` returns, and the length of the
/// file in bytes. After an error there is no new file.
///
/// # Errors
/// `Exists` if the file exists, unless `force`; the errors of `fill`; `Io` if the folder cannot be written.
pub(super) fn write_new_file<T>(
    path: &Path,
    force: bool,
    private: bool,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<T, ExportError>,
) -> Result<(T, u64), ExportError> {
    let io = |source| ExportError::io(path)(source);
    let io_or_exists = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => ExportError::Exists { path: path.to_owned() },
        _ => io(error),
    };
    let output = OutputFile::create(path, force, private).map_err(io_or_exists)?;
    let mut writer = BufWriter::with_capacity(1 << 20, output.as_file().try_clone().map_err(io)?);
    let filled = fill(&mut writer)?;
    writer.flush().map_err(io)?;
    let bytes = output.as_file().metadata().map_err(io)?.len();
    output.finish().map_err(io_or_exists)?;
    Ok((filled, bytes))
}
