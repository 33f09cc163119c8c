//! `dataset.json`: what lies beside it, so that whoever trains on the shards can see what they are.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::format::ShardFormat;
use super::split::HeldOut;

/// The card's file.
pub(super) const CARD: &str = "dataset.json";

/// What shards hold and were made of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Card {
    /// Of this file: 1.
    pub format: u32,
    pub settings: Settings,
    /// `uint16` or `uint32`.
    pub dtype: String,
    /// Of all splits, ends of text included.
    pub tokens: u64,
    pub documents: u64,
    /// Bytes of text that were tokenized.
    pub text_bytes: u64,
    pub tokenizer: CardTokenizer,
    pub sources: Vec<CardSource>,
    pub shards: Vec<CardShard>,
}

/// What the shards are a function of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    pub shards: ShardFormat,
    pub name: String,
    /// Tokens of a shard; `null` where a split is one file.
    pub shard_tokens: Option<u64>,
    pub held_out: HeldOut,
    /// Content hash of the text and of how documents lie in it.
    pub source: String,
    /// That of the validation source, if there is one.
    pub validation: Option<String>,
    /// Content hash of the tokenizer.
    pub tokenizer: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardTokenizer {
    pub hash: String,
    /// The highest id plus one.
    pub vocab_size: u64,
    /// How many ids come up, and the highest of them.
    pub used: u64,
    pub highest: u32,
    /// The token between documents.
    pub end_of_text: Option<u32>,
    /// `before` or `after` each document.
    pub end_of_text_is: Option<String>,
    /// The tokenizer, beside this file.
    pub file: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardSource {
    /// `train` or `val`.
    pub split: String,
    pub files: Vec<CardFile>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardFile {
    pub name: String,
    pub bytes: u64,
    pub blake3: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CardShard {
    pub file: String,
    pub split: String,
    pub tokens: u64,
    /// Of the tokens as they are stored, without the header.
    pub blake3: String,
}

impl Settings {
    /// What is not as in `other`, in words.
    pub(super) fn differences(&self, other: &Self) -> String {
        let pairs = [
            (self.shards != other.shards, format!("its format is {}", other.shards.name())),
            (self.name != other.name, format!("its name is {:?}", other.name)),
            (self.shard_tokens != other.shard_tokens, {
                other.shard_tokens.map_or(String::new(), |n| format!("its shards have {n} tokens"))
            }),
            (self.held_out != other.held_out, format!("held out is {}", other.held_out)),
            (self.source != other.source, "its source has other content".to_owned()),
            (self.validation != other.validation, "its validation source has other content".to_owned()),
            (self.tokenizer != other.tokenizer, "its tokenizer is another".to_owned()),
        ];
        let said: Vec<_> =
            pairs.into_iter().filter(|(differs, text)| *differs && !text.is_empty()).map(|p| p.1).collect();
        said.join(", ")
    }
}

impl Card {
    /// The card in `folder`, if there is one that can be read.
    #[must_use]
    pub fn read(folder: &Path) -> Option<Self> {
        /// A card of some thousand shards.
        const MOST: u64 = 16 << 20;
        let path = folder.join(CARD);
        let size = std::fs::metadata(&path).ok()?.len();
        let bytes = (size <= MOST).then(|| std::fs::read(&path).ok())??;
        serde_json::from_slice::<Self>(&bytes).ok().filter(|card| card.format == 1)
    }

    /// Tokens of `split`.
    #[must_use]
    pub fn tokens_of(&self, split: &str) -> u64 {
        self.shards.iter().filter(|shard| shard.split == split).map(|shard| shard.tokens).sum()
    }
}
