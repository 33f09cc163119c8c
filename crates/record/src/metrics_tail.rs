//! The latest lines of a metrics file, read from its end.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::metrics::{MetricLine, TrainLine};
use super::summary::median;
use runner_files::open_regular;
use runner_spec::event::Evaluation;

/// The latest lines of a metrics file: enough for a list, however long the run.
#[derive(Default)]
pub(super) struct MetricsTail {
    pub(super) train: Option<TrainLine>,
    pub(super) eval: Option<Evaluation>,
    pub(super) tokens_per_second: Option<f64>,
}

/// The number of bytes that are read from the end, about a thousand lines; `MAX_TAIL_BYTES` if there is no evaluation in them.
const TAIL_BYTES: u64 = 256 << 10;
const MAX_TAIL_BYTES: u64 = 64 << 20;

impl MetricsTail {
    /// Reads the end of the metrics in `path`. A missing or unreadable file has no lines.
    pub(super) fn read(path: &Path) -> Self {
        let (tail, whole) = Self::read_window(path, TAIL_BYTES);
        if whole || tail.eval.is_some() { tail } else { Self::read_window(path, MAX_TAIL_BYTES).0 }
    }

    /// Reads the last `window` bytes. Returns true if that is the whole file.
    fn read_window(path: &Path, window: u64) -> (Self, bool) {
        let read = || -> std::io::Result<(Vec<u8>, bool)> {
            let mut file = open_regular(path)?;
            let from = file.metadata()?.len().saturating_sub(window);
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(window).read_to_end(&mut bytes)?;
            Ok((bytes, from == 0))
        };
        let Ok((bytes, whole)) = read() else { return (Self::default(), true) };
        let mut tail = Self::default();
        let mut rates = Vec::new();
        for line in bytes.split(|&b| b == b'\n') {
            match serde_json::from_slice(line) {
                Ok(MetricLine::Train(train)) => {
                    rates.extend(train.tokens_per_second);
                    tail.train = Some(train);
                }
                Ok(MetricLine::Eval(eval)) => tail.eval = Some(eval),
                Err(_) => {}
            }
        }
        tail.tokens_per_second = median(&mut rates);
        (tail, whole)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;

    use super::*;
    use crate::run_dir::METRICS;

    #[test]
    fn an_evaluation_far_back_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(METRICS);
        let mut text = "{\"kind\":\"eval\",\"step\":1,\"val_loss\":2.5}\n".to_owned();
        for step in 0..20_000 {
            writeln!(text, "{{\"kind\":\"train\",\"step\":{step},\"loss\":2.0,\"tokens\":1}}").unwrap();
        }
        assert!(text.len() as u64 > 2 * TAIL_BYTES);
        fs::write(&path, text).unwrap();
        let tail = MetricsTail::read(&path);
        assert_eq!((tail.eval.unwrap().val_loss(), tail.train.unwrap().step), (Some(2.5), 19_999));
    }
}
