//! Where a template's tags and literal pieces are, found as minijinja finds them, before it sees the text.
//!
//! Limits that keep parsing shallow are checked here. What a tag means is minijinja's business.

use std::ops::Range;

/// Tags of one file.
const MAX_TAGS: usize = 10_000;
/// Operators, dots, brackets and pipes of one tag: an expression tree may be as deep as it has them.
const MAX_OPERATORS: usize = 1000;
/// Bytes of one tag.
const MAX_TAG_BYTES: usize = 64 << 10;

const OPERATORS: [&str; 7] = ["and", "or", "not", "is", "in", "if", "else"];
/// Names that are no variables.
const WORDS: [&str; 14] = [
    "true",
    "True",
    "false",
    "False",
    "none",
    "None",
    "as",
    "context",
    "ignore",
    "import",
    "missing",
    "recursive",
    "with",
    "without",
];

/// What the guards are called in the text that minijinja gets, and a 1 that is no constant; a template may not say them.
pub(super) const GUARD: &str = "_runner_guard_";
pub(super) const ONE: &str = "_runner_one_";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Literal,
    /// `{{ … }}`
    Value,
    /// `{% … %}`
    Block,
    Comment,
    /// From `{% raw %}` to `{% endraw %}`; `inner` is what is between.
    Raw,
}

/// A part of the text; the pieces of a file follow one another without gaps.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub kind: Kind,
    pub range: Range<usize>,
    /// Without the delimiters.
    pub inner: Range<usize>,
    /// Names in the tag that may be variables, each once.
    pub names: Vec<String>,
    /// Names that it gives a value, as in `set x = …` and `f(x=…)`.
    pub assigned: Vec<String>,
    /// Where operators `*` end, which may repeat texts.
    pub stars: Vec<usize>,
    /// Whether it has a quoted text.
    pub quotes: bool,
}

/// A limit that the text is beyond, and where.
#[derive(Debug)]
pub(super) struct Beyond {
    pub at: Range<usize>,
    pub message: String,
    pub help: &'static str,
}

/// The pieces of `text`. A tag that does not end is the last piece; minijinja says what is wrong with it.
pub(super) fn scan(text: &str) -> Result<Vec<Piece>, Beyond> {
    let mut pieces = Vec::new();
    let (mut at, mut tags) = (0, 0);
    while at < text.len() {
        let Some(start) = find_tag(text, at) else {
            pieces.push(plain(Kind::Literal, at..text.len()));
            break;
        };
        if start > at {
            pieces.push(plain(Kind::Literal, at..start));
        }
        let piece = tag(text, start)?;
        at = piece.range.end;
        pieces.push(piece);
        tags += 1;
        if tags > MAX_TAGS {
            let message = format!("more than {MAX_TAGS} tags in one template");
            return Err(Beyond { at: start..at, message, help: "an experiment needs a few dozen" });
        }
    }
    Ok(pieces)
}

fn plain(kind: Kind, range: Range<usize>) -> Piece {
    Piece {
        kind,
        inner: range.clone(),
        range,
        names: Vec::new(),
        assigned: Vec::new(),
        stars: Vec::new(),
        quotes: false,
    }
}

fn find_tag(text: &str, from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    (from..bytes.len().saturating_sub(1)).find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
}

fn tag(text: &str, start: usize) -> Result<Piece, Beyond> {
    let rest = &text[start..];
    let signed = usize::from(rest.as_bytes().get(2).is_some_and(|b| matches!(b, b'-' | b'+')));
    match rest.as_bytes().get(1) {
        Some(b'#') => {
            let end = rest[2..].find("#}").map_or(text.len(), |i| start + i + 4);
            let inner = (start + 2 + signed).min(end)..end.saturating_sub(2).max(start + 2 + signed).min(end);
            Ok(Piece { inner, ..plain(Kind::Comment, start..end) })
        }
        Some(b'%') => {
            if let Some(opening) = basic_tag(&rest[2 + signed..], "raw") {
                let from = start + 2 + signed + opening;
                let (inner, end) = raw_end(text, from);
                return Ok(Piece { inner, ..plain(Kind::Raw, start..end) });
            }
            expression(text, start, start + 2 + signed, Kind::Block, "%}")
        }
        _ => expression(text, start, start + 2 + signed, Kind::Value, "}}"),
    }
}

