//! How much of the text of one split occurs in another: windows of tokens are hashed, and looked up at every position.
//!
//! A window is about [`WINDOW_BYTES`] of text in one document, or a whole document that is shorter. Hashes have 64 bits, so among a billion
//! positions and a few thousand windows a false match has a probability below one in a million.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::error::Result;
use super::hashing::{hash_parts, split_mix};
use super::prepare::{Preparation, SourceTokens};
use super::tokenizer::TextTokenizer;
use runner_spec::data::{DataPart, SplitFacts, TextOverlap};

/// The text of a window: a few lines. Shorter pieces recur by chance, most of all in text that is made of templates.
const WINDOW_BYTES: f64 = 160.0;
/// The least and the most tokens of a window.
const WINDOW_TOKENS: RangeInclusive<f64> = 16.0..=160.0;
/// Bytes per token if they are unknown: English text with a vocabulary of 50,000.
const USUAL_TOKEN_BYTES: f64 = 4.0;
/// Shorter documents, as a share of a window, recur by chance: headings, say.
const MIN_DOCUMENT: usize = 5;
/// Windows that are drawn from a split.
const MAX_WINDOWS: u64 = 2048;
/// Tokens that a thread reads at a time.
const CHUNK: u64 = 1 << 22;
/// The base of the rolling hash: an odd number whose bits look random.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;
/// The bits of a hash that the filter in front of the table uses.
const FILTER_BITS: u32 = 17;

/// The tokens of a split.
#[derive(Clone, Copy)]
struct SplitTokens<'a> {
    tokens: &'a SourceTokens,
    range: &'a Range<u64>,
    /// The token between documents; `None` if their positions are in the store, or there is one document.
    separator: Option<u32>,
    /// Tokens of a window.
    window: usize,
}

/// The windows of a split that were looked up in another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct WindowCounts {
    windows: u64,
    /// Those that occur in the other split.
    found: u64,
    /// Windows that were drawn from the other split in the same way, and how many of them occur in it more than once.
    drawn: u64,
    repeated: u64,
}

impl Preparation<'_> {
    /// Looks for the text of the tokens `range` in the splits `read`. The cache remembers the result for each pair of contents.
    pub(super) fn find_overlaps(
        &self,
        read: &[(DataPart, &SourceTokens, Range<u64>)],
        (tokens, range): (&SourceTokens, &Range<u64>),
        facts: &SplitFacts,
        tokenizer: &TextTokenizer,
    ) -> Result<Vec<TextOverlap>> {
        let separator = tokenizer.end_of_text().filter(|_| self.layout.separates_documents());
        let token_bytes = facts.text.as_ref().map_or(USUAL_TOKEN_BYTES, |text| text.bytes as f64 / facts.tokens as f64);
        let window = (WINDOW_BYTES / token_bytes).ceil().clamp(*WINDOW_TOKENS.start(), *WINDOW_TOKENS.end()) as usize;
        let find = |(with, other, other_range): &(DataPart, &SourceTokens, Range<u64>)| {
            let texts = [
                &*tokens.hash,
                &format!("{range:?}"),
                &*other.hash,
                &format!("{other_range:?} {separator:?} {window}"),
            ];
            let memo = hash_parts(["shared windows 1"].into_iter().chain(texts));
            let counts = self.cache.remember("scans", &memo, || {
                let split = |tokens, range| SplitTokens { tokens, range, separator, window };
                count_shared_windows(split(tokens, range), split(other, other_range))
            })?;
            let WindowCounts { windows, found, drawn, repeated } = counts;
            let window_tokens = window as u64;
            Ok(TextOverlap { with: *with, window_tokens, windows, found, drawn, repeated })
        };
        let overlaps = read.iter().map(find).collect::<Result<Vec<_>>>()?;
        // Documents that are too short for a window are not compared.
        Ok(overlaps.into_iter().filter(|overlap| overlap.windows > 0).collect())
    }
}

/// Draws windows of `split` at even distances, and counts those that occur in `other`.
fn count_shared_windows(split: SplitTokens<'_>, other: SplitTokens<'_>) -> Result<WindowCounts> {
    let (windows, drawn) = (split.draw()?, other.draw()?);
    let table = WindowTable::new(windows.iter().chain(&drawn).copied());
    let chunks: Vec<u64> = (other.range.start..other.range.end).step_by(CHUNK as usize).collect();
    chunks.into_par_iter().try_for_each(|start| {
        let end = (start + CHUNK).min(other.range.end);
        // A window that ends in the chunk may start before it.
        let from = start.saturating_sub(other.window as u64 + 1).max(other.range.start);
        other.for_each_window(from..end, &mut |window_end, hash| {
            if window_end > start {
                table.count(hash);
            }
        })
    })?;
    let with =
        |hashes: &[u64], least: u64| hashes.iter().filter(|hash| table.occurrences(**hash) >= least).count() as u64;
    Ok(WindowCounts {
        windows: windows.len() as u64,
        found: with(&windows, 1),
        drawn: drawn.len() as u64,
        repeated: with(&drawn, 2),
    })
}

