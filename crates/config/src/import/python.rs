//! The assignments of a config.py, read without executing it.

use serde_json::{Number, Value};

use super::settings::Settings;

/// Words with which lines begin that cannot assign a setting.
const HARMLESS_WORDS: [&str; 12] =
    ["pass", "print", "assert", "return", "break", "continue", "raise", "global", "def", "class", "else", "try"];

/// Reads the lines `name = value`, where a value is a literal, or a product of numbers and of names assigned before. Whatever else may assign
/// a name is kept as unread: other values and targets, indented lines, imports, and calls.
pub(super) fn read_assignments(text: &str) -> Settings {
    let mut settings = Settings::default();
    // The quotation marks that end a text of several lines.
    let mut open: Option<&str> = None;
    for (number, line) in text.lines().enumerate() {
        let was_open = open.is_some();
        for mark in ["\"\"\"", "'''"] {
            if line.matches(mark).count() % 2 == 1 && open.is_none_or(|open| open == mark) {
                open = if open.is_some() { None } else { Some(mark) };
            }
        }
        let line = without_comment(line);
        if !was_open && !line.trim_start().starts_with(['"', '\'']) {
            read_line(number + 1, line, &mut settings);
        }
    }
    settings
}

fn read_line(number: usize, line: &str, settings: &mut Settings) {
    if let Some((name, value)) = line.split_once('=')
        && is_name(name.trim_end())
        && let Some(value) = evaluate(value.trim(), settings)
    {
        return settings.insert(name.trim_end(), value);
    }
    let Some(first) = words(line).next().filter(|first| !HARMLESS_WORDS.contains(first)) else { return };
    let is_import = ["import", "from"].contains(&first) && !line.contains('*');
    let assigned = line.split(';').flat_map(|part| words(if is_import { part } else { targets(part) }));
    settings.insert_unread(number, line.trim(), assigned.map(str::to_owned).collect());
}

/// What the statement `text` may assign: the text before its signs of assignment, or before the first one if it calls something.
fn targets(text: &str) -> &str {
    let is_comparison = ["==", "!=", "<=", ">="].iter().any(|sign| text.contains(sign));
    let sign = if text.contains('(') { text.find('=') } else { text.rfind('=') };
    sign.filter(|_| !is_comparison).map_or("", |sign| &text[..sign])
}

fn is_name(text: &str) -> bool {
    words(text).next() == Some(text)
}

/// The names in `text`, keywords among them.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with(|c: char| !c.is_ascii_digit()))
}

/// `line` up to a `#` that is not in a text.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let starts_comment = |(_, c): &(usize, char)| {
        match quote {
            Some(open) if open == *c => quote = None,
            None if matches!(c, '\'' | '"') => quote = Some(*c),
            _ => {}
        }
        *c == '#' && quote.is_none()
    };
    line.char_indices().find(starts_comment).map_or(line, |(at, _)| &line[..at])
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
