//! Sources, tokenizers, the token cache, layouts and the data order.

mod cache;
mod choice;
mod error;
mod fingerprint;
pub mod gc;
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
pub mod types;

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
pub(crate) use tokenizer::pretty;
pub use tokenizer::{HfTokenizer, SpecialTokens, TextTokenizer, load_tokenizer, train_tokenizer};
pub use types::{ChoiceFacts, ChoiceItem, DataFacts, IGNORE, Rows, SplitFacts, WeightsFacts};
