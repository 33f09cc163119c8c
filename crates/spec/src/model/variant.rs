//! Settings in which a model of the gpt2 family may differ from GPT-2. Together they make the encoder of PyTorch's language-model
//! tutorials: norms after the sums, ReLU, sinusoidal positions, a head with weights and a bias of its own. A Llama may have PyTorch's
//! initial weights, and none of the others.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

pub use crate::experiment::{Activation, NormPlace, PositionKind, PytorchEmbedding};
use crate::serde_defaults::{is_default, is_true};

/// The differences from GPT-2. The default is GPT-2 itself, and a Llama. Records leave out settings that have their default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gpt2Variant {
    #[serde(skip_serializing_if = "is_default")]
    pub norm: NormPlace,
    #[serde(skip_serializing_if = "is_default")]
    pub activation: Activation,
    #[serde(skip_serializing_if = "is_default")]
    pub positions: PositionKind,
    /// Token embeddings times √`d_model`, before positions are added.
    #[serde(skip_serializing_if = "is_default")]
    pub embedding_scale: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub head_bias: bool,
    #[serde(skip_serializing_if = "is_true")]
    pub final_norm: bool,
    /// The probability of dropout after the activation of the feed-forward layer.
    #[serde(skip_serializing_if = "is_default")]
    pub mlp_dropout: f64,
    /// Initial weights as PyTorch's modules have them, embedding and head as this says. The only setting that a Llama may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pytorch_init: Option<PytorchEmbedding>,
}

impl Default for Gpt2Variant {
    fn default() -> Self {
        Self {
            norm: NormPlace::Pre,
            activation: Activation::Gelu,
            positions: PositionKind::Learned,
            embedding_scale: false,
            head_bias: false,
            final_norm: true,
            mlp_dropout: 0.0,
            pytorch_init: None,
        }
    }
}

impl Gpt2Variant {
    /// The differences in words, each with a comma before it.
    pub fn describe(&self) -> String {
        let all = [
            (self.norm == NormPlace::Post, "norms behind"),
            (self.activation == Activation::Relu, "relu"),
            (self.positions == PositionKind::Sinusoidal, "sinusoidal positions"),
            (self.embedding_scale, "scaled embedding"),
            (self.head_bias, "biased head"),
            (!self.final_norm, "no final norm"),
        ];
        let mut words: String = all.iter().filter(|(given, _)| *given).flat_map(|(_, words)| [", ", words]).collect();
        if self.mlp_dropout > 0.0 {
            let _ = write!(words, ", dropout {} within the MLP", self.mlp_dropout);
        }
        if let Some(embedding) = self.pytorch_init {
            let _ = match embedding {
                PytorchEmbedding::Uniform(bound) => write!(words, ", PyTorch's initial weights (embedding ±{bound})"),
                PytorchEmbedding::Normal => write!(words, ", PyTorch's initial weights (embedding normal(0, 1))"),
            };
        }
        words
    }
}
