//! The families GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023): each is a set of defaults, and the names of parameters in a
//! folder of weights.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::activation::Activation;
use super::options::{Biases, option_keys};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    #[default]
    Gpt2,
    Llama,
}

/// LayerNorm has a gain and a bias, RMSNorm a gain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    LayerNorm,
    RmsNorm,
}

/// Names in folders of weights. Several names are matrices that lie next to each other and are used as one.
#[derive(Debug)]
pub struct Names {
    pub(super) gpt2: &'static [&'static str],
    pub(super) llama: &'static [&'static str],
}

impl Names {
    /// The names in the folders of `family`.
    pub(super) fn of(&self, family: Family) -> &'static [&'static str] {
        (family.defaults().names)(self)
    }
}

/// What the models of a family have in common.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each says whether the family has one thing")]
pub struct FamilyTraits {
    pub norm: NormKind,
    /// The products that have biases.
    pub biases: Biases,
    /// True if queries and keys are rotated by their positions, and no positions are added to embeddings.
    pub rotary: bool,
    pub activation: Activation,
    /// True if the activation is multiplied by the output of a second matrix.
    pub gated: bool,
    /// True if heads may share keys and values.
    pub grouped_heads: bool,
    /// True if embeddings, attention and residuals have dropout.
    pub dropout: bool,
    /// True if the matrices that write to the residual stream start smaller by √(2·layers).
    pub scaled_residuals: bool,
    pub tie_embeddings: bool,
    /// The width of the MLP for a width of the model, and how a person writes that.
    pub d_ff: fn(usize) -> usize,
    pub d_ff_text: &'static str,
    /// The MLP's width of the models that are calibrated, as a multiple of the model's.
    pub(super) calibrated_ff: usize,
    /// Keys of the `model` section that the family does not have.
    lacks: &'static [LackedKey],
    /// The start of all parameters' names in a folder but the head's, and of a layer's.
    pub prefix: &'static str,
    pub(super) layers: &'static str,
    /// Chooses the names of a part's parameters.
    pub(super) names: fn(&Names) -> &'static [&'static str],
    /// True if a folder holds the matrices of layers as `[in, out]` (Conv1D), transposed.
    pub(super) transposes: bool,
    /// The ends of names of tensors that older versions of `transformers` and other programs save, masks and angles that follow from the
    /// configuration.
    pub buffers: &'static [&'static str],
}

/// A key that a family does not have.
#[derive(Debug)]
pub struct LackedKey {
    pub key: &'static str,
    /// True if the key is refused whatever its value, and not shown. Otherwise its default may be given.
    refused: bool,
    pub why: &'static str,
}

const fn lacks(key: &'static str, why: &'static str) -> LackedKey {
    LackedKey { key, refused: false, why }
}

static GPT2: FamilyTraits = FamilyTraits {
    norm: NormKind::LayerNorm,
    biases: Biases::All,
    rotary: false,
    activation: Activation::Gelu,
    gated: false,
    grouped_heads: false,
    dropout: true,
    scaled_residuals: true,
    tie_embeddings: true,
    d_ff: |d_model| d_model.saturating_mul(4),
    d_ff_text: "4·d_model",
    calibrated_ff: 4,
    lacks: &[
        LackedKey { refused: true, ..lacks("rope_theta", "it does not rotate positions") },
        LackedKey { refused: true, ..lacks("rope_scaling", "it does not rotate positions") },
        LackedKey { refused: true, ..lacks("rope_fraction", "it does not rotate positions") },
    ],
    prefix: "transformer.",
    layers: "transformer.h",
    names: |names| names.gpt2,
    transposes: true,
    buffers: &[".attn.bias", ".attn.masked_bias"],
};

static LLAMA: FamilyTraits = FamilyTraits {
    norm: NormKind::RmsNorm,
    biases: Biases::None,
    rotary: true,
    activation: Activation::Silu,
    gated: true,
    grouped_heads: true,
    dropout: false,
    scaled_residuals: false,
    tie_embeddings: false,
    d_ff: |d_model| {
        let width = d_model.saturating_mul(8).div_ceil(3);
        width.checked_next_multiple_of(256).unwrap_or(width)
    },
    d_ff_text: "8/3·d_model, up to a multiple of 256",
    calibrated_ff: 3,
    lacks: &[
        lacks("dropout", "it has no dropout"),
        LackedKey { refused: true, ..lacks("positions", "it rotates its positions") },
        lacks("head_bias", "its head has no bias"),
        lacks("final_norm", "a norm always precedes its head"),
        lacks("mlp_dropout", "it has no dropout"),
    ],
    prefix: "model.",
    layers: "model.layers",
    names: |names| names.llama,
    transposes: false,
    buffers: &["rotary_emb.inv_freq", "rotary_emb.cos", "rotary_emb.sin"],
};

impl Family {
    pub const ALL: [Self; 2] = [Self::Gpt2, Self::Llama];

    pub fn defaults(self) -> &'static FamilyTraits {
        match self {
            Self::Gpt2 => &GPT2,
            Self::Llama => &LLAMA,
        }
    }

    /// The reason why the family does not have `key` of the `model` section.
    pub fn lacked(self, key: &str) -> Option<&'static LackedKey> {
        self.defaults().lacks.iter().find(|lacked| lacked.key == key)
    }

    /// The keys of `section`, a `model` section, that the family does not have. A key with its default value is not among them, unless
    /// no value of it is accepted.
    pub fn foreign_keys(self, section: &Value) -> impl Iterator<Item = &'static LackedKey> {
        let defaults = option_keys(self);
        self.defaults().lacks.iter().filter(move |lacked| {
            let value = section.get(lacked.key).filter(|value| !value.is_null());
            let default = defaults.iter().find(|option| option.key == lacked.key).map(|option| &option.default);
            value.is_some_and(|value| {
                let is_default = default.map_or(value.as_f64() == Some(0.0), |default| default == value);
                lacked.refused || !is_default
            })
        })
    }

    /// The keys of the `model` section that files of this family cannot have.
    pub fn hidden_keys(self) -> impl Iterator<Item = &'static str> {
        self.defaults().lacks.iter().filter(|lacked| lacked.refused).map(|lacked| lacked.key)
    }
}
