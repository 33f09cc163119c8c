//! Sources, tokenizers, the token cache, layouts, the data order and the Hugging Face hub.

mod cache;
mod choice;
mod cut_points;
mod error;
mod evaluation;
mod fingerprint;
pub mod gc;
mod hashing;
pub mod hub;
mod mapped_file;
mod model_tokenizer;
mod overlap;
mod prepare;
mod progress;
mod sampler;
mod shard;
mod shard_tokenizer;
mod shared_files;
mod source;
mod split;
mod split_name;
mod split_text;
mod stories;
mod token_files;
mod token_store;
mod token_stream;
mod tokenizer;
mod unknown_text;

pub use cache::claim_cache;
pub use error::DataError;
pub use evaluation::{EvaluationData, EvaluationRequest, prepare_evaluation};
pub use fingerprint::content_hash;
pub use model_tokenizer::{ModelTokenizer, tokens_kept};
pub use prepare::{DataRequest, Prepared, TokensOrigin, prepare};
pub use progress::Progress;
pub use sampler::Sampler;
pub use shard::{
    Card, CardFile, CardShard, CardSource, CardTokenizer, HeldOut, ShardEvent, ShardFormat, ShardRequest,
    WrittenShards, write_shards,
};
pub use source::compression_advice;
pub use split::{Dataset, Split};
pub use split_name::SplitName;
pub use tokenizer::{TextTokenizer, load_tokenizer, may_join_documents, token_difference, train_tokenizer};
