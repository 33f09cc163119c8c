//! Writes the shards of a split, one after the other.

use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::card::CardShard;
use super::request::{Report, ShardEvent, ShardRequest};
use crate::error::{DataError, Result};
use crate::hashing::hash_file;
use crate::split_name::SplitName;
use crate::token_stream::encode_tokens;

const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct SplitWriter<'a> {
    request: &'a ShardRequest<'a>,
    report: &'a Report<'a>,
    /// The folder to write to.
    stage: &'a Path,
    split: SplitName,
    /// Tokens of a complete shard.
    shard_tokens: u64,
    /// The number of the next shard.
    next: u64,
    open: Option<OpenShard>,
    /// The complete shards.
    pub(super) shards: Vec<CardShard>,
    /// Tokens in all shards.
    pub(super) tokens: u64,
}

/// A shard that is not complete.
struct OpenShard {
    name: String,
    path: PathBuf,
    writer: BufWriter<File>,
    tokens: u64,
}

impl<'a> SplitWriter<'a> {
    /// `first` is the number of the first shard.
    pub(super) fn new(
        request: &'a ShardRequest<'a>,
        stage: &'a Path,
        split: SplitName,
        first: u64,
        report: &'a Report<'a>,
    ) -> Self {
        let shard_tokens = if request.format.one_file() { u64::MAX } else { request.shard_tokens };
        Self { request, report, stage, split, shard_tokens, next: first, open: None, shards: Vec::new(), tokens: 0 }
    }

    fn create(&mut self) -> Result<OpenShard> {
        let name = self.request.format.file_name(self.request.name, self.split, self.next);
        let path = self.stage.join(&name);
        self.next += 1;
        let mut writer = BufWriter::with_capacity(BUFFER_BYTES, File::create(&path).map_err(DataError::io(&path))?);
        writer.write_all(&self.request.format.header(0)).map_err(DataError::io(&path))?;
        Ok(OpenShard { name, path, writer, tokens: 0 })
    }

    pub(super) fn write(&mut self, mut tokens: &[u32]) -> Result<()> {
        while !tokens.is_empty() {
            let mut shard = match self.open.take() {
                Some(shard) => shard,
                None => self.create()?,
            };
            let count = (tokens.len() as u64).min(self.shard_tokens - shard.tokens);
            let (now, later) = tokens.split_at(count as usize);
            let bytes = encode_tokens(self.request.format.token_type(), now);
            shard.writer.write_all(&bytes).map_err(DataError::io(&shard.path))?;
            shard.tokens += count;
            self.tokens += count;
            tokens = later;
            let is_complete = shard.tokens == self.shard_tokens;
            self.open = Some(shard);
            if is_complete {
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Completes the open shard, if there is one.
    pub(super) fn finish(&mut self) -> Result<()> {
        let Some(OpenShard { name, path, mut writer, tokens }) = self.open.take() else { return Ok(()) };
        let mut complete = || -> io::Result<()> {
            writer.flush()?;
            let file = writer.get_mut();
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&self.request.format.header(tokens))?;
            file.sync_all()
        };
        complete().map_err(DataError::io(&path))?;
        let blake3 = hash_file(&path, &|_| ())?;
        let shard = CardShard { file: name, split: self.split.short().to_owned(), tokens, blake3 };
        (self.report)(ShardEvent::Whole(&shard));
        self.shards.push(shard);
        Ok(())
    }
}
