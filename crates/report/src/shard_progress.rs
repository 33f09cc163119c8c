//! Progress and summary of writing token shards.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::data_progress::share_of_bytes;
use super::screen::Screen;
use runner_data::{ShardEvent, WrittenShards};
use runner_spec::format::{bytes, count, counted, printable, seconds};

/// The speed is the mean over this time.
const SPEED_WINDOW: Duration = Duration::from_secs(20);
/// Width of the bar in characters.
const BAR_WIDTH: usize = 20;

/// Shows the events of writing shards, from any thread.
#[derive(Debug)]
pub struct ShardProgress<'a> {
    screen: &'a Screen,
    /// The moments in the window, with the bytes of text and the tokens written until then.
    window: Mutex<VecDeque<(Instant, u64, u64)>>,
}

impl<'a> ShardProgress<'a> {
    pub fn new(screen: &'a Screen) -> Self {
        Self { screen, window: Mutex::default() }
    }

    /// Shows `event`. Progress of the data's preparation is for [`super::data_progress`].
    pub fn show(&self, event: &ShardEvent<'_>) {
        match *event {
            ShardEvent::Preparing(_) | ShardEvent::Warning(_) => {}
            ShardEvent::Whole(shard) => {
                self.screen.line(&format!("shards {}: {} tokens", printable(&shard.file), count(shard.tokens)));
            }
            ShardEvent::Written { bytes_done, bytes_total, tokens } => {
                let rates = self.bytes_and_tokens_per_second(bytes_done, tokens);
                let text = describe(bytes_done, bytes_total, &count(tokens), rates);
                let share = bytes_done as f64 / bytes_total.max(1) as f64;
                self.screen.progress(&format!("shards {text}"), || format!("{} {text}", bar(share)));
            }
        }
    }

    /// The speed in the window, which now ends with `bytes` and `tokens`.
    fn bytes_and_tokens_per_second(&self, bytes: u64, tokens: u64) -> Option<(f64, f64)> {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        window.push_back((now, bytes, tokens));
        while window.len() > 2 && window.front().is_some_and(|(time, ..)| now - *time > SPEED_WINDOW) {
            window.pop_front();
        }
        let (start, first_bytes, first_tokens) = *window.front()?;
        let time = (now - start).as_secs_f64();
        (time > 0.0).then(|| ((bytes - first_bytes) as f64 / time, (tokens - first_tokens) as f64 / time))
    }
}

/// A bar that is full up to `share`.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * BAR_WIDTH as f64) as usize;
    format!("{}{}", "━".repeat(full), "─".repeat(BAR_WIDTH - full))
}

/// Progress in bytes, with the tokens of this process; `rates` are bytes and tokens per second.
fn describe(done: u64, total: u64, tokens: &str, rates: Option<(f64, f64)>) -> String {
    let mut text = format!("{}, {tokens} tokens", share_of_bytes(done, total));
    if let Some((speed, tokens)) = rates.filter(|rates| rates.0 > 0.0) {
        let left = seconds(total.saturating_sub(done) as f64 / speed);
        let _ = write!(text, ", {:.1} MB/s, {:.2} M tokens/s, {left} left", speed / 1e6, tokens / 1e6);
    }
    text
}

/// The shards that were written to `folder`, in a few lines.
pub fn shard_summary(sharded: &WrittenShards, folder: &str) -> String {
    let card = &sharded.card;
    let mut lines = Vec::new();
    for split in ["train", "val"] {
        let files: Vec<_> = card.shards.iter().filter(|shard| shard.split == split).map(|shard| &shard.file).collect();
        if let (Some(first), Some(last)) = (files.first(), files.last()) {
            let names = if files.len() == 1 { (*first).clone() } else { format!("{first} … {last}") };
            let (tokens, files) = (count(card.tokens_of(split)), counted(files.len() as u64, "file"));
            lines.push(format!("{split:<10} {tokens} tokens, {files}: {}", printable(&names)));
        }
    }
    let per_token = if card.tokens > 0 { card.text_bytes as f64 / card.tokens as f64 } else { 0.0 };
    let (text, documents) = (bytes(card.text_bytes), counted(card.documents, "document"));
    lines.push(format!("text       {text}, {documents}, {per_token:.2} bytes per token"));
    lines.push(format!(
        "vocabulary {} of {} ids used, the highest is {}",
        count(card.tokenizer.used),
        count(card.tokenizer.vocab_size),
        card.tokenizer.highest
    ));
    lines.push(if sharded.up_to_date {
        format!("{folder} is up to date")
    } else {
        let millions_per_second = |n: u64| n as f64 / sharded.seconds.max(1e-9) / 1e6;
        format!(
            "{folder} done in {}: {:.1} MB/s, {:.2} M tokens/s",
            seconds(sharded.seconds),
            millions_per_second(card.text_bytes),
            millions_per_second(card.tokens)
        )
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_speed_and_time_left() {
        let text = describe(1 << 20, 4 << 20, &count(1234), Some((1e6, 250_000.0)));
        assert_eq!(text, "1.00 MiB of 4.00 MiB (25.0%), 1,234 tokens, 1.0 MB/s, 0.25 M tokens/s, 3.1 s left");
        assert_eq!(describe(0, 0, &count(0), None), "0 B of 0 B, 0 tokens");
        assert_eq!(bar(0.5), "━━━━━━━━━━──────────");
        assert_eq!(bar(7.0).chars().count(), 20);
    }
}
