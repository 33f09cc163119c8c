//! `log.txt`: what a person would have seen, with times.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::time;

/// The log of a run, open for appending.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
}

impl Log {
    pub fn append(path: &Path) -> Result<Self, StoreError> {
        let file = OpenOptions::new().append(true).create(true).open(path).map_err(StoreError::io("opening", path))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Appends `text` under the present time; further lines of it are indented to line up.
    pub fn line(&mut self, text: &str) -> Result<(), StoreError> {
        let stamp = time::now();
        let mut out = String::new();
        for (i, line) in text.lines().enumerate() {
            let lead = if i == 0 { stamp.as_str() } else { "" };
            let _ = writeln!(out, "{lead:24}  {line}");
        }
        self.file.write_all(out.as_bytes()).map_err(StoreError::io("writing", &self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_carry_the_time_and_line_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.txt");
        Log::append(&path).unwrap().line("one").unwrap();
        Log::append(&path).unwrap().line("two\nthree").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].ends_with("Z  one") && lines[1].ends_with("Z  two"));
        assert_eq!(lines[2], format!("{:24}  three", ""));
    }
}
