//! JSON that other programs wrote. A key that occurs twice in an object is an error, which serde's maps would hide. `NaN`, `Infinity` and
//! `-Infinity`, which Python writes, are read: each becomes a marker that no reader of a field accepts, so they matter only in fields that
//! are used.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses `bytes` as one JSON value.
///
/// # Errors
/// If it is not JSON, or an object has a key twice.
pub fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    parse_with(bytes, |bytes| serde_json::from_slice(bytes).map(|StrictValue(value)| value))
}

/// [`parse`] for one of many records: of a key that occurs twice, the last value counts.
///
/// # Errors
/// If it is not JSON.
pub fn parse_record(bytes: &[u8]) -> serde_json::Result<Value> {
    parse_with(bytes, |bytes| serde_json::from_slice(bytes))
}

fn parse_with(bytes: &[u8], parse: impl Fn(&[u8]) -> serde_json::Result<Value>) -> serde_json::Result<Value> {
    parse(bytes).or_else(|error| match mark_non_finite(bytes) {
        Cow::Borrowed(_) => Err(error),
        // Errors name columns of `bytes`.
        Cow::Owned(marked) => parse(&marked).map_err(|error| parse(&with_finite(bytes)).err().unwrap_or(error)),
    })
}

/// `json` with a number of the same length in place of each number that is not finite.
fn with_finite(json: &[u8]) -> Cow<'_, [u8]> {
    replace_non_finite(json, |number| number.replace(|c: char| c != '-', "1"))
}

/// The key of a marker, an object that stands for a number that is not finite.
const NON_FINITE: &str = "$non_finite";
/// The numbers that Python writes beyond JSON.
const NON_FINITE_NUMBERS: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// `json` with a marker in place of each number that is not finite.
fn mark_non_finite(json: &[u8]) -> Cow<'_, [u8]> {
    replace_non_finite(json, |number| format!("{{\"{NON_FINITE}\":\"{number}\"}}"))
}

fn replace_non_finite(json: &[u8], replacement: impl Fn(&str) -> String) -> Cow<'_, [u8]> {
    let (mut marked, mut copied, mut at) = (Vec::new(), 0, 0);
    while let Some(&byte) = json.get(at) {
        if byte == b'"' {
            at += 1;
            while json.get(at).is_some_and(|byte| *byte != b'"') {
                at += if json[at] == b'\\' { 2 } else { 1 };
            }
        } else if let Some(number) = NON_FINITE_NUMBERS.iter().find(|number| json[at..].starts_with(number.as_bytes()))
        {
            marked.extend_from_slice(&json[copied..at]);
            marked.extend(replacement(number).bytes());
            at += number.len();
            copied = at;
            continue;
        }
        at += 1;
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    marked.extend_from_slice(&json[copied..]);
    Cow::Owned(marked)
}

/// The number that is not finite for which `value` is the marker.
pub fn non_finite(value: &Value) -> Option<&'static str> {
    let number = value.as_object().filter(|object| object.len() == 1)?.get(NON_FINITE)?.as_str()?;
    NON_FINITE_NUMBERS.into_iter().find(|known| *known == number)
}

/// The type of `value` with its article, or the number that is not finite, for a message.
pub fn describe_type(value: &Value) -> &'static str {
    if let Some(number) = non_finite(value) {
        return number;
    }
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

struct StrictValue(Value);

impl<'de> Deserialize<'de> for StrictValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(StrictValue)
    }
}

struct StrictVisitor;

/// Defines the visits of values that cannot be wrong.
macro_rules! visit_scalar {
    ($($visit:ident($Scalar:ty))+) => {
        $(fn $visit<E: de::Error>(self, value: $Scalar) -> Result<Value, E> {
            Ok(value.into())
        })+
    };
}

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number that is not finite"))
    }

    visit_scalar!(visit_bool(bool) visit_u64(u64) visit_i64(i64) visit_str(&str));

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut out = Vec::new();
        while let Some(StrictValue(item)) = items.next_element()? {
            out.push(item);
        }
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut out = Map::new();
        while let Some((key, StrictValue(value))) = entries.next_entry::<String, StrictValue>()? {
            if out.contains_key(&key) {
                return Err(de::Error::custom(format!("duplicate key {key:?}")));
            }
            out.insert(key, value);
        }
        Ok(Value::Object(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_occurs_twice_is_an_error_at_any_depth() {
        let text = r#"{"a": [1, -2, 0.5, "x", null, true], "b": {"c": {}}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for twice in [r#"{"a": 1, "a": 1}"#, r#"[{"b": {"a": 1, "a": 2}}]"#] {
            assert!(parse(twice.as_bytes()).unwrap_err().to_string().contains("duplicate key \"a\""), "{twice}");
        }
    }
    #[test]
    fn numbers_that_python_writes_beyond_json_are_markers() {
        let text = br#"{"a": NaN, "b": [Infinity, -Infinity, -1], "NaN": "Infinity \" NaN \\", "c": 2}"#;
        let value = parse(text).unwrap();
        assert_eq!([&value["a"], &value["b"][0], &value["b"][1]].map(describe_type), NON_FINITE_NUMBERS);
        assert_eq!((value["c"].as_u64(), value["b"][2].as_i64()), (Some(2), Some(-1)));
        assert_eq!((value["NaN"].as_str(), non_finite(&value["NaN"])), (Some("Infinity \" NaN \\"), None));
        assert_eq!(parse_record(text).unwrap(), value);
        for wrong in
            ["{\"a\": NaNs}", "{\"a\": nan}", "{\"a\": +Infinity}", "NaN NaN", "{\"a\": NaN, \"a\": NaN}", "\"NaN", "-"]
        {
            assert!(parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    /// Markers are longer than the numbers for which they stand.
    #[test]
    fn mistakes_after_such_numbers_are_located() {
        for wrong in ["{\"a\": NaN, \"b\": [-Infinity, !]}", "[NaN, Infinity,\n NaN, !]"] {
            let line = wrong.lines().last().unwrap();
            let error = parse(wrong.as_bytes()).unwrap_err();
            assert_eq!((error.line(), error.column()), (wrong.lines().count(), line.find('!').unwrap() + 1), "{wrong}");
        }
    }
}
