//! Exported files appear whole, and replace others only when the user asks for it.

use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write as _};
use std::path::Path;

use runner_files::{OutputFile, explain_io_error};
use runner_spec::error::CommandError;

pub(super) fn already_there(path: &Path) -> CommandError {
    CommandError::request(format!("{} already exists; use `--force` to replace it", path.display()))
}

/// For `map_err`.
pub(super) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> CommandError + '_ {
    move |error| CommandError::failure(format!("writing {}: {}", path.display(), explain_io_error(&error)))
}

/// Writes the file `path` with `fill`. Returns what `fill` returns, and the length of the file in bytes. After an error there is no new file.
///
/// # Errors
/// If the file exists, unless `force`; the errors of `fill`; if the folder cannot be written.
pub(super) fn write_new_file<T>(
    path: &Path,
    force: bool,
    fill: impl FnOnce(&mut BufWriter<File>) -> Result<T, CommandError>,
) -> Result<(T, u64), CommandError> {
    let io = |error| unwritable(path)(error);
    let io_or_exists = |error: io::Error| match error.kind() {
        ErrorKind::AlreadyExists => already_there(path),
        _ => io(error),
    };
    let output = OutputFile::create(path, force, false).map_err(io_or_exists)?;
    let mut writer = BufWriter::with_capacity(1 << 20, output.as_file().try_clone().map_err(io)?);
    let filled = fill(&mut writer)?;
    writer.flush().map_err(io)?;
    let bytes = output.as_file().metadata().map_err(io)?.len();
    output.finish().map_err(io_or_exists)?;
    Ok((filled, bytes))
}
