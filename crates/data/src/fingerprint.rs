//! Content hashes of source files. A memo for (path, size, modification time, time of the last status change, inode) keeps the hash, so
//! that a large source is hashed once.
//!
//! A program may give a file any modification time. The time of the last status change is set by the system, so that no other content has
//! the same one, except within a tick of the clock: a file that is as new as that is hashed again.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::cache::DataCache;
use super::error::{DataError, Result};
use super::hashing::{hash_file, hash_parts};

/// The coarsest clock of a file system, in seconds. Two changes within this time may have the same time.
const CLOCK_GRANULARITY_SECONDS: i64 = 2;

/// A source file at the time when it was hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceFile {
    /// Canonical.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    modified: (i64, i64),
    /// The time of the last status change, which no program can choose.
    changed: (i64, i64),
    inode: u64,
    /// blake3 of the content, hex.
    pub(super) hash: String,
    /// True if the file was so new when it was hashed that a later change may have the same times.
    #[serde(skip)]
    may_change_unnoticed: bool,
}

impl SourceFile {
    /// Hashes the file at `path`, or reads its hash from a memo. `progress` receives the numbers of bytes that were read.
    pub(super) fn identify(path: &Path, cache: &DataCache, progress: &dyn Fn(u64)) -> Result<Self> {
        Self::identify_at(seconds_now(), path, cache, progress)
    }

    /// [`identify`](Self::identify) at the time `now`, in seconds since 1970.
    fn identify_at(now: i64, path: &Path, cache: &DataCache, progress: &dyn Fn(u64)) -> Result<Self> {
        let mut file = Self::stat_at(now, path)?;
        let memo = blake3::hash(file.path.as_os_str().as_encoded_bytes()).to_hex();
        if !file.may_change_unnoticed
            && let Some(known) = cache.read_memo::<Self>("fingerprints", &memo)
            && known.has_same_facts(&file)
        {
            return Ok(known);
        }
        file.hash = hash_file(&file.path, progress)?;
        if !Self::stat(&file.path)?.has_same_facts(&file) {
            return Err(DataError::Changed { path: file.path });
        }
        if !file.may_change_unnoticed {
            cache.write_memo("fingerprints", &memo, &file);
        }
        Ok(file)
    }

    /// The file as it is now, without a hash.
    pub(super) fn stat(path: &Path) -> Result<Self> {
        Self::stat_at(seconds_now(), path)
    }

    fn stat_at(now: i64, path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).map_err(DataError::io(path))?;
        let meta = fs::metadata(&path).map_err(DataError::io(&path))?;
        if !meta.is_file() {
            return Err(DataError::file(&path, "not a file"));
        }
        let (modified, changed) = ((meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec()));
        // Also if the time is in the future.
        let may_change_unnoticed = modified.0.max(changed.0).saturating_add(CLOCK_GRANULARITY_SECONDS) >= now;
        Ok(Self {
            path,
            size: meta.len(),
            modified,
            changed,
            inode: meta.ino(),
            hash: String::new(),
            may_change_unnoticed,
        })
    }

    /// A file of the hub, which need not be here: `path` is its path there, and `etag` names its content.
    pub(super) fn listed(path: &str, size: u64, etag: &str) -> Self {
        let (path, hash) = (path.into(), etag.to_owned());
        Self { path, size, modified: (0, 0), changed: (0, 0), inode: 0, hash, may_change_unnoticed: false }
    }

    /// True if `other` is the same file with the same size and times.
    fn has_same_facts(&self, other: &Self) -> bool {
        let facts = |file: &Self| (file.size, file.modified, file.changed, file.inode);
        self.path == other.path && facts(self) == facts(other)
    }

    /// Checks that the file has the size, times and inode that it had when it was hashed. Its content is hashed again if it was new then, or
    /// if only the time of the status change differs, as after a new link to the file.
    ///
    /// # Errors
    /// If the file has changed since then.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = Self::stat(&self.path)?;
        let is_same = if now.has_same_facts(self) && !self.may_change_unnoticed {
            true
        } else {
            (now.size, now.modified, now.inode) == (self.size, self.modified, self.inode)
                && hash_file(&self.path, &|_| ())? == self.hash
        };
        if is_same { Ok(()) } else { Err(DataError::Changed { path: self.path.clone() }) }
    }
}

/// The time in seconds since 1970.
fn seconds_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs() as i64)
}

/// Content hash of the files at `paths`, in order: BLAKE3 of the content of one file, or over the hashes of several. A file that did not
/// change since it was hashed with the same `cache_dir` is not read again.
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    fn set_modified(path: &Path, seconds: u64) {
        let time = UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    }

    fn status_time(path: &Path) -> (i64, i64) {
        let meta = fs::metadata(path).unwrap();
        (meta.ctime(), meta.ctime_nsec())
    }

    #[test]
    fn unchanged_files_are_not_read_again_and_changed_ones_are() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DataCache::open(&dir.path().join("cache")).unwrap();
        let path = dir.path().join("a.txt");
        let read = Cell::new(0);
        let identify = |now| SourceFile::identify_at(now, &path, &cache, &|n| read.set(read.get() + n)).unwrap();
        let newest = || status_time(&path).0 + CLOCK_GRANULARITY_SECONDS;
        let hash = |text: &str| blake3::hash(text.as_bytes()).to_hex().to_string();

        fs::write(&path, "hello").unwrap();
        set_modified(&path, 1_000_000);
        // A second change within a tick of the clock has the same times, so that a new file is hashed each time.
        let now = newest();
        assert_eq!((identify(now).hash, identify(now).hash, read.get()), (hash("hello"), hash("hello"), 10));
        let first = identify(now + 1);
        assert_eq!(
            (&first.hash, identify(now + 1), read.get()),
            (&hash("hello"), first.clone(), 15),
            "the memo is used"
        );
        first.check_unchanged().unwrap();
        // A new link changes the time of the status, and nothing else.
        fs::hard_link(&path, dir.path().join("b.txt")).unwrap();
        first.check_unchanged().unwrap();

        // Other content of the same size in the same file, with the time that it had before, and written after a tick of the clock.
        let before = status_time(&path);
        while status_time(&path) == before {
            fs::write(&path, "world").unwrap();
            set_modified(&path, 1_000_000);
        }
        let (now, then) = (SourceFile::stat(&path).unwrap(), &first);
        assert_eq!((now.size, now.modified, now.inode), (then.size, then.modified, then.inode));
        assert!(matches!(first.check_unchanged(), Err(DataError::Changed { .. })));
        assert_eq!(identify(newest() + 1).hash, hash("world"));
    }

    #[test]
    fn a_new_file_that_changes_while_it_is_read_is_noticed_whatever_its_times() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DataCache::open(&dir.path().join("cache")).unwrap();
        let path = dir.path().join("a.txt");
        fs::write(&path, "hello").unwrap();
        let mut file = SourceFile::identify(&path, &cache, &|_| ()).unwrap();
        file.check_unchanged().unwrap();
        fs::write(&path, "world").unwrap();
        // Both writes within one tick of the clock.
        let now = SourceFile::stat(&path).unwrap();
        (file.modified, file.changed) = (now.modified, now.changed);
        assert!(matches!(file.check_unchanged(), Err(DataError::Changed { .. })));
    }

    #[test]
    fn parts_do_not_run_together() {
        assert_ne!(hash_parts(["ab", "c"]), hash_parts(["a", "bc"]));
    }
}
