//! Progress of data preparation.

use crate::hub::Downloading;
use crate::split_name::SplitName;

/// Progress of data preparation, sent up to once per piece of a source. Bytes are of the source's text or files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    /// A file of the hub is downloaded.
    Downloading(Downloading),
    /// The files of a source are hashed.
    Hashing {
        split: SplitName,
        bytes_done: u64,
        bytes_total: u64,
    },
    /// The built-in corpus is written.
    Generating,
    /// Shards that an earlier process wrote are compared with their hashes.
    Verifying {
        bytes_done: u64,
        bytes_total: u64,
    },
    /// This entry of the cache is damaged, and is made again.
    Repairing(&'static str),
    /// This process waits for a process that prepares the same data.
    Waiting,
    /// The training source is read for the tokenizer's vocabulary.
    TrainingTokenizer {
        bytes_done: u64,
        bytes_total: u64,
    },
    Tokenizing {
        split: SplitName,
        bytes_done: u64,
        bytes_total: u64,
        tokens: u64,
    },
    /// The split's tokens were in the cache, or are token shards used in place.
    CacheHit {
        split: SplitName,
        tokens: u64,
        /// The fraction of the training source that is held out for validation.
        held_out: Option<f64>,
    },
    /// The split has been tokenized and is in the cache.
    Done {
        split: SplitName,
        tokens: u64,
        documents: u64,
        /// The fraction of the training source that is held out for validation.
        held_out: Option<f64>,
    },
}

/// Receives progress; called from several threads.
pub(super) type Report<'a> = dyn Fn(Progress) + Sync + 'a;
