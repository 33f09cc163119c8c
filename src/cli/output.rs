//! Standard output of commands that print a result and end.

use std::io::{self, Write};

use anyhow::Context;

/// Writes `text` to standard output. A reader that closes the pipe early (`runner runs | head -1`) is no error.
///
/// # Errors
/// If it cannot be written for another reason, such as a full disk.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(out: &mut dyn Write, text: &str) -> anyhow::Result<()> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}

/// Writes `value` to standard output as indented JSON.
///
/// # Errors
/// If it cannot be serialized or written.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Writes a line to standard error.
pub(crate) fn complain(text: &str) {
    // Without standard error there is nobody to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fails(io::ErrorKind);

    impl Write for Fails {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is() {
        assert!(print_to(&mut Fails(io::ErrorKind::BrokenPipe), "x").is_ok());
        assert!(print_to(&mut Fails(io::ErrorKind::StorageFull), "x").is_err());
    }
}