/// Bytes of ` name -%}`, if `text` begins with it.
fn basic_tag(text: &str, name: &str) -> Option<usize> {
    let rest = text.trim_ascii_start().strip_prefix(name)?.trim_ascii_start();
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

/// What is between a `raw` tag that ends at `from` and its `endraw`, and where that ends.
fn raw_end(text: &str, from: usize) -> (Range<usize>, usize) {
    let mut at = from;
    while let Some(i) = text[at..].find("{%") {
        let tag = at + i;
        let after = &text[tag + 2..];
        let unsigned = after.strip_prefix(['-', '+']).unwrap_or(after);
        if let Some(n) = basic_tag(unsigned, "endraw") {
            return (from..tag, text.len() - unsigned.len() + n);
        }
        at = tag + 2;
    }
    (from..text.len(), text.len())
}

/// A tag with an expression or statement, whose text begins at `inner`.
fn expression(text: &str, start: usize, inner: usize, kind: Kind, close: &str) -> Result<Piece, Beyond> {
    let bytes = text.as_bytes();
    let mut piece = plain(kind, start..text.len());
    let (mut at, mut depth, mut operators) = (inner, 0_isize, 0);
    let (mut after, mut word) = (b' ', "");
    piece.inner = inner..text.len();
    while at < bytes.len() {
        let rest = &text[at..];
        if depth == 0 {
            let unsigned = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if let Some(behind) = unsigned.strip_prefix(close) {
                piece.inner = inner..at;
                piece.range = start..text.len() - behind.len();
                break;
            }
        }
        let c = bytes[at];
        let mut length = 1;
        match c {
            b'\'' | b'"' => {
                length = quoted(&bytes[at..], c);
                piece.quotes = true;
            }
            b'0'..=b'9' => {
                length =
                    bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_')).count();
            }
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                length = bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
                let name = &text[at..at + length];
                if name == GUARD || name == ONE {
                    let message = format!("`{name}` is the program's own");
                    return Err(Beyond { at: at..at + length, message, help: "take another name" });
                }
                let behind = text[at + length..].trim_ascii_start();
                let assigned = behind.starts_with('=') && !behind.starts_with("==");
                // The name of a statement, an attribute, a filter and a test are none.
                let other = kind == Kind::Block && text[inner..at].trim_ascii().is_empty()
                    || matches!(after, b'.' | b'|')
                    || matches!(word, "is" | "is not");
                if OPERATORS.contains(&name) {
                    operators += 1;
                } else if assigned {
                    piece.assigned.push(name.to_owned());
                } else if !(other || WORDS.contains(&name) || piece.names.iter().any(|n| n == name)) {
                    piece.names.push(name.to_owned());
                }
                word = if word == "is" && name == "not" { "is not" } else { name };
            }
            _ => {
                word = if c.is_ascii_whitespace() { word } else { "" };
                depth += match c {
                    b'(' | b'[' | b'{' => 1,
                    b')' | b']' | b'}' => -1,
                    _ => 0,
                };
                operators += usize::from(!c.is_ascii_whitespace() && !matches!(c, b',' | b')' | b']' | b'}'));
                if rest.starts_with("**") {
                    length = 2;
                } else if c == b'*' && !matches!(after, b'(' | b',') {
                    piece.stars.push(at + 1);
                }
            }
        }
        if !c.is_ascii_whitespace() {
            after = c;
        }
        // A character that is none of ASCII is an error of its own; step over all of it.
        at += length;
        while !text.is_char_boundary(at) {
            at += 1;
        }
        let many = operators > MAX_OPERATORS;
        if many || at - start > MAX_TAG_BYTES {
            let message = if many {
                format!("more than {MAX_OPERATORS} operators in one tag")
            } else {
                format!("a tag of more than {} kB", MAX_TAG_BYTES >> 10)
            };
            return Err(Beyond { at: start..at, message, help: "divide it with `{% set … %}`" });
        }
    }
    Ok(piece)
}

