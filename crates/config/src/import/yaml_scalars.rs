//! The plain scalars of YAML 1.1, which other trainers read with PyYAML. YAML 1.2 takes some of them for text.

use serde_json::{Number, Value, json};

use runner_yaml::scalar;

/// `value` as PyYAML and the checks of types behind it read it: `yes` and `off` are truth values, and `500_000`, `1e-4` and `"512"` are
/// numbers. So are the items of a list if all of them are numbers.
pub(super) fn read_yaml_1_1(value: Value) -> Value {
    match value {
        Value::String(text) => read_text(&text).unwrap_or(Value::String(text)),
        Value::Array(items) => {
            let numbers: Option<Vec<Value>> =
                items.iter().map(|item| Some(read_yaml_1_1(item.clone())).filter(Value::is_number)).collect();
            Value::Array(numbers.unwrap_or(items))
        }
        other => other,
    }
}

fn read_text(text: &str) -> Option<Value> {
    match text {
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => return Some(Value::Bool(true)),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => return Some(Value::Bool(false)),
        _ => {}
    }
    // A whole number that begins with 0 is octal.
    let digits = text.trim_start_matches(['+', '-']);
    if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| matches!(b, b'0'..=b'7' | b'_')) {
        let number = i64::from_str_radix(&digits.replace('_', ""), 8).ok()?;
        return Some(json!(if text.starts_with('-') { -number } else { number }));
    }
    let number = scalar::number(text)?;
    let whole = number.integer.and_then(|integer| i64::try_from(integer).ok()).map(Number::from);
    // A float stays one, as `1.0` of a share does.
    let is_written_whole = !digits.contains(['.', 'e', 'E']) || digits.starts_with("0x");
    Some(Value::Number(whole.filter(|_| is_written_whole).or_else(|| Number::from_f64(number.float))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values on the right are those of `yaml.safe_load`, and for texts of numbers those that pydantic makes of them.
    #[test]
    fn scalars_are_those_of_pyyaml() {
        for (text, value) in [
            ("500_000", json!(500_000)),
            ("512", json!(512)),
            ("1_000.5", json!(1000.5)),
            ("1e-4", json!(1e-4)),
            ("2.0", json!(2.0)),
            ("1e3", json!(1000.0)),
            ("010", json!(8)),
            ("-0_17", json!(-15)),
            ("0", json!(0)),
            ("0x1F", json!(31)),
            ("0x1E", json!(30)),
            ("yes", json!(true)),
            ("Off", json!(false)),
        ] {
            assert_eq!(read_yaml_1_1(json!(text)), value, "{text}");
        }
        for text in ["", "y", "none", "auto", "1:30", "500k", "_1", ".inf", "cosine"] {
            assert_eq!(read_yaml_1_1(json!(text)), json!(text));
        }
        assert_eq!(read_yaml_1_1(json!(["0.9", 0.95])), json!([0.9, 0.95]));
        assert_eq!(read_yaml_1_1(json!(["0.9", "x"])), json!(["0.9", "x"]));
    }
}
