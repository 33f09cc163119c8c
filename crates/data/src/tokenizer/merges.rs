//! Byte-level byte-pair merging of words, with a table of words that were merged before. It gives the tokens of the `tokenizers`
//! crate's model, several times faster. `gpt2_words.rs` cuts text into words.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde_json::Value;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

/// Longer words, in bytes, are left to the crate, whose time does not grow with the square of the length.
pub(super) const MAX_MERGED_WORD: usize = 128;
/// The rank of a pair that is not merged.
const NONE: u64 = u64::MAX;

/// The merges of a vocabulary whose tokens are strings of bytes.
pub(super) struct BytePairMerges {
    /// The token of each byte.
    bytes: [u32; 256],
    /// By left and right token: the rank in the upper half, the merged token in the lower.
    pairs: HashMap<u64, u64, BuildHasherDefault<PairHasher>>,
}

impl BytePairMerges {
    /// The merges of `model`, the BPE model of a tokenizer.json; `None` if it does more than merge bytes.
    pub(super) fn new(model: &Value) -> Option<Self> {
        let is_off = |key: &str| match model.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => true,
            Some(Value::String(text)) => text.is_empty(),
            Some(_) => false,
        };
        let plain =
            ["dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"].into_iter().all(is_off);
        if !plain {
            return None;
        }
        let vocabulary = model.get("vocab")?.as_object()?;
        let id = |token: &str| vocabulary.get(token).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
        let mut bytes = [0; 256];
        for (byte, character) in byte_characters() {
            // Without a token for a byte, the model may drop the byte or write another token.
            bytes[usize::from(byte)] = id(character.encode_utf8(&mut [0; 4]))?;
        }
        let mut pairs = HashMap::default();
        for (rank, merge) in (0_u64..).zip(model.get("merges")?.as_array()?) {
            let (left, right) = match merge {
                Value::Array(both) => (both.first()?.as_str()?, both.get(1)?.as_str()?),
                Value::String(both) => both.split_once(' ')?,
                _ => return None,
            };
            let made = id(&format!("{left}{right}"))?;
            pairs.insert(pair(id(left)?, id(right)?), rank << 32 | u64::from(made));
        }
        Some(Self { bytes, pairs })
    }

    fn merge_of(&self, left: u32, right: u32) -> u64 {
        self.pairs.get(&pair(left, right)).copied().unwrap_or(NONE)
    }

    /// Appends the tokens of `word`, of at most [`MAX_MERGED_WORD`] bytes, to `out`. The pair with the lowest rank is merged, the leftmost
    /// first, until no pair has a merge.
    pub(super) fn encode(&self, word: &[u8], out: &mut Vec<u32>) {
        let start = out.len();
        out.extend(word.iter().map(|&byte| self.bytes[usize::from(byte)]));
        let ids = &mut out[start..];
        let mut count = ids.len();
        // The merge of each id with the next one.
        let mut merges = [NONE; MAX_MERGED_WORD];
        for (merge, pair) in merges.iter_mut().zip(ids.windows(2)) {
            *merge = self.merge_of(pair[0], pair[1]);
        }
        while count > 1 {
            let (mut at, mut lowest) = (0, NONE);
            for (i, &merge) in merges[..count - 1].iter().enumerate() {
                if merge < lowest {
                    (at, lowest) = (i, merge);
                }
            }
            if lowest == NONE {
                break;
            }
            ids[at] = lowest as u32;
            ids.copy_within(at + 2..count, at + 1);
            merges.copy_within(at + 1..count - 1, at);
            count -= 1;
            for changed in at.saturating_sub(1)..(count - 1).min(at + 1) {
                merges[changed] = self.merge_of(ids[changed], ids[changed + 1]);
            }
        }
        out.truncate(start + count);
    }
}

/// Each byte with the character that stands for it in vocabularies.
pub(super) fn byte_characters() -> Vec<(u8, char)> {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = (256..).filter_map(char::from_u32);
    let mut characters: Vec<_> = (0..=255).filter(|&b| is_printable(b)).map(|b| (b, char::from(b))).collect();
    characters.extend((0..=255).filter(|&b| !is_printable(b)).filter_map(|b| Some((b, next.next()?))));
    debug_assert!(characters.iter().all(|(_, c)| ByteLevel::alphabet().contains(c)));
    characters.sort_unstable();
    characters
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// A hasher of pairs. Pairs come from a vocabulary, so deliberate collisions cannot occur.
#[derive(Default)]
pub(super) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// Bytes of a word that an entry of the table holds; the next byte is its length.
const MAX_ENTRY_WORD: usize = 31;
/// Tokens that an entry holds.
const MAX_ENTRY_TOKENS: usize = 7;
/// The table has 2^16 entries in 4 MiB, enough for nearly every word of a text.
const LOG2_ENTRIES: u32 = 16;

/// A word and its tokens, in one cache line.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct WordEntry {
    word: [u64; 4],
    count: u32,
    tokens: [u32; MAX_ENTRY_TOKENS],
}

/// The tokens of words that were merged before. Each word has one place, where it replaces an earlier word, so that the size of the table
/// is fixed. The content of the table changes only how long encoding takes.
pub(super) struct WordTable(Vec<WordEntry>);

impl WordTable {
    pub(super) fn new() -> Self {
        Self(vec![WordEntry { word: [0; 4], count: 0, tokens: [0; MAX_ENTRY_TOKENS] }; 1 << LOG2_ENTRIES])
    }

