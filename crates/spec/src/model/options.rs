//! The options of a model: the keys of the `model` section that a record leaves out at their defaults.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::activation::Activation;
use super::mask::Mask;
use super::pytorch_init::PytorchEmbedding;
use crate::format::json_value;
use crate::serde_defaults::{is_default, is_true};

/// The place of a layer's norms (gpt2): x + f(norm(x)), or norm(x + f(x)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    #[default]
    Pre,
    Post,
}

/// The position embeddings (gpt2): trained vectors, or sines and cosines of fixed frequencies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PositionKind {
    #[default]
    Learned,
    Sinusoidal,
}

/// The options that differ from a family's own model. The default is GPT-2 itself, or a Llama. Records leave out options that have their
/// default. Together they make the encoder of PyTorch's language-model tutorials: norms after the sums, ReLU, sinusoidal positions, a head that has
/// weights and a bias.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelOptions {
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
    #[serde(rename = "causal", skip_serializing_if = "is_default")]
    pub mask: Mask,
    /// Initial weights as PyTorch's modules have them, embedding and head as this says. Not a key of a file: `init` gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pytorch_init: Option<PytorchEmbedding>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            norm: NormPlace::Pre,
            activation: Activation::Gelu,
            positions: PositionKind::Learned,
            embedding_scale: false,
            head_bias: false,
            final_norm: true,
            mlp_dropout: 0.0,
            mask: Mask::Causal,
            pytorch_init: None,
        }
    }
}

/// An option as a key of the `model` section.
#[derive(Debug, Clone, PartialEq)]
pub struct OptionKey {
    pub key: &'static str,
    pub default: Value,
    /// How a plan names another value, which replaces `{}`.
    words: &'static str,
}

/// The options in the order in which files and plans show them.
pub fn option_keys() -> [OptionKey; 8] {
    let ModelOptions {
        norm,
        activation,
        positions,
        embedding_scale,
        head_bias,
        final_norm,
        mlp_dropout,
        mask,
        pytorch_init: _,
    } = ModelOptions::default();
    let option = |key, default, words| OptionKey { key, default, words };
    [
        option("norm", json!(norm), "norms after the sums"),
        option("activation", json!(activation), "{}"),
        option("positions", json!(positions), "{} positions"),
        option("embedding_scale", json!(embedding_scale), "scaled embedding"),
        option("head_bias", json!(head_bias), "biased head"),
        option("final_norm", json!(final_norm), "no final norm"),
        option("mlp_dropout", json!(mlp_dropout), "dropout {} within the MLP"),
        option("causal", json!(mask), "no causal mask"),
    ]
}

impl ModelOptions {
    /// The options of `section`, a `model` section whose values are legal. Keys that are missing or null have their defaults.
    #[expect(clippy::expect_used, reason = "the caller passes legal values")]
    pub fn of_section(mut section: Value) -> Self {
        if let Some(keys) = section.as_object_mut() {
            keys.retain(|_, value| !value.is_null());
        }
        serde_json::from_value(section).expect("options of a section that was read")
    }

    /// The options that change what a trained model computes.
    #[must_use]
    pub fn without_training(self) -> Self {
        Self { mlp_dropout: 0.0, pytorch_init: None, ..self }
    }

    /// The options that differ from their defaults in words, each with a comma before it.
    pub fn describe(&self) -> String {
        // The JSON has only options that differ.
        let given = json_value(self);
        let mut words = String::new();
        for option in option_keys() {
            if let Some(value) = given.get(option.key) {
                let value =
                    value.as_f64().map_or_else(|| value.as_str().unwrap_or_default().to_owned(), |n| n.to_string());
                let _ = write!(words, ", {}", option.words.replace("{}", &value));
            }
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
