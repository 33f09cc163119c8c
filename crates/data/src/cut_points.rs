//! Points where text may be cut, so that the tokens of the parts are the tokens of the whole.

/// The points at which a tokenizer lets text be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutPoints {
    /// Every character is encoded on its own.
    Anywhere,
    /// Text is cut before white space that follows another character.
    ///
    /// GPT-2's pre-tokenizer always ends a piece there: its alternatives for words, numbers and other characters contain no white
    /// space except one leading blank. The pieces after that point depend only on the text after it. The only look-ahead,
    /// `\s+(?!\S)`, never reaches the end of a part, because only the last part can end in white space.
    Words,
    /// The points of `Words`, except within a `<br />`, which separates words as a whole.
    EnglishWords,
    Never,
}

impl CutPoints {
    /// The last point in `text`, never 0. Only `text` from byte `searched` on is searched.
    pub(crate) fn last_in(self, text: &str, searched: usize) -> Option<usize> {
        match self {
            Self::Anywhere => (!text.is_empty()).then_some(text.len()),
            Self::Never => None,
            Self::Words => (searched..text.len()).rev().find(|&at| is_cut(text, at)),
            Self::EnglishWords => (searched..text.len()).rev().find(|&at| is_english_cut(text, at)),
        }
    }
}

/// True if `text` may be cut in front of byte `at`.
fn is_cut(text: &str, at: usize) -> bool {
    let bytes = text.as_bytes();
    // Text is not cut in front of white space beyond ASCII, which is rare.
    let white = |byte: u8| matches!(byte, b' ' | b'\t'..=b'\r');
    if at == 0 || !white(bytes[at]) {
        return false;
    }
    let before = bytes[at - 1];
    if before.is_ascii() { !white(before) } else { text[..at].chars().next_back().is_some_and(|c| !c.is_whitespace()) }
}

/// True if `text` may be cut before byte `at`: where `Words` may be cut, but not at a blank after an `r` or a `"`, which may be within a
/// `<br />`. It may have any number of `"` between its characters.
fn is_english_cut(text: &str, at: usize) -> bool {
    is_cut(text, at) && (text.as_bytes()[at] != b' ' || !matches!(text.as_bytes()[at - 1], b'r' | b'R' | b'"'))
}

/// The parts of `text` between neighbouring cuts: words with their leading blank, mostly.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
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
        assert_eq!(CutPoints::Words.last_in("ab cd ef", 0), Some(5));
        assert_eq!(CutPoints::Words.last_in("ab c", 2), Some(2));
        assert_eq!(CutPoints::Words.last_in("ab c", 3), None);
        assert_eq!(CutPoints::Words.last_in("abc", 0), None);
        assert_eq!(CutPoints::Anywhere.last_in("a ", 0), Some(2));
        assert_eq!(CutPoints::Never.last_in("a b", 0), None);
    }
}
