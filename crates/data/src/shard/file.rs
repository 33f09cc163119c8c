//! One shard in the making: under a name of its own until it is whole, then renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::card::{CARD, CardShard};
use super::format::{ShardFormat, short};
use super::job::TOKENIZER;
use super::meta::META;
use super::state::STATE;
use crate::error::DataError;
use crate::progress::SplitName;
use crate::stream::Width;

/// In front of and behind the name of a file that is not whole.
const PARTIAL: (&str, &str) = (".", ".partial");
const BUFFER: usize = 1 << 20;

pub(super) struct OpenShard {
    folder: PathBuf,
    name: String,
    split: SplitName,
    format: ShardFormat,
    writer: BufWriter<File>,
    tokens: u64,
    hasher: blake3::Hasher,
    scratch: Vec<u8>,
}

impl OpenShard {
    pub(super) fn create(
        folder: &Path,
        name: String,
        split: SplitName,
        format: ShardFormat,
    ) -> Result<Self, DataError> {
        let path = partial(folder, &name);
        let write = || -> io::Result<BufWriter<File>> {
            let mut writer = BufWriter::with_capacity(BUFFER, File::create(&path)?);
            writer.write_all(&vec![0; format.header_bytes()])?;
            Ok(writer)
        };
        let writer = write().map_err(failed(&path))?;
        let (folder, hasher) = (folder.to_owned(), blake3::Hasher::new());
        Ok(Self { folder, name, split, format, writer, tokens: 0, hasher, scratch: Vec::new() })
    }

    /// Goes on with a shard that has `tokens` tokens that count.
    pub(super) fn reopen(
        folder: &Path,
        name: String,
        split: SplitName,
        format: ShardFormat,
        tokens: u64,
    ) -> Result<Self, DataError> {
        let path = partial(folder, &name);
        let header = format.header_bytes() as u64;
        let bytes = header + tokens * format.width().bytes() as u64;
        let mut hasher = blake3::Hasher::new();
        let mut open = || -> io::Result<Option<File>> {
            // Killed between giving the file its name and saying so.
            if !path.exists() && folder.join(&name).exists() {
                fs::rename(folder.join(&name), &path)?;
            }
            let mut file = File::options().read(true).write(true).open(&path)?;
            if file.metadata()?.len() < bytes {
                return Ok(None);
            }
            file.set_len(bytes)?;
            file.seek(SeekFrom::Start(header))?;
            let mut block = vec![0; BUFFER];
            loop {
                match file.read(&mut block)? {
                    0 => return Ok(Some(file)),
                    read => _ = hasher.update(&block[..read]),
                }
            }
        };
        let Some(file) = open().map_err(failed(&path))? else {
            return Err(DataError::file(&path, "shorter than was written; --force starts over"));
        };
        let (folder, writer) = (folder.to_owned(), BufWriter::with_capacity(BUFFER, file));
        Ok(Self { folder, name, split, format, writer, tokens, hasher, scratch: Vec::new() })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn tokens(&self) -> u64 {
        self.tokens
    }

    pub(super) fn write(&mut self, tokens: &[u32]) -> Result<(), DataError> {
        self.scratch.clear();
        match self.format.width() {
            Width::U16 => self.scratch.extend(tokens.iter().flat_map(|&token| (token as u16).to_le_bytes())),
            Width::U32 => self.scratch.extend(tokens.iter().flat_map(|&token| token.to_le_bytes())),
        }
        self.hasher.update(&self.scratch);
        self.tokens += tokens.len() as u64;
        self.writer.write_all(&self.scratch).map_err(failed(&partial(&self.folder, &self.name)))
    }

    /// Makes what is written durable.
    pub(super) fn sync(&mut self) -> Result<(), DataError> {
        let path = partial(&self.folder, &self.name);
        self.writer.flush().and_then(|()| self.writer.get_ref().sync_all()).map_err(failed(&path))
    }

    /// Completes the file and gives it its name.
    pub(super) fn finish(mut self) -> Result<CardShard, DataError> {
        let path = partial(&self.folder, &self.name);
        let (header, target) = (self.format.header(self.tokens), self.folder.join(&self.name));
        let mut write = || -> io::Result<()> {
            self.writer.flush()?;
            let file = self.writer.get_mut();
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            file.sync_all()?;
            fs::rename(&path, &target)?;
            File::open(&self.folder)?.sync_all()
        };
        write().map_err(failed(&path))?;
        let blake3 = self.hasher.finalize().to_hex().to_string();
        Ok(CardShard { file: self.name, split: short(self.split).to_owned(), tokens: self.tokens, blake3 })
    }
}

/// Where `name` is while it is not whole.
pub(super) fn partial(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}{name}{}", PARTIAL.0, PARTIAL.1))
}

/// Removes what an earlier preparation left unfinished in `folder`, other than files called `kept`. What others call so stays.
pub(super) fn remove_partials(folder: &Path, kept: &[&str]) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let inner = name.to_str().and_then(|name| name.strip_prefix(PARTIAL.0)?.strip_suffix(PARTIAL.1));
        if inner.is_some_and(|inner| is_ours(inner) && !kept.contains(&inner)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Whether a preparation, of whatever format and name, writes a file called `name`.
fn is_ours(name: &str) -> bool {
    [CARD, STATE, TOKENIZER, META].contains(&name) || ShardFormat::ALL.into_iter().any(|format| format.is_any(name))
}

/// An error of writing, with what to do about it.
pub(super) fn failed(path: &Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    move |source| {
        let text = match source.kind() {
            io::ErrorKind::StorageFull => "the disk is full: make room, and the same command goes on where it can",
            io::ErrorKind::QuotaExceeded => {
                "the disk quota is used up: make room, and the same command goes on where it can"
            }
            _ => return DataError::Io { path: path.to_owned(), source },
        };
        DataError::Io { path: path.to_owned(), source: io::Error::new(source.kind(), text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_preparation_leaves_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let left = ["x_train_000001.bin", "any name_val_000000.npy", "train.bin", ".prepare.json", "tokenizer.json"];
        let theirs = [".movie.mkv.partial", ".x_train_1.bin.partial", "train.bin.partial", ".partial", "..partial"];
        for name in left.map(|name| format!(".{name}.partial")).into_iter().chain(theirs.map(str::to_owned)) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_partials(dir.path(), &["train.bin"]);
        let mut found: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        found.sort();
        let mut expected: Vec<_> = theirs.into_iter().chain([".train.bin.partial"]).collect();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
