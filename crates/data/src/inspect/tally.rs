//! Counts of tokens as they come by.

use super::report::{Documents, Frequent, Sample, Vocabulary};
use crate::tokenizer::TextTokenizer;

/// Ids from here on are counted together: no vocabulary is that large, and a file can say anything.
const ABSURD: u32 = 1 << 24;
/// Of the beginning of a document.
const SAMPLE_TOKENS: usize = 400;

pub(super) struct Tally {
    counts: Vec<u64>,
    absurd: u64,
    highest: u32,
    pub(super) tokens: u64,
    pub(super) documents: Documents,
    /// Tokens of the document that is being read.
    length: u64,
    /// How many documents are kept, and their beginnings.
    wanted: usize,
    samples: Vec<(u64, Vec<u32>)>,
    current: Vec<u32>,
}

impl Tally {
    pub(super) fn new(wanted: usize) -> Self {
        let (counts, samples, current) = (Vec::new(), Vec::new(), Vec::new());
        let documents = Documents::default();
        Self { counts, absurd: 0, highest: 0, tokens: 0, documents, length: 0, wanted, samples, current }
    }

    /// Takes a token; `content` unless it stands between documents.
    #[inline]
    pub(super) fn token(&mut self, id: u32, content: bool) {
        self.tokens += 1;
        self.highest = self.highest.max(id);
        match self.counts.get_mut(id as usize) {
            Some(count) => *count += 1,
            None if id < ABSURD => {
                self.counts.resize((id as usize + 1).next_power_of_two(), 0);
                self.counts[id as usize] = 1;
            }
            None => self.absurd += 1,
        }
        if content {
            self.length += 1;
            if self.samples.len() < self.wanted && self.current.len() < SAMPLE_TOKENS {
                self.current.push(id);
            }
        }
    }

    /// The document that was read ends here. Returns its length.
    pub(super) fn end(&mut self) -> u64 {
        self.documents.add(self.length);
        if self.samples.len() < self.wanted {
            self.samples.push((self.length, std::mem::take(&mut self.current)));
        }
        std::mem::take(&mut self.length)
    }

    /// Whether a document is being read.
    pub(super) fn is_within(&self) -> bool {
        self.length > 0
    }

    /// The `top` most frequent ids among what was counted.
    pub(super) fn vocabulary(&self, top: usize, tokenizer: Option<&TextTokenizer>) -> Vocabulary {
        let mut ids: Vec<(u32, u64)> = (0..).zip(self.counts.iter().copied()).filter(|&(_, count)| count > 0).collect();
        let used = ids.len() as u64;
        ids.sort_by_key(|&(id, count)| (std::cmp::Reverse(count), id));
        ids.truncate(top);
        let text = |id| tokenizer.map(|tokenizer| tokenizer.decode(&[id]));
        Vocabulary {
            size: tokenizer.map(|tokenizer| tokenizer.vocab_size() as u64),
            used,
            highest: self.highest,
            absurd: self.absurd,
            frequent: ids.into_iter().map(|(id, count)| Frequent { id, count, text: text(id) }).collect(),
        }
    }

    /// The beginnings of the first documents.
    pub(super) fn samples(&self, tokenizer: Option<&TextTokenizer>) -> Vec<Sample> {
        let sample = |(length, ids): &(u64, Vec<u32>)| Sample {
            length: Some(*length),
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
        let mut tally = Tally::new(1);
        for (ids, ends) in [(&[5_u32, 5, 7][..], true), (&[1], true), (&[u32::MAX, 5], true)] {
            for &id in ids {
                tally.token(id, true);
            }
            if ends {
                tally.end();
            }
        }
        assert_eq!((tally.documents.longest, tally.documents.shortest), (Some((0, 3)), Some((1, 1))));
        let vocabulary = tally.vocabulary(2, None);
        assert_eq!((vocabulary.used, vocabulary.highest, vocabulary.absurd), (3, u32::MAX, 1));
        assert_eq!(vocabulary.frequent.iter().map(|f| (f.id, f.count)).collect::<Vec<_>>(), [(5, 3), (1, 1)]);
        let samples = tally.samples(None);
        assert_eq!((samples.len(), samples[0].ids.as_deref()), (1, Some(&[5, 5, 7][..])));
        assert!(!tally.is_within());
    }
}
