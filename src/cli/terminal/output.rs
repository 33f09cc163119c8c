//! Standard output and error of commands that print a result and end, and the files that they write.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result, refuse};
use runner_files::{OutputFile, parent_folder, special_file_kind};
use runner_record::RecordError;
use runner_report::{Screen, is_reader_gone};
use runner_spec::format::printable;
use runner_spec::safe_text::{SafeJson, terminal_text};

/// Writes `text` for a person to standard output, without characters that steer a terminal. A reader that closes the pipe early
/// (`runner runs | head -1`), or its terminal, is not an error.
///
/// # Errors
/// If it cannot be written for another reason, such as a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(&mut io::stdout().lock(), &terminal_text(text))
}

/// Writes `text` for other programs, such as a script, to standard output. Only a terminal gets it without characters that steer it.
///
/// # Errors
/// Those of [`print`].
pub(crate) fn print_content(text: &str) -> Result<()> {
    let shown = if console::user_attended() { Cow::Owned(printable(text)) } else { Cow::Borrowed(text) };
    print_to(&mut io::stdout().lock(), &shown)
}

fn print_to(out: &mut dyn Write, text: &str) -> Result<()> {
    ignore_closed_pipe(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

fn ignore_closed_pipe(written: io::Result<()>) -> Result<()> {
    match written {
        Err(error) if !is_reader_gone(&error) => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Writes the result of a command to standard output: `value` as indented JSON if `json` is true, else `text`.
///
/// # Errors
/// If it cannot be serialized or written.
pub(crate) fn print_result(json: bool, value: &impl serde::Serialize, text: impl FnOnce() -> String) -> Result<Exit> {
    if json {
        print_json(value)?;
    } else {
        print(&text())?;
    }
    Ok(Exit::Done)
}

/// Returns `exit` if all output of `screen` was written. A closed pipe is not an error.
///
/// # Errors
/// The first error in writing to standard output.
pub(crate) fn exit_of_screen(screen: &Screen, exit: Exit) -> Result<Exit> {
    screen.output_result().context("standard output (records and files are complete)")?;
    Ok(exit)
}

/// The width of tables on standard output, in characters: the variable COLUMNS, or the terminal's width; `None` if there is neither.
pub(crate) fn table_width() -> Option<usize> {
    let terminal = console::Term::stdout();
    let given = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok()).filter(|columns| *columns > 0);
    given.or_else(|| terminal.is_term().then(|| terminal.size().1.into()))
}

/// Writes `value` to standard output as indented JSON, piece by piece: the text of a plan with many ranks may not fit in memory.
///
/// # Errors
/// If it cannot be serialized or written.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print_json_to(io::stdout().lock(), value)
}

fn print_json_to(out: impl Write, value: &impl serde::Serialize) -> Result<()> {
    let mut out = SafeJson(io::BufWriter::with_capacity(64 << 10, out));
    ignore_closed_pipe(match serde_json::to_writer_pretty(&mut out, value) {
        Ok(()) => out.write_all(b"\n").and_then(|()| out.flush()),
        Err(error) if error.is_io() => Err(error.into()),
        Err(error) => return Err(error.into()),
    })
}

/// Refuses to replace a folder, a pipe, a device or a socket at `path`, or a file without `--force`.
///
/// # Errors
/// A request if there is one of these, or a file and `force` is false.
pub(crate) fn check_replaceable(path: &Path, force: bool) -> Result<()> {
    if let Some(kind) = special_file_kind(path) {
        refuse!("{} is {kind}; name a file", printable(&path.display().to_string()));
    }
    if !force && path.symlink_metadata().is_ok() {
        refuse!("{} already exists; use `--force` to replace it", printable(&path.display().to_string()));
    }
    Ok(())
}

/// Writes the file `path` whole or not at all, in a folder that is created if there is none.
///
/// # Errors
/// A request if there is a file that must not be replaced; if it cannot be written, with what to do about it.
pub(crate) fn write_file(path: &Path, bytes: &[u8], replace: bool) -> Result<()> {
    write_file_as(path, bytes, replace, false)
}

/// Does what [`write_file`] does. If `private` is true, only the owner of the file may read it.
///
/// # Errors
/// Those of [`write_file`].
pub(crate) fn write_file_as(path: &Path, bytes: &[u8], replace: bool, private: bool) -> Result<()> {
    check_replaceable(path, replace)?;
    let target = OutputFile::target(path).map_err(|error| describe_write_error(path, error))?;
    let folder = parent_folder(&target);
    let written = runner_files::create_dir_all(folder).and_then(|()| {
        let output = OutputFile::create(path, replace, private)?;
        output.as_file().write_all(bytes)?;
        output.finish()
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            let (path, folder) = (path.display(), folder.display());
            CommandError::failure(format!(
                "cannot write {path}; make the folder {folder} writable, or name a file in a different folder"
            ))
        }
        _ => describe_write_error(path, error),
    })
}

/// The error of writing the file or folder `path`, with what to do about it.
pub(crate) fn describe_write_error(path: &Path, error: io::Error) -> CommandError {
    RecordError::io("writing", path)(error).into()
}

/// Writes a line to standard error, without characters that steer a terminal.
pub(crate) fn print_to_stderr(text: &str) {
    // A failure of standard error cannot be reported.
    let _ = writeln!(io::stderr(), "{}", terminal_text(text));
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Fails(ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        // Nobody may write there, not even the superuser.
        let error = write_file(Path::new("/proc/runner-report.html"), b"", true).unwrap_err().to_string();
        assert!(error.starts_with("writing /proc/runner-report.html") || error.contains("folder /proc"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/proc/runner-report.html", &link).unwrap();
        let error = write_file(&link, b"", true).unwrap_err().to_string();
        assert!(error.starts_with("writing ") || error.contains("folder /proc "), "{error}");
        let path = folder.path().join("new/report.html");
        write_file(&path, b"page", true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"page");
    }

    #[test]
    fn a_full_disk_is_an_error_but_a_closed_pipe_is_not() {
        assert!(print_to(&mut Fails(ErrorKind::BrokenPipe), "x").is_ok());
        assert!(print_to(&mut Fails(ErrorKind::StorageFull), "x").is_err());
        let long = vec![0; 1 << 20];
        assert!(print_json_to(Fails(ErrorKind::BrokenPipe), &long).is_ok());
        assert!(print_json_to(Fails(ErrorKind::StorageFull), &long).is_err());
    }
}
