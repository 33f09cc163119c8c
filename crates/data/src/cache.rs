//! The cache folder: entries that appear whole or not at all, whoever else is building them, and whatever kills us.
//!
//! An entry is a folder `<kind>/<key>`, built under `tmp/` and renamed into place after everything in it is on disk.
//! The folder under `tmp/` carries a lock that the operating system drops with its process, so leftovers of killed
//! runs can be told from work in progress. Whoever uses an entry holds a shared lock of its folder, so that it is not removed
//! meanwhile; which entries went into which data is noted under `uses/`, for the day when room is made (`gc.rs`).

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::error::DataError;

/// Which entries went into which data.
pub(super) const USES: &str = "uses";

/// Loose files under `tmp/` live for milliseconds; older than this they are leftovers.
const LOOSE_FILE_AGE: Duration = Duration::from_hours(1);

#[derive(Debug, Clone)]
pub(super) struct Cache {
    root: PathBuf,
    /// The entries that were opened, as `kind/key`, and their locks.
    held: Arc<Mutex<Vec<Used<String>>>>,
}

impl Cache {
    /// Opens the cache at `root`, creating it, and removes what killed runs left behind.
    pub(super) fn open(root: &Path) -> Result<Self, DataError> {
        let tmp = root.join("tmp");
        fs::create_dir_all(&tmp).map_err(DataError::io(&tmp))?;
        let cache = Self { root: root.to_owned(), held: Arc::default() };
        cache.clean();
        Ok(cache)
    }

    fn tmp(&self) -> PathBuf {
        self.root.join("tmp")
    }

    /// Where the entry `kind`/`key` is, or would be.
    pub(super) fn path(&self, kind: &str, key: &str) -> PathBuf {
        self.root.join(kind).join(key)
    }

    /// The entry `kind`/`key`: opened by `open` if it is there and whole, built by `build` (into an empty folder) if
    /// not. Also says whether it was there. Other processes that want the same entry wait for ours; `waiting` is
    /// called before we wait for theirs.
    pub(super) fn entry<T>(
        &self,
        kind: &str,
        key: &str,
        waiting: &dyn Fn(),
        open: &dyn Fn(&Path) -> Result<T, DataError>,
        build: &mut dyn FnMut(&Path) -> Result<(), DataError>,
    ) -> Result<(T, bool), DataError> {
        let path = self.path(kind, key);
        let take = |(entry, lock): (T, Option<File>)| {
            self.held.lock().unwrap_or_else(PoisonError::into_inner).push((format!("{kind}/{key}"), lock));
            entry
        };
        if let Some(found) = present(&path, open)? {
            return Ok((take(found), true));
        }
        let _lock = self.lock(&format!("{kind}-{key}"), waiting)?;
        if let Some(found) = present(&path, open)? {
            return Ok((take(found), true));
        }
        let stage = self.stage()?;
        if path.exists() {
            // Damaged: moved aside, where it goes with the stage. Whoever has it mapped keeps its pages.
            fs::rename(&path, stage.dir.path().join("damaged")).map_err(DataError::io(&path))?;
        }
        build(&stage.content)?;
        stage.publish(&path)?;
        // Nobody removes it before we hold it: that takes our lock on building it.
        let lock = in_use(&path).map_err(DataError::io(&path))?;
        Ok((take((open(&path)?, lock)), false))
    }

