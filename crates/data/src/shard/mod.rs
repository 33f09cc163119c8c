//! Token shards for other trainers: text in, llm.c's, nanoGPT's or build-nanogpt's files out.

mod beside;
mod card;
mod file;
mod format;
mod job;
mod meta;
mod split;
mod standing;
mod state;
mod stream;
mod units;
mod work;

pub use card::{Card, CardFile, CardShard, CardSource, CardTokenizer};
pub use format::ShardFormat;
pub use job::{ShardEvent, ShardRequest, Sharded, write_shards};
pub use split::HeldOut;
