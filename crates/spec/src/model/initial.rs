//! Initial values of parameters.

use serde::{Deserialize, Serialize};

use super::pytorch_init::PytorchEmbedding;
use super::spec::ModelSpec;

/// The initial values of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamInit {
    /// All 0.
    Zeros,
    /// All 1.
    Ones,
    Constant {
        value: f64,
    },
    /// Drawn from the normal distribution with mean 0.
    Normal {
        std: f64,
    },
    /// Drawn uniformly within ± `bound`.
    Uniform {
        bound: f64,
    },
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
