//! `log.txt`: the messages that a person saw, with the time of each.

use std::fmt::Write as _;
use std::path::Path;

use super::error::RecordError;
use super::lines::LineFile;
use super::time;
use runner_spec::format::printable;

/// The log of a run, open for appending.
#[derive(Debug)]
pub struct Log(LineFile);

impl Log {
    pub fn append(path: &Path) -> Result<Self, RecordError> {
        LineFile::append(path).map(Self)
    }

    /// Appends `text` under the present time. Its further lines are indented to line up.
    pub fn line(&mut self, text: &str) -> Result<(), RecordError> {
        let now = time::now();
        let mut out = String::new();
        for (i, line) in printable(text).lines().enumerate() {
            let time = if i == 0 { now.as_str() } else { "" };
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{time:24}  {line}");
        }
        self.0.write_bytes(out.as_bytes())
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