    /// The locks of the entries that were opened: whoever goes on using them keeps these. Notes that data known as `data` is
    /// made of them.
    pub(super) fn hold(&self, data: &str) -> Vec<File> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<String> = held.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names.dedup();
        let memo = format!("{data}.json");
        if let Ok(bytes) = serde_json::to_vec(&names).map_err(drop)
            && self.recall(USES, &memo).as_ref() != Some(&bytes)
        {
            self.remember(USES, &memo, &bytes);
        }
        held.drain(..).filter_map(|(_, lock)| lock).collect()
    }

    /// Writes a small file `kind`/`name` atomically. It is a memo, worth nothing if it cannot be written: errors are
    /// swallowed, and what it held is computed again.
    pub(super) fn remember(&self, kind: &str, name: &str, bytes: &[u8]) {
        let write = || -> io::Result<()> {
            let folder = self.root.join(kind);
            fs::create_dir_all(&folder)?;
            let mut file = tempfile::NamedTempFile::new_in(self.tmp())?;
            file.write_all(bytes)?;
            file.as_file().sync_all()?;
            file.persist(folder.join(name))?;
            Ok(())
        };
        let _ = write();
    }

    /// Reads what `remember` wrote.
    pub(super) fn recall(&self, kind: &str, name: &str) -> Option<Vec<u8>> {
        fs::read(self.root.join(kind).join(name)).ok()
    }

    /// Removes the entry `kind`/`key`, unless someone builds or uses it; whether it did.
    pub(super) fn evict(&self, kind: &str, key: &str) -> io::Result<bool> {
        let path = self.path(kind, key);
        let folder = self.root.join("locks");
        fs::create_dir_all(&folder)?;
        let building = File::create(folder.join(format!("{kind}-{key}")))?;
        // Without locks nobody knows who uses what: nothing goes.
        if building.try_lock().is_err() {
            return Ok(false);
        }
        let using = File::open(&path)?;
        if using.try_lock().is_err() {
            return Ok(false);
        }
        let stage = self.stage().map_err(io::Error::other)?;
        fs::rename(&path, stage.dir.path().join("evicted"))?;
        drop(using);
        stage.dir.close()?;
        Ok(true)
    }

    /// Held while an entry is built, so that it is built once. File systems without locks go without.
    fn lock(&self, name: &str, waiting: &dyn Fn()) -> Result<Option<File>, DataError> {
        let folder = self.root.join("locks");
        fs::create_dir_all(&folder).map_err(DataError::io(&folder))?;
        let path = folder.join(name);
        let file = File::create(&path).map_err(DataError::io(&path))?;
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => waiting(),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(DataError::Io { path, source }),
        }
        file.lock().map_err(DataError::io(&path))?;
        Ok(Some(file))
    }

    /// Creating stages and cleaning up exclude each other, so a stage is never seen before its lock is held.
    fn exclusive(&self) -> Option<File> {
        let file = File::create(self.tmp().join(".lock")).ok()?;
        file.lock().ok()?;
        Some(file)
    }

    fn stage(&self) -> Result<Stage, DataError> {
        let tmp = self.tmp();
        let _exclusive = self.exclusive();
        let dir = tempfile::Builder::new().prefix("stage-").tempdir_in(&tmp).map_err(DataError::io(&tmp))?;
        let lock = File::create(dir.path().join("lock")).map_err(DataError::io(dir.path()))?;
        let _ = lock.try_lock();
        let content = dir.path().join("content");
        fs::create_dir(&content).map_err(DataError::io(&content))?;
        Ok(Stage { content, dir, _lock: lock })
    }

    pub(super) fn clean(&self) {
        let Some(_exclusive) = self.exclusive() else { return };
        for path in leftovers(&self.root) {
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
    }
}

/// What killed processes left under `tmp/` of the cache `root`.
pub(super) fn leftovers(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join("tmp")).into_iter().flatten().filter_map(Result::ok);
    let left = entries.map(|entry| entry.path()).filter(|path| {
        if path.is_dir() {
            // A stage without a lock file was killed between two system calls under the exclusive lock.
            let held = |lock: File| matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
            return !File::open(path.join("lock")).is_ok_and(held);
        }
        let age = fs::metadata(path).and_then(|m| m.modified()).ok().and_then(|t| t.elapsed().ok());
        path.file_name().is_some_and(|name| name != ".lock") && age.is_some_and(|age| age > LOOSE_FILE_AGE)
    });
    left.collect()
}

/// A shared lock of the folder `path`, which says that it is in use; `None` if it went away before we had it, or the file
/// system has no locks. Notes the time: entries go by when they were last used.
fn in_use(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    if folder.lock_shared().is_err() {
        return Ok(None);
    }
    let _ = folder.set_modified(SystemTime::now());
    let (ours, there) = (folder.metadata()?, fs::metadata(path)?);
    // It was removed while we waited, and perhaps built anew.
    Ok(((ours.dev(), ours.ino()) == (there.dev(), there.ino())).then_some(folder))
}

/// An entry and the lock of who uses it.
type Used<T> = (T, Option<File>);

