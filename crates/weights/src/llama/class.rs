//! The classes of `transformers`: what each computes, and the values of keys that a file leaves out.

use std::path::Path;

use serde_json::Value;

use super::{read, write};
use crate::described_model::{DescribedModel, HfConfig};
use crate::error::WeightsError;
use runner_spec::model::{Activation, ModelSpec, NormGain, NormPlace, QkNorm};

/// The keys of vocabulary, context length, layers, heads and width.
pub(crate) const SIZE_KEYS: [&str; 5] =
    ["vocab_size", "max_position_embeddings", "num_hidden_layers", "num_attention_heads", "hidden_size"];

/// A class of `transformers`.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says whether the class has one thing")]
pub(crate) struct Class {
    pub(crate) model_type: &'static str,
    pub(super) name: &'static str,
    pub(super) norm: NormPlace,
    pub(super) gain: NormGain,
    pub(super) qk_norm: QkNorm,
    pub(super) activation_key: &'static str,
    pub(super) activation: Activation,
    pub(super) embedding_scale: bool,
    /// True if scores are divided by the root of `query_pre_attn_scalar`, and `final_logit_softcapping` is a key.
    pub(super) query_scalar: bool,
    pub(super) biases: BiasKeys,
    pub(super) windows: Windows,
    /// True if layers with a window have separate rotary positions, which `rope_parameters` lists by the type of the layer.
    pub(super) rope_by_layer_type: bool,
    /// The values of missing keys. `None`: as many as heads, and the width of the model divided by the heads.
    pub(super) kv_heads: Option<usize>,
    pub(super) head_dim: Option<usize>,
    pub(super) tied: bool,
    pub(super) eps: f64,
    pub(super) theta: f64,
}

/// Where a class has biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BiasKeys {
    Never,
    Qkv,
    /// In attention if `attention_bias` says so.
    Attention,
    /// Also in the MLP if `mlp_bias` says so.
    AttentionAndMlp,
}

/// How a class names the layers with a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Windows {
    Never,
    /// All layers, if `sliding_window` is not null.
    All,
    /// `layer_types`, if `use_sliding_window` is true. Without it, the layers from `max_window_layers` on, or those without rotary positions.
    Optional,
    /// `layer_types`, or all but each nth layer; n is the value of the missing key.
    AllButEvery(usize),
}

/// In the order in which an export looks for a class.
pub(crate) static CLASSES: [Class; 8] = [
    LLAMA,
    Class {
        model_type: "mistral",
        name: "MistralForCausalLM",
        biases: BiasKeys::Never,
        windows: Windows::All,
        kv_heads: Some(8),
        ..LLAMA
    },
    Class {
        model_type: "qwen2",
        name: "Qwen2ForCausalLM",
        biases: BiasKeys::Qkv,
        windows: Windows::Optional,
        kv_heads: Some(32),
        ..LLAMA
    },
    Class {
        model_type: "qwen3",
        name: "Qwen3ForCausalLM",
        qk_norm: QkNorm::Head,
        biases: BiasKeys::Attention,
        windows: Windows::Optional,
        kv_heads: Some(32),
        head_dim: Some(128),
        ..LLAMA
    },
    Class {
        model_type: "gemma3_text",
        name: "Gemma3ForCausalLM",
        norm: NormPlace::Both,
        gain: NormGain::OnePlusWeight,
        qk_norm: QkNorm::Head,
        activation_key: "hidden_activation",
        activation: Activation::Gelu,
        embedding_scale: true,
        query_scalar: true,
        biases: BiasKeys::Attention,
        windows: Windows::AllButEvery(6),
        rope_by_layer_type: true,
        kv_heads: Some(4),
        head_dim: Some(256),
        tied: true,
        theta: 1e6,
        ..LLAMA
    },
    Class {
        model_type: "olmo2",
        name: "Olmo2ForCausalLM",
        norm: NormPlace::Output,
        qk_norm: QkNorm::Width,
        biases: BiasKeys::Attention,
        eps: 1e-5,
        ..LLAMA
    },
    Class {
        model_type: "olmo3",
        name: "Olmo3ForCausalLM",
        norm: NormPlace::Output,
        qk_norm: QkNorm::Width,
        biases: BiasKeys::Attention,
        windows: Windows::AllButEvery(4),
        rope_by_layer_type: true,
        eps: 1e-5,
        theta: 5e5,
        ..LLAMA
    },
    Class {
        model_type: "smollm3",
        name: "SmolLM3ForCausalLM",
        windows: Windows::Optional,
        kv_heads: Some(4),
        tied: true,
        theta: 2e6,
        ..LLAMA
    },
];

const LLAMA: Class = Class {
    model_type: "llama",
    name: "LlamaForCausalLM",
    norm: NormPlace::Pre,
    gain: NormGain::Weight,
    qk_norm: QkNorm::None,
    activation_key: "hidden_act",
    activation: Activation::Silu,
    embedding_scale: false,
    query_scalar: false,
    biases: BiasKeys::AttentionAndMlp,
    windows: Windows::Never,
    rope_by_layer_type: false,
    kv_heads: None,
    head_dim: None,
    tied: false,
    eps: 1e-6,
    theta: 1e4,
};

impl Class {
    /// True if some layers have no rotary positions, which `no_rope_layers` lists.
    pub(super) fn has_layers_without_rope(&self) -> bool {
        self.model_type == "smollm3"
    }

    /// `config.json` of `spec`, apart from the keys that all classes have. Keys that `transformers` renamed are given under both names, for
    /// its older and newer versions.
    pub(crate) fn config(&self, spec: &ModelSpec) -> Value {
        write::config(self, spec)
    }
}

/// The model that `config`, of the class `class`, describes.
pub(crate) fn describe(class: &Class, config: &HfConfig<'_>) -> Result<DescribedModel, WeightsError> {
    read::describe(class, config)
}

/// The first class whose `config.json` describes `spec`, if there is one.
pub(crate) fn class_of(spec: &ModelSpec) -> Option<&'static Class> {
    let trained = ModelSpec { dropout: 0.0, options: spec.options.without_training(), ..spec.clone() };
    CLASSES.iter().find(|class| {
        let mut config = write::config(class, &trained);
        let sizes = [trained.vocab_size, trained.context_length, trained.layers, trained.heads, trained.d_model];
        for (key, size) in SIZE_KEYS.into_iter().zip(sizes) {
            config[key] = size.into();
        }
        config["tie_word_embeddings"] = trained.tie_embeddings.into();
        let Value::Object(map) = config else { return false };
        read::describe(class, &HfConfig { file: Path::new("config.json"), map })
            .is_ok_and(|described| described.spec == trained)
    })
}
