//! Writes the shards of a split, one after the other. A shard has a hidden name until it is complete.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;

use super::card::{CardShard, HeldOut};
use super::folder::{unfinished_path, write_error};
use super::request::ShardRequest;
use super::state::{OpenFile, ResumeState};
use crate::error::{DataError, Result};
use crate::split_name::SplitName;
use crate::token_stream::encode_tokens;

const BUFFER_BYTES: usize = 1 << 20;

pub(super) struct SplitWriter<'a> {
    request: &'a ShardRequest<'a>,
    split: SplitName,
    /// Tokens of a complete shard.
    shard_tokens: u64,
    /// The number of the next shard.
    next: u64,
    open: Option<OpenShard>,
}

/// A shard that is not complete.
struct OpenShard {
    name: String,
    /// The path until the shard is complete.
    path: PathBuf,
    writer: BufWriter<File>,
    tokens: u64,
    hasher: blake3::Hasher,
}

impl<'a> SplitWriter<'a> {
    /// Continues the shards of `split` at `state`.
    pub(super) fn new(request: &'a ShardRequest<'a>, split: SplitName, state: &ResumeState) -> Result<Self> {
        let settings = &state.settings;
        let first = u64::from(split == SplitName::Train && settings.held_out != HeldOut::Nothing);
        let next = first + state.shards_of(split).count() as u64;
        let shard_tokens = settings.shard_tokens.unwrap_or(u64::MAX);
        let mut writer = Self { request, split, shard_tokens, next, open: None };
        if let Some(file) = state.open.iter().find(|file| file.split == split.short()) {
            writer.open = Some(writer.reopen(file)?);
            writer.next += 1;
        }
        Ok(writer)
    }

    fn create(&mut self) -> Result<OpenShard> {
        let ShardRequest { format, folder, name, .. } = *self.request;
        let name = format.file_name(name, self.split, self.next);
        let path = unfinished_path(folder, &name);
        self.next += 1;
        let mut writer = BufWriter::with_capacity(BUFFER_BYTES, File::create(&path).map_err(write_error(&path))?);
        writer.write_all(&vec![0; format.header_bytes()]).map_err(write_error(&path))?;
        Ok(OpenShard { name, path, writer, tokens: 0, hasher: blake3::Hasher::new() })
    }

    /// Opens an incomplete file of an earlier process. Only its first `tokens` tokens count.
    fn reopen(&self, OpenFile { file: name, tokens, blake3, .. }: &OpenFile) -> Result<OpenShard> {
        let (format, target) = (self.request.format, self.request.folder.join(name));
        let path = unfinished_path(self.request.folder, name);
        let header = format.header_bytes() as u64;
        let bytes = header + tokens * format.token_type().bytes() as u64;
        let mut hasher = blake3::Hasher::new();
        let mut open = || -> io::Result<Option<File>> {
            // The earlier process was killed after it renamed the file and before it saved the state.
            if !path.exists() && target.exists() {
                fs::rename(&target, &path)?;
            }
            let mut file = File::options().read(true).write(true).open(&path)?;
            if file.metadata()?.len() < bytes {
                return Ok(None);
            }
            file.set_len(bytes)?;
            file.seek(SeekFrom::Start(header))?;
            hasher.update_reader(&file)?;
            Ok(Some(file))
        };
        let Some(file) = open().map_err(write_error(&path))? else {
            return Err(DataError::file(&path, "shorter than was written; use --force to start over"));
        };
        if hasher.finalize().to_hex().as_str() != blake3 {
            return Err(DataError::file(
                &path,
                "was damaged or changed after it was written; use --force to start over",
            ));
        }
        let writer = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(OpenShard { name: name.clone(), path, writer, tokens: *tokens, hasher })
    }

    /// Writes the first of `tokens`, up to the end of a shard. Returns how many it wrote, and the shard if it is complete.
    pub(super) fn write(&mut self, tokens: &[u32]) -> Result<(usize, Option<CardShard>)> {
        let mut shard = match self.open.take() {
            Some(shard) => shard,
            None => self.create()?,
        };
        let taken = (tokens.len() as u64).min(self.shard_tokens - shard.tokens) as usize;
        let bytes = encode_tokens(self.request.format.token_type(), &tokens[..taken]);
        shard.hasher.update(&bytes);
        shard.tokens += taken as u64;
        shard.writer.write_all(&bytes).map_err(write_error(&shard.path))?;
        let is_complete = shard.tokens == self.shard_tokens;
        self.open = Some(shard);
        Ok((taken, if is_complete { self.finish()? } else { None }))
    }

    /// Makes everything that was written durable. Returns the incomplete file.
    pub(super) fn sync(&mut self) -> Result<Option<OpenFile>> {
        let Some(shard) = &mut self.open else { return Ok(None) };
        let synced = shard.writer.flush().and_then(|()| shard.writer.get_ref().sync_all());
        synced.map_err(write_error(&shard.path))?;
        let blake3 = shard.hasher.finalize().to_hex().to_string();
        let split = self.split.short().to_owned();
        Ok(Some(OpenFile { split, file: shard.name.clone(), tokens: shard.tokens, blake3 }))
    }

    /// Tokens in the incomplete shard.
    pub(super) fn open_tokens(&self) -> u64 {
        self.open.as_ref().map_or(0, |shard| shard.tokens)
    }

    /// Completes the open shard, if there is one.
    pub(super) fn finish(&mut self) -> Result<Option<CardShard>> {
        let Some(OpenShard { name, path, mut writer, tokens, hasher }) = self.open.take() else { return Ok(None) };
        let (folder, target) = (self.request.folder, self.request.folder.join(&name));
        let mut complete = || -> io::Result<()> {
            writer.flush()?;
            let file = writer.get_mut();
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&self.request.format.header(tokens))?;
            file.sync_all()?;
            fs::rename(&path, &target)?;
            runner_files::sync_dir(folder)
        };
        complete().map_err(write_error(&target))?;
        let (split, blake3) = (self.split.short().to_owned(), hasher.finalize().to_hex().to_string());
        Ok(Some(CardShard { file: name, split, tokens, blake3 }))
    }
}
