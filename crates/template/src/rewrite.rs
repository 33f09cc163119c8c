//! The text that minijinja gets: the template with guards before its tags, and, if asked for, marks in what it prints.
//!
//! Neither changes a character of the result (marks are taken out again): a guard stands directly before a tag and has its
//! whitespace control, a mark stands directly before what is not blank.

use std::ops::Range;

use super::scan::{GUARD, Kind, ONE, Piece};

/// The changed text, and how to find back.
#[derive(Debug)]
pub(super) struct Rewritten {
    pub text: String,
    /// Where something was put in: the place in the changed text behind it, and all bytes put in up to there.
    inserted: Vec<(usize, usize)>,
}

impl Rewritten {
    /// A place in the changed text, in the original.
    pub(super) fn original(&self, at: usize) -> usize {
        let i = self.inserted.partition_point(|&(end, _)| end <= at);
        at.saturating_sub(i.checked_sub(1).map_or(0, |i| self.inserted[i].1))
    }

    pub(super) fn original_range(&self, range: &Range<usize>) -> Range<usize> {
        // The end is behind the last character, which may be followed by what was put in.
        let start = self.original(range.start);
        let end = if range.end > range.start { self.original(range.end - 1) + 1 } else { start };
        start..end.max(start)
    }
}

/// Rewrites `text`. Guard `first_guard + i` stands before piece i; one more is at the end; without `first_guard` there are
/// none. Products with texts get a factor that is no constant: minijinja would compute them before a guard looks. `mark` gives the character for
/// the original range that is printed next; `None` if there are no more.
pub(super) fn rewrite(
    text: &str,
    pieces: &[Piece],
    first_guard: Option<usize>,
    mut mark: Option<&mut dyn FnMut(Range<usize>) -> Option<char>>,
) -> Rewritten {
    let mut out = Rewritten { text: String::with_capacity(text.len() * 2), inserted: Vec::new() };
    let put = |out: &mut Rewritten, what: &str| {
        out.text.push_str(what);
        let before = out.inserted.last().map_or(0, |&(_, n)| n);
        out.inserted.push((out.text.len(), before + what.len()));
    };
    // The tag itself.
    let tag = |out: &mut Rewritten, piece: &Piece| {
        let mut at = piece.range.start;
        for &star in piece.stars.iter().filter(|_| piece.quotes) {
            out.text.push_str(&text[at..star]);
            put(out, &format!(" {ONE} *"));
            at = star;
        }
        out.text.push_str(&text[at..piece.range.end]);
    };
    let mut mark = |range: Range<usize>| mark.as_mut().and_then(|mark| mark(range));
    for (i, piece) in pieces.iter().enumerate() {
        let whole = &text[piece.range.clone()];
        let guard =
            |sign: &str| first_guard.map_or_else(String::new, |n| format!("{{%{sign} do {GUARD}({}) %}}", n + i));
        let sign = match whole.as_bytes().get(2) {
            Some(b'-') => "-",
            Some(b'+') => "+",
            // Blanks before a value stay, those before a block at the start of a line go.
            _ if piece.kind == Kind::Value => "+",
            _ => "",
        };
        match piece.kind {
            Kind::Comment => out.text.push_str(whole),
            Kind::Block => {
                put(&mut out, &guard(sign));
                tag(&mut out, piece);
            }
            Kind::Value => {
                put(&mut out, &guard(sign));
                if let Some(c) = mark(piece.range.clone()) {
                    put(&mut out, &format!("{{{{ \"{c}\" }}}}"));
                }
                tag(&mut out, piece);
            }
            Kind::Literal | Kind::Raw => {
                out.text.push_str(&text[piece.range.start..piece.inner.start]);
                let mut at = piece.inner.start;
                for line in text[piece.inner.clone()].split_inclusive(['\n', '\r']) {
                    let content = line.trim();
                    let lead = line.len() - line.trim_start().len();
                    if !content.is_empty()
                        && let Some(c) = mark(at + lead..at + lead + content.len())
                    {
                        out.text.push_str(&line[..lead]);
                        put(&mut out, c.encode_utf8(&mut [0; 4]));
                        out.text.push_str(&line[lead..]);
                    } else {
                        out.text.push_str(line);
                    }
                    at += line.len();
                }
                out.text.push_str(&text[piece.inner.end..piece.range.end]);
            }
        }
    }
    if let Some(n) = first_guard {
        put(&mut out, &format!("{{%+ do {GUARD}({}) %}}", n + pieces.len()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::scan::scan;
    use super::*;

    #[test]
    fn places_are_found_back() {
        let text = "a: {{ b }}\n  c{% if d %}e{% endif %}";
        let mut marks = 0xF0000_u32..;
        let mut mark = |_| marks.next().and_then(char::from_u32);
        let out = rewrite(text, &scan(text).unwrap(), Some(7), Some(&mut mark));
        assert_eq!(out.text.matches(GUARD).count(), 4, "before three tags and at the end: {}", out.text);
        for word in ["a:", "b }}", "c{", "d %}", "e{%", "endif %}"] {
            let (from, to) = (text.find(word).unwrap(), out.text.find(word).unwrap());
            assert_eq!(out.original_range(&(to..to + 1)), from..from + 1, "{word}");
        }
    }
}
