//! The assignments of a config.py, read without executing it.

use serde_json::{Map, Number, Value};

/// What was read of a config.py.
#[derive(Debug, Default)]
pub(super) struct PythonFile {
    pub(super) values: Map<String, Value>,
    /// The lines that were not read, numbered from 1.
    pub(super) unread: Vec<(usize, String)>,
}

/// Reads the lines `name = value`, where a value is a literal, or a product of numbers and of names assigned before. Comments and texts of
/// several lines say nothing; all other lines are kept as unread.
pub(super) fn read_assignments(text: &str) -> PythonFile {
    let mut file = PythonFile::default();
    let mut is_text = false;
    for (number, line) in text.lines().enumerate() {
        let marks = line.matches("\"\"\"").count() + line.matches("'''").count();
        let (was_text, line) = (is_text, line.split('#').next().unwrap_or_default());
        is_text ^= marks % 2 == 1;
        if was_text || marks > 0 || line.trim().is_empty() {
            continue;
        }
        let assigned = line.split_once('=').map(|(name, value)| (name.trim_end(), value.trim()));
        match assigned.and_then(|(name, value)| Some((name, evaluate(value, &file.values)?))) {
            Some((name, value)) if is_name(name) => _ = file.values.insert(name.to_owned(), value),
            _ => file.unread.push((number + 1, line.trim().to_owned())),
        }
    }
    file
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| !c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The value of a Python expression; `None` if it is neither a literal, nor a name of `values`, nor a product of numbers.
fn evaluate(text: &str, values: &Map<String, Value>) -> Option<Value> {
    if let Some(value) = values.get(text) {
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
        let factor = match values.get(factor) {
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
