//! The request to write token shards, the events while they are written, and the outcome.

use std::path::Path;

use super::card::{Card, CardShard, HeldOut};
use super::format::ShardFormat;
use crate::hub::Settings as HubSettings;
use crate::progress::Progress;
use runner_spec::experiment::Data;

/// Token shards to write.
#[derive(Debug, Clone, Copy)]
pub struct ShardRequest<'a> {
    /// Tokenizer and sources. The layout is ignored.
    pub data: &'a Data,
    /// The folder of trained tokenizers and the built-in corpus.
    pub cache_dir: &'a Path,
    pub format: ShardFormat,
    /// The folder to write to, created if missing.
    pub folder: &'a Path,
    /// The start of file names, if the format does not fix them.
    pub name: &'a str,
    /// Tokens of a shard, unless the format has one file for each split.
    pub shard_tokens: u64,
    /// The validation data; `None` for the data's validation source, or without one the custom of the format's trainer.
    pub held_out: Option<HeldOut>,
    /// The end of the preparation: after this many tokens or documents of the training source.
    pub max_tokens: Option<u64>,
    pub max_rows: Option<u64>,
    /// The settings of the hub, if sources name it.
    pub hub: Option<&'a HubSettings>,
    /// Replace the shards that are in the folder.
    pub force: bool,
}

/// Something that happened while shards are written. Events come from several threads.
#[derive(Debug)]
pub enum ShardEvent<'a> {
    Preparing(Progress),
    /// Something that a person should see before the shards are used.
    Warning(String),
    /// Bytes of text and tokens that have been written.
    Written {
        bytes_done: u64,
        bytes_total: u64,
        tokens: u64,
    },
    /// A shard is complete.
    Whole(&'a CardShard),
}

/// The shards that are in the folder now.
#[derive(Debug, Clone)]
pub struct WrittenShards {
    pub card: Card,
    /// True if an earlier process had already written all of them.
    pub up_to_date: bool,
    /// Seconds from the first batch to the last one.
    pub seconds: f64,
}

/// Receives events.
pub(super) type Report<'a> = dyn Fn(ShardEvent<'_>) + Sync + 'a;
