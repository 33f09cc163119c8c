//! Sources, tokenizers, the token cache, layouts and the data order.

mod cache;
mod choice;
mod error;
mod fingerprint;
pub mod gc;
mod prepare;
mod progress;
mod sampler;
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
pub use prepare::{DataRequest, Prepared, prepare};
pub use progress::{Progress, SplitName};
pub use sampler::Sampler;
pub use split::{Dataset, Split};
pub use tokenizer::{HfTokenizer, SpecialTokens, TextTokenizer};
pub use types::{ChoiceFacts, ChoiceItem, DataFacts, IGNORE, Rows, SplitFacts, WeightsFacts};
