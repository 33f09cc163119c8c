//! The `data` section as written.

use schemars::JsonSchema;
use serde::Deserialize;

use runner_spec::experiment::{PaddingMask, Separator, Source, Tokenizer, Validation};
use runner_spec::program::DataPosition;

/// The text, its tokens and how rows are made of them. Paths are relative to the experiment file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Data", extend("required" = ["train"]))]
pub(crate) struct RawData {
    /// The tokenizer, which turns text into tokens. Default: bytes, and ids for token shards if the vocabulary is known.
    pub(crate) tokenizer: Tokenizer,
    /// The training source.
    pub(crate) train: Option<Source>,
    /// The held-out data. Default: the last tenth of the training source, and `null` (nothing) for token shards.
    pub(crate) validation: Option<Validation>,
    /// How rows are made of tokens. Default: packed.
    pub(crate) layout: RawLayout,
    /// True for a new permutation of the rows in every epoch, false for the order of the source. Default: true, and false
    /// for columns.
    pub(crate) shuffle: Option<bool>,
    /// True to leave out the rows of an epoch that fill no batch. If false, the next epoch begins within the batch.
    pub(crate) drop_last: bool,
    /// The number of rows that each epoch reads: the first ones in its order. Default: all.
    #[schemars(range(min = 1, max = 1_000_000_000_000_000u64))]
    pub(crate) epoch_rows: Option<u64>,
    /// The position in the training data at which a fork that changed the batch or the data continues. `runner fork` writes it. Default: none.
    pub(crate) position: Option<DataPosition>,
}

/// The way in which rows are made of documents.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Layout", extend("x-has-default" = true))]
pub(crate) enum RawLayout {
    /// One token stream cut into windows.
    Packed {
        /// Inputs per row. Default: model.context_length.
        #[serde(default)]
        #[schemars(range(min = 1, max = 16_777_216))]
        length: Option<usize>,
        /// What comes between documents: the tokenizer's end-of-text token, or nothing.
        #[serde(default)]
        separator: Separator,
    },
    /// One token stream cut into as many columns as a batch has sequences; a batch is the next piece of every column.
    Columns {
        /// Inputs per row. Default: model.context_length.
        #[serde(default)]
        #[schemars(range(min = 1, max = 16_777_216))]
        length: Option<usize>,
        /// The number of columns. Default, and the only choice: the sequences of a batch.
        #[serde(default)]
        #[schemars(range(min = 1, max = 1_000_000_000))]
        count: Option<usize>,
        /// The number of columns of validation and test data. Default: as many as training has.
        #[serde(default)]
        #[schemars(range(min = 1, max = 1_000_000_000))]
        eval_count: Option<usize>,
        /// What comes between documents: the tokenizer's end-of-text token, or nothing.
        #[serde(default)]
        separator: Separator,
    },
    /// One document per row, clipped and padded; the loss ignores the padding.
    Padded {
        /// Inputs per row. Default: model.context_length.
        #[serde(default)]
        #[schemars(range(min = 1, max = 16_777_216))]
        length: Option<usize>,
        /// The token that starts each row.
        bos: String,
        /// The token that ends a document.
        eos: String,
        /// The token that fills the row.
        pad: String,
        /// The mask of causal attention: causal, or causal without padding. The losses are the same. Under `model.causal: false`
        /// attention never sees padding.
        #[serde(default)]
        mask: PaddingMask,
    },
}

impl Default for RawLayout {
    fn default() -> Self {
        Self::Packed { length: None, separator: Separator::default() }
    }
}
