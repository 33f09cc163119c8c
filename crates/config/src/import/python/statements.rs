//! Splits a Python file into its simple statements.

/// A statement, or a part of one, without comments and line breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Statement {
    /// The line in which the statement begins, from 1.
    pub(super) line: usize,
    /// The number of blanks and tabs before its line.
    pub(super) indent: usize,
    /// True if the statement stands behind another one in its line.
    pub(super) continues_line: bool,
    /// False if a text or a bracket in it is not closed.
    pub(super) is_closed: bool,
    pub(super) text: String,
    /// A copy of `text` in which every byte of a literal text is `"`, and every byte of a bracket and its content is `(`.
    mask: String,
}

/// An assignment of one value to one or several targets.
#[derive(Debug)]
pub(super) struct Assignment {
    /// The parts before each `=`.
    pub(super) targets: Vec<Statement>,
    /// The operator before `=`, such as `+` in `+=`; otherwise empty.
    pub(super) operator: String,
    pub(super) value: Statement,
}

impl Statement {
    /// The first word, empty if the statement does not begin with one.
    pub(super) fn first_word(&self) -> &str {
        let end = self.text.find(|c: char| !is_name_character(c)).unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// True if the statement is one literal text, such as the description of the file.
    pub(super) fn is_text(&self) -> bool {
        self.mask.bytes().all(|byte| byte == b'"')
    }

    /// The part between two places.
    fn part(&self, start: usize, end: usize) -> Self {
        let (text, mask) = (&self.text[start..end], &self.mask[start..end]);
        let before = text.len() - text.trim_start().len();
        let length = text.trim().len();
        Self { text: text.trim().to_owned(), mask: mask[before..before + length].to_owned(), ..*self }
    }

    /// The parts before and after the first `separator` that is in no text and no brackets.
    pub(super) fn split_once(&self, separator: &str) -> Option<(Self, Self)> {
        let at = self.mask.find(separator)?;
        Some((self.part(0, at), self.part(at + separator.len(), self.text.len())))
    }

    /// The items between commas, or those of the statement's brackets. A comma at the end adds no item.
    pub(super) fn items(&self) -> Vec<Self> {
        let inner = ['(', '['].iter().zip([')', ']']).find_map(|(open, close)| {
            let inner = self.text.strip_prefix(*open)?.strip_suffix(close)?;
            self.mask.bytes().all(|byte| byte == b'(').then(|| split_statements(inner))
        });
        // `(a) + (b)` is no list: its parts do not split into one statement.
        let whole = match inner.as_deref() {
            Some([one]) if one.split_once(",").is_some() => one.clone(),
            _ => self.clone(),
        };
        let mut items = Vec::new();
        let mut rest = whole;
        while let Some((item, after)) = rest.split_once(",") {
            items.push(item);
            rest = after;
        }
        if !rest.text.is_empty() || items.is_empty() {
            items.push(rest);
        }
        items
    }

    /// The names to which a target with this text gives values, without its annotation.
    pub(super) fn names(&self) -> Vec<String> {
        let target = self.split_once(":").map_or_else(|| self.clone(), |(target, _)| target);
        let items = target.items().into_iter().map(|item| item.text.trim_start_matches('*').trim().to_owned());
        items.filter(|name| is_name(name)).collect()
    }

    /// The assignment that the statement is; `None` if it is none.
    pub(super) fn assignment(&self) -> Option<Assignment> {
        let mut targets = Vec::new();
        let mut operator = String::new();
        let mut rest = self.clone();
        while let Some((start, end)) = find_assignment(&rest.mask) {
            rest.mask[start..end - 1].clone_into(&mut operator);
            targets.push(rest.part(0, start));
            rest = rest.part(end, rest.text.len());
        }
        (!targets.is_empty()).then_some(Assignment { targets, operator, value: rest })
    }
}

/// The place of the first operator that assigns, such as `=` or `+=`, in a mask.
fn find_assignment(mask: &str) -> Option<(usize, usize)> {
    let bytes = mask.as_bytes();
    let mut at = 0;
    while let Some(found) = mask.get(at..)?.find('=') {
        let sign = at + found;
        let start = mask[..sign].trim_end_matches(|c| "+-*/%&|^@<>!:".contains(c)).len();
        let is_comparison = bytes.get(sign + 1) == Some(&b'=') || ["<", ">", "!", ":"].contains(&&mask[start..sign]);
        if !is_comparison {
            return Some((start, sign + 1));
        }
        at = sign + 1 + usize::from(bytes.get(sign + 1) == Some(&b'='));
    }
    None
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

pub(super) fn is_name(text: &str) -> bool {
    text.chars().all(is_name_character) && text.starts_with(|c: char| !c.is_ascii_digit())
}

/// The simple statements of a Python file. A text or bracket that is not closed reaches to the end of the file.
pub(super) fn split_statements(text: &str) -> Vec<Statement> {
    let mut splitter = Splitter { line: 1, ..Splitter::default() };
    splitter.start_line(text);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let taken = splitter.take(c, rest);
        splitter.line += rest[..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    splitter.end_statement();
    splitter.statements
}

#[derive(Default)]
struct Splitter {
    statements: Vec<Statement>,
    current: Option<Statement>,
    /// The line of the next character.
    line: usize,
    /// The blanks at the start of the line.
    indent: usize,
    continues_line: bool,
    /// Open brackets.
    depth: usize,
    /// True if a text of the current statement is not closed.
    has_open_text: bool,
}

impl Splitter {
    fn start_line(&mut self, rest: &str) {
        self.indent = rest.len() - rest.trim_start_matches([' ', '\t']).len();
        self.continues_line = false;
    }

    /// Takes the next token of `rest`, which begins with `c`, and returns its length in bytes.
    fn take(&mut self, c: char, rest: &str) -> usize {
        match c {
            '#' => return rest.find('\n').unwrap_or(rest.len()),
            '\\' if rest[1..].trim_start_matches('\r').starts_with('\n') => {
                let length = rest.find('\n').map_or(rest.len(), |at| at + 1);
                self.push(" ", ' ');
                return length;
            }
            '\n' if self.depth == 0 => {
                self.end_statement();
                self.start_line(&rest[1..]);
            }
            ';' if self.depth == 0 => {
                self.end_statement();
                self.continues_line = true;
            }
            '\'' | '"' => {
                let (length, is_closed) = text_length(rest, c);
                self.has_open_text |= !is_closed;
                self.push(&rest[..length], '"');
                return length;
            }
            '(' | '[' | '{' => {
                self.depth += 1;
                self.push(&rest[..1], '(');
            }
            ')' | ']' | '}' => {
                self.push(&rest[..1], '(');
                self.depth = self.depth.saturating_sub(1);
            }
            c if c.is_whitespace() => self.push(" ", ' '),
            c => self.push(&rest[..c.len_utf8()], c),
        }
        c.len_utf8()
    }

    /// Adds `text`, of which every byte is `mask` outside of brackets, to the current statement.
    fn push(&mut self, text: &str, mask: char) {
        if self.current.is_none() && text == " " {
            return;
        }
        let Self { line, indent, continues_line, .. } = *self;
        let new =
            || Statement { line, indent, continues_line, is_closed: true, text: String::new(), mask: String::new() };
        let current = self.current.get_or_insert_with(new);
        current.text.push_str(text);
        let in_brackets = self.depth > 0;
        if in_brackets || mask == '"' {
            let filler = if in_brackets { '(' } else { '"' };
            current.mask.extend(std::iter::repeat_n(filler, text.len()));
        } else {
            current.mask.push(mask);
        }
    }

    fn end_statement(&mut self) {
        let is_closed = std::mem::take(&mut self.depth) == 0 && !std::mem::take(&mut self.has_open_text);
        if let Some(mut statement) = self.current.take() {
            statement.is_closed = is_closed;
            self.statements.push(statement.part(0, statement.text.len()));
        }
    }
}

/// The length in bytes of the literal text that `rest` begins with, between `quote`, and whether it is closed. A text of one line ends
/// with its line.
fn text_length(rest: &str, quote: char) -> (usize, bool) {
    let triple = [quote; 3].iter().collect::<String>();
    let (mark, is_long) = if rest.starts_with(&triple) { (triple, true) } else { (quote.to_string(), false) };
    let mut at = mark.len();
    while let Some(c) = rest[at..].chars().next() {
        if rest[at..].starts_with(&mark) {
            return (at + mark.len(), true);
        }
        if c == '\n' && !is_long {
            return (at, false);
        }
        at += c.len_utf8();
        if c == '\\' {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    (at, false)
}
