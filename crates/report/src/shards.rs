//! Progress and summary of writing token shards.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Mode;
use super::screen::Screen;
use runner_data::{ShardEvent, Sharded};
use runner_spec::format::{bytes, count, percent, printable, seconds};

/// Between lines about the same work where there is no bar.
const PAUSE: Duration = Duration::from_secs(5);
/// Speed is that of this time.
const WINDOW: Duration = Duration::from_secs(20);
/// Cells of the bar.
const CELLS: usize = 20;

/// Shows what writing shards reports, from whichever thread.
#[derive(Debug)]
pub struct Sharding<'a> {
    screen: &'a Screen,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    last_line: Instant,
    /// When how much text and how many tokens were written.
    marks: VecDeque<(Instant, u64, u64)>,
}

impl<'a> Sharding<'a> {
    #[must_use]
    pub fn new(screen: &'a Screen) -> Self {
        Self { screen, seen: Mutex::new(Seen { last_line: Instant::now(), marks: VecDeque::new() }) }
    }

    /// Takes one report.
    pub fn show(&self, event: &ShardEvent<'_>) {
        match *event {
            ShardEvent::Preparing(_) => {}
            ShardEvent::Resumed { shards, tokens } => {
                let text = format!("shards going on behind {} and {} tokens", plural(shards, "shard"), count(tokens));
                self.screen.line(&text);
            }
            ShardEvent::Whole(shard) => {
                self.screen.line(&format!("shards {}: {} tokens", printable(&shard.file), count(shard.tokens)));
            }
            ShardEvent::Written { bytes_done, bytes_total, tokens, bytes } => {
                let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                let now = Instant::now();
                seen.marks.push_back((now, bytes, tokens));
                while seen.marks.len() > 2 && seen.marks.front().is_some_and(|mark| now - mark.0 > WINDOW) {
                    seen.marks.pop_front();
                }
                let rates = match (seen.marks.front(), seen.marks.back()) {
                    (Some(first), Some(last)) if last.0 > first.0 => {
                        let time = (last.0 - first.0).as_secs_f64();
                        Some(((last.1 - first.1) as f64 / time, (last.2 - first.2) as f64 / time))
                    }
                    _ => None,
                };
                let line = seen.last_line.elapsed() >= PAUSE && self.screen.mode() != Mode::Bar;
                if line {
                    seen.last_line = now;
                }
                drop(seen);
                let text = describe(bytes_done, bytes_total, rates);
                if line {
                    self.screen.line(&format!("shards {text}"));
                }
                self.screen.message(format!("{} {text}", bar(bytes_done as f64 / bytes_total.max(1) as f64)));
            }
        }
    }
}

fn plural(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

/// `share` of a bar.
fn bar(share: f64) -> String {
    let full = (share.clamp(0.0, 1.0) * CELLS as f64) as usize;
    format!("{}{}", "━".repeat(full), "─".repeat(CELLS - full))
}

/// `rates`: bytes and tokens a second.
fn describe(done: u64, total: u64, rates: Option<(f64, f64)>) -> String {
    let mut text = format!("{} of {} ({})", bytes(done), bytes(total), percent(done as f64 / total.max(1) as f64));
    if let Some((speed, tokens)) = rates.filter(|rates| rates.0 > 0.0) {
        let left = seconds(total.saturating_sub(done) as f64 / speed);
        let _ = write!(text, ", {:.1} MB/s, {:.2} M tokens/s, {left} left", speed / 1e6, tokens / 1e6);
    }
    text
}

/// What was made, in some lines.
#[must_use]
pub fn summary(made: &Sharded, folder: &str) -> String {
    let card = &made.card;
    let mut lines = Vec::new();
    for split in ["train", "val"] {
        let shards: Vec<_> = card.shards.iter().filter(|shard| shard.split == split).collect();
        if let (Some(first), Some(last)) = (shards.first(), shards.last()) {
            let names =
                if shards.len() == 1 { first.file.clone() } else { format!("{} … {}", first.file, last.file) };
            lines.push(format!(
                "{split:<10} {} tokens, {}: {}",
                count(card.tokens_of(split)),
                plural(shards.len() as u64, "file"),
                printable(&names)
            ));
        }
    }
    let per_token = if card.tokens > 0 { card.text_bytes as f64 / card.tokens as f64 } else { 0.0 };
    lines.push(format!(
        "text       {}, {}, {per_token:.2} bytes a token",
        bytes(card.text_bytes),
        plural(card.documents, "document")
    ));
    lines.push(format!(
        "vocabulary {} of {} ids used, the highest is {}",
        count(card.tokenizer.used),
        count(card.tokenizer.vocab_size),
        card.tokenizer.highest
    ));
    lines.push(if made.up_to_date {
        format!("{folder} is up to date")
    } else {
        let rate = |n: u64| n as f64 / made.seconds.max(1e-9) / 1e6;
        format!(
            "{folder} done in {}: {:.1} MB/s, {:.2} M tokens/s",
            seconds(made.seconds),
            rate(made.bytes),
            rate(made.tokens)
        )
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_speed_and_time_left() {
        let text = describe(1 << 20, 4 << 20, Some((1e6, 250_000.0)));
        assert_eq!(text, "1.00 MiB of 4.00 MiB (25.0%), 1.0 MB/s, 0.25 M tokens/s, 3.1 s left");
        assert_eq!(describe(0, 0, None), "0 B of 0 B (0.0%)");
        assert_eq!(bar(0.5), "━━━━━━━━━━──────────");
        assert_eq!(bar(7.0).chars().count(), 20);
    }
}
