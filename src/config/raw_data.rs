//! The `data` section as written.

use schemars::JsonSchema;
use serde::Deserialize;

use super::experiment::{Corpus, PaddingMask};
use super::raw::given;

/// The text, its tokens and how rows are made of them. Paths are relative to the experiment file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Data", extend("required" = ["train"]))]
pub(crate) struct RawData {
    /// What turns text into tokens. Default: bytes.
    pub tokenizer: RawTokenizer,
    /// The training source.
    pub train: Option<RawSource>,
    /// What is held out. Default: the last tenth of the training source, and `null` (nothing) for token shards.
    #[serde(deserialize_with = "given")]
    #[expect(clippy::option_option, reason = "three states: not given, given as null, given")]
    pub validation: Option<Option<RawValidation>>,
    /// How rows are made. Default: packed.
    pub layout: RawLayout,
    /// A fresh permutation of the rows in every epoch; else they come as they lie in the source. Default: true, and false
    /// for columns.
    pub shuffle: Option<bool>,
    /// Leave out the rows of an epoch that fill no batch; else the next epoch begins within the batch.
    pub drop_last: bool,
}

/// One tokenizer.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Tokenizer")]
pub(crate) enum RawTokenizer {
    /// GPT-2's, from its two files.
    Gpt2 {
        /// Path of vocab.json.
        vocab: String,
        /// Path of merges.txt.
        merges: String,
    },
    /// Path of a tokenizer.json.
    File(String),
    /// One token per character of the training source.
    Chars {},
    /// One token per byte, and an end of text.
    Bytes {},
    /// Byte-level BPE, trained from the training source.
    Bpe {
        /// Tokens in all.
        #[schemars(range(min = 257, max = 10_000_000))]
        vocab_size: usize,
        /// Tokens of their own, which come first.
        #[serde(default)]
        special_tokens: Vec<String>,
    },
}

impl Default for RawTokenizer {
    fn default() -> Self {
        Self::Bytes {}
    }
}

/// Where documents come from. `files` may hold patterns such as `data/*.parquet`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Source")]
pub(crate) enum RawSource {
    /// Plain text; each file is a document.
    Text {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
    },
    /// A text column of parquet files; each row is a document.
    Parquet {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
        /// The column with the text.
        #[serde(default = "text")]
        column: String,
    },
    /// One JSON object a line; each line is a document.
    Jsonl {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
        /// The field with the text.
        #[serde(default = "text")]
        field: String,
    },
    /// Token shards of llm.c (.bin), nanoGPT (.bin) or build-nanogpt (.npy).
    Tokens {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
    },
    /// A corpus that the program generates.
    Builtin {
        /// Which one.
        corpus: Corpus,
    },
}

fn text() -> String {
    "text".to_owned()
}

/// What is held out: a share of the training source, or a source of its own.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Validation")]
pub(crate) enum RawValidation {
    /// This share of the training source, its end; between 0 and 1.
    Fraction(f64),
    /// Plain text; each file is a document.
    Text {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
    },
    /// A text column of parquet files; each row is a document.
    Parquet {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
        /// The column with the text.
        #[serde(default = "text")]
        column: String,
    },
    /// One JSON object a line; each line is a document.
    Jsonl {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
        /// The field with the text.
        #[serde(default = "text")]
        field: String,
    },
    /// Token shards of llm.c (.bin), nanoGPT (.bin) or build-nanogpt (.npy).
    Tokens {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
    },
    /// A corpus that the program generates.
    Builtin {
        /// Which one.
        corpus: Corpus,
    },
}

/// How rows are made of documents.
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
        /// How many columns. Default, and the only choice: the sequences of a batch.
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
        /// What attention sees: tokens up to its own, or of these those that are no padding. Losses of tokens are the same.
        #[serde(default)]
        mask: PaddingMask,
    },
}

impl Default for RawLayout {
    fn default() -> Self {
        Self::Packed { length: None }
    }
}
