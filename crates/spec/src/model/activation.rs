//! The activations of feed-forward layers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The activation of the feed-forward layer. GELU (Hendrycks and Gimpel 2016) is its tanh form; relu2 is max(x, 0)² (So et al. 2021);
/// silu is x·σ(x).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    #[default]
    Gelu,
    Relu,
    Relu2,
    Silu,
}

/// The names of an activation in plans and kernels.
#[derive(Debug)]
pub struct ActivationNames {
    /// In files, in plans, and of its kernels.
    pub name: &'static str,
    /// In plans: the gradient of its output, which becomes that of its input in place.
    pub(super) gradient: &'static str,
    /// In plans, and of its kernels: its product with the output of a second matrix (Shazeer 2020).
    pub gated: &'static str,
    /// In plans: the gradients of a gated layer's inner tensors.
    pub(super) gated_gradients: &'static str,
}

impl Activation {
    pub const fn names(self) -> ActivationNames {
        let [name, gradient, gated, gated_gradients] = match self {
            Self::Gelu => ["gelu", "gradient of gelu and mlp.c_fc", "geglu", "gradients of geglu, gate and up"],
            Self::Relu => ["relu", "gradient of relu and mlp.c_fc", "reglu", "gradients of reglu, gate and up"],
            Self::Relu2 => ["relu2", "gradient of relu2 and mlp.c_fc", "re2glu", "gradients of re2glu, gate and up"],
            Self::Silu => ["silu", "gradient of silu and mlp.c_fc", "swiglu", "gradients of swiglu, gate and up"],
        };
        ActivationNames { name, gradient, gated, gated_gradients }
    }
}
