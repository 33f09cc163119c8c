//! Counts of tokens and documents.

use super::report::{DocumentCounts, Sample, TokenFrequency, Vocabulary};
use crate::tokenizer::TextTokenizer;

/// Higher ids are counted together: no vocabulary is that large, but a file can hold any number.
const FIRST_ABSURD_ID: u32 = 1 << 24;
/// Tokens of a sample, from the start of its document.
const SAMPLE_TOKENS: usize = 400;

#[derive(Default)]
pub(super) struct TokenTally {
    counts: Vec<u64>,
    impossible_ids: u64,
    highest: u32,
    pub(super) tokens: u64,
    pub(super) documents: DocumentCounts,
    /// The length of the current document.
    length: u64,
    /// The number of samples that are wanted.
    wanted: usize,
    /// The length and the first tokens of a document.
    samples: Vec<(u64, Vec<u32>)>,
    current: Vec<u32>,
}

impl TokenTally {
    pub(super) fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Adds a token. `content` is false for a token between documents.
    #[inline]
    pub(super) fn add(&mut self, id: u32, content: bool) {
        self.tokens += 1;
        self.highest = self.highest.max(id);
        match self.counts.get_mut(id as usize) {
            Some(count) => *count += 1,
            None if id < FIRST_ABSURD_ID => {
                self.counts.resize((id as usize + 1).next_power_of_two(), 0);
                self.counts[id as usize] = 1;
            }
            None => self.impossible_ids += 1,
        }
        if content {
            self.length += 1;
            if self.samples.len() < self.wanted && self.current.len() < SAMPLE_TOKENS {
                self.current.push(id);
            }
        }
    }

    /// Ends the current document.
    pub(super) fn end_document(&mut self) {
        self.documents.add(self.length);
        if self.samples.len() < self.wanted {
            self.samples.push((self.length, std::mem::take(&mut self.current)));
        }
        self.length = 0;
    }

    /// True if the current document has tokens.
    pub(super) fn is_in_document(&self) -> bool {
        self.length > 0
    }

    /// The counts, with the `top` most frequent ids.
    pub(super) fn vocabulary(&self, top: usize, tokenizer: Option<&TextTokenizer>) -> Vocabulary {
        let mut ids: Vec<(u32, u64)> = (0..).zip(self.counts.iter().copied()).filter(|&(_, count)| count > 0).collect();
        let used = ids.len() as u64;
        ids.sort_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        ids.truncate(top);
        let text = |id| tokenizer.map(|tokenizer| tokenizer.piece(id));
        Vocabulary {
            size: tokenizer.map(|tokenizer| tokenizer.vocab_size() as u64),
            used,
            highest: self.highest,
            impossible_ids: self.impossible_ids,
            frequent: ids.into_iter().map(|(id, count)| TokenFrequency { id, count, text: text(id) }).collect(),
        }
    }

    /// The starts of the first documents.
    pub(super) fn samples(&self, tokenizer: Option<&TextTokenizer>) -> Vec<Sample> {
        let sample = |(length, ids): &(u64, Vec<u32>)| Sample {
            length: *length,
            text: tokenizer.map(|tokenizer| tokenizer.decode(ids)),
            ids: tokenizer.is_none().then(|| ids.clone()),
        };
        self.samples.iter().map(sample).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_and_documents_are_counted() {
        let mut tally = TokenTally::new(1);
        for (ids, ends) in [(&[5_u32, 5, 7][..], true), (&[1], true), (&[u32::MAX, 5], true)] {
            for &id in ids {
                tally.add(id, true);
            }
            if ends {
                tally.end_document();
            }
        }
        assert_eq!((tally.documents.longest, tally.documents.shortest), (Some((0, 3)), Some((1, 1))));
        let vocabulary = tally.vocabulary(2, None);
        assert_eq!((vocabulary.used, vocabulary.highest, vocabulary.impossible_ids), (3, u32::MAX, 1));
        assert_eq!(vocabulary.frequent.iter().map(|f| (f.id, f.count)).collect::<Vec<_>>(), [(5, 3), (1, 1)]);
        let samples = tally.samples(None);
        assert_eq!((samples.len(), samples[0].ids.as_deref()), (1, Some(&[5, 5, 7][..])));
        assert!(!tally.is_in_document());
    }
}
