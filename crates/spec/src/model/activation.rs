//! The activations of feed-forward layers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The activation between the feed-forward layer's two matrices (gpt2). GELU is its tanh form. relu2 is
/// max(x, 0)² (So et al. 2021).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    #[default]
    Gelu,
    Relu,
    Relu2,
}

/// What the rest of the program calls an activation.
#[derive(Debug)]
pub struct ActivationNames {
    /// In files, in plans, and of its kernels.
    pub name: &'static str,
    /// In plans: the gradient of its output, which becomes that of its input in place.
    pub(super) gradient: &'static str,
}

impl Activation {
    pub const fn names(self) -> ActivationNames {
        let [name, gradient] = match self {
            Self::Gelu => ["gelu", "gradient of gelu and mlp.c_fc"],
            Self::Relu => ["relu", "gradient of relu and mlp.c_fc"],
            Self::Relu2 => ["relu2", "gradient of relu2 and mlp.c_fc"],
        };
        ActivationNames { name, gradient }
    }
}
