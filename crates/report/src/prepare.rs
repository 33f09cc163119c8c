//! Progress of data preparation.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::screen::Screen;
use runner_data::hub::Downloading;
use runner_data::{Progress, SplitName};
use runner_spec::format::{bytes, count, percent};

/// Between lines about the same work where there is no bar.
const PAUSE: Duration = Duration::from_secs(5);

/// Shows what preparing reports, from whichever thread.
#[derive(Debug)]
pub struct Preparing<'a> {
    screen: &'a Screen,
    last: Mutex<Instant>,
}

impl<'a> Preparing<'a> {
    #[must_use]
    pub fn new(screen: &'a Screen) -> Self {
        Self { screen, last: Mutex::new(Instant::now()) }
    }

    /// Takes one report.
    pub fn show(&self, progress: Progress) {
        let text = describe(progress);
        if matches!(progress, Progress::CacheHit { .. } | Progress::Done { .. } | Progress::Waiting) {
            self.screen.line(&text);
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.elapsed() >= PAUSE && self.screen.mode() != super::Mode::Bar {
            *last = Instant::now();
            self.screen.line(&text);
        }
        drop(last);
        self.screen.message(text);
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
