//! The sections `data` and `eval` as written.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use runner_spec::experiment::{EvalLoss, HellaSwag, PaddingMask, Samples, Source, Tokenizer, Validation};

/// Keeps "given as null" (`Some(None)`) apart from "not given" (`None`).
#[expect(clippy::option_option, reason = "three states: not given, given as null, given")]
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(from).map(Some)
}

/// The text, its tokens and how rows are made of them. Paths are relative to the experiment file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Data", extend("required" = ["train"]))]
pub(crate) struct RawData {
    /// The tokenizer, which turns text into tokens. Default: bytes.
    pub(crate) tokenizer: Tokenizer,
    /// The training source.
    pub(crate) train: Option<Source>,
    /// The held-out data. Default: the last tenth of the training source, and `null` (nothing) for token shards.
    #[serde(deserialize_with = "given")]
    #[expect(clippy::option_option, reason = "three states: not given, given as null, given")]
    pub(crate) validation: Option<Option<Validation>>,
    /// The layout, in which rows are made of tokens. Default: packed.
    pub(crate) layout: RawLayout,
    /// A fresh permutation of the rows in every epoch; else they come as they lie in the source. Default: true, and false
    /// for columns.
    pub(crate) shuffle: Option<bool>,
    /// Leave out the rows of an epoch that fill no batch; else the next epoch begins within the batch.
    pub(crate) drop_last: bool,
}

/// The way in which rows are made of documents.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Layout")]
pub(crate) enum RawLayout {
    /// One token stream cut into windows.
    Packed {
        /// Inputs per row. Default: model.context_length.
        #[serde(default)]
        #[schemars(range(min = 1, max = 16_777_216))]
        length: Option<usize>,
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
    },
    /// One document per row, clipped and padded; the loss ignores the padding.
    Padded {
        /// Inputs per row. Default: model.context_length.
        #[serde(default)]
        #[schemars(range(min = 1, max = 16_777_216))]
        length: Option<usize>,
        /// The token that each row begins with.
        bos: String,
        /// The token that ends a document.
        eos: String,
        /// The token that fills the row.
        pad: String,
        /// The tokens that attention sees: those up to its own, or of these those that are no padding. Losses of tokens are the same.
        #[serde(default)]
        mask: PaddingMask,
    },
}

impl Default for RawLayout {
    fn default() -> Self {
        Self::Packed { length: None }
    }
}

/// The measurements while training. A part that is `null` is left out.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Eval")]
pub(crate) struct RawEval {
    /// Optimizer steps between evaluations; one follows the last step in any case.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub(crate) every: u64,
    /// True to evaluate before the first step too.
    pub(crate) at_start: bool,
    /// Validation loss and perplexity. Default: 20 batches where there is validation data.
    #[serde(deserialize_with = "given")]
    #[expect(clippy::option_option, reason = "three states: not given, given as null, given")]
    pub(crate) loss: Option<Option<EvalLoss>>,
    /// Multiple choice in HellaSwag's format. Default: none.
    pub(crate) hellaswag: Option<HellaSwag>,
    /// Texts that the model continues. Default: none.
    pub(crate) samples: Option<Samples>,
    /// A source as under `data.train`, whose loss is measured once, after the last step, of the best checkpoint by
    /// validation loss. Default: none.
    pub(crate) test: Option<Source>,
}

impl Default for RawEval {
    fn default() -> Self {
        Self { every: 250, at_start: false, loss: None, hellaswag: None, samples: None, test: None }
    }
}
