//! Where text may be cut so that the parts, encoded each on its own, give the tokens of the whole.

/// Where a tokenizer lets text be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Every character is encoded on its own.
    Anywhere,
    /// In front of white space that follows something else.
    ///
    /// GPT-2's pre-tokenizer ends a piece there in any case: its alternatives for words, numbers and other characters
    /// cross no white space but one leading blank, which goes with what follows. How it splits from there on depends on
    /// what follows alone, and its one look-ahead, `\s+(?!\S)`, never reaches the end of a part, as no part ends in
    /// white space but the last.
    Words,
    /// As `Words`, but not within a `<br />`, which separates the words of `English` as a whole.
    English,
    Never,
}

impl Cut {
    /// The last place in `text` where it may be cut, if it has not been searched before `searched`. Never 0.
    pub fn last(self, text: &str, searched: usize) -> Option<usize> {
        match self {
            Self::Anywhere => (!text.is_empty()).then_some(text.len()),
            Self::Never => None,
            Self::Words => (searched..text.len()).rev().find(|&at| is_cut(text, at)),
            Self::English => (searched..text.len()).rev().find(|&at| is_english_cut(text, at)),
        }
    }
}

/// Whether `text` may be cut in front of byte `at`.
fn is_cut(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    // White space beyond ASCII is rare: it is not cut at, but it is white space before a cut.
    let white = |byte: u8| matches!(byte, b' ' | b'\t'..=b'\r');
    if at == 0 || !white(bytes[at]) {
        return false;
    }
    let before = bytes[at - 1];
    if before.is_ascii() { !white(before) } else { text[..at].chars().next_back().is_some_and(|c| !c.is_whitespace()) }
}

/// Whether `text` may be cut in front of byte `at`: a blank behind `<br` may be that of `<br />`, and `"` count for nothing there.
fn is_english_cut(text: &str, at: usize) -> bool {
    is_cut(text, at) && (text.as_bytes()[at] != b' ' || !matches!(text.as_bytes()[at - 1], b'r' | b'R' | b'"'))
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
    fn words_start_with_their_white_space() {
        let cut = |text: &'static str| words(text).collect::<Vec<_>>();
        assert_eq!(cut("a b\nc"), ["a", " b", "\nc"]);
        assert_eq!(cut("a  b\n\nc \nd"), ["a", "  b", "\n\nc", " \nd"]);
        assert_eq!(cut(" a b "), [" a", " b", " "]);
        assert_eq!(cut("日 本\u{3000} c\u{a0}d\tg"), ["日", " 本\u{3000} c\u{a0}d", "\tg"]);
        assert_eq!(cut(""), [""; 0]);
    }

    #[test]
    fn the_last_cut_is_found_across_searches() {
        assert_eq!(Cut::Words.last("ab cd ef", 0), Some(5));
        assert_eq!(Cut::Words.last("ab c", 2), Some(2));
        assert_eq!(Cut::Words.last("ab c", 3), None);
        assert_eq!(Cut::Words.last("abc", 0), None);
        assert_eq!(Cut::Anywhere.last("a ", 0), Some(2));
        assert_eq!(Cut::Never.last("a b", 0), None);
    }
}
