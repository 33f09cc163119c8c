//! Token shards for other trainers: writes text as the files of llm.c, nanoGPT or build-nanogpt.

mod card;
mod folder;
mod format;
mod job;
mod nanogpt_meta;
mod request;
mod split_writer;
mod writer;

pub use card::{Card, CardFile, CardShard, CardSource, CardTokenizer, HeldOut};
pub(super) use folder::TOKENIZER;
pub(super) use format::LLMC_HEADER;
pub use format::ShardFormat;
pub use job::write_shards;
pub use request::{ShardEvent, ShardRequest, WrittenShards};
