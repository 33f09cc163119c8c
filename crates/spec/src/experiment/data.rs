//! The `data` section: sources, tokenizers, and how rows are made of tokens.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::serde_defaults::{is_default, is_true, yes};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    pub tokenizer: Tokenizer,
    pub train: Source,
    pub validation: Option<Validation>,
    pub layout: Layout,
    /// True if every epoch has a permutation of its own.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub shuffle: bool,
    /// True if the rows of an epoch that fill no batch are left out.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drop_last: bool,
}

/// Paths here are as the user wrote them, already joined to the folder of the experiment file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Tokenizer {
    Gpt2 { vocab: PathBuf, merges: PathBuf },
    File(PathBuf),
    Chars {},
    Bytes {},
    Bpe { vocab_size: usize, special_tokens: Vec<String> },
    Words { lowercase: bool, min_count: u64, special_tokens: Vec<String> },
    Hub { name: String, revision: String },
}

/// The branch of a hub repository that is read if the file names no other.
pub const HUB_DEFAULT_BRANCH: &str = "main";

/// A source of documents. `files` may be glob patterns. Exactly one of `column` (or `field`) and `template` is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    Text { files: Vec<PathBuf> },
    Parquet(ParquetSource),
    Jsonl(JsonSource),
    Json(JsonSource),
    Hub(HubSource),
    Tokens { files: Vec<PathBuf> },
    Builtin { corpus: Corpus },
}

/// Exactly one of `column` and `template` is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParquetSource {
    pub files: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// Exactly one of `field` and `template` is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JsonSource {
    pub files: Vec<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// A dataset of the hub by its name. Exactly one of `column` and `template` is set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubSource {
    pub dataset: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config: Option<String>,
    pub split: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// Branch, tag or commit. In the record of a run it is the commit that was read.
    pub revision: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Corpus {
    Stories,
}

/// The held-out data: the last `fraction` of the training source, or a source of its own. In a file it is
/// `{fraction: 0.1}`, or a source as under `train`.
#[derive(Debug, Clone, PartialEq)]
pub enum Validation<S = Source> {
    Fraction(f64),
    Source(S),
}

impl<S: Serialize> Serialize for Validation<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        match self {
            Self::Fraction(fraction) => serializer.serialize_newtype_variant("Validation", 0, "fraction", fraction),
            Self::Source(source) => source.serialize(serializer),
        }
    }
}

impl<'de, S: DeserializeOwned> Deserialize<'de> for Validation<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "lowercase", deny_unknown_fields)]
        enum Held {
            Fraction(f64),
        }
        let value = Value::deserialize(deserializer)?;
        if value.get("fraction").is_some() {
            let Held::Fraction(fraction) = serde_json::from_value(value).map_err(D::Error::custom)?;
            return Ok(Self::Fraction(fraction));
        }
        serde_json::from_value(value).map(Self::Source).map_err(D::Error::custom)
    }
}

impl<S: JsonSchema> JsonSchema for Validation<S> {
    fn schema_name() -> Cow<'static, str> {
        "Validation".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let fraction = json_schema!({
            "type": "object",
            "description": "This share of the training source, its end; between 0 and 1.",
            "properties": {"fraction": generator.subschema_for::<f64>()},
            "required": ["fraction"],
            "additionalProperties": false,
        });
        let mut schema = S::json_schema(generator);
        if let Some(Value::Array(choices)) = schema.get_mut("oneOf") {
            choices.insert(0, fraction.to_value());
        }
        let description = "What is held out: a share of the training source, or a source of its own.";
        schema.insert("description".to_owned(), description.into());
        schema
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Layout {
    /// One token stream cut into windows: window i predicts tokens i·length+1 … (i+1)·length.
    Packed { length: usize },
    /// One token stream in `count` columns, which is the sequences of a batch; row i·count + c is piece i of column c.
    Columns { length: usize, count: usize },
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

/// The tokens of a padded row that attention sees: all up to its own, or those of them that are not padding.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PaddingMask {
    #[default]
    Causal,
    CausalAndPadding,
}

impl Layout {
    /// Inputs per row.
    pub fn length(&self) -> usize {
        match *self {
            Self::Packed { length } | Self::Columns { length, .. } | Self::Padded { length, .. } => length,
        }
    }
}