fn present<T>(path: &Path, open: &dyn Fn(&Path) -> Result<T, DataError>) -> Result<Option<Used<T>>, DataError> {
    if !path.exists() {
        return Ok(None);
    }
    let opened = in_use(path).map_err(DataError::io(path)).and_then(|lock| Ok((open(path)?, lock)));
    match opened {
        Ok(entry) => Ok(Some(entry)),
        Err(DataError::Damaged { .. }) => Ok(None),
        Err(DataError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A folder in the making; removed on drop, unless published.
struct Stage {
    content: PathBuf,
    dir: tempfile::TempDir,
    _lock: File,
}

impl Stage {
    fn publish(self, target: &Path) -> Result<(), DataError> {
        let sync = |path: &Path| File::open(path).and_then(|f| f.sync_all()).map_err(DataError::io(path));
        for entry in fs::read_dir(&self.content).map_err(DataError::io(&self.content))? {
            sync(&entry.map_err(DataError::io(&self.content))?.path())?;
        }
        sync(&self.content)?;
        let parent = target.parent().unwrap_or(target);
        fs::create_dir_all(parent).map_err(DataError::io(parent))?;
        match fs::rename(&self.content, target) {
            Ok(()) => sync(parent),
            // Without locks another process may have been first; its entry has the same content.
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                Ok(())
            }
            Err(error) => Err(DataError::io(target)(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn read(path: &Path) -> Result<String, DataError> {
        let text = fs::read_to_string(path.join("value")).map_err(DataError::io(path))?;
        if text.is_empty() { Err(DataError::damaged(path, "empty")) } else { Ok(text) }
    }

    fn write(path: &Path, text: &str) -> Result<(), DataError> {
        fs::write(path.join("value"), text).map_err(DataError::io(path))
    }

    #[test]
    fn an_entry_is_built_once_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let built = cache.entry("k", "a", &|| (), &read, &mut |p| write(p, "one")).unwrap();
        let found = cache.entry("k", "a", &|| (), &read, &mut |p| write(p, "two")).unwrap();
        assert_eq!((built, found), (("one".into(), false), ("one".into(), true)));
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let mut fail = |p: &Path| {
            write(p, "half")?;
            Err(DataError::file(p, "stopped"))
        };
        assert!(cache.entry("k", "a", &|| (), &read, &mut fail).is_err());
        assert!(!cache.path("k", "a").exists());
        assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 1, "only the lock file");
    }

    #[test]
    fn a_damaged_entry_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        fs::create_dir_all(cache.path("k", "a")).unwrap();
        fs::write(cache.path("k", "a").join("value"), "").unwrap();
        let (text, hit) = cache.entry("k", "a", &|| (), &read, &mut |p| write(p, "whole")).unwrap();
        assert_eq!((text.as_str(), hit), ("whole", false));
    }

    #[test]
    fn leftovers_go_and_work_in_progress_stays() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let dead = dir.path().join("tmp/stage-dead");
        fs::create_dir_all(dead.join("content")).unwrap();
        fs::write(dead.join("lock"), "").unwrap();
        let live = cache.stage().unwrap();
        Cache::open(dir.path()).unwrap();
        assert!(!dead.exists());
        assert!(live.content.exists());
    }

    #[test]
    fn what_is_used_or_built_is_not_evicted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path()).unwrap();
        let use_it = || {
            let user = Cache::open(dir.path()).unwrap();
            user.entry("k", "a", &|| (), &read, &mut |p| write(p, "one")).unwrap();
            user.hold("data")
        };
        let (first, second) = (use_it(), use_it());
        assert_eq!((first.len(), cache.evict("k", "a").unwrap()), (1, false));
        drop(first);
        assert!(!cache.evict("k", "a").unwrap(), "two use it");
        drop(second);
        let building = cache.lock("k-a", &|| ()).unwrap();
        assert!(!cache.evict("k", "a").unwrap());
        drop(building);
        assert!(cache.evict("k", "a").unwrap());
        assert!(!cache.path("k", "a").exists());
        assert_eq!(fs::read_dir(dir.path().join("tmp")).unwrap().count(), 1, "only the lock file");
        assert_eq!(cache.recall(USES, "data.json").unwrap(), b"[\"k/a\"]");
    }

    #[test]
    fn many_builders_agree() {
        let dir = tempfile::tempdir().unwrap();
        let builds = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let cache = Cache::open(dir.path()).unwrap();
                    let mut build = |p: &Path| {
                        builds.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(Duration::from_millis(20));
                        write(p, "value")
                    };
                    assert_eq!(cache.entry("k", "a", &|| (), &read, &mut build).unwrap().0, "value");
                });
            }
        });
        assert_eq!(builds.load(Ordering::Relaxed), 1);
    }
}
