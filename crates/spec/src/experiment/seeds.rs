//! The seeds of a run.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The seeds from which a run derives its random numbers. Written as one number if they are equal.
// Serde's own functions are for the mapping of three seeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct Seeds {
    /// Decides the order of the training rows.
    pub data: u64,
    /// Decides the initial weights.
    pub init: u64,
    /// Decides the dropout masks.
    pub dropout: u64,
}

impl Seeds {
    const DEFAULT: u64 = 1337;

    /// The one number that all seeds are, if they are equal.
    #[must_use]
    pub fn single(self) -> Option<u64> {
        (self.data == self.init && self.init == self.dropout).then_some(self.data)
    }
}

impl Default for Seeds {
    fn default() -> Self {
        Self::DEFAULT.into()
    }
}

impl From<u64> for Seeds {
    fn from(seed: u64) -> Self {
        Self { data: seed, init: seed, dropout: seed }
    }
}

impl Serialize for Seeds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.single() {
            Some(seed) => serializer.serialize_u64(seed),
            None => Self::serialize(self, serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Seeds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            value @ serde_json::Value::Object(_) => Self::deserialize(value).map_err(D::Error::custom),
            value => {
                let seed = value.as_u64().map(Self::from);
                seed.ok_or_else(|| D::Error::custom(format!("expected a whole number or a mapping, found {value}")))
            }
        }
    }
}

impl JsonSchema for Seeds {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Seeds".into()
    }

    /// A mapping; a number alone stands for each of its values (`x-each`).
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let seed = |description: &str| {
            let default = Self::DEFAULT;
            json_schema!({"description": description, "type": "integer", "format": "uint64", "minimum": 0, "default": default})
        };
        json_schema!({"anyOf": [
            {"type": "integer", "format": "uint64", "minimum": 0},
            {
                "type": "object",
                "additionalProperties": false,
                "x-each": true,
                "properties": {
                    "data": seed("Decides the order of the training rows."),
                    "init": seed("Decides the initial weights."),
                    "dropout": seed("Decides the dropout masks."),
                }
            }
        ]})
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn equal_seeds_are_written_as_one_number() {
        let seeds = |value| from_value::<Seeds>(value).unwrap();
        for (read, written) in [
            (json!(7), json!(7)),
            (json!({"data": 7, "init": 7, "dropout": 7}), json!(7)),
            (json!({}), json!(1337)),
            (json!({"init": 2}), json!({"data": 1337, "init": 2, "dropout": 1337})),
            (json!(u64::MAX), json!(u64::MAX)),
        ] {
            assert_eq!(to_value(seeds(read)).unwrap(), written);
            assert_eq!(seeds(written.clone()), seeds(written));
        }
        assert_eq!(seeds(json!({"data": 1, "init": 2, "dropout": 3})), Seeds { data: 1, init: 2, dropout: 3 });
        for wrong in [json!(-1), json!("7"), json!(1.5), json!([1]), json!({"order": 1})] {
            assert!(from_value::<Seeds>(wrong).is_err());
        }
    }
}
