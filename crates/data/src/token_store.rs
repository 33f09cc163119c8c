//! Tokenized documents in the cache: a folder with `tokens.bin` and `documents.bin`.
//!
//! `tokens.bin` has a header of 128 bytes and the tokens. `documents.bin` has the position at which each document starts and, last, the
//! number of tokens, as u64. Everything is little-endian. The header has the lengths and its own hash, which reveal a file that is cut
//! short or foreign. `checksums.bin` reveals damage within the two files; see `mapped_file.rs`.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::error::{DataError, Result};
use super::mapped_file::{BLOCK_BYTES, ChecksumWriter, MappedFile, read_checksums, write_checksums};
use super::token_stream::{TokenSegment, TokenStream, encode_tokens};
use runner_spec::experiment::TokenType;

const MAGIC: &[u8; 8] = b"RUNTOK\x00\x02";
const HEADER_BYTES: usize = 128;
/// Bytes of the header that its hash covers; the hash follows them.
const HASHED_BYTES: usize = 48;

/// The tokens and documents of an entry.
#[derive(Debug, Clone)]
pub(super) struct TokenStore {
    pub(super) tokens: TokenStream,
    documents: MappedFile,
    pub(super) document_count: u64,
    /// The highest id.
    pub(super) max: u32,
}

impl TokenStore {
    /// Opens the entry in `folder`.
    ///
    /// # Errors
    /// `Damaged`, if the entry is not whole.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let damaged = |message: &str| DataError::damaged(folder, message);
        let path = folder.join("tokens.bin");
        let tokens = MappedFile::open(&path)?;
        let header = tokens.unverified().get(..HEADER_BYTES).ok_or_else(|| damaged("tokens.bin is cut short"))?;
        let (fields, rest) = header.split_at(HASHED_BYTES);
        if &fields[..8] != MAGIC || rest[..32] != *blake3::hash(fields).as_bytes() {
            return Err(damaged("tokens.bin has an unknown header"));
        }
        let field = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&fields[index * 8..][..8]);
            u64::from_le_bytes(bytes)
        };
        let (width, count, document_count, skip, max) = (field(1), field(2), field(3), field(4), field(5) as u32);
        let width = if width == 2 { TokenType::Uint16 } else { TokenType::Uint32 };
        let documents = MappedFile::open(&folder.join("documents.bin"))?;
        let whole = tokens.len() as u64 == HEADER_BYTES as u64 + count * width.bytes() as u64
            && documents.len() as u64 == (document_count + 1) * 8;
        if !whole || skip > count {
            return Err(damaged("the lengths of its files do not match its header"));
        }
        let of_tokens = (tokens.len() - HEADER_BYTES).div_ceil(BLOCK_BYTES);
        let mut checksums = read_checksums(folder)?;
        let of_documents = checksums.split_off(of_tokens.min(checksums.len()));
        let checked = tokens.with_checksums(HEADER_BYTES, checksums).zip(documents.with_checksums(0, of_documents));
        let segment = checked.and_then(|(tokens, documents)| {
            let offset = HEADER_BYTES + skip as usize * width.bytes();
            Some((TokenSegment::new(tokens, offset, width, count - skip)?, documents))
        });
        let (segment, documents) = segment.ok_or_else(|| damaged("it does not have a checksum for each block"))?;
        Ok(Self { tokens: TokenStream::new(vec![segment]), documents, document_count, max })
    }

    /// The start of document `index` in the stream. For the number of documents, the end of the last one.
    pub(super) fn document_start(&self, index: u64) -> Result<u64> {
        let at = index as usize * 8;
        let start = self.documents.bytes(at..at + 8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok(start.min(self.tokens.count()))
    }

    /// The number of documents that start before `position`.
    pub(super) fn documents_before(&self, position: u64) -> Result<u64> {
        let bytes = self.documents.bytes(0..self.document_count as usize * 8)?;
        Ok(bytes.as_chunks::<8>().0.partition_point(|&start| u64::from_le_bytes(start) < position) as u64)
    }
}

/// Writes an entry, document after document.
pub(super) struct TokenStoreWriter {
    folder: PathBuf,
    tokens: ChecksumWriter<BufWriter<File>>,
    documents: ChecksumWriter<BufWriter<File>>,
    width: TokenType,
    /// The token in front of each document, if there are several.
    separator: Option<u32>,
    /// The number of tokens in the file, with the separator that an only document does not need.
    count: u64,
    document_count: u64,
    max: u32,
}

impl TokenStoreWriter {
    pub(super) fn create(folder: &Path, width: TokenType, separator: Option<u32>) -> Result<Self> {
        let create = |name: &str| -> Result<_> {
            let path = folder.join(name);
            let file = File::create(&path).map_err(DataError::io(&path))?;
            Ok(ChecksumWriter::new(BufWriter::with_capacity(1 << 20, file)))
        };
        let (mut tokens, documents) = (create("tokens.bin")?, create("documents.bin")?);
        tokens.inner.write_all(&[0; HEADER_BYTES]).map_err(DataError::io(folder))?;
        let folder = folder.to_owned();
        Ok(Self { folder, tokens, documents, width, separator, count: 0, document_count: 0, max: 0 })
    }

    /// The number of tokens so far that the stream of the complete entry will have.
    pub(super) fn count(&self) -> u64 {
        self.count - self.skip()
    }

    /// The number of tokens that the stream leaves out at the start of the file: the separator, if there is only one document.
    fn skip(&self) -> u64 {
        u64::from(self.document_count == 1 && self.separator.is_some())
    }

