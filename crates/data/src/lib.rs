//! Sources, tokenizers, the token cache, layouts and the data order.

mod cache;
mod choice;
mod error;
mod fingerprint;
pub mod gc;
pub mod hub;
mod inspect;
mod prepare;
mod progress;
mod sampler;
mod shard;
mod shards;
mod source;
mod split;
mod store;
mod stories;
mod stream;
mod tokenizer;

pub use error::DataError;
pub use fingerprint::content_hash;
pub use inspect::{
    Column, Documents as DocumentCounts, Frequent, Inspected, InspectedFile, Sample, TextFacts, Vocabulary,
    inspect_text, inspect_tokens,
};
pub use prepare::{DataRequest, Prepared, prepare};
pub use progress::{Progress, SplitName};
pub use sampler::Sampler;
pub use shard::{
    Card, CardFile, CardShard, CardSource, CardTokenizer, HeldOut, ShardEvent, ShardFormat, ShardRequest, Sharded,
    write_shards,
};
pub use split::{Dataset, Split};
pub use tokenizer::{TextTokenizer, load_tokenizer, train_tokenizer};
