//! What preparing data tells the outside while it works.

use crate::hub::Downloading;

/// Sent from the preparing thread, as often as once per piece of a source: the receiver draws as often as it likes. Bytes
/// are of the source's text or files.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Progress {
    /// A file of the hub arrives.
    Downloading(Downloading),
    /// The files of a source are read for their content hash.
    Hashing {
        split: SplitName,
        bytes_done: u64,
        bytes_total: u64,
    },
    /// The built-in corpus is written.
    Generating,
    /// Another process prepares the same data; this one waits for it.
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
    },
    /// The split has been tokenized and is in the cache.
    Done {
        split: SplitName,
        tokens: u64,
        documents: u64,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitName {
    Train,
    Validation,
    Test,
}

/// How preparing reports; shared between threads.
pub(super) type Report<'a> = dyn Fn(Progress) + Sync + 'a;