impl SplitTokens<'_> {
    /// The hashes of windows at even distances.
    fn draw(self) -> Result<Vec<u64>> {
        let length = self.range.end - self.range.start;
        let count = (length / self.window as u64).clamp(1, MAX_WINDOWS);
        // At least one window is whole, wherever documents start: the rest of a document, a separator, a document, a separator.
        let needed = 2 * (self.window as u64 + 1);
        let mut hashes = Vec::new();
        for i in 0..count {
            let start = self.range.start + (u128::from(length) * u128::from(i) / u128::from(count)) as u64;
            let end = (start + needed).min(self.range.end);
            let mut first = None;
            self.for_each_window(start..end, &mut |_, hash| {
                first.get_or_insert(hash);
            })?;
            hashes.extend(first);
        }
        Ok(hashes)
    }

    /// Calls `take` with the end and the hash of each window within `range`.
    fn for_each_window(self, range: Range<u64>, take: &mut impl FnMut(u64, u64)) -> Result<()> {
        let (stream, bounds) = (&self.tokens.stream, self.range);
        let mut window = RollingWindow::new(self.window);
        let store = self.tokens.store.as_ref().filter(|_| self.separator.is_none());
        let mut start = range.start;
        let mut document = store.map(|store| store.documents_before(start + 1)).transpose()?.unwrap_or(0);
        while start < range.end {
            let end = match store {
                Some(store) if document < store.document_count => store.document_start(document)?.max(start),
                _ => range.end,
            };
            window.begin(match store {
                Some(store) if document > 0 => store.document_start(document - 1)? == start,
                _ => start == bounds.start,
            });
            let mut position = start;
            stream.read(start, end.min(range.end) - start, |token| {
                position += 1;
                if Some(token) == self.separator {
                    window.whole_document().into_iter().for_each(|hash| take(position, hash));
                    window.begin(true);
                } else {
                    window.push(token).into_iter().for_each(|hash| take(position, hash));
                }
            })?;
            let ends_document = match store {
                Some(store) if document < store.document_count => end <= range.end,
                _ => range.end == bounds.end,
            };
            if ends_document {
                window.whole_document().into_iter().for_each(|hash| take(position, hash));
            }
            (start, document) = (end, document + 1);
        }
        Ok(())
    }
}

/// The hash of the last tokens of a document: the sum of their mixed ids, each times a power of [`BASE`].
struct RollingWindow {
    hash: u64,
    /// The mixed ids of the last tokens, in a ring, and where the next one goes.
    last: Vec<u64>,
    next: usize,
    /// The weight of the token that leaves the window.
    oldest_weight: u64,
    /// Tokens since the beginning.
    count: usize,
    /// True if the first of these tokens starts a document.
    starts_document: bool,
}

impl RollingWindow {
    fn new(length: usize) -> Self {
        let oldest_weight = BASE.wrapping_pow(length as u32);
        Self { hash: 0, last: vec![0; length], next: 0, oldest_weight, count: 0, starts_document: false }
    }

    fn begin(&mut self, starts_document: bool) {
        self.last.fill(0);
        (self.hash, self.next, self.count, self.starts_document) = (0, 0, 0, starts_document);
    }

    /// Appends `token`. Returns the hash of the window that ends with it, if that is full.
    fn push(&mut self, token: u32) -> Option<u64> {
        let mixed = mix(token);
        let oldest = std::mem::replace(&mut self.last[self.next], mixed);
        self.next = if self.next + 1 == self.last.len() { 0 } else { self.next + 1 };
        self.hash =
            self.hash.wrapping_mul(BASE).wrapping_add(mixed).wrapping_sub(oldest.wrapping_mul(self.oldest_weight));
        self.count += 1;
        (self.count >= self.last.len()).then_some(self.hash)
    }

    /// The hash of the tokens since the beginning, if they are a whole document that is shorter than a window.
    fn whole_document(&self) -> Option<u64> {
        let length = self.last.len();
        (self.starts_document && (length / MIN_DOCUMENT..length).contains(&self.count)).then_some(self.hash)
    }
}

/// A number without pattern for each id.
fn mix(token: u32) -> u64 {
    split_mix(u64::from(token).wrapping_add(1).wrapping_mul(BASE))
}

/// Counts how often windows occur.
struct WindowTable {
    occurrences: HashMap<u64, AtomicU64>,
    /// A bit for each value of a hash's highest bits. It fits into the nearest cache, and rules out almost all positions.
    filter: Vec<u64>,
}

impl WindowTable {
    fn new(hashes: impl Iterator<Item = u64>) -> Self {
        let mut filter = vec![0; 1 << (FILTER_BITS - 6)];
        let mut occurrences = HashMap::new();
        for hash in hashes {
            let bit = hash >> (64 - FILTER_BITS);
            filter[(bit >> 6) as usize] |= 1 << (bit & 63);
            occurrences.insert(hash, AtomicU64::new(0));
        }
        Self { occurrences, filter }
    }

    fn count(&self, hash: u64) {
        let bit = hash >> (64 - FILTER_BITS);
        if self.filter[(bit >> 6) as usize] >> (bit & 63) & 1 == 1
            && let Some(occurrences) = self.occurrences.get(&hash)
        {
            occurrences.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn occurrences(&self, hash: u64) -> u64 {
        self.occurrences.get(&hash).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: &[u32]) -> Vec<u64> {
        let mut window = RollingWindow::new(32);
        tokens.iter().filter_map(|&token| window.push(token)).collect()
    }

    #[test]
    fn equal_windows_have_equal_hashes_wherever_they_are() {
        let text: Vec<u32> = (0..40).map(|i| i * i % 97).collect();
        let elsewhere: Vec<u32> = [3, 1, 4, 1, 5].into_iter().chain(text.iter().copied()).collect();
        assert_eq!(hashes(&text), hashes(&elsewhere)[5..]);
        let mut changed = text.clone();
        changed[20] += 1;
        assert!(hashes(&changed).iter().zip(hashes(&text)).all(|(a, b)| *a != b));
        let mut swapped = text;
        swapped.swap(10, 11);
        assert_ne!(hashes(&swapped)[0], hashes(&elsewhere)[5], "the order counts");
    }
}
