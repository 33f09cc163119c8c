//! GPT-2's cutting of text into words: the matches, one after the other, of the regular expression
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. Its look-ahead keeps it from fast engines, which match
//! the rest of it.

use std::sync::LazyLock;

use regex::Regex;

/// The expression without its look-ahead. It matches at every character.
#[expect(clippy::expect_used, reason = "the expression is part of the program, and tests compile it")]
static WORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+").expect("a regular expression")
});

/// The words of `text`, in order.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let word = WORD.find_at(text, start)?.as_str();
        let last = word.chars().next_back()?;
        // `\s+(?!\S)` gives the last blank to the text behind it, unless it is the only one: then `\s+` takes it.
        let shorter = word.len() - last.len_utf8();
        let gives_back = last.is_whitespace() && shorter > 0 && start + word.len() < text.len();
        let word = if gives_back { &word[..shorter] } else { word };
        start += word.len();
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    fn ours(text: &str) -> Vec<(usize, usize)> {
        let mut start = 0;
        let place = |word: &str| {
            start += word.len();
            (start - word.len(), start)
        };
        words(text).map(place).collect()
    }

    fn theirs(text: &str) -> Vec<(usize, usize)> {
        let mut pre = PreTokenizedString::from(text);
        ByteLevel::new(false, true, true).pre_tokenize(&mut pre).unwrap();
        let splits = pre.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, offsets, _)| offsets).collect()
    }

    #[test]
    fn every_code_point_is_of_the_class_that_the_expression_says() {
        let all: Vec<char> = (0..=char::MAX as u32).filter_map(char::from_u32).collect();
        // After a letter, a number, another character: a word ends where the class changes. In pieces of some thousand.
        for lead in ['a', '1', '!'] {
            for part in all.chunks(4096) {
                let text: String = part.iter().flat_map(|&c| [lead, c, '\n']).collect();
                assert_eq!(ours(&text), theirs(&text), "near U+{:04X}", part[0] as u32);
            }
        }
    }

    #[test]
    fn every_text_of_some_tricky_pieces_is_cut_as_the_expression_cuts_it() {
        let pieces = [
            "a",
            "S",
            "'",
            "'s",
            "'LL",
            "'ll",
            "'re",
            " ",
            "\n",
            "\r\n",
            "\t",
            "7",
            "!",
            "é",
            "e\u{301}",
            "\u{3000}",
            "日",
            "٣",
            "\u{a0}",
            "\u{85}",
            "\0",
            "🙂\u{200d}",
            "\u{378}",
            "ⅷ",
        ];
        for i in 0..pieces.len().pow(4) {
            let digit = |place: u32| pieces[i / pieces.len().pow(place) % pieces.len()];
            let text: String = (0..4).map(digit).collect();
            // The slow engine takes a while: every text of three, and some of four.
            if i < pieces.len().pow(3) || i % 41 == 0 {
                assert_eq!(ours(&text), theirs(&text), "{text:?}");
            }
        }
        assert_eq!(ours(""), []);
    }
}
