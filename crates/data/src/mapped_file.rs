//! A memory-mapped file. The blocks of a file of the cache are verified when they are first read, so that damage on disk ends a run
//! instead of changing its numbers.

use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memmap2::Mmap;

use super::cache::EntryKind;
use super::error::{DataError, Result};
use runner_files::open_regular;

/// Bytes with one checksum. A row of tokens is a few KiB, so reading rows in random order verifies little that is not read.
pub(super) const BLOCK_BYTES: usize = 1 << 14;

/// A mapped file. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct MappedFile {
    path: PathBuf,
    map: Arc<Mmap>,
    checks: Option<Arc<BlockChecks>>,
}

/// The checksums of a file's blocks.
#[derive(Debug)]
struct BlockChecks {
    /// The position of the first block.
    start: usize,
    /// CRC-32C of each block.
    checksums: Vec<u32>,
    /// The blocks that have been verified.
    verified: Vec<AtomicBool>,
}

impl MappedFile {
    /// Maps a whole file for reading.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = open_regular(path).map_err(DataError::io(path))?;
        #[expect(unsafe_code, reason = "memory mapping")]
        // SAFETY: the map is read-only and private. Cache entries are never written after they appear under their name. A
        // user's shard that is cut short by someone else meanwhile ends the process with SIGBUS; no memory is corrupted.
        let map = unsafe { Mmap::map(&file) }.map_err(DataError::io(path))?;
        Ok(Self { path: path.to_owned(), map: Arc::new(map), checks: None })
    }

    /// Verifies blocks from byte `start` on by `checksums`; `None` if there is not one for each block.
    pub(super) fn with_checksums(mut self, start: usize, checksums: Vec<u32>) -> Option<Self> {
        if self.map.len().saturating_sub(start).div_ceil(BLOCK_BYTES) != checksums.len() {
            return None;
        }
        let verified = checksums.iter().map(|_| AtomicBool::new(false)).collect();
        self.checks = Some(Arc::new(BlockChecks { start, checksums, verified }));
        Some(self)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> usize {
        self.map.len()
    }

    /// All bytes, without verification.
    pub(super) fn unverified(&self) -> &[u8] {
        &self.map
    }

    /// The bytes at `range`, which is within the file.
    ///
    /// # Errors
    /// `Damaged`, if a block does not have its checksum.
    pub(super) fn bytes(&self, range: Range<usize>) -> Result<&[u8]> {
        if let Some(checks) = &self.checks {
            checks.verify(&self.map, &range).map_err(|block| self.report_damage(block))?;
        }
        Ok(&self.map[range])
    }

    /// Removes the file of checksums of an entry of the cache, so that the next preparation replaces the entry.
    fn report_damage(&self, block: Range<usize>) -> DataError {
        let advice = match self.path.parent() {
            Some(entry) if EntryKind::Tokens.is_own(entry) => {
                let _ = std::fs::remove_file(entry.join(CHECKSUMS));
                "run the same command again to replace them"
            }
            _ => "move the folder away, and run the same command again to replace them",
        };
        let (start, end) = (block.start, block.end);
        let message = format!(
            "bytes {start} to {end} differ from those that were written: the file was changed, or the disk returned wrong bytes; \
             {advice}"
        );
        DataError::damaged(&self.path, message)
    }
}

impl BlockChecks {
    /// Verifies the blocks that overlap `range` of `bytes`. Returns the range of one that is damaged.
    fn verify(&self, bytes: &[u8], range: &Range<usize>) -> Result<(), Range<usize>> {
        let first = range.start.saturating_sub(self.start) / BLOCK_BYTES;
        let last = range.end.saturating_sub(self.start).div_ceil(BLOCK_BYTES);
        for index in first..last {
            if self.verified[index].load(Ordering::Relaxed) {
                continue;
            }
            let start = self.start + index * BLOCK_BYTES;
            let block = start..(start + BLOCK_BYTES).min(bytes.len());
            if crc32c::crc32c(&bytes[block.clone()]) != self.checksums[index] {
                return Err(block);
            }
            self.verified[index].store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// The file of a cache entry with the checksums of the entry's other files.
pub(super) const CHECKSUMS: &str = "checksums.bin";

/// Writes the checksums of files' blocks to `checksums.bin` in `folder`: little-endian, file after file, and then their own hash.
pub(super) fn write_checksums(folder: &Path, files: [Vec<u32>; 2]) -> Result<()> {
    let mut bytes: Vec<u8> = files.into_iter().flatten().flat_map(u32::to_le_bytes).collect();
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    let path = folder.join(CHECKSUMS);
    std::fs::write(&path, bytes).map_err(DataError::io(&path))
}

/// Reads `checksums.bin` of `folder`.
///
/// # Errors
/// `Damaged`, if it does not match its hash.
pub(super) fn read_checksums(folder: &Path) -> Result<Vec<u32>> {
    let path = folder.join(CHECKSUMS);
    let bytes = std::fs::read(&path).map_err(DataError::io(&path))?;
    let whole = bytes.split_last_chunk::<{ blake3::OUT_LEN }>().filter(|(values, hash)| blake3::hash(values) == **hash);
    let (values, _) = whole.ok_or_else(|| DataError::damaged(&path, "it does not match its hash"))?;
    Ok(values.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

/// Passes bytes on, and computes the checksum of each block of them.
pub(super) struct ChecksumWriter<W> {
    pub(super) inner: W,
    checksums: Vec<u32>,
    /// The checksum and the length of the block that is not complete.
    block: (u32, usize),
}

impl<W: Write> ChecksumWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, checksums: Vec::new(), block: (0, 0) }
    }

    /// The checksums of all blocks; the last one may be short.
    pub(super) fn take_checksums(&mut self) -> Vec<u32> {
        if self.block.1 > 0 {
            self.checksums.push(self.block.0);
        }
        self.block = (0, 0);
        std::mem::take(&mut self.checksums)
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        let mut rest = &bytes[..written];
        while !rest.is_empty() {
            let (checksum, length) = self.block;
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES - length));
            self.block = (crc32c::crc32c_append(checksum, now), length + now.len());
            if self.block.1 == BLOCK_BYTES {
                self.checksums.push(self.block.0);
                self.block = (0, 0);
            }
            rest = later;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
