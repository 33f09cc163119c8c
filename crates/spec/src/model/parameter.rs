//! A parameter of a model.

use serde::{Deserialize, Serialize};

use super::initial::ParamInit;
use crate::serde_defaults::is_default;

/// What a parameter is for, where shape and place do not say it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamRole {
    /// A matrix of a product, a gain, a bias, or the embedding.
    #[default]
    Weight,
    /// Rows that tokens look up in a sum, as they look up the embedding.
    Table,
    /// Part of a coefficient in a sum.
    Coefficient,
}

/// One parameter of a model, under its Hugging Face name. Matrices are `[out, in]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParamSpec {
    pub name: String,
    pub shape: Vec<usize>,
    pub init: ParamInit,
    /// The entry of the block list that owns it.
    pub block: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    pub role: ParamRole,
}

impl ParamSpec {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for tensors of two or more dimensions.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// A source of initial values that are not drawn.
pub trait InitialWeights {
    /// Writes the initial values of `parameter` into `values`. Leaves the drawn values where the source has none.
    ///
    /// # Errors
    /// If the source cannot be read, or has the parameter in a different shape.
    fn fill(&self, parameter: &ParamSpec, values: &mut [f32]) -> Result<(), Box<dyn std::error::Error + Send + Sync>>;
}
