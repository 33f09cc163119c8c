//! Initial values of parameters.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ModelSpec;

/// The initial values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamInit {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    /// Drawn from the normal distribution with mean 0.
    Normal { std: f64 },
    /// Drawn uniformly within ± `bound`.
    Uniform { bound: f64 },
}

/// The standard deviation of initial weights in GPT-2 and Llama.
const STD: f64 = 0.02;

impl ParamInit {
    /// A table of embeddings.
    pub(super) fn embedding(spec: &ModelSpec) -> Self {
        match spec.options.pytorch_init {
            None => Self::Normal { std: STD },
            Some(PytorchEmbedding::Normal) => Self::Normal { std: 1.0 },
            Some(PytorchEmbedding::Uniform(bound)) => Self::Uniform { bound },
        }
    }

    /// A matrix of `inputs` columns.
    pub(super) fn matrix(spec: &ModelSpec, inputs: usize) -> Self {
        if spec.options.pytorch_init.is_some() { Self::linear(inputs) } else { Self::Normal { std: STD } }
    }

    /// A matrix of `inputs` columns that writes to the residual stream.
    pub(super) fn residual(spec: &ModelSpec, inputs: usize) -> Self {
        match Self::matrix(spec, inputs) {
            Self::Normal { std } if spec.family.defaults().scaled_residuals => {
                Self::Normal { std: std / (2.0 * spec.layers as f64).sqrt() }
            }
            init => init,
        }
    }

    /// The bias beside a matrix of `inputs` columns.
    pub(super) fn bias(spec: &ModelSpec, inputs: usize) -> Self {
        if spec.options.pytorch_init.is_some() { Self::linear(inputs) } else { Self::Zeros }
    }

    /// PyTorch's `nn.Linear`: matrix and bias are uniform within ± 1/√`inputs`.
    pub(super) fn linear(inputs: usize) -> Self {
        Self::Uniform { bound: 1.0 / (inputs as f64).sqrt() }
    }

    /// PyTorch's Xavier-uniform matrix.
    pub(super) fn xavier(inputs: usize, outputs: usize) -> Self {
        Self::Uniform { bound: (6.0 / (outputs + inputs) as f64).sqrt() }
    }
}

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
