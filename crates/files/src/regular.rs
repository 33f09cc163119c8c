//! Opens regular files, and nothing else. Opening a pipe waits for its other end, and a device may have no end.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Some editors write this character in front of UTF-8. It is not part of the text.
pub const BYTE_ORDER_MARK: char = '\u{FEFF}';

/// The text `bytes` without the byte order mark in front of it.
pub fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    let mut mark = [0; 4];
    bytes.strip_prefix(BYTE_ORDER_MARK.encode_utf8(&mut mark).as_bytes()).unwrap_or(bytes)
}

/// The kind of `path` if it is not a regular file: a folder, a pipe, a device or a socket. `None` if it is a regular file, or there is nothing
/// that can be looked at. Symbolic links are followed.
pub fn special_file_kind(path: &Path) -> Option<&'static str> {
    kind_name(fs::metadata(path).ok()?.file_type())
}

fn kind_name(kind: FileType) -> Option<&'static str> {
    [
        (kind.is_dir(), "a folder"),
        (kind.is_fifo(), "a pipe"),
        (kind.is_char_device() || kind.is_block_device(), "a device"),
        (kind.is_socket(), "a socket"),
    ]
    .into_iter()
    .find_map(|(is_kind, name)| is_kind.then_some(name))
}

/// Opens a regular file for reading. Never waits.
///
/// # Errors
/// `InvalidInput` if `path` is not a regular file; or if it cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_with(File::options().read(true), path, 0)
}

/// Reads a regular file, as [`open_regular`] opens it.
///
/// # Errors
/// Those of [`open_regular`]; or if the file cannot be read.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of text, as [`open_regular`] opens it.
///
/// # Errors
/// Those of [`open_regular`]; or if the file cannot be read or is not UTF-8.
pub fn read_regular_text(path: &Path) -> io::Result<String> {
    io::read_to_string(open_regular(path)?)
}

/// Opens a regular file of a folder that this program owns, such as a run, for writing in place. A symbolic link is refused, because it
/// leads out of the folder.
///
/// # Errors
/// `InvalidInput` if `path` is a link or not a regular file; or if it cannot be opened.
pub fn open_owned(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    refuse_link(path)?;
    open_with(options, path, libc::O_NOFOLLOW)
}

/// Opens a file as [`open_owned`] does, for appending. Creates it if it is missing.
///
/// # Errors
/// Those of [`open_owned`].
pub fn append_owned(path: &Path) -> io::Result<File> {
    open_owned(File::options().append(true).create(true), path)
}

/// Creates the folder `path` in a folder that this program owns, unless it exists. A symbolic link is refused.
///
/// # Errors
/// `InvalidInput` if `path` is a link; or if it cannot be created.
pub fn create_owned_dir(path: &Path) -> io::Result<()> {
    refuse_link(path)?;
    super::file_system::create_dir_all(path)
}

fn refuse_link(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink()) {
        let message = "this is a symbolic link, and runner does not write through links; replace it with its target";
        return Err(io::Error::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

fn open_with(options: &mut OpenOptions, path: &Path, flags: i32) -> io::Result<File> {
    let refused = |kind: &str| io::Error::new(ErrorKind::InvalidInput, format!("this is {kind}, not a file"));
    // Some devices act when they are opened.
    if let Some(kind) = special_file_kind(path) {
        return Err(refused(kind));
    }
    // It may have been replaced since. The flag has no effect on regular files.
    let file = options.custom_flags(libc::O_NONBLOCK | flags).open(path)?;
    match kind_name(file.metadata()?.file_type()) {
        Some(kind) => Err(refused(kind)),
        None => Ok(file),
    }
}

/// Reads the last 64 KiB of the file `log`, from byte `from` on. A log that cannot be read has no text: it only explains an error
/// that is reported anyway.
pub fn read_log_end(log: &Path, from: u64) -> String {
    const MAX_BYTES: u64 = 64 << 10;
    let read = || -> io::Result<Vec<u8>> {
        let mut file = open_regular(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(length.saturating_sub(MAX_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_pipe_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        for error in [read_regular(&path).unwrap_err(), append_owned(&path).unwrap_err()] {
            assert_eq!(
                (error.kind(), error.to_string()),
                (ErrorKind::InvalidInput, "this is a pipe, not a file".into())
            );
        }
        // A link to a file is followed when it is read.
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "text").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_regular_text(&link).unwrap(), "text");
        assert_eq!(read_regular(&dir.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn nothing_is_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("outside"), "theirs").unwrap();
        fs::create_dir(path("folder")).unwrap();
        for (target, link) in [("outside", "log"), ("missing", "new"), ("folder", "sub")] {
            symlink(path(target), path(link)).unwrap();
        }
        for error in [append_owned(&path("log")), append_owned(&path("new"))].map(Result::unwrap_err) {
            assert!(error.to_string().starts_with("this is a symbolic link"), "{error}");
        }
        assert!(create_owned_dir(&path("sub")).is_err() && create_owned_dir(&path("folder")).is_ok());
        assert!(create_owned_dir(&path("other")).is_ok() && path("other").is_dir());
        append_owned(&path("own")).unwrap().write_all(b"a").unwrap();
        append_owned(&path("own")).unwrap().write_all(b"b").unwrap();
        assert_eq!(fs::read(path("own")).unwrap(), b"ab");
        assert_eq!(fs::read(path("outside")).unwrap(), b"theirs");
        assert!(!path("missing").exists());
    }
}
