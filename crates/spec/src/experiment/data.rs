//! The `data` section: tokenizers, the held-out data, and how rows are made of tokens.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::source::Source;
use crate::hub_name::{self, HUB_DEFAULT_BRANCH};
use crate::model::Mask;
use crate::program::DataPosition;
use crate::serde_defaults::{defaults, is_default, is_true, one, or_text, yes};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub tokenizer: Tokenizer,
    pub train: Source,
    pub validation: Option<Validation>,
    pub layout: Layout,
    /// True if every epoch has a different permutation.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub shuffle: bool,
    /// True if the rows of an epoch that fill no batch are left out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drop_last: bool,
    /// Rows of each epoch that are read, the first ones in its order; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_rows: Option<u64>,
    /// The position from which rows are counted, in a fork that changed the batch or the data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<DataPosition>,
}

impl Data {
    /// The text of `train` and its tokenizer, where no rows are made.
    pub fn of_text(tokenizer: Tokenizer, train: Source) -> Self {
        Self {
            tokenizer,
            train,
            validation: None,
            layout: Layout::packed(1),
            shuffle: false,
            drop_last: false,
            epoch_rows: None,
            position: None,
        }
    }

    /// The validation source; `None` if there is no validation, or it is a fraction of the training source.
    pub fn separate_validation(&self) -> Option<&Source> {
        self.validation.as_ref().and_then(Validation::source)
    }
}

/// One tokenizer. Paths in a validated experiment are absolute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(extend("x-has-default" = true))]
pub enum Tokenizer {
    /// GPT-2's, from its two files.
    Gpt2 {
        /// Path of vocab.json.
        vocab: PathBuf,
        /// Path of merges.txt.
        merges: PathBuf,
    },
    /// Path of a tokenizer.json.
    File(PathBuf),
    /// One token per character of the training source.
    Chars {},
    /// One token per byte, and an end-of-text token.
    Bytes {},
    /// No tokenizer: token shards hold only ids, and `model.vocab_size` gives the size of the vocabulary. Prompts and samples are ids, such as `464 3290`.
    Ids {},
    /// Byte-level BPE, trained from the training source.
    Bpe {
        /// The number of tokens.
        #[schemars(range(min = 257, max = MAX_BPE_VOCABULARY))]
        vocab_size: usize,
        /// Special tokens, which have the first ids.
        #[serde(default)]
        special_tokens: Vec<String>,
    },
    /// Words, split as a basic English tokenizer does; the vocabulary comes from the training source.
    Words {
        /// True to lowercase text first.
        #[serde(default = "yes")]
        lowercase: bool,
        /// Words that occur less often are `<unk>`.
        #[serde(default = "one::<u64>")]
        #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
        min_count: u64,
        /// Special tokens, whose ids come after `<unk>` and before the words.
        #[serde(default)]
        special_tokens: Vec<String>,
    },
    /// The tokenizer of a model on the Hugging Face hub: its tokenizer.json, or vocab.json and merges.txt.
    Hub(HubModel),
}

impl Default for Tokenizer {
    fn default() -> Self {
        Self::Bytes {}
    }
}

/// A model of the hub. The name alone is enough: `hub: gpt2`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-short" = "name"), transform = or_text)]
pub struct HubModel {
    /// The model's name, such as `gpt2` or `openai-community/gpt2`.
    pub name: String,
    /// Branch, tag or commit. Default: main.
    #[serde(default = "default_branch")]
    pub revision: String,
}

impl HubModel {
    /// The model that `text` names: NAME or NAME@REVISION. [`HubModel::problem`] says whether these are legal.
    pub fn from_text(text: &str) -> Self {
        let (name, revision) = text.split_once('@').unwrap_or((text, HUB_DEFAULT_BRANCH));
        Self { name: name.to_owned(), revision: revision.to_owned() }
    }

    /// The reason why there can be no such model, such as "the name is empty".
    pub fn problem(&self) -> Option<String> {
        let problem = hub_name::name_problem(&self.name).map(|problem| format!("the name {problem}"));
        problem.or_else(|| hub_name::revision_problem(&self.revision).map(|problem| format!("the revision {problem}")))
    }
}

