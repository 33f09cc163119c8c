//! The assignments of a Python file, read without executing it.

use serde_json::{Number, Value};

use super::settings::Settings;

/// Words with which statements begin that cannot assign a setting.
const HARMLESS_WORDS: [&str; 8] = ["pass", "print", "assert", "return", "break", "continue", "raise", "global"];
/// Words with which statements begin whose bodies may be executed once, several times, or never.
const COMPOUND_WORDS: [&str; 7] = ["if", "elif", "else", "while", "try", "except", "finally"];

/// Reads the assignments of a config.py: `name = value`, where a value is a literal, or a product of numbers and of names assigned before.
/// Whatever else may assign a name is kept as unread: other values and targets, assignments in blocks, imports, and calls.
pub(super) fn read_assignments(text: &str) -> Settings {
    let mut settings = Settings::default();
    // True in the body of a `def` or `class`, whose names are not settings.
    let mut is_skipped = false;
    for statement in split_statements(text) {
        is_skipped = statement.is_conditional && is_skipped
            || !statement.is_conditional && ["def", "class", "async"].contains(&statement.first_word());
        if !is_skipped {
            read_statement(statement, &mut settings);
        }
    }
    settings
}

fn read_statement(statement: Statement, settings: &mut Settings) {
    let statement = statement.without_header();
    let Statement { line, is_conditional, is_closed, text, mask } = &statement;
    let word = statement.first_word();
    let is_text = mask.bytes().all(|byte| byte == b'"');
    if *is_closed && (is_text || text.starts_with('@') || HARMLESS_WORDS.contains(&word)) {
        return;
    }
    let is_comparison = ["==", "!=", "<=", ">=", ":="].iter().any(|operator| mask.contains(operator));
    // `globals()["name"] = 3` may assign anything.
    let sign = mask.rfind('=').filter(|&sign| *is_closed && !is_comparison && !mask[..sign].contains(['(', '"']));
    let names: Vec<String> = match sign {
        Some(sign) => words(&text[..sign]).map(str::to_owned).collect(),
        None if *is_closed && ["import", "from"].contains(&word) && !mask.contains('*') => {
            words(text).map(str::to_owned).collect()
        }
        None => Vec::new(),
    };
    if let (Some(sign), [name], false) = (sign, &names[..], is_conditional)
        && text[..sign].trim() == name
        && let Some(value) = evaluate(text[sign + 1..].trim(), settings)
    {
        return settings.insert(name, value);
    }
    settings.insert_unread(*line, text, names);
}

/// The names in `text`, keywords among them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(|c: char| !c.is_ascii_digit()))
}

/// The value of a Python expression; `None` if it is neither a literal, nor a name of `settings`, nor a product of numbers.
fn evaluate(text: &str, settings: &Settings) -> Option<Value> {
    if let Some(value) = settings.get(text) {
        return Some(value.clone());
    }
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return (!inner.contains([quote, '\\'])).then(|| Value::String(inner.to_owned()));
        }
    }
    match text {
        "True" | "False" => return Some(Value::Bool(text == "True")),
        "None" => return Some(Value::Null),
        _ => {}
    }
    let mut product = Number::from(1);
    for factor in text.split('*').map(str::trim) {
        let factor = match settings.get(factor) {
            Some(value) => value.as_number()?.clone(),
            None => parse_number(factor)?,
        };
        product = match (product.as_i64(), factor.as_i64()) {
            (Some(a), Some(b)) => a.checked_mul(b)?.into(),
            _ => Number::from_f64(product.as_f64()? * factor.as_f64()?)?,
        };
    }
    Some(Value::Number(product))
}

fn parse_number(text: &str) -> Option<Number> {
    let digits = text.trim_start_matches(['+', '-']);
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let plain = text.replace('_', "");
    plain.parse::<i64>().map(Number::from).ok().or_else(|| Number::from_f64(plain.parse().ok()?))
}

/// A statement without comments and line breaks.
#[derive(Debug)]
struct Statement {
    /// The line in which it begins, from 1.
    line: usize,
    /// True if it is indented, or if its line has a statement before it: then it may belong to a block.
    is_conditional: bool,
    /// False if a text or a bracket in it is not closed.
    is_closed: bool,
    text: String,
    /// A copy of `text` in which every byte of a literal text is `"`, and every byte of a bracket and its content is `(`.
    mask: String,
}

impl Statement {
    /// The first word, empty if the statement does not begin with one.
    fn first_word(&self) -> &str {
        let end = self.text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// The body of a compound statement such as `if x: y = 3`, empty if it is on the next lines; any other statement as it is.
    fn without_header(self) -> Self {
        let colon = self.mask.find(':').filter(|_| COMPOUND_WORDS.contains(&self.first_word()));
        let Some(colon) = colon else { return self };
        let body = self.text[colon + 1..].trim_start();
        let start = self.text.len() - body.len();
        Self { is_conditional: true, text: body.to_owned(), mask: self.mask[start..].to_owned(), ..self }
    }
}

/// The statements of a Python file. A text or bracket that is not closed reaches to the end of the file.
fn split_statements(source: &str) -> Vec<Statement> {
    let empty = |line: usize, is_conditional: bool| Statement {
        line,
        is_conditional,
        is_closed: true,
        text: String::new(),
        mask: String::new(),
    };
    let mut statements = vec![empty(1, source.starts_with([' ', '\t']))];
    let (mut rest, mut line, mut depth) = (source, 1, 0_usize);
    while let (Some(c), Some(current)) = (rest.chars().next(), statements.last_mut()) {
        let (mut length, mut filler) = (c.len_utf8(), c);
        match c {
            '#' => length = rest.find('\n').unwrap_or(rest.len()),
            '\'' | '"' => {
                let (text, is_closed) = text_length(rest, c);
                current.is_closed &= is_closed;
                (length, filler) = (text, '"');
            }
            '(' | '[' | '{' => depth += 1,
            _ => {}
        }
        let token = &rest[..length];
        rest = &rest[length..];
        line += token.matches('\n').count();
        match c {
            '#' => {}
            '\n' | ';' if depth == 0 && current.text.ends_with('\\') => {
                current.text.pop();
                current.mask.pop();
            }
            '\n' | ';' if depth == 0 => statements.push(empty(line, c == ';' || rest.starts_with([' ', '\t']))),
            _ => {
                let is_bracket = depth > 0 || matches!(c, ')' | ']' | '}');
                let filler = if is_bracket { '(' } else { filler };
                current.text.push_str(if c.is_whitespace() { " " } else { token });
                let masked = if c.is_whitespace() { 1 } else { length };
                current.mask.extend(std::iter::repeat_n(if filler.is_ascii() { filler } else { '?' }, masked));
            }
        }
        if matches!(c, ')' | ']' | '}') {
            depth = depth.saturating_sub(1);
        }
    }
    if let Some(last) = statements.last_mut() {
        last.is_closed &= depth == 0;
    }
    for Statement { text, mask, .. } in &mut statements {
        let start = text.len() - text.trim_start().len();
        let end = text.trim_end().len().max(start);
        (*text, *mask) = (text[start..end].to_owned(), mask[start..end].to_owned());
    }
    statements
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
