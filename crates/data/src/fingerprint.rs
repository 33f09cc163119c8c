//! Content hashes of source files. A memo for (path, size, modification time, inode) keeps the hash, so that a large source is hashed once.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::cache::DataCache;
use super::error::{DataError, Result};

const BLOCK_BYTES: usize = 1 << 20;

/// A source file at the time when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceFile {
    /// Canonical.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    modified: (i64, i64),
    inode: u64,
    /// blake3 of the content, hex.
    pub(super) hash: String,
}

impl SourceFile {
    /// Hashes the file at `path`, or reads its hash from a memo. `progress` receives the numbers of bytes that were read.
    pub(super) fn identify(path: &Path, cache: &DataCache, progress: &dyn Fn(u64)) -> Result<Self> {
        let mut file = Self::stat(path)?;
        let memo = blake3::hash(file.path.as_os_str().as_encoded_bytes()).to_hex();
        if let Some(known) = cache.read_memo::<Self>("fingerprints", &memo) {
            file.hash.clone_from(&known.hash);
            if file == known {
                return Ok(file);
            }
        }
        let is_settled = file.is_settled();
        file.hash = hash_file(&file.path, progress)?;
        file.check_unchanged()?;
        if is_settled {
            cache.write_memo("fingerprints", &memo, &file);
        }
        Ok(file)
    }

    /// The file as it is now, without a hash.
    pub(super) fn stat(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).map_err(DataError::io(path))?;
        let meta = fs::metadata(&path).map_err(DataError::io(&path))?;
        if !meta.is_file() {
            return Err(DataError::file(&path, "not a file"));
        }
        let modified = (meta.mtime(), meta.mtime_nsec());
        Ok(Self { path, size: meta.len(), modified, inode: meta.ino(), hash: String::new() })
    }

    /// A file of the hub, which need not be here: `path` is its path there, and `etag` names its content.
    pub(super) fn listed(path: &str, size: u64, etag: &str) -> Self {
        Self { path: path.into(), size, modified: (0, 0), inode: 0, hash: etag.to_owned() }
    }

    /// True if the last write is so long ago that another one would have another time. Clocks of file systems tick in milliseconds, so that
    /// two writes within a tick have the same time.
    fn is_settled(&self) -> bool {
        SystemTime::now().duration_since(UNIX_EPOCH).is_ok_and(|now| self.modified.0 + 1 < now.as_secs() as i64)
    }

    /// Checks that the file has the size, time and inode that it had when it was hashed.
    ///
    /// # Errors
    /// If the file has changed since then.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = Self::stat(&self.path)?;
        if (now.size, now.modified, now.inode) == (self.size, self.modified, self.inode) {
            Ok(())
        } else {
            Err(DataError::Changed { path: self.path.clone() })
        }
    }
}

fn hash_file(path: &Path, progress: &dyn Fn(u64)) -> Result<String> {
    let mut file = File::open(path).map_err(DataError::io(path))?;
    let mut hasher = blake3::Hasher::new();
    let mut block = vec![0; BLOCK_BYTES];
    loop {
        let read = file.read(&mut block).map_err(DataError::io(path))?;
        if read == 0 {
            return Ok(hasher.finalize().to_hex().to_string());
        }
        hasher.update(&block[..read]);
        progress(read as u64);
    }
}

/// Content hash of the files at `paths`, in order: BLAKE3 of the content of one file, or over the hashes of several. A file that has not
/// changed since it was hashed with the same `cache_dir` is not read again.
///
/// # Errors
/// If one of them cannot be read, or the cache cannot be opened.
pub fn content_hash(paths: &[PathBuf], cache_dir: &Path, progress: &dyn Fn(u64)) -> Result<String> {
    let cache = DataCache::open(cache_dir)?;
    let hash = |path: &PathBuf| SourceFile::identify(path, &cache, progress).map(|file| file.hash);
    let hashes = paths.iter().map(hash).collect::<Result<Vec<_>, _>>()?;
    Ok(match hashes.as_slice() {
        [one] => one.clone(),
        several => hash_parts(several.iter().map(String::as_str)),
    })
}

/// BLAKE3 over parts, in hexadecimal digits. Each part follows its length, so that different lists of parts have different hashes.
pub(super) fn hash_parts<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn unchanged_files_are_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DataCache::open(&dir.path().join("cache")).unwrap();
        let path = dir.path().join("a.txt");
        fs::write(&path, "hello").unwrap();
        let long_ago = SystemTime::now() - std::time::Duration::from_mins(1);
        File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let read = Cell::new(0);
        let identify = || SourceFile::identify(&path, &cache, &|n| read.set(read.get() + n)).unwrap();
        let first = identify();
        assert_eq!(first.hash, blake3::hash(b"hello").to_hex().as_str());
        assert_eq!((identify(), read.get()), (first.clone(), 5));
        fs::write(&path, "worlds").unwrap();
        assert!(matches!(first.check_unchanged(), Err(DataError::Changed { .. })));
        assert_ne!(identify().hash, first.hash);
        assert_eq!(read.get(), 11);
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(hash_parts(["ab", "c"]), hash_parts(["a", "bc"]));
    }
}
