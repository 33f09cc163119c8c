//! The `data` section as written.

use schemars::{JsonSchema, Schema, json_schema};
use serde::Deserialize;

use super::raw::{defaults, given};
use runner_spec::experiment::{Corpus, HUB_DEFAULT_BRANCH, PaddingMask, Validation};
use runner_spec::serde_defaults::yes;

/// The text, its tokens and how rows are made of them. Paths are relative to the experiment file.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Data", extend("required" = ["train"]))]
pub struct RawData {
    /// What turns text into tokens. Default: bytes.
    pub tokenizer: RawTokenizer,
    /// The training source.
    pub train: Option<RawSource>,
    /// What is held out. Default: the last tenth of the training source, and `null` (nothing) for token shards.
    #[serde(deserialize_with = "given")]
    #[expect(clippy::option_option, reason = "three states: not given, given as null, given")]
    pub validation: Option<Option<Validation<RawSource>>>,
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
pub enum RawTokenizer {
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
    /// Words, split as a basic English tokenizer does; the vocabulary is the training source's.
    Words {
        /// Whether text is lowercased first.
        #[serde(default = "yes")]
        lowercase: bool,
        /// Words that are there less often are `<unk>`.
        #[serde(default = "one")]
        #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
        min_count: u64,
        /// Tokens of their own, which come after `<unk>` and before the words.
        #[serde(default)]
        special_tokens: Vec<String>,
    },
    /// That of a model on the Hugging Face hub: its tokenizer.json, or vocab.json and merges.txt.
    Hub(RawHubTokenizer),
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
pub enum RawSource {
    /// Plain text; each file is a document.
    Text {
        /// Paths or patterns.
        #[schemars(length(min = 1))]
        files: Vec<String>,
    },
    /// Parquet files; each row is a document.
    Parquet(RawParquet),
    /// One JSON object a line; each line is a document.
    Jsonl(RawJson),
    /// A file that is one JSON array of objects, each a document.
    Json(RawJson),
    /// A dataset of the Hugging Face hub, or of what `HF_ENDPOINT` names.
    Hub(RawHubSource),
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

/// Parquet files, and which text of a row is a document.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Parquet", extend("x-exclusive" = ["column", "template"]))]
pub struct RawParquet {
    /// Paths or patterns.
    #[schemars(length(min = 1))]
    pub files: Vec<String>,
    /// The column with the text. Default: text.
    #[serde(default)]
    pub column: Option<String>,
    /// The text, made of columns: a minijinja template. Or `column`.
    #[serde(default)]
    pub template: Option<String>,
}

/// Files of JSON objects, and which text of an object is a document.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Json", extend("x-exclusive" = ["field", "template"]))]
pub struct RawJson {
    /// Paths or patterns.
    #[schemars(length(min = 1))]
    pub files: Vec<String>,
    /// The field with the text. Default: text.
    #[serde(default)]
    pub field: Option<String>,
    /// The text, made of fields: a minijinja template. Or `field`.
    #[serde(default)]
    pub template: Option<String>,
}

/// A dataset by its name: the files of one split are downloaded into the cache that Python's huggingface_hub has, and read there.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HubSource", extend("x-exclusive" = ["column", "template"]))]
pub struct RawHubSource {
    /// Its name, as `HuggingFaceFW/fineweb`.
    pub dataset: String,
    /// Which of its configurations. Default: the dataset's own default, or its only one.
    #[serde(default)]
    pub config: Option<String>,
    /// Which split. Default: train.
    #[serde(default = "train_split")]
    pub split: String,
    /// The column or field with the text. Default: text.
    #[serde(default)]
    pub column: Option<String>,
    /// The text, made of columns or fields: a minijinja template. Or `column`.
    #[serde(default)]
    pub template: Option<String>,
    /// Branch, tag or commit. Default: main.
    #[serde(default = "default_branch")]
    pub revision: String,
}

defaults! {
    one: u64 = 1;
    train_split: String = "train".to_owned();
    default_branch: String = HUB_DEFAULT_BRANCH.to_owned();
}

/// A tokenizer by the name of its model. The name alone is enough: `hub: gpt2`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "HubTokenizer", extend("x-short" = "name"), transform = or_text)]
pub struct RawHubTokenizer {
    /// The model's name, as `gpt2` or `openai-community/gpt2`.
    pub name: String,
    /// Branch, tag or commit. Default: main.
    #[serde(default = "default_branch")]
    pub revision: String,
}

/// A mapping whose key `x-short` a text alone stands for.
fn or_text(schema: &mut Schema) {
    let description = schema.remove("description");
    let mapping = std::mem::take(schema);
    *schema = json_schema!({"anyOf": [{"type": "string"}, mapping]});
    if let Some(description) = description {
        schema.insert("description".to_owned(), description);
    }
}

/// How rows are made of documents.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Layout")]
pub enum RawLayout {
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
