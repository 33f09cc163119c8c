//! Initial values as PyTorch's modules have them.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The initial values of embedding and head under `init.pytorch`: a number, or the word `normal`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PytorchEmbedding {
    /// Both are as PyTorch's modules start: `nn.Embedding` is normal(0, 1), and `nn.Linear` is uniform within ±1/√in.
    Normal,
    /// Both are uniform within ± this number, as in PyTorch's tutorials of language models.
    #[serde(untagged)]
    Uniform(f64),
}

pub(crate) fn embedding_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"anyOf": [
        {"type": "string", "enum": ["normal"]},
        {"type": "number", "format": "double", "exclusiveMinimum": 0, "maximum": 10}
    ]})
}
