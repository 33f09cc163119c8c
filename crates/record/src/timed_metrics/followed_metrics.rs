//! Reads the metrics of a run while it trains.

use std::fs::{self, File, Metadata};
use std::io::{BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::timed_record::{Clock, TimedLine, TimedRecord};
use crate::error::RecordError;
use crate::lines::MAX_LINE_BYTES;
use crate::metrics::MetricLine;
use crate::run_dir::METRICS;
use runner_files::{if_present, open_regular};

/// A position in the metrics of a run, to which lines are appended.
#[derive(Debug)]
pub struct MetricTail {
    run: PathBuf,
    reader: Option<OpenedMetrics>,
}

#[derive(Debug)]
struct OpenedMetrics {
    file: BufReader<File>,
    /// Device and number of the file.
    identity: (u64, u64),
    /// Bytes that were read.
    offset: u64,
    clock: Clock,
}

fn identity(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

impl MetricTail {
    /// The beginning of the metrics of the run directory `run`.
    pub fn new(run: &Path) -> Self {
        Self { run: run.to_owned(), reader: None }
    }

    /// The next whole lines, at most `limit`. It starts over with the first line if the record was cut back since the last call.
    ///
    /// # Errors
    /// If the manifest or the metrics cannot be read.
    pub fn read_new(&mut self, limit: usize) -> Result<Vec<TimedLine>, RecordError> {
        let path = self.run.join(METRICS);
        let found = if_present(fs::metadata(&path)).map_err(RecordError::io("reading", &path))?;
        let Some(found) = found else { return Ok(Vec::new()) };
        let opened = self.reader.take();
        let opened = opened.filter(|opened| opened.identity == identity(&found) && opened.offset <= found.len());
        let opened = if let Some(opened) = opened {
            opened
        } else {
            let file = open_regular(&path).map_err(RecordError::io("reading", &path))?;
            let identity = identity(&file.metadata().map_err(RecordError::io("reading", &path))?);
            let clock = TimedRecord::open(&self.run)?.clock();
            OpenedMetrics { file: BufReader::new(file), identity, offset: 0, clock }
        };
        self.reader.insert(opened).read_lines(limit).map_err(RecordError::io("reading", &path))
    }
}

impl OpenedMetrics {
    fn read_lines(&mut self, limit: usize) -> std::io::Result<Vec<TimedLine>> {
        let mut lines = Vec::new();
        let mut buffer = Vec::new();
        while lines.len() < limit {
            buffer.clear();
            let read = self.file.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut buffer)?;
            if !buffer.ends_with(b"\n") && (read as u64) < MAX_LINE_BYTES {
                // The rest of the line is not written yet.
                self.file.seek(SeekFrom::Start(self.offset))?;
                break;
            }
            self.offset += read as u64;
            // Damaged lines are left out, as by all readers of the record.
            if let Ok(line) = serde_json::from_slice::<MetricLine>(&buffer) {
                lines.push(self.clock.advance(&line));
            }
        }
        Ok(lines)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::lines::cut_after_step;
    use crate::testing::{eval, timed_run, train};
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn lines_are_read_as_they_come() {
        let root = tempfile::tempdir().unwrap();
        let plan = compiled(&experiment());
        let sessions = [(0, "2026-01-01T00:00:00.000Z")];
        let path = timed_run(root.path(), &plan, &sessions, &(train(1, "3.0") + "{\"kind\":\"tra"));
        let append = |text: &str| {
            let mut file = File::options().append(true).open(path.join(METRICS)).unwrap();
            file.write_all(text.as_bytes()).unwrap();
        };
        let mut tail = MetricTail::new(&path);
        let mut read = |limit| tail.read_new(limit).unwrap().iter().map(|line| line.step).collect::<Vec<_>>();
        assert_eq!(read(9), [1]);
        assert_eq!(read(9), [0; 0]);
        append(&("in\",\"step\":2,\"tokens\":8}\nrubbish\n".to_owned() + &train(3, "2.0") + &eval(3, "1.0")));
        assert_eq!(read(2), [2, 3]);
        assert_eq!(read(9), [3]);
        cut_after_step(&path.join(METRICS), Some(2)).unwrap();
        append(&train(3, "2.0"));
        assert_eq!(read(9), [1, 2, 3]);
    }
}
