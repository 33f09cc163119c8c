//! The record of a model: its sizes and options.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::family::Family;
use super::heads::Heads;
use super::options::{Biases, ModelOptions};
use super::values::NamedValue;
use crate::serde_defaults::is_default;

/// The base of rotary frequencies where a file gives none.
pub const DEFAULT_ROPE_THETA: f64 = 10_000.0;

/// A decoder-only transformer. Sizes are counts of elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelSpec {
    pub family: Family,
    /// Rows of the embedding, padding included.
    pub vocab_size: usize,
    pub context_length: usize,
    pub layers: usize,
    pub heads: usize,
    /// Equal to `heads` for GPT-2.
    pub kv_heads: usize,
    pub d_model: usize,
    pub d_ff: usize,
    pub dropout: f64,
    pub tie_embeddings: bool,
    pub norm_eps: f64,
    pub rope_theta: f64,
    /// The options that differ from the family's own model.
    #[serde(rename = "variant", default, skip_serializing_if = "is_default")]
    pub options: ModelOptions,
}

impl ModelSpec {
    /// A model of `family` with the given vocabulary, context length, layers, heads and width, and the family's defaults. It has no dropout.
    pub fn with_defaults(family: Family, [vocab_size, context_length, layers, heads, d_model]: [usize; 5]) -> Self {
        Self {
            family,
            vocab_size,
            context_length,
            layers,
            heads,
            kv_heads: heads,
            d_model,
            d_ff: (family.defaults().d_ff)(d_model),
            dropout: 0.0,
            tie_embeddings: family.defaults().tie_embeddings,
            norm_eps: 1e-5,
            rope_theta: DEFAULT_ROPE_THETA,
            options: ModelOptions::default(),
        }
    }

    /// The model with whose layers calibration measures a family. As in the presets, heads are 64 wide, and a narrow model has four of them.
    pub fn for_calibration(family: Family, [vocab_size, context_length, layers, d_model]: [usize; 4]) -> Self {
        let heads = if d_model >= 256 { d_model / 64 } else { 4 };
        let spec = Self::with_defaults(family, [vocab_size, context_length, layers, heads, d_model]);
        Self { d_ff: family.defaults().calibrated_ff * d_model, tie_embeddings: false, ..spec }
    }

    /// An upper bound on the number of parameters that cannot overflow or allocate, to refuse absurd sizes by.
    pub fn parameter_bound(&self) -> f64 {
        let (vocab, d, ff) = (self.vocab_size as f64, self.d_model as f64, self.d_ff as f64);
        let heads = (self.heads as f64 * self.options.head_dim.unwrap_or(0) as f64).max(d);
        let layer = 4.0 * d * heads + 3.0 * d * ff + 12.0 * d + 6.0 * heads + 2.0 * ff;
        let tables = self.options.values.values().filter(|value| matches!(value, NamedValue::Table(_))).count() as f64;
        let layers = self.layers as f64 * (layer + tables * vocab * heads);
        (2.0 * vocab + self.context_length as f64 + 4.0) * d + vocab + layers
    }

    /// The products of layers that have biases.
    pub fn biases(&self) -> Biases {
        self.options.biases.unwrap_or(self.family.defaults().biases)
    }

    /// Width of one attention head.
    pub fn head_dim(&self) -> usize {
        self.options.head_dim.unwrap_or(self.d_model / self.heads)
    }

    /// The sizes by their keys in the `model` section. None can be 0.
    pub fn sizes(&self) -> [(&'static str, usize); 7] {
        [
            ("vocab_size", self.vocab_size),
            ("context_length", self.context_length),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("d_model", self.d_model),
            ("d_ff", self.d_ff),
        ]
    }

    pub fn attention_heads(&self) -> Heads {
        Heads { queries: self.heads, kv: self.kv_heads, width: self.head_dim() }
    }

    /// Numbers of one position that flow into `block`, an entry of the block list.
    pub fn width_to(&self, block: usize) -> usize {
        if self.options.sums.is_empty() { self.d_model } else { self.decoder().width_to(block) }
    }

    /// [`Self::width_to`] of each block.
    pub fn widths(&self) -> Vec<usize> {
        if self.options.sums.is_empty() {
            return vec![self.d_model; self.block_count()];
        }
        let decoder = self.decoder();
        (0..self.block_count()).map(|block| decoder.width_to(block)).collect()
    }

    /// The number of layers among `blocks`, a part of the block list.
    pub fn layers_in(&self, blocks: Range<usize>) -> usize {
        blocks.end.min(self.layers + 1).saturating_sub(blocks.start.max(1))
    }

    /// The entries of the block list: embedding, layers, head.
    pub fn block_count(&self) -> usize {
        self.layers + 2
    }
}
