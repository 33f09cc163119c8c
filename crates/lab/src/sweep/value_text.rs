//! The values of points as text.

use std::fmt::Write as _;

use serde_json::Value;

/// `value` on one line of YAML that reads back as the same value.
#[must_use]
pub fn yaml_text(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(yaml_text).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{}: {}", quoted(key), yaml_text(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Number(number) => number.as_f64().filter(|_| number.is_f64()).map_or_else(|| number.to_string(), float),
        Value::Null | Value::Bool(_) => value.to_string(),
    }
}

/// `value` for a table: a text without quotes, anything else as [`yaml_text`].
#[must_use]
pub fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => yaml_text(other),
    }
}

/// The shortest text that reads back as the float `x`, such as `3e-4`. It has a point or an exponent, so it is not read as an integer.
fn float(x: f64) -> String {
    if x == 0.0 || (1e-3..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    if x.abs() >= 1.0 && !text.contains('.') { text.replace('e', ".0e") } else { text }
}

/// `text` in double quotes, with escapes for the characters that YAML text cannot hold.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() || matches!(c, '\u{FEFF}' | '\u{2028}' | '\u{2029}') => {
                let _ = write!(out, "\\u{:04X}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
