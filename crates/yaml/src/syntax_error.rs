//! Errors of YAML's syntax in sentences, and the bracket that is not closed.

/// How a text such as a path of Windows is written.
const BACKSLASH_ADVICE: &str =
    "write `\\\\` for a backslash, or use single quotes, in which it needs none; a path may have `/` instead";

/// The sentence for each message of the parser (a part of it that no other message has), and what to do.
const SENTENCES: [(&str, &str, &str); 20] = [
    (
        "mapping values are not allowed",
        "unexpected `:`: a key cannot be here",
        "start a key at the same column as its neighbours; quote a value that contains `: `",
    ),
    ("illegal placement of ':'", "unexpected `:`: a key cannot be here", "quote a value that contains `: `"),
    ("invalid indentation in quoted", "the closing quote of this text is missing", "add it, on the same line"),
    ("quoted scalar, found unexpected", "the closing quote of this text is missing", "add it, on the same line"),
    (
        "did not find expected key",
        "this line is not indented like the keys above it",
        "start all keys of a section at the same column",
    ),
    (
        "expected '-' indicator",
        "expected an item of the list above, because this line is indented like one",
        "start an item with `- `, or indent a key less",
    ),
    ("misplaced bracket", "this closing bracket has no opening bracket", "delete it, or quote it to make it text"),
    ("unknown anchor", "no `&name` precedes this `*name`", "add the anchor, or quote a text that starts with `*`"),
    (
        "expected node content",
        "a value is missing here",
        "delete the extra `,`, or write the value; quote a text that contains brackets or commas",
    ),
    ("unknown escape character", "unknown escape after `\\` in this double-quoted text", BACKSLASH_ADVICE),
    (
        "hexadecimal number",
        "`\\x`, `\\u` and `\\U` must be followed by 2, 4 and 8 hexadecimal digits",
        BACKSLASH_ADVICE,
    ),
    ("invalid Unicode character", "`\\x`, `\\u` or `\\U` does not name a character here", BACKSLASH_ADVICE),
    ("expected comment or line break", "only a comment may follow this `|` or `>`", "put the text on the next lines"),
    (
        "flow mapping, did not find",
        "a `,` or `}` is missing before this",
        "add it, or quote a text that contains `,` or `:`",
    ),
    ("flow sequence, expected", "a `,` or `]` is missing before this", "add it, or quote a text that contains `,`"),
    (
        "indentation in flow construct",
        "this line is within brackets, so it must be indented more than their key",
        "indent it, or close the brackets above",
    ),
    ("simple key", "a `:` is missing after this key", "check the indentation here and above"),
    ("trailing content", "text follows the closing quote", "put the whole text in quotes"),
    ("recursion limit", "brackets are nested too deeply", "an experiment needs five levels"),
    ("block sequence entries", "a list item cannot start here", "start the list on the line below the key"),
];

/// A sentence for `info`, the parser's message, and what to do.
pub(super) fn describe(info: &str) -> (String, String) {
    if let Some((_, sentence, help)) = SENTENCES.iter().find(|(part, ..)| info.contains(part)) {
        return ((*sentence).to_owned(), (*help).to_owned());
    }
    if let Some(character) = info.strip_prefix("unexpected character: `").and_then(|rest| rest.strip_suffix('\'')) {
        return (format!("a value cannot start with `{character}`"), "quote it to make it text".to_owned());
    }
    if info.contains("tab") {
        let help = "replace each tab with two spaces";
        return ("found a tab where YAML needs spaces".to_owned(), help.to_owned());
    }
    (format!("this is not valid YAML: {info}"), String::new())
}

/// A bracket of a flow collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bracket {
    /// From 1.
    pub(super) line: usize,
    /// In characters, from 1.
    pub(super) column: usize,
    pub(super) character: char,
}

impl Bracket {
    /// The bracket that closes this one.
    pub(super) fn closing(self) -> char {
        if self.character == '[' { ']' } else { '}' }
    }
}

/// The characters of `line` that are neither in quotes nor in a comment: the column of each, from 0, and the line from there. `quote` is the
/// quote that is open before the line, and then the one that is open after it.
pub(super) fn unquoted<'t>(line: &'t str, quote: &'t mut Option<char>) -> impl Iterator<Item = (usize, &'t str)> {
    let mut before = ' ';
    let mut characters = line.char_indices().enumerate();
    std::iter::from_fn(move || {
        loop {
            let (column, (at, character)) = characters.next()?;
            let last = std::mem::replace(&mut before, character);
            match (*quote, character) {
                (Some('"'), '\\') => _ = characters.next(),
                (Some(closing), _) => *quote = quote.filter(|_| character != closing),
                (None, '#') if last.is_whitespace() => return None,
                (None, '"' | '\'') if last.is_whitespace() || "[{,:".contains(last) => *quote = Some(character),
                (None, _) => return Some((column, &line[at..])),
            }
        }
    })
}

/// The bracket that is not closed in the flow collection of `yaml` that begins at `line` and `column` (from 1); `None` if all brackets are
/// closed, or if a quote is not.
pub(super) fn find_unclosed_bracket(yaml: &str, line: usize, column: usize) -> Option<Bracket> {
    let mut open: Vec<Bracket> = Vec::new();
    let mut quote = None;
    for (i, text) in super::source::lines(yaml).enumerate().skip(line - 1) {
        let skipped = if i + 1 == line { column - 1 } else { 0 };
        let start = text.char_indices().nth(skipped).map_or(text.len(), |(at, _)| at);
        for (at, rest) in unquoted(&text[start..], &mut quote) {
            match rest.chars().next() {
                Some(character @ ('[' | '{')) => {
                    open.push(Bracket { line: i + 1, column: skipped + at + 1, character });
                }
                Some(character @ (']' | '}')) => {
                    let innermost = open.pop()?;
                    if innermost.closing() != character {
                        return Some(innermost);
                    }
                    if open.is_empty() {
                        return None;
                    }
                }
                _ => {}
            }
        }
    }
    open.pop().filter(|_| quote.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bracket_that_is_not_closed_is_found() {
        let found = |yaml: &str| {
            let (i, line) = yaml.lines().enumerate().find(|(_, line)| line.contains(['[', '{'])).unwrap();
            let column = line.chars().position(|c| c == '[' || c == '{').unwrap() + 1;
            find_unclosed_bracket(yaml, i + 1, column).map(|b| (b.line, b.column, b.character))
        };
        assert_eq!(found("a: {b: c\nd: {e: [f]}\n"), Some((1, 4, '{')));
        assert_eq!(found("a: {b: [c}}\n"), Some((1, 8, '[')));
        assert_eq!(found("é: {b: [c,\n  d: {e: 1}\n"), Some((1, 8, '[')));
        assert_eq!(found("a: {b: \"]}\", c: '}', d: 1 # }\n"), Some((1, 4, '{')));
        assert_eq!(found("a: {b: \"\\\"}\", c: it's}\n"), None, "closed");
        assert_eq!(found("a: [b]]\n"), None, "closed");
        assert_eq!(found("a: [\"b]\n"), None, "the quote is not closed");
    }

    #[test]
    fn messages_of_the_parser_are_sentences() {
        let (message, help) = describe("while parsing a block mapping, did not find expected key");
        assert_eq!(message, "this line is not indented like the keys above it");
        assert!(!help.is_empty());
        assert_eq!(describe("unexpected character: `@'").0, "a value cannot start with `@`");
        assert_eq!(describe("something new").0, "this is not valid YAML: something new");
    }
}
