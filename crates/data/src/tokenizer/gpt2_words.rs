//! GPT-2's cutting of text into words, by hand: the matches, one after the other, of the regular expression
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`. Its look-ahead keeps it from the fast engines, so
//! that cutting with it would take longer than everything else.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// The classes of characters that the expression knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CharacterClass {
    Other,
    Letter,
    Number,
    Space,
}

/// The class of each code point, in the Unicode version that the `tokenizers` crate has: the standard library's tables grow with
/// the compiler, and its `char::is_alphabetic` includes marks that are not letters.
static CLASSES: LazyLock<Vec<CharacterClass>> = LazyLock::new(|| {
    let mut classes = vec![CharacterClass::Other; char::MAX as usize + 1];
    for (expression, class) in
        [(r"\p{L}", CharacterClass::Letter), (r"\p{N}", CharacterClass::Number), (r"\s", CharacterClass::Space)]
    {
        for (first, last) in ranges(expression) {
            classes[first as usize..=last as usize].fill(class);
        }
    }
    classes
});

/// The first and last character of each range that `expression`, a class of characters, matches.
fn ranges(expression: &str) -> Vec<(char, char)> {
    match regex_syntax::parse(expression).map(regex_syntax::hir::Hir::into_kind) {
        Ok(HirKind::Class(Class::Unicode(class))) => class.ranges().iter().map(|r| (r.start(), r.end())).collect(),
        _ => unreachable!("{expression} is a class of characters"),
    }
}

/// The words of a text, in order.
pub(super) struct Words<'a> {
    text: &'a str,
    classes: &'static [CharacterClass],
    position: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, classes: &CLASSES, position: 0 }
    }

    /// The class and the length in bytes of the character at byte `at`, which is not the end.
    #[inline]
    fn class_at(&self, at: usize) -> (CharacterClass, usize) {
        let byte = self.text.as_bytes()[at];
        if byte < 128 {
            return (self.classes[usize::from(byte)], 1);
        }
        let character = self.text[at..].chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
        (self.classes[character as usize], character.len_utf8())
    }

    /// The end of the run of characters of `class` that goes through byte `at`.
    #[inline]
    fn end_of_run(&self, class: CharacterClass, mut at: usize) -> usize {
        while at < self.text.len() {
            let (found, length) = self.class_at(at);
            if found != class {
                break;
            }
            at += length;
        }
        at
    }

    /// The end of the word that starts at `start` with white space, whose first character has `first` bytes. If other text follows
    /// the white space, the last blank belongs to the next word.
    fn end_of_space(&self, start: usize, first: usize) -> usize {
        let (mut last, mut end) = (start, start + first);
        while end < self.text.len() {
            let (class, length) = self.class_at(end);
            if class != CharacterClass::Space {
                // `\s+(?!\S)` gives one character back, unless it is the only one: then `\s+` takes it.
                return if last > start { last } else { end };
            }
            last = end;
            end += length;
        }
        end
    }
}

/// The length of the contraction that `bytes` start with, or 0.
fn contraction_length(bytes: &[u8]) -> usize {
    match bytes {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => 2,
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => 3,
        _ => 0,
    }
}

impl Iterator for Words<'_> {
    /// The start and the end of a word, in bytes of the text.
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (start, bytes) = (self.position, self.text.as_bytes());
        let first = *bytes.get(start)?;
        let end = if first == b' ' {
            match bytes.get(start + 1) {
                None => start + 1,
                Some(_) => match self.class_at(start + 1) {
                    (CharacterClass::Space, _) => self.end_of_space(start, 1),
                    (class, length) => self.end_of_run(class, start + 1 + length),
                },
            }
        } else {
            let short = if first == b'\'' { contraction_length(&bytes[start..]) } else { 0 };
            if short > 0 {
                start + short
            } else {
                match self.class_at(start) {
                    (CharacterClass::Space, length) => self.end_of_space(start, length),
                    (class, length) => self.end_of_run(class, start + length),
                }
            }
        };
        self.position = end;
        Some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

    use super::*;

    fn ours(text: &str) -> Vec<(usize, usize)> {
        Words::new(text).collect()
    }

    fn theirs(text: &str) -> Vec<(usize, usize)> {
        let mut pre = PreTokenizedString::from(text);
        ByteLevel::new(false, true, true).pre_tokenize(&mut pre).unwrap();
        let splits = pre.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.into_iter().map(|(_, offsets, _)| offsets).collect()
    }

    /// A different hash means a different Unicode version, in which the tokens of rare characters change.
    #[test]
    fn the_classes_are_those_of_unicode_16() {
        let classes: Vec<u8> = CLASSES.iter().map(|&class| class as u8).collect();
        let hash = blake3::hash(&classes).to_hex();
        assert_eq!(hash.as_str(), "1ee13ebcb6e406b241e77472bb7408bb3d3470433b777497bd075a2609af6ef2");
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
