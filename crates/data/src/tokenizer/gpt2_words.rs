//! GPT-2's cutting of text into words, exactly: what the regular expression
//! `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+` matches, one match after the other, by hand: the
//! expression's look-ahead keeps it from the fast engines, and cutting would take longer than all the rest.

use std::sync::OnceLock;

use super::letters::{LETTERS, NUMBERS};

/// What a character is to the expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Letter,
    Number,
    Space,
}

/// Code points in a block of the table.
const BLOCK: usize = 256;

/// Classes of all code points: blocks that are alike are kept once.
struct Table {
    /// By code point / 256: which block.
    index: Vec<u16>,
    blocks: Vec<[Class; BLOCK]>,
}

static TABLE: OnceLock<Table> = OnceLock::new();

/// The classes of the ASCII characters.
const ASCII: [Class; 128] = {
    let mut classes = [Class::Other; 128];
    let mut i = 0;
    while i < 128 {
        let byte = i as u8;
        if byte.is_ascii_alphabetic() {
            classes[i] = Class::Letter;
        } else if byte.is_ascii_digit() {
            classes[i] = Class::Number;
        } else if matches!(byte, b' ' | b'\t'..=b'\r') {
            classes[i] = Class::Space;
        }
        i += 1;
    }
    classes
};

impl Table {
    fn new() -> Self {
        let mut classes = vec![Class::Other; char::MAX as usize + 1];
        classes[..128].copy_from_slice(&ASCII);
        for (ranges, class) in [(LETTERS, Class::Letter), (NUMBERS, Class::Number)] {
            for &(first, last) in ranges {
                classes[first as usize..=last as usize].fill(class);
            }
        }
        for space in (128..=0x3000).filter(|&c| char::from_u32(c).is_some_and(char::is_whitespace)) {
            classes[space as usize] = Class::Space;
        }
        let mut table = Self { index: Vec::new(), blocks: Vec::new() };
        for block in classes.as_chunks::<BLOCK>().0 {
            let known = table.blocks.iter().position(|other| other == block);
            table.index.push(known.unwrap_or(table.blocks.len()) as u16);
            if known.is_none() {
                table.blocks.push(*block);
            }
        }
        table
    }

    fn class(&self, character: char) -> Class {
        let code = character as usize;
        self.blocks[usize::from(self.index[code / BLOCK])][code % BLOCK]
    }
}

/// Cuts a text into words.
pub(super) struct Words<'a> {
    text: &'a str,
    table: &'static Table,
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, table: TABLE.get_or_init(Table::new), at: 0 }
    }

    /// The class and the length in bytes of the character at byte `at`, which is not the end.
    #[inline]
    fn look(&self, at: usize) -> (Class, usize) {
        let byte = self.text.as_bytes()[at];
        if byte < 128 {
            return (ASCII[usize::from(byte)], 1);
        }
        let character = self.text[at..].chars().next().unwrap_or(char::REPLACEMENT_CHARACTER);
        (self.table.class(character), character.len_utf8())
    }

    /// Where the run of characters of `class` that goes through byte `at` ends.
    #[inline]
    fn run(&self, class: Class, mut at: usize) -> usize {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(at) {
            if byte < 128 {
                if ASCII[usize::from(byte)] != class {
                    break;
                }
                at += 1;
                continue;
            }
            let (found, length) = self.look(at);
            if found != class {
                break;
            }
            at += length;
        }
        at
    }

    /// Where the white space that starts at `start`, with a character of `first` bytes, is cut: in front of its last character if
    /// something follows that the character can lead, or could.
    fn space(&self, start: usize, first: usize) -> usize {
        let (mut last, mut end) = (start, start + first);
        while end < self.text.len() {
            let (class, length) = self.look(end);
            if class != Class::Space {
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
fn contraction(bytes: &[u8]) -> usize {
    match bytes {
        [b'\'', b's' | b't' | b'm' | b'd', ..] => 2,
        [b'\'', b'r' | b'v', b'e', ..] | [b'\'', b'l', b'l', ..] => 3,
        _ => 0,
    }
}

impl Iterator for Words<'_> {
    /// Where the word starts and ends, in bytes of the text.
    type Item = (usize, usize);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (start, bytes) = (self.at, self.text.as_bytes());
        let first = *bytes.get(start)?;
        let end = if first == b' ' {
            match bytes.get(start + 1) {
                None => start + 1,
                Some(_) => match self.look(start + 1) {
                    (Class::Space, _) => self.space(start, 1),
                    (class, length) => self.run(class, start + 1 + length),
                },
            }
        } else {
            let short = if first == b'\'' { contraction(&bytes[start..]) } else { 0 };
            if short > 0 {
                start + short
            } else {
                match self.look(start) {
                    (Class::Space, length) => self.space(start, length),
                    (class, length) => self.run(class, start + length),
                }
            }
        };
        self.at = end;
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
