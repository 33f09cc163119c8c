//! Progress of data preparation.

use std::fmt::Write as _;

use super::screen::Screen;
use runner_data::Progress;
use runner_data::hub::Downloading;
use runner_spec::format::{bytes, count, counted, percent, seconds};

/// Shows one report of data preparation; may be called from any thread.
pub fn show_data_progress(screen: &Screen, progress: Progress) {
    let text = format!("data   {}", describe(progress));
    match progress {
        Progress::Repairing(_) => screen.warn(&describe(progress)),
        Progress::CacheHit { .. } | Progress::Done { .. } | Progress::Waiting => {
            screen.line(&text);
        }
        _ => screen.progress(&text, || text.clone()),
    }
}

fn describe(progress: Progress) -> String {
    match progress {
        Progress::Downloading(download) => describe_download(&download),
        Progress::Hashing { split, bytes_done, bytes_total } => {
            format!("reading the {} source: {}", split.adjective(), share_of_bytes(bytes_done, bytes_total))
        }
        Progress::Verifying { bytes_done, bytes_total } => {
            format!("verifying shards: {}", share_of_bytes(bytes_done, bytes_total))
        }
        Progress::Repairing(what) => format!("{what} in the cache is damaged and is prepared again"),
        Progress::Generating => "writing the built-in corpus".to_owned(),
        Progress::Waiting => "another process is preparing the same data; waiting for it".to_owned(),
        Progress::TrainingTokenizer { bytes_done, bytes_total } => {
            format!("training the tokenizer: {}", share_of_bytes(bytes_done, bytes_total))
        }
        Progress::Tokenizing { split, bytes_done, bytes_total, tokens } => {
            let share = share_of_bytes(bytes_done, bytes_total);
            format!("tokenizing {}: {share}, {} tokens", split.adjective(), count(tokens))
        }
        Progress::CacheHit { split, tokens, held_out } => {
            format!("{}: {} tokens, ready{}", split.adjective(), count(tokens), describe_held_out(held_out))
        }
        Progress::Done { split, tokens, documents, held_out } => {
            let (tokens, documents) = (count(tokens), counted(documents, "document"));
            format!("{}: {tokens} tokens of {documents}{}", split.adjective(), describe_held_out(held_out))
        }
    }
}

fn describe_held_out(fraction: Option<f64>) -> String {
    let share = fraction.map(percent);
    share.map_or_else(String::new, |share| format!("; the last {share} are held out for validation"))
}

/// `downloading file 3 of 14: 512 B of 1.00 KiB (50.0%), 1.0 MB/s, 2.0 s left`.
pub(crate) fn describe_download(download: &Downloading) -> String {
    let Downloading { file, files, bytes_done, bytes_total, bytes_per_second } = *download;
    let position = if files > 1 { format!(" {file} of {files}") } else { String::new() };
    let mut text = format!("downloading file{position}: {}", share_of_bytes(bytes_done, bytes_total));
    if bytes_per_second > 0.0 {
        let left = seconds(bytes_total.saturating_sub(bytes_done) as f64 / bytes_per_second);
        let _ = write!(text, ", {:.1} MB/s, {left} left", bytes_per_second / 1e6);
    }
    text
}

/// `512 B of 1.00 KiB (50.0%)`.
pub(crate) fn share_of_bytes(done: u64, total: u64) -> String {
    let share = if total > 0 { format!(" ({})", percent(done as f64 / total as f64)) } else { String::new() };
    format!("{} of {}{share}", bytes(done), bytes(total))
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_data::SplitName;

    #[test]
    fn reports_are_words() {
        let train = SplitName::Train;
        assert_eq!(
            describe(Progress::Tokenizing { split: train, bytes_done: 512, bytes_total: 1024, tokens: 1234 }),
            "tokenizing training: 512 B of 1.00 KiB (50.0%), 1,234 tokens"
        );
        assert_eq!(
            describe(Progress::Done { split: train, tokens: 5, documents: 1, held_out: Some(0.2) }),
            "training: 5 tokens of 1 document; the last 20.0% are held out for validation"
        );
        assert_eq!(
            describe(Progress::CacheHit { split: train, tokens: 5, held_out: None }),
            "training: 5 tokens, ready"
        );
        assert!(describe(Progress::Hashing { split: train, bytes_done: 0, bytes_total: 0 }).ends_with("0 B of 0 B"));
    }
}