    /// Appends tokens to the last document, or to a new one.
    pub(super) fn append(&mut self, first: bool, tokens: &[u32]) -> Result<()> {
        if first {
            self.documents.write_all(&self.count.to_le_bytes()).map_err(DataError::io(&self.folder))?;
            self.document_count += 1;
            if let Some(separator) = self.separator {
                self.write(&[separator])?;
            }
        }
        self.write(tokens)
    }

    fn write(&mut self, tokens: &[u32]) -> Result<()> {
        self.tokens.write_all(&encode_tokens(self.width, tokens)).map_err(DataError::io(&self.folder))?;
        self.max = tokens.iter().copied().fold(self.max, u32::max);
        self.count += tokens.len() as u64;
        Ok(())
    }

    /// Completes the files. Returns the number of documents.
    pub(super) fn finish(mut self) -> Result<u64> {
        let (skip, end) = (self.skip(), self.count());
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(MAGIC);
        for field in [self.width.bytes() as u64, self.count, self.document_count, skip, u64::from(self.max)] {
            header.extend_from_slice(&field.to_le_bytes());
        }
        header.extend_from_slice(blake3::hash(&header).as_bytes());
        let mut write = || {
            self.documents.write_all(&end.to_le_bytes())?;
            self.documents.flush()?;
            self.tokens.flush()?;
            let file = self.tokens.inner.get_mut();
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)
        };
        write().map_err(DataError::io(&self.folder))?;
        write_checksums(&self.folder, [self.tokens.take_checksums(), self.documents.take_checksums()])?;
        Ok(self.document_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(separator: Option<u32>, documents: &[&[u32]], width: TokenType) -> (tempfile::TempDir, TokenStore) {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TokenStoreWriter::create(dir.path(), width, separator).unwrap();
        for document in documents {
            writer.append(true, document).unwrap();
        }
        writer.finish().unwrap();
        let store = TokenStore::open(dir.path()).unwrap();
        (dir, store)
    }

    fn all(store: &TokenStore) -> Vec<u32> {
        let mut tokens = Vec::new();
        store.tokens.read(0, store.tokens.count(), |token| tokens.push(token)).unwrap();
        tokens
    }

    #[test]
    fn documents_are_separated_if_there_are_several() {
        let (_dir, two) = store(Some(9), &[&[1, 2], &[3]], TokenType::Uint16);
        assert_eq!(all(&two), [9, 1, 2, 9, 3]);
        assert_eq!([0, 1, 2].map(|i| two.document_start(i).unwrap()), [0, 3, 5]);
        assert_eq!([0, 1, 3, 4].map(|p| two.documents_before(p).unwrap()), [0, 1, 1, 2]);
        let (_dir, one) = store(Some(9), &[&[1, 70_000]], TokenType::Uint32);
        assert_eq!((all(&one), one.document_start(1).unwrap(), one.max), (vec![1, 70_000], 2, 70_000));
        let (_dir, plain) = store(None, &[&[1], &[2]], TokenType::Uint16);
        assert_eq!(all(&plain), [1, 2]);
    }

    #[test]
    fn damage_is_noticed() {
        let (dir, _) = store(None, &[&[1, 2, 3], &[4]], TokenType::Uint16);
        for name in ["tokens.bin", "documents.bin", "checksums.bin"] {
            let path = dir.path().join(name);
            let bytes = std::fs::read(&path).unwrap();
            for cut in [0, 8, bytes.len() - 1] {
                std::fs::write(&path, &bytes[..cut]).unwrap();
                assert!(matches!(TokenStore::open(dir.path()), Err(DataError::Damaged { .. })), "{name} cut at {cut}");
            }
            std::fs::write(&path, &bytes).unwrap();
        }
        for (name, byte) in [("tokens.bin", 17), ("checksums.bin", 0), ("checksums.bin", 30)] {
            flip_bit(&dir.path().join(name), byte);
            assert!(TokenStore::open(dir.path()).is_err(), "{name}");
            flip_bit(&dir.path().join(name), byte);
        }
    }

    fn flip_bit(path: &Path, byte: usize) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[byte] ^= 4;
        std::fs::write(path, &bytes).unwrap();
    }

    #[test]
    fn a_flipped_bit_is_noticed_where_it_is_read_and_the_entry_is_prepared_again() {
        let tokens: Vec<u32> = (0..40_000).collect();
        let (dir, _) = store(None, &[&tokens, &[7]], TokenType::Uint16);
        // An entry of the cache has the name of a hash.
        let cache = tempfile::tempdir().unwrap();
        let entry = cache.path().join("0a".repeat(32));
        std::fs::rename(dir.path(), &entry).unwrap();
        // Token 20,000 lies in the third block of the file.
        flip_bit(&entry.join("tokens.bin"), HEADER_BYTES + 20_000 * 2);
        let damaged = TokenStore::open(&entry).unwrap();
        let mut sum = 0;
        damaged.tokens.read(0, 16_384, |token| sum += token).unwrap();
        damaged.tokens.read(24_576, 15_424, |token| sum += token).unwrap();
        let error = damaged.tokens.read(16_000, 400, |token| sum += token).unwrap_err();
        assert!(error.to_string().contains("tokens.bin"), "{error}");
        assert!(error.to_string().contains("bytes 32896 to 49280 differ from those that were written"), "{error}");
        assert!(TokenStore::open(&entry).is_err(), "the next preparation replaces the entry");

        let (dir, _) = store(None, &[&[1], &[2]], TokenType::Uint32);
        flip_bit(&dir.path().join("documents.bin"), 8);
        assert!(TokenStore::open(dir.path()).unwrap().document_start(1).is_err());
    }
}
