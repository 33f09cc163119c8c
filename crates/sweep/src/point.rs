//! A point of a sweep: a value for everything that varies.

use runner_spec::format::setting_text;
use serde_json::Value;

/// Names with their values, in the order of the sweep file.
pub type PointValues = Vec<(String, Value)>;

/// One point.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpandedPoint {
    /// The number of the point, from 1. Points that remain and points that are excluded are numbered separately.
    pub index: usize,
    pub values: PointValues,
}

/// `value` for a table, on one line: a text as it is, anything else as in a file.
#[must_use]
pub fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| setting_text(value), str::to_owned)
}

/// A list of pairs as a JSON mapping that keeps the order of its keys.
pub(super) mod ordered {
    use std::fmt;

    use serde::de::{MapAccess, Visitor};
    use serde::{Deserializer, Serializer};
    use serde_json::Value;

    pub(crate) fn serialize<S: Serializer>(values: &[(String, Value)], to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(values.iter().map(|(name, value)| (name, value)))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Value)>, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Vec<(String, Value)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of names to values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut out = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    out.push(pair);
                }
                Ok(out)
            }
        }
        from.deserialize_map(Pairs)
    }
}
