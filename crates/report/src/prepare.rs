//! Progress of data preparation.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::screen::{Mode, Screen};
use runner_data::hub::Downloading;
use runner_data::{Progress, SplitName};
use runner_spec::format::{bytes, count, percent};

/// Between lines about the same work where there is no bar.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Decides which of the reports of preparing data are worth a line.
#[derive(Debug)]
pub struct PreparationProgress {
    last_line: Instant,
}

/// What to show of one report.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PreparationText {
    pub line: Option<String>,
    /// Beside the spinner.
    pub message: Option<String>,
}

impl PreparationProgress {
    #[must_use]
    pub fn new() -> Self {
        Self { last_line: Instant::now() }
    }

    /// What to show of `progress`, to a command in `mode`.
    pub fn describe(&mut self, progress: Progress, mode: Mode) -> PreparationText {
        let text = describe(progress);
        if matches!(progress, Progress::CacheHit { .. } | Progress::Done { .. } | Progress::Waiting) {
            return PreparationText { line: Some(text), message: None };
        }
        if mode == Mode::Bar {
            return PreparationText { line: None, message: Some(text) };
        }
        if self.last_line.elapsed() < LINE_INTERVAL {
            return PreparationText::default();
        }
        self.last_line = Instant::now();
        PreparationText { line: Some(text), message: None }
    }
}

impl Default for PreparationProgress {
    fn default() -> Self {
        Self::new()
    }
}

/// Shows reports of preparing data on a screen, from whichever thread they come.
#[derive(Debug)]
pub struct Preparing<'a> {
    screen: &'a Screen,
    progress: Mutex<PreparationProgress>,
}

impl<'a> Preparing<'a> {
    #[must_use]
    pub fn new(screen: &'a Screen) -> Self {
        Self { screen, progress: Mutex::default() }
    }

    pub fn show(&self, progress: Progress) {
        let mut state = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let PreparationText { line, message } = state.describe(progress, self.screen.mode());
        if let Some(line) = line {
            self.screen.line(&line);
        }
        if let Some(message) = message {
            self.screen.message(message);
        }
    }
}

fn split(name: SplitName) -> &'static str {
    match name {
        SplitName::Train => "training",
        SplitName::Validation => "validation",
        SplitName::Test => "test",
    }
}

/// `done` of `total` bytes.
fn part(done: u64, total: u64) -> String {
    let share = if total > 0 { format!(" ({})", percent(done as f64 / total as f64)) } else { String::new() };
    format!("{} of {}{share}", bytes(done), bytes(total))
}

fn describe(progress: Progress) -> String {
    match progress {
        Progress::Downloading(Downloading { file, files, bytes_done, bytes_total, bytes_per_second }) => {
            let of = if files > 1 { format!(" {file} of {files}") } else { String::new() };
            let speed = bytes_per_second / 1e6;
            format!("data   downloading file{of}: {}, {speed:.1} MB/s", part(bytes_done, bytes_total))
        }
        Progress::Hashing { split: s, bytes_done, bytes_total } => {
            format!("data   reading the {} source: {}", split(s), part(bytes_done, bytes_total))
        }
        Progress::Generating => "data   writing the built-in corpus".to_owned(),
        Progress::Waiting => "data   another process prepares the same data; waiting for it".to_owned(),
        Progress::TrainingTokenizer { bytes_done, bytes_total } => {
            format!("data   making the tokenizer: {}", part(bytes_done, bytes_total))
        }
        Progress::Tokenizing { split: s, bytes_done, bytes_total, tokens } => {
            format!("data   tokenizing {}: {}, {} tokens", split(s), part(bytes_done, bytes_total), count(tokens))
        }
        Progress::CacheHit { split: s, tokens } => {
            format!("data   {}: {} tokens, ready", split(s), count(tokens))
        }
        Progress::Done { split: s, tokens, documents } => {
            let documents =
                if documents == 1 { "1 document".to_owned() } else { format!("{} documents", count(documents)) };
            format!("data   {}: {} tokens of {documents}", split(s), count(tokens))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_words() {
        let train = SplitName::Train;
        assert_eq!(
            describe(Progress::Tokenizing { split: train, bytes_done: 512, bytes_total: 1024, tokens: 1234 }),
            "data   tokenizing training: 512 B of 1.00 KiB (50.0%), 1,234 tokens"
        );
        assert_eq!(
            describe(Progress::Done { split: train, tokens: 5, documents: 1 }),
            "data   training: 5 tokens of 1 document"
        );
        assert!(describe(Progress::Hashing { split: train, bytes_done: 0, bytes_total: 0 }).ends_with("0 B of 0 B"));
    }
}