/// Bytes of the quoted text that `bytes` begin with.
fn quoted(bytes: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            c if c == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The names in `{# env: A, B #}` comments at the top of the file: before all else but blank lines and YAML comments.
pub(super) fn listed_env(text: &str, pieces: &[Piece]) -> Vec<String> {
    let mut names = Vec::new();
    for piece in pieces {
        let inner = &text[piece.inner.clone()];
        match piece.kind {
            Kind::Comment => {
                if let Some(list) = inner.trim().trim_end_matches('-').trim().strip_prefix("env:") {
                    let found = list.split([',', ' ', '\n', '\t', '\r']).filter(|n| !n.is_empty());
                    names.extend(found.map(str::to_owned));
                }
            }
            Kind::Literal if inner.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#')) => {}
            _ => break,
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<(Kind, &str)> {
        scan(text).unwrap().into_iter().map(|p| (p.kind, &text[p.range])).collect()
    }

    #[test]
    fn pieces_are_the_tags_and_what_is_between() {
        use Kind::{Block, Comment, Literal, Raw, Value};
        assert_eq!(
            kinds("a {{ '}}' }} b{%- if x -%}c{# {{ #}{{ {'a': {}} }}{% raw %}{{ }}{%- endraw %}é {{ {1: 2}}"),
            [
                (Literal, "a "),
                (Value, "{{ '}}' }}"),
                (Literal, " b"),
                (Block, "{%- if x -%}"),
                (Literal, "c"),
                (Comment, "{# {{ #}"),
                (Value, "{{ {'a': {}} }}"),
                (Raw, "{% raw %}{{ }}{%- endraw %}"),
                (Literal, "é "),
                (Value, "{{ {1: 2}}"),
            ]
        );
        for broken in ["{{", "{%", "{#", "{#-", "{% raw %}", "{{ 'a\\", "{{-", "{", "{{ é", "{#}"] {
            let pieces = scan(broken).unwrap();
            assert_eq!(pieces.last().unwrap().range.end, broken.len(), "{broken}");
        }
    }

    #[test]
    fn names_are_those_that_may_be_variables() {
        let text = "{{ a.b|c(d, e=f[g]) if not h is defined else 1e5 * 'x' }}";
        let piece = &scan(text).unwrap()[0];
        assert_eq!(piece.names, ["a", "d", "f", "g", "h"]);
        assert_eq!((piece.stars.len(), piece.quotes), (1, true));
    }

    #[test]
    fn what_would_be_parsed_too_deep_is_refused() {
        assert!(scan(&format!("{{{{ x{} }}}}", "|f".repeat(1001))).unwrap_err().message.contains("operators"));
        assert!(scan(&format!("{{{{ x{} }}}}", " ".repeat(70_000))).unwrap_err().message.contains("64 kB"));
        assert!(scan(&"{{ x }}".repeat(10_001)).unwrap_err().message.contains("tags"));
        assert!(scan("{% set _runner_guard_ = 1 %}").is_err());
    }

    #[test]
    fn env_is_listed_at_the_top() {
        let of = |text: &str| listed_env(text, &scan(text).unwrap());
        assert_eq!(of("# schema\n{# what it is #}\n{#- env: A, B_2\n C -#}\nx: 1\n{# env: D #}"), ["A", "B_2", "C"]);
        assert!(of("{% set x = 1 %}{# env: A #}").is_empty());
    }
}
