//! Values as YAML on one line: what `{{ … }}` prints, the filter `yaml`, and settings that the program writes.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::limits::{EXPERIMENT_TEXT, invalid_operation};
use runner_yaml::scalar;

/// The text that `{{ value }}` prints: text as it is, anything else as YAML on one line.
///
/// # Errors
/// An undefined value; one that has no spelling in YAML.
pub(super) fn printed(value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => yaml_line(value),
    }
}

/// `value` as YAML on one line that reads back as the same value.
#[expect(clippy::expect_used, reason = "every JSON value has a spelling in YAML")]
pub fn yaml_text(value: &serde_json::Value) -> String {
    yaml_line(&Value::from_serialize(value)).expect("JSON is YAML")
}

/// `value` as YAML on one line that reads back as the same value.
///
/// # Errors
/// An undefined value; one that has no spelling in YAML.
pub(super) fn yaml_line(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write(&mut out, value)?;
    Ok(out)
}

fn write(out: &mut String, value: &Value) -> Result<(), Error> {
    if out.len() > EXPERIMENT_TEXT {
        return Err(invalid_operation(format!("this prints more than {} MB", EXPERIMENT_TEXT >> 20)));
    }
    match value.kind() {
        ValueKind::Undefined => return Err(Error::from(ErrorKind::UndefinedError)),
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number if value.is_integer() => {
            let _ = write!(out, "{value}");
        }
        ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
        ValueKind::String => out.push_str(&quoted(value.as_str().unwrap_or_default())),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push('[');
            for (i, item) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write(out, &item)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (i, key) in value.try_iter()?.enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                write(out, &key)?;
                out.push_str(": ");
                write(out, &value.get_item(&key)?)?;
            }
            out.push('}');
        }
        kind => return Err(invalid_operation(format!("a {kind} cannot be printed"))),
    }
    Ok(())
}

/// The shortest spelling that reads back as the float `x`.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        ".nan".to_owned()
    } else if x.is_infinite() {
        if x > 0.0 { ".inf" } else { "-.inf" }.to_owned()
    } else {
        let text = format!("{x:?}");
        // Without a point it would read back as a whole number.
        if x.abs() >= 1.0 && !text.contains('.') { text.replace('e', ".0e") } else { text }
    }
}

/// `text` as a scalar that YAML reads as that text: in quotes where it would be taken for something else.
fn quoted(text: &str) -> String {
    let simple = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/' | '-');
    let begins = text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '/'));
    let means_itself = !scalar::is_null(text) && scalar::boolean(text).is_none() && scalar::number(text).is_none();
    if begins && means_itself && text.chars().all(simple) && !["...", "inf", "nan"].contains(&text) {
        text.to_owned()
    } else {
        escaped(text)
    }
}

/// `text` in double quotes. JSON leaves some characters as they are that YAML forbids or breaks lines at.
fn escaped(text: &str) -> String {
    let is_special = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{FEFF}');
    let json = serde_json::Value::from(text).to_string();
    json.chars().map(|c| if is_special(c) { format!("\\u{:04x}", c as u32) } else { c.to_string() }).collect()
}
