//! What `config::load` gets for a point, and values as YAML text.

use std::fmt::Write as _;

use serde_json::Value;

use super::point::ExpandedPoint;
use super::spec::{SweepBase, SweepSpec};
use runner_config::LoadOptions;

/// How the base of `spec` is loaded for `point`: the sweep's own settings, under those of `base` (the command's), under the
/// point's.
#[must_use]
pub fn options(spec: &SweepSpec, point: &ExpandedPoint, base: &LoadOptions) -> LoadOptions {
    let mut out = base.clone();
    out.sets = spec.set.iter().chain(&base.sets).cloned().collect();
    match spec.base {
        SweepBase::Template(_) => {
            out.vars.clone_from(&spec.vars);
            out.vars.extend(base.vars.clone());
            out.vars.extend(point.values.iter().cloned());
        }
        SweepBase::Experiment(_) => {
            out.sets.extend(point.values.iter().map(|(key, value)| format!("{key}={}", flow(value))));
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
        Value::Number(number) if number.is_f64() => float(number.as_f64().unwrap_or_default()),
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

/// The shortest text that is this number, small ones as `3e-4`. A whole number without a point would be read as an integer.
fn float(x: f64) -> String {
    if x == 0.0 || (1e-3..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    if x.abs() >= 1.0 && !text.contains('.') { text.replace('e', ".0e") } else { text }
}

/// In double quotes; without the characters that YAML text may not hold.
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
