//! Initial values as PyTorch's modules have them.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The initial values of embedding and head under `init.pytorch`: a number, or the word `normal`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PytorchEmbedding {
    /// Both are uniform within ± this number, as in PyTorch's tutorials of language models.
    Uniform(f64),
    /// Both are as PyTorch's modules start: `nn.Embedding` is normal(0, 1), and `nn.Linear` is uniform within ±1/√in.
    Normal,
}

impl PytorchEmbedding {
    const NORMAL: &str = "normal";
}

impl Serialize for PytorchEmbedding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Uniform(bound) => serializer.serialize_f64(*bound),
            Self::Normal => serializer.serialize_str(Self::NORMAL),
        }
    }
}

impl<'de> Deserialize<'de> for PytorchEmbedding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(word) if word == Self::NORMAL => Ok(Self::Normal),
            value => {
                let bound = value.as_f64().map(Self::Uniform);
                bound.ok_or_else(|| D::Error::custom(format!("expected a number or `{}`, found {value}", Self::NORMAL)))
            }
        }
    }
}

pub(crate) fn embedding_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "string", "enum": [PytorchEmbedding::NORMAL]},
        {"type": "number", "format": "double", "exclusiveMinimum": 0, "maximum": 10}
    ]})
}
