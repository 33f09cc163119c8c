//! What `config::load` gets for a point, and values as YAML text.

use serde_json::Value;

use super::point::Point;
use super::spec::{Base, SweepSpec};
use crate::config::LoadOptions;

/// How the base of `spec` is loaded for `point`: the sweep's own settings, under those of `base` (the command's), under the
/// point's.
#[must_use]
pub fn options(spec: &SweepSpec, point: &Point, base: &LoadOptions) -> LoadOptions {
    let mut out = base.clone();
    out.sets = spec.set.iter().chain(&base.sets).cloned().collect();
    match spec.base {
        Base::Template(_) => {
            out.vars = spec.vars.clone();
            out.vars.extend(base.vars.clone());
            out.vars.extend(point.values.iter().cloned());
        }
        Base::Experiment(_) => {
            out.sets.extend(point.values.iter().map(|(key, value)| format!("{key}={}", flow(value))))
        }
    }
    out
}

/// `value` on one line of YAML, which reads back as exactly it.
#[must_use]
pub fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{}: {}", quoted(key), flow(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// `value` for a table: a text as it is, anything else as `flow`.
#[must_use]
pub fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => flow(other),
    }
}

/// In double quotes; without the characters that YAML text may not hold.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() || matches!(c, '\u{FEFF}' | '\u{2028}' | '\u{2029}') => {
                out.push_str(&format!("\\u{:04X}", c as u32));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
