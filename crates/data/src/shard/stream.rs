//! The shards of a split, one after the other.

use std::path::{Path, PathBuf};

use super::card::CardShard;
use super::file::OpenShard;
use super::format::ShardFormat;
use super::state::OpenFile;
use crate::error::DataError;
use crate::progress::SplitName;

pub(super) struct ShardStream {
    folder: PathBuf,
    name: String,
    format: ShardFormat,
    split: SplitName,
    /// Tokens of a shard.
    size: u64,
    /// The number of the next shard.
    next: u64,
    open: Option<OpenShard>,
}

impl ShardStream {
    /// `first` is the number of the first shard, `whole` how many there are already.
    pub(super) fn new(
        folder: &Path,
        name: &str,
        format: ShardFormat,
        split: SplitName,
        size: Option<u64>,
        first: u64,
        whole: u64,
    ) -> Self {
        let (folder, name) = (folder.to_owned(), name.to_owned());
        Self { folder, name, format, split, size: size.unwrap_or(u64::MAX), next: first + whole, open: None }
    }

    /// Goes on with a file that an earlier process began.
    pub(super) fn reopen(&mut self, file: &OpenFile) -> Result<(), DataError> {
        self.open = Some(OpenShard::reopen(&self.folder, file.file.clone(), self.split, self.format, file.tokens)?);
        self.next += 1;
        Ok(())
    }

    /// Writes as many of `tokens` as the shard takes: how many, and the shard if it is whole now.
    pub(super) fn write(&mut self, tokens: &[u32]) -> Result<(usize, Option<CardShard>), DataError> {
        let mut shard = if let Some(shard) = self.open.take() {
            shard
        } else {
            let name = self.format.file_name(&self.name, self.split, self.next);
            self.next += 1;
            OpenShard::create(&self.folder, name, self.split, self.format)?
        };
        let taken = (tokens.len() as u64).min(self.size - shard.tokens()) as usize;
        shard.write(&tokens[..taken])?;
        if shard.tokens() == self.size {
            return Ok((taken, Some(shard.finish()?)));
        }
        self.open = Some(shard);
        Ok((taken, None))
    }

    /// Makes what is written durable, and says what it is.
    pub(super) fn sync(&mut self) -> Result<Option<OpenFile>, DataError> {
        let Some(shard) = &mut self.open else { return Ok(None) };
        shard.sync()?;
        Ok(Some(OpenFile { split: self.split.into(), file: shard.name().to_owned(), tokens: shard.tokens() }))
    }

    /// Tokens in the shard that is not whole.
    pub(super) fn pending(&self) -> u64 {
        self.open.as_ref().map_or(0, OpenShard::tokens)
    }

    /// Completes the last shard, if it has tokens.
    pub(super) fn finish(&mut self) -> Result<Option<CardShard>, DataError> {
        self.open.take().map(OpenShard::finish).transpose()
    }
}
