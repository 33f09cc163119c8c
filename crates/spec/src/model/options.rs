//! The options of a model: the keys of the `model` section that a record leaves out at their defaults.

use std::fmt::Write as _;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::activation::Activation;
use super::family::Family;
use super::mask::Mask;
use super::pytorch_init::PytorchEmbedding;
use super::rope::RopeScaling;
use super::spec::DEFAULT_ROPE_THETA;
use super::values::{NamedValues, Sums};
use crate::format::json_value;
use crate::serde_defaults::{is_default, is_true};

/// The place of a layer's norms, where f is attention or the MLP: x + f(norm(x)), norm(x + f(x)), x + norm(f(x)) (OLMo 2), or
/// x + norm(f(norm(x))) (Gemma).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NormPlace {
    #[default]
    Pre,
    Post,
    Output,
    Both,
}

/// The gain of norms: a trained vector that starts at 1, 1 + a trained vector that starts at 0 (Gemma), or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NormGain {
    #[default]
    Weight,
    OnePlusWeight,
    None,
}

/// RMSNorm of queries and keys: none, over each head (Qwen 3), over each head after the rotation, or over all heads together (OLMo 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QkNorm {
    #[default]
    None,
    Head,
    HeadAfterRope,
    Width,
}

/// The products of a layer that have biases: none; queries, keys and values (Qwen 2); all of attention's; or also the MLP's.
/// Where none has one, LayerNorms have none either.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Biases {
    None,
    Qkv,
    Attention,
    All,
}

/// The position embeddings (gpt2): trained vectors, or sines and cosines of fixed frequencies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PositionKind {
    #[default]
    Learned,
    Sinusoidal,
}

/// What some layers have instead of the model's own values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LayerOptions {
    /// The number of layers that are like this. Default: 1.
    #[serde(skip_serializing_if = "is_one")]
    #[schemars(range(min = 1, max = 10_000))]
    pub layers: usize,
    /// See `model.window`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub window: Option<u32>,
    /// False for attention without rotary positions (llama).
    #[serde(skip_serializing_if = "is_true")]
    pub rope: bool,
    /// See `model.rope_theta`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1e12), extend("exclusiveMinimum" = 0))]
    pub rope_theta: Option<f64>,
    /// See `model.rope_scaling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// False for layers without attention.
    #[serde(skip_serializing_if = "is_true")]
    pub attention: bool,
    /// False for layers without a feed-forward part.
    #[serde(skip_serializing_if = "is_true")]
    pub mlp: bool,
}

impl Default for LayerOptions {
    fn default() -> Self {
        Self { layers: 1, window: None, rope: true, rope_theta: None, rope_scaling: None, attention: true, mlp: true }
    }
}

impl LayerOptions {
    /// The shortest pattern that gives the layers `listed`, each of which stands for one.
    fn pattern_of(listed: &[Self]) -> Vec<Self> {
        let repeats = |period: &usize| listed.iter().enumerate().all(|(index, layer)| *layer == listed[index % period]);
        let period = (1..=listed.len()).find(repeats).unwrap_or(0);
        let mut pattern: Vec<Self> = Vec::new();
        for layer in &listed[..period] {
            match pattern.last_mut() {
                Some(last) if Self { layers: 1, ..last.clone() } == *layer => last.layers += 1,
                _ => pattern.push(layer.clone()),
            }
        }
        pattern
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_one(n: &usize) -> bool {
    *n == 1
}

/// The options that differ from a family's own model. The default is GPT-2 itself, or a Llama. Records leave out options that have their
/// default. A value that is `None` is the family's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key of a file")]
pub struct ModelOptions {
    #[serde(skip_serializing_if = "is_default")]
    pub norm: NormPlace,
    #[serde(skip_serializing_if = "is_default")]
    pub norm_gain: NormGain,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activation: Option<Activation>,
    /// True if the activation is multiplied by the output of a second matrix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub biases: Option<Biases>,
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
    #[serde(rename = "causal", with = "as_causal", skip_serializing_if = "is_default")]
    pub mask: Mask,
    /// Elements of an attention head. `None`: `d_model` / `heads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    #[serde(skip_serializing_if = "is_default")]
    pub qk_norm: QkNorm,
    /// Factor on attention's scores. `None`: 1/√`head_dim`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// The most keys that a query sees, its own included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u32>,
    #[serde(skip_serializing_if = "is_default")]
    pub rope_scaling: RopeScaling,
    /// The part of a head's dimensions that is rotated. `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_fraction: Option<f64>,
    /// Logits z become c·tanh(z/c).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logit_softcap: Option<f64>,
    /// The training loss has this number times log²Σexp(logits) in addition.
    #[serde(skip_serializing_if = "is_default")]
    pub z_loss: f64,
    /// RMSNorm or LayerNorm of the embedding, as the layers have it.
    #[serde(skip_serializing_if = "is_default")]
    pub embedding_norm: bool,
    /// The layers that differ, from the first layer on; the list is repeated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pattern: Vec<LayerOptions>,
    /// The tensors and coefficients that sums name.
    #[serde(skip_serializing_if = "is_default")]
    pub values: NamedValues,
    /// What replaces tensors at five places.
    #[serde(skip_serializing_if = "is_default")]
    pub sums: Sums,
    /// Initial weights as PyTorch's modules have them, embedding and head as this says. Not a key of a file: `init` gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pytorch_init: Option<PytorchEmbedding>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self {
            norm: NormPlace::Pre,
            norm_gain: NormGain::Weight,
            activation: None,
            gated: None,
            biases: None,
            positions: PositionKind::Learned,
            embedding_scale: false,
            head_bias: false,
            final_norm: true,
            mlp_dropout: 0.0,
            mask: Mask::Causal,
            head_dim: None,
            qk_norm: QkNorm::None,
            attention_scale: None,
            window: None,
            rope_scaling: RopeScaling::None {},
            rope_fraction: None,
            logit_softcap: None,
            z_loss: 0.0,
            embedding_norm: false,
            pattern: Vec::new(),
            values: NamedValues::new(),
            sums: Sums::default(),
            pytorch_init: None,
        }
    }
}

