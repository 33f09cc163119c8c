//! The assignments of a Python file, read without executing it.

use std::collections::BTreeMap;

use minijinja::Environment;
use serde_json::Value;

use super::translate::Settings;

/// Longer expressions are not evaluated.
const MAX_EXPRESSION_BYTES: usize = 200;

/// The assignments `name = value` at the left margin. A value is a literal, or arithmetic of numbers and of names assigned before.
/// All other lines have no effect; an indented assignment, or one with another value, is kept as unread.
pub(super) fn read_assignments(text: &str) -> Settings {
    let mut settings = Settings::default();
    let mut names: BTreeMap<String, Value> = BTreeMap::new();
    let mut is_in_text = false;
    for line in text.lines() {
        // Texts of several lines are no assignments.
        let quotes = line.matches("\"\"\"").count() + line.matches("'''").count();
        if quotes % 2 == 1 || is_in_text {
            is_in_text ^= quotes % 2 == 1;
            continue;
        }
        let Some((name, value)) = line.split_once('=') else { continue };
        // An indented assignment is executed under a condition that is not known here.
        let is_indented = name.starts_with([' ', '\t']);
        let name = name.trim();
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name || value.starts_with('=') {
            continue;
        }
        let value = without_comment(value).trim();
        if let Some(value) = evaluate(value, &names).filter(|_| !is_indented) {
            names.insert(name.to_owned(), value.clone());
            settings.insert(name, value);
        } else {
            names.remove(name);
            settings.insert_unread(name, value);
        }
    }
    settings
}

/// The part of `text` before a comment. A `#` between quotes is text.
fn without_comment(text: &str) -> &str {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '#') => return &text[..at],
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    text
}

fn evaluate(text: &str, names: &BTreeMap<String, Value>) -> Option<Value> {
    if text.len() > MAX_EXPRESSION_BYTES {
        return None;
    }
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return (!inner.contains([quote, '\\'])).then(|| Value::String(inner.to_owned()));
        }
    }
    // Numbers only: the operators of texts and lists can make values of any size.
    if text.contains(['\'', '"', '[', '{', '|', '%', '~']) || text.contains("**") && text.matches("**").count() > 1 {
        return None;
    }
    let numbers: BTreeMap<&String, &Value> = names.iter().filter(|(_, value)| !value.is_string()).collect();
    let environment = Environment::new();
    let value = environment.compile_expression(text).ok()?.eval(numbers).ok()?;
    if value.is_undefined() {
        return None;
    }
    match serde_json::to_value(&value).ok()? {
        // JSON has no number that is not finite; it writes null for one.
        Value::Null if !value.is_none() => None,
        number @ (Value::Number(_) | Value::Bool(_) | Value::Null) => Some(number),
        _ => None,
    }
}
