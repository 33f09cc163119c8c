//! `dataset.json`, which describes the shards beside it: settings, counts and hashes.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::format::ShardFormat;
use runner_spec::experiment::HubSource;
use runner_spec::format::json_value;

/// The card's file.
pub(super) const CARD: &str = "dataset.json";

/// The content of shards, and their sources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// The version of this file: 1.
    pub format: u32,
    pub settings: Settings,
    /// `uint16` or `uint32`.
    pub dtype: String,
    /// Tokens of all splits, including the tokens between documents.
    pub tokens: u64,
    pub documents: u64,
    /// Bytes of text that were tokenized.
    pub text_bytes: u64,
    pub tokenizer: CardTokenizer,
    pub sources: Vec<CardSource>,
    pub shards: Vec<CardShard>,
    /// The files that were written beside the shards, with the hashes of their content.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

/// The settings and content that determine the shards.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub shards: ShardFormat,
    pub name: String,
    /// Tokens of a shard; `null` where a split is one file.
    pub shard_tokens: Option<u64>,
    pub held_out: HeldOut,
    /// Content hash of the source: text, format and column.
    pub source: String,
    /// Content hash of the validation source, if there is one.
    pub validation: Option<String>,
    /// Content hash of the tokenizer.
    pub tokenizer: String,
    /// The number of tokens of the source, and of its documents, after which the preparation ended; `None` for all.
    pub max_tokens: Option<u64>,
    pub max_rows: Option<u64>,
}

/// The validation data of a set of shards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldOut {
    /// The first shard, which is the custom of llm.c and build-nanogpt.
    FirstShard,
    /// This fraction, which is the custom of nanoGPT: the last characters of a single text, or random documents of several.
    Fraction(f64),
    /// The validation source of the experiment.
    Source,
    Nothing,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardTokenizer {
    pub hash: String,
    /// The highest id plus one.
    pub vocab_size: u64,
    /// The number of distinct ids that occur, and the highest one.
    pub used: u64,
    pub highest: u32,
    /// The token between documents.
    pub end_of_text: Option<u32>,
    /// Its position at each document: `before` or `after`.
    pub end_of_text_is: Option<String>,
    /// The tokenizer's file, beside this one.
    pub file: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardSource {
    /// `train` or `val`.
    pub split: String,
    /// The dataset of the hub with the commit that was read; `None` for files of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSource>,
    pub files: Vec<CardFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardFile {
    pub name: String,
    pub bytes: u64,
    /// Hash of the content; `None` for a file of the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blake3: Option<String>,
    /// The hub's name of the content: the SHA-256 of a large file, the git blob of a small one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardShard {
    pub file: String,
    pub split: String,
    pub tokens: u64,
    /// Hash of the file.
    pub blake3: String,
}

impl Settings {
    /// The differences of `other`, for a message.
    pub(super) fn differences(&self, other: &Self) -> String {
        const HASHES: [&str; 3] = ["source", "validation", "tokenizer"];
        let (ours, theirs) = (json_value(self), json_value(other));
        let differing = theirs.as_object().into_iter().flatten().filter(|(key, value)| ours[key.as_str()] != **value);
        let texts = differing.map(|(key, value)| {
            if HASHES.contains(&key.as_str()) { format!("its {key} differs") } else { format!("its {key} is {value}") }
        });
        texts.collect::<Vec<_>>().join(", ")
    }
}

impl Card {
    /// Reads the card in `folder`; `None` if there is none, or the file is something else.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        /// More bytes than a card of several thousand shards has.
        const MAX_BYTES: u64 = 16 << 20;
        let path = folder.join(CARD);
        let size = std::fs::metadata(&path).ok()?.len();
        let bytes = (size <= MAX_BYTES).then(|| runner_files::read_regular(&path).ok())??;
        serde_json::from_slice::<Self>(&bytes).ok().filter(|card| card.format == 1)
    }

    /// The names of the shards, and of the files beside them that were written with them. Anyone may have written the card: only names of
    /// files in its folder count.
    pub(super) fn files_of_set(&self) -> impl Iterator<Item = &str> {
        let names = self.shards.iter().map(|shard| shard.file.as_str()).chain(self.files.keys().map(String::as_str));
        names.filter(|name| Path::new(name).file_name() == Some(name.as_ref()))
    }

    /// Tokens of `split`.
    #[must_use]
    pub fn tokens_of(&self, split: &str) -> u64 {
        self.shards.iter().filter(|shard| shard.split == split).map(|shard| shard.tokens).sum()
    }
}