/// Most tokens of a trained BPE: far more than any language model has, and a table of them fits into memory.
pub const MAX_BPE_VOCABULARY: u64 = 10_000_000;

defaults! {
    default_branch: String = HUB_DEFAULT_BRANCH.to_owned();
}

/// The held-out data: the last `fraction` of the training source, or a separate source. In a file it is
/// `{fraction: 0.1}`, or a source as under `train`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Validation {
    Fraction(f64),
    #[serde(untagged)]
    Source(Source),
}

impl Validation {
    /// The separate source; `None` for a fraction of the training source.
    pub fn source(&self) -> Option<&Source> {
        match self {
            Self::Source(source) => Some(source),
            Self::Fraction(_) => None,
        }
    }

    /// [`Self::source`] to change.
    pub fn source_mut(&mut self) -> Option<&mut Source> {
        match self {
            Self::Source(source) => Some(source),
            Self::Fraction(_) => None,
        }
    }
}

impl JsonSchema for Validation {
    fn schema_name() -> Cow<'static, str> {
        "Validation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let fraction = json_schema!({
            "type": "object",
            "description": "The fraction of the training source that is held out from its end; between 0 and 1.",
            "properties": {"fraction": generator.subschema_for::<f64>()},
            "required": ["fraction"],
            "additionalProperties": false,
        });
        let mut schema = Source::json_schema(generator);
        if let Some(Value::Array(choices)) = schema.get_mut("oneOf") {
            choices.insert(0, fraction.to_value());
        }
        let description = "The held-out data: a fraction of the training source, or a separate source.";
        schema.insert("description".to_owned(), description.into());
        schema
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Layout {
    /// One token stream cut into windows: window i predicts tokens i·length+1 … (i+1)·length.
    Packed {
        length: usize,
        #[serde(default, skip_serializing_if = "is_default")]
        separator: Separator,
    },
    /// One token stream in `count` columns, which is the sequences of a batch; row i·count + c is piece i of column c. Validation and test
    /// data have `eval_count` columns; `None`: as many.
    Columns {
        length: usize,
        count: usize,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        eval_count: Option<usize>,
        #[serde(default, skip_serializing_if = "is_default")]
        separator: Separator,
    },
    /// One document per row, `length` inputs long, clipped and padded.
    Padded {
        length: usize,
        bos: String,
        eos: String,
        pad: String,
        #[serde(default, skip_serializing_if = "is_default")]
        mask: PaddingMask,
    },
}

/// The token between the documents of a stream: the tokenizer's end of text, or none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Separator {
    #[default]
    EndOfText,
    None,
}

/// The tokens of a padded row that causal attention sees: all up to the current one, or those of them that are not padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMask {
    #[default]
    Causal,
    CausalAndPadding,
}

impl Layout {
    /// One stream of tokens, with separators, in windows of `length`.
    pub const fn packed(length: usize) -> Self {
        Self::Packed { length, separator: Separator::EndOfText }
    }

    /// The token between documents that share rows; `None` for padded rows.
    pub fn separator(&self) -> Option<Separator> {
        match *self {
            Self::Packed { separator, .. } | Self::Columns { separator, .. } => Some(separator),
            Self::Padded { .. } => None,
        }
    }

    /// True if the end-of-text token comes between documents.
    pub fn separates_documents(&self) -> bool {
        self.separator() == Some(Separator::EndOfText)
    }

    /// True if attention with the mask `attention` must not see padding. Where it sees what follows a token, it would.
    pub fn masks_padding(&self, attention: Mask) -> bool {
        matches!(self, Self::Padded { mask, .. } if *mask == PaddingMask::CausalAndPadding || attention.sees_ahead())
    }

    /// The columns of the training data, or of data that is evaluated; `None` for other layouts.
    pub fn columns(&self, is_evaluated: bool) -> Option<usize> {
        let Self::Columns { count, eval_count, .. } = *self else { return None };
        Some(eval_count.filter(|_| is_evaluated).unwrap_or(count))
    }

    /// Inputs per row.
    pub fn length(&self) -> usize {
        match *self {
            Self::Packed { length, .. } | Self::Columns { length, .. } | Self::Padded { length, .. } => length,
        }
    }
}