/// The mask of a model without a window as `causal`, true or false.
mod as_causal {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Mask;

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    pub(super) fn serialize<S: Serializer>(mask: &Mask, serializer: S) -> Result<S::Ok, S::Error> {
        (*mask != Mask::Full).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mask, D::Error> {
        Ok(if bool::deserialize(deserializer)? { Mask::Causal } else { Mask::Full })
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

/// The options in the order in which files and plans show them, with the defaults of `family`.
pub fn option_keys(family: Family) -> [OptionKey; 23] {
    let defaults = family.defaults();
    let option = |key, default, words| OptionKey { key, default, words };
    [
        option("norm", json!("pre"), "norms: {}"),
        option("norm_gain", json!("weight"), "gain of norms: {}"),
        option("activation", json!(defaults.activation), "{}"),
        option("gated", json!(defaults.gated), "gated MLP: {}"),
        option("biases", json!(defaults.biases), "biases: {}"),
        option("positions", json!("learned"), "{} positions"),
        option("embedding_scale", json!(false), "scaled embedding"),
        option("head_bias", json!(false), "biased head"),
        option("final_norm", json!(true), "no final norm"),
        option("mlp_dropout", json!(0.0), "dropout {} within the MLP"),
        option("causal", json!(true), "no causal mask"),
        option("head_dim", Value::Null, "heads {} wide"),
        option("qk_norm", json!("none"), "norm of queries and keys: {}"),
        option("attention_scale", Value::Null, "scores × {}"),
        option("window", Value::Null, "window of {}"),
        option("rope_scaling", json!({"none": {}}), "frequencies: {}"),
        option("rope_fraction", json!(1.0), "{} of a head rotated"),
        option("logit_softcap", Value::Null, "logits capped at {}"),
        option("z_loss", json!(0.0), "z-loss × {}"),
        option("embedding_norm", json!(false), "norm of the embedding"),
        option("pattern", json!([]), "layers: {}"),
        // `Sums::lines` describes them.
        option("values", json!({}), ""),
        option("sums", Value::Null, "sums of named values"),
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

    /// The same options and base of rotary frequencies in the form that all spellings of a model of `layers` layers share: a value that is the
    /// default of `family`, of heads `head_dim` wide, is `None`, and `pattern` has the shortest list of differences.
    #[must_use]
    pub fn canonical(mut self, family: Family, layers: usize, head_dim: usize, theta: f64) -> (Self, f64) {
        let theta = self.settle_pattern(layers, theta);
        let defaults = family.defaults();
        self.activation = self.activation.filter(|activation| *activation != defaults.activation);
        self.gated = self.gated.filter(|gated| *gated != defaults.gated);
        self.biases = self.biases.filter(|biases| *biases != defaults.biases);
        self.head_dim = self.head_dim.filter(|width| *width != head_dim);
        let scale = 1.0 / (self.head_dim.unwrap_or(head_dim) as f64).sqrt();
        self.attention_scale = self.attention_scale.filter(|given| *given != scale);
        self.rope_fraction = self.rope_fraction.filter(|fraction| *fraction != 1.0);
        self.sums = self.sums.canonical(&self.values);
        self.values = self.values.into_iter().map(|(name, value)| (name, value.canonical(layers))).collect();
        (self, theta)
    }

    /// Makes `pattern` the differences from the layers that see the whole row, whose values become the model's own. Returns their base of
    /// rotary frequencies.
    fn settle_pattern(&mut self, layers: usize, theta: f64) -> f64 {
        if self.pattern.is_empty() {
            return theta;
        }
        let model = (self.window, theta, self.rope_scaling);
        let listed = self.pattern.iter().flat_map(|layer| std::iter::repeat_n(layer, layer.layers.min(layers)));
        // Every layer with its own values.
        let settled: Vec<LayerOptions> = listed
            .cycle()
            .take(layers)
            .map(|layer| LayerOptions {
                layers: 1,
                window: layer.window.or(model.0),
                rope_theta: Some(layer.rope_theta.unwrap_or(model.1)),
                rope_scaling: Some(layer.rope_scaling.unwrap_or(model.2)),
                ..layer.clone()
            })
            .collect();
        let attentions = || settled.iter().filter(|layer| layer.attention);
        let rotated = || attentions().filter(|layer| layer.rope);
        let typical = rotated().find(|layer| layer.window.is_none()).or_else(|| rotated().next());
        let typical = typical.map(|layer| (layer.rope_theta, layer.rope_scaling));
        let (theta, scaling) = match typical {
            Some((Some(theta), Some(scaling))) => (theta, scaling),
            // Where no layer rotates, neither matters.
            _ => (DEFAULT_ROPE_THETA, RopeScaling::default()),
        };
        let shared = attentions().next().and_then(|layer| layer.window);
        let shared = shared.filter(|window| attentions().all(|layer| layer.window == Some(*window)));
        let differences = settled.iter().map(|layer| {
            let rotates = layer.attention && layer.rope;
            LayerOptions {
                window: layer.window.filter(|_| shared.is_none() && layer.attention),
                rope: layer.rope || !layer.attention,
                rope_theta: layer.rope_theta.filter(|own| rotates && *own != theta),
                rope_scaling: layer.rope_scaling.filter(|own| rotates && *own != scaling),
                ..layer.clone()
            }
        });
        let pattern = LayerOptions::pattern_of(&differences.collect::<Vec<_>>());
        (self.window, self.rope_scaling) = (shared, scaling);
        self.pattern = if pattern == [LayerOptions::default()] { Vec::new() } else { pattern };
        theta
    }

    /// True if layer `layer` has attention.
    pub(super) fn layer_has_attention(&self, layer: usize) -> bool {
        let all: usize = self.pattern.iter().map(|entry| entry.layers).sum();
        let Some(mut left) = layer.checked_rem(all) else { return true };
        let entry = self.pattern.iter().find(|entry| {
            let is_it = left < entry.layers;
            left = left.saturating_sub(entry.layers);
            is_it
        });
        entry.is_none_or(|entry| entry.attention)
    }

    /// The options that change what a trained model computes.
    #[must_use]
    pub fn without_training(&self) -> Self {
        Self { mlp_dropout: 0.0, z_loss: 0.0, pytorch_init: None, ..self.clone() }
    }

    /// The options that differ from their defaults in words, each with a comma before it.
    pub fn describe(&self) -> String {
        // The JSON has only options that differ.
        let given = json_value(self);
        let mut words = String::new();
        for option in option_keys(Family::default()) {
            if let Some(value) = given.get(option.key).filter(|_| !option.words.is_empty()) {
                let value = match value {
                    Value::String(word) => word.clone(),
                    Value::Number(number) => number.as_f64().map_or_else(String::new, |number| number.to_string()),
                    other => other.to_string(),
                };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(layers: usize, window: Option<u32>, rope_theta: Option<f64>) -> LayerOptions {
        LayerOptions { layers, window, rope_theta, ..LayerOptions::default() }
    }

    fn canonical(window: Option<u32>, pattern: Vec<LayerOptions>, theta: f64) -> (Option<u32>, Vec<LayerOptions>, f64) {
        let options = ModelOptions { window, pattern, ..ModelOptions::default() };
        let (options, theta) = options.canonical(Family::Llama, 6, 64, theta);
        (options.window, options.pattern, theta)
    }

    #[test]
    fn all_spellings_of_a_pattern_have_one_record() {
        let expected = (None, vec![layer(2, Some(4), Some(50.0)), layer(1, None, None)], 1e6);
        let local = || layer(1, Some(4), Some(50.0));
        assert_eq!(canonical(None, vec![layer(2, Some(4), Some(50.0)), layer(1, None, None)], 1e6), expected);
        assert_eq!(canonical(None, vec![local(), local(), layer(1, None, Some(1e6))], 7.0), expected);
        assert_eq!(canonical(None, vec![layer(2, Some(4), None), layer(1, None, Some(1e6))], 50.0), expected);
        let whole = vec![local(), local(), layer(1, None, None), layer(2, Some(4), Some(50.0)), layer(9, None, None)];
        assert_eq!(canonical(None, whole, 1e6), expected);
    }

    #[test]
    fn layers_that_are_alike_have_no_pattern() {
        let plain = (None, Vec::new(), 1e4);
        assert_eq!(canonical(None, Vec::new(), 1e4), plain);
        assert_eq!(canonical(None, vec![LayerOptions::default()], 1e4), plain);
        assert_eq!(canonical(None, vec![layer(3, None, Some(1e4))], 1e6), plain);
        assert_eq!(canonical(None, vec![layer(1, Some(8), None)], 1e4), (Some(8), Vec::new(), 1e4));
        let nope = LayerOptions { rope: false, ..LayerOptions::default() };
        assert_eq!(canonical(None, vec![nope.clone()], 55.0), (None, vec![nope.clone()], 1e4));
        assert_eq!(canonical(None, vec![nope.clone(), nope.clone()], 1e4), (None, vec![nope], 1e4));
    }
}