    /// Appends the tokens of the word at `start..end` of `text` to `out`.
    #[inline]
    pub(super) fn encode(
        &mut self,
        merges: &BytePairMerges,
        text: &[u8],
        start: usize,
        end: usize,
        out: &mut Vec<u32>,
    ) {
        let length = end - start;
        if length > MAX_ENTRY_WORD {
            return merges.encode(&text[start..end], out);
        }
        let word = word_key(text, start, length);
        let mut hash = word[0].wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word[1].wrapping_mul(0xd6e8_feb8_6659_fd93);
        hash ^= (word[2].wrapping_mul(0xa076_1d64_78bd_642f) ^ word[3]).wrapping_mul(0xe703_7ed1_a0b4_28db);
        let place = (hash ^ hash >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - LOG2_ENTRIES);
        let entry = &mut self.0[place as usize];
        if entry.word == word {
            match entry.count {
                1 => out.push(entry.tokens[0]),
                count => out.extend_from_slice(&entry.tokens[..(count as usize).min(MAX_ENTRY_TOKENS)]),
            }
            return;
        }
        let before = out.len();
        merges.encode(&text[start..end], out);
        let made = &out[before..];
        if let Some(tokens) = entry.tokens.get_mut(..made.len()) {
            tokens.copy_from_slice(made);
            (entry.word, entry.count) = (word, made.len() as u32);
        }
    }
}

/// The `length` bytes of `text` from `start`, padded with zeros, with the length in the last byte.
#[inline]
fn word_key(text: &[u8], start: usize, length: usize) -> [u64; 4] {
    let mut bytes = [0; 32];
    match text.get(start..).and_then(|rest| rest.first_chunk::<32>()) {
        Some(chunk) => bytes = *chunk,
        None => bytes[..length].copy_from_slice(&text[start..start + length]),
    }
    let mut word = [0; 4];
    for (i, (word, bytes)) in word.iter_mut().zip(bytes.as_chunks::<8>().0).enumerate() {
        // The number of bits of this part that belong to the word.
        let bits = (length * 8).saturating_sub(i * 64).min(64);
        let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        *word = u64::from_le_bytes(*bytes) & mask;
    }
    word[3] |= (length as u64) << 56;
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "a" … with merges that make every power of two, and pairs that compete.
    fn merges() -> BytePairMerges {
        let mut vocabulary: HashMap<String, u32> =
            byte_characters().into_iter().map(|(byte, c)| (c.to_string(), u32::from(byte))).collect();
        let made =
            [("a", "b"), ("b", "c"), ("a", "a"), ("aa", "aa"), ("ab", "c"), ("aaaa", "aaaa"), ("c", "a"), ("aa", "ab")];
        for (i, (left, right)) in (256..).zip(made) {
            vocabulary.insert(format!("{left}{right}"), i);
        }
        let merges: Vec<_> = made.iter().map(|(left, right)| [left, right]).collect();
        BytePairMerges::new(&serde_json::json!({"vocab": vocabulary, "merges": merges})).unwrap()
    }

    #[test]
    fn the_pair_of_lowest_rank_is_merged_first() {
        let merges = merges();
        let mut state = 1_u32;
        for length in 1..=MAX_MERGED_WORD {
            for _ in 0..25 {
                let word: Vec<u8> = (0..length)
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        b"aaabc"[(state >> 16) as usize % 5]
                    })
                    .collect();
                let mut tokens = Vec::new();
                merges.encode(&word, &mut tokens);
                assert_eq!(tokens, merge_by_scanning(&merges, &word), "{}", String::from_utf8_lossy(&word));
            }
        }
        let mut out = Vec::new();
        merges.encode(b"aaaab", &mut out);
        assert_eq!(out, [258, 97, 256], "a b first, then a a, the left one");
    }

    /// Scans all pairs for each merge.
    fn merge_by_scanning(merges: &BytePairMerges, word: &[u8]) -> Vec<u32> {
        let mut ids: Vec<u32> = word.iter().map(|&byte| merges.bytes[usize::from(byte)]).collect();
        while let Some((merge, at)) = (1..ids.len()).map(|i| (merges.merge_of(ids[i - 1], ids[i]), i)).min()
            && merge != NONE
        {
            ids[at - 1] = merge as u32;
            ids.remove(at);
        }
        ids
    }

    #[test]
    fn a_table_gives_what_merging_gives() {
        let (merges, mut table) = (merges(), WordTable::new());
        let text = "aabc abc\0 a aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \0\0 \0 b".as_bytes();
        for start in 0..text.len() {
            for end in start + 1..=text.len() {
                for _ in 0..2 {
                    let (mut direct, mut looked_up) = (Vec::new(), Vec::new());
                    merges.encode(&text[start..end], &mut direct);
                    table.encode(&merges, text, start, end, &mut looked_up);
                    assert_eq!(direct, looked_up);
                }
            }
        }
    }

    #[test]
    fn models_that_do_more_are_left_alone() {
        let vocabulary: HashMap<String, u32> =
            byte_characters().into_iter().map(|(byte, c)| (c.to_string(), u32::from(byte))).collect();
        let model = serde_json::json!({"vocab": vocabulary, "merges": [], "dropout": null, "ignore_merges": false});
        assert!(BytePairMerges::new(&model).is_some());
        for (key, value) in
            [("ignore_merges", true.into()), ("end_of_word_suffix", "</w>".into()), ("dropout", 0.1.into())]
        {
            let mut other = model.clone();
            other[key] = value;
            assert!(BytePairMerges::new(&other).is_none(), "{key}");
        }
        let mut short = model;
        short["vocab"].as_object_mut().unwrap().remove("a");
        assert!(BytePairMerges::new(&short).is_none());
    }
}
