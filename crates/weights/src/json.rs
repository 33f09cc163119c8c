//! Small JSON files of others, read within limits; a key that comes twice is an error, which serde's maps would hide.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::error::WeightsError;

/// The JSON object in the file `path`, of `most` bytes at most.
///
/// # Errors
/// If it is missing, larger, or no object.
pub(super) fn object(path: &Path, most: u64) -> Result<Map<String, Value>, WeightsError> {
    let file = File::open(path).map_err(WeightsError::io(path))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(WeightsError::io(path))?;
    if bytes.len() as u64 > most {
        return Err(WeightsError::file(path, format!("more than {most} bytes are too many for such a file")));
    }
    let parsed: Result<Strict, _> = serde_json::from_slice(&bytes);
    match parsed {
        Ok(Strict(Value::Object(map))) => Ok(map),
        Ok(Strict(other)) => Err(WeightsError::file(path, format!("it is {}, not an object of keys", kind(&other)))),
        Err(error) => Err(WeightsError::file(path, format!("not right JSON: {error}"))),
    }
}

/// What `value` is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A value without keys that come twice.
struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Strict;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_unit<E: de::Error>(self) -> Result<Strict, E> {
                Ok(Strict(Value::Null))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Strict, E> {
                Ok(Strict(Value::Bool(value)))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Strict, E> {
                Ok(Strict(Value::from(value)))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Strict, E> {
                Ok(Strict(Value::from(value)))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Strict, E> {
                let number = Number::from_f64(value).ok_or_else(|| E::custom("a number that is not finite"))?;
                Ok(Strict(Value::Number(number)))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Strict, E> {
                Ok(Strict(Value::String(value.to_owned())))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Strict, A::Error> {
                let mut out = Vec::new();
                while let Some(Strict(item)) = items.next_element()? {
                    out.push(item);
                }
                Ok(Strict(Value::Array(out)))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
                let mut out = Map::new();
                while let Some((key, Strict(value))) = map.next_entry::<String, Strict>()? {
                    if out.contains_key(&key) {
                        return Err(de::Error::custom(format!("{key:?} comes twice")));
                    }
                    out.insert(key, value);
                }
                Ok(Strict(Value::Object(out)))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
