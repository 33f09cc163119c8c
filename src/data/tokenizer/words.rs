//! Where text may be cut so that the parts, encoded each on its own, give the tokens of the whole.

/// Where a tokenizer lets text be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::data) enum Cut {
    /// Every character is encoded on its own.
    Anywhere,
    /// In front of a single blank or newline between two characters that are no white space.
    ///
    /// GPT-2's pre-tokenizer splits there in any case: its alternatives for words, numbers and other characters never
    /// cross white space but for one leading blank, which goes with what follows; a lone newline is a piece by itself.
    /// Its one look-ahead, `\s+(?!\S)`, tells the ends of runs of white space apart, so no run of two may be cut.
    Words,
    Never,
}

impl Cut {
    /// The last place in `text` where it may be cut, if it has not been searched before `searched`. Never 0.
    pub(in crate::data) fn last(self, text: &str, searched: usize) -> Option<usize> {
        match self {
            Self::Anywhere => (!text.is_empty()).then_some(text.len()),
            Self::Never => None,
            // A cut shows with the character after the white space, which may have been missing before.
            Self::Words => (searched.saturating_sub(8)..text.len()).rev().find(|&at| is_cut(text, at)),
        }
    }
}

/// Whether `text` may be cut in front of byte `at`.
fn is_cut(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    if at == 0 || at + 1 >= bytes.len() || !matches!(bytes[at], b' ' | b'\n') {
        return false;
    }
    let solid = |byte: u8, char: &dyn Fn() -> Option<char>| {
        if byte.is_ascii() { !char::from(byte).is_whitespace() } else { char().is_some_and(|c| !c.is_whitespace()) }
    };
    solid(bytes[at - 1], &|| text[..at].chars().next_back()) && solid(bytes[at + 1], &|| text[at + 1..].chars().next())
}

/// The parts of `text` between neighbouring cuts: words with their leading blank, mostly.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    std::iter::from_fn(move || {
        if start == text.len() {
            return None;
        }
        let end = (start + 1..text.len()).find(|&at| is_cut(text, at)).unwrap_or(text.len());
        let word = &text[start..end];
        start = end;
        Some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_end_before_single_blanks_only() {
        let cut = |text: &'static str| words(text).collect::<Vec<_>>();
        assert_eq!(cut("a b\nc"), ["a", " b", "\nc"]);
        assert_eq!(cut("a  b\n\nc \nd"), ["a  b\n\nc \nd"]);
        assert_eq!(cut(" a b "), [" a", " b "]);
        assert_eq!(cut("日 本\u{3000} c\u{a0}d\tg h"), ["日", " 本\u{3000} c\u{a0}d\tg", " h"]);
        assert_eq!(cut(""), [""; 0]);
    }

    #[test]
    fn the_last_cut_is_found_across_searches() {
        assert_eq!(Cut::Words.last("ab cd ef", 0), Some(5));
        assert_eq!(Cut::Words.last("ab cd ef ", 0), Some(5));
        // The blank was seen before, what follows it was not.
        assert_eq!(Cut::Words.last("ab c", 3), Some(2));
        assert_eq!(Cut::Words.last("abc", 0), None);
        assert_eq!(Cut::Anywhere.last("a ", 0), Some(2));
        assert_eq!(Cut::Never.last("a b", 0), None);
    }
}
