//! The cache folder. Its entries are complete or absent, whichever processes build them and whenever one is killed.
//!
//! An entry is a folder `<kind>/<key>`, built under `tmp/` and renamed after everything in it is on disk. The folder under `tmp/` has a
//! locked file. The operating system releases the lock with its process, which distinguishes leftovers of killed processes from work in
//! progress. A process that uses an entry holds a shared lock of its folder, so that no other process removes it. Notes under `uses/`
//! say which data consists of which entries; `gc.rs` reads them to free space.
//!
//! Only what the program made is removed, and only in a folder that carries the program's mark: see `layout.rs` and `mark.rs`.

mod hashes;
pub(crate) mod layout;
mod mark;

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::error::{DataError, Result};
use super::progress::{Progress, Report};
use hashes::{check_hashes, write_hashes};
pub(crate) use layout::EntryKind;
use layout::{LOCKS, STAGE, STAGE_CONTENT, STAGE_LOCK, STAGE_REMOVED, TMP, TMP_LOCK, USES, is_own_stage};
pub(crate) use mark::check_cache;
pub use mark::claim_cache;
use mark::write_error;
use runner_files::sealed_json::{is_intact, seal};
use runner_files::{children, is_older_than, is_real_folder, open_owned, read_regular, read_regular_text, remove_all};

/// Files under `tmp/` live for milliseconds. An older one is a leftover.
const LOOSE_FILE_AGE: Duration = Duration::from_hours(1);

/// A small value under its name, `kind/name`.
#[derive(Serialize, Deserialize)]
struct Memo<T> {
    name: String,
    value: T,
}

#[derive(Debug, Clone)]
pub(super) struct DataCache {
    root: PathBuf,
    /// The entries that were opened, as `kind/key`, and their locks.
    opened: Arc<Mutex<Vec<Locked<String>>>>,
}

impl DataCache {
    /// Opens the cache at `root`, creates it if necessary, and removes the leftovers of killed processes.
    ///
    /// # Errors
    /// If the folder belongs to something else, or cannot be created.
    pub(super) fn open(root: &Path) -> Result<Self> {
        let root = &claim_cache(root)?;
        let tmp = root.join(TMP);
        fs::create_dir_all(&tmp).map_err(write_error(&tmp))?;
        let cache = Self { root: root.to_owned(), opened: Arc::default() };
        cache.clean();
        Ok(cache)
    }

    fn tmp(&self) -> PathBuf {
        self.root.join(TMP)
    }

    /// The path of the entry `kind`/`key`, whether it exists or not.
    pub(super) fn path(&self, kind: EntryKind, key: &str) -> PathBuf {
        self.root.join(kind.folder()).join(key)
    }

    /// Opens the entry `kind`/`key` with `open`. If it is absent or damaged, `build` builds it in an empty folder first. Also returns
    /// whether the entry was there. Two processes do not build the same entry: the second one reports that it waits.
    ///
    /// # Errors
    /// Those of `open` and `build`, or if the cache cannot be written. A damaged entry with files that the program did not write stays, and
    /// is an error.
    pub(super) fn open_or_build<T>(
        &self,
        kind: EntryKind,
        key: &str,
        report: &Report<'_>,
        open: &dyn Fn(&Path) -> Result<T>,
        build: &mut dyn FnMut(&Path) -> Result<()>,
    ) -> Result<(T, bool)> {
        let path = self.path(kind, key);
        let open_checked = |path: &Path| {
            if kind.has_hashes() {
                check_hashes(path)?;
            }
            open(path)
        };
        let register = |(entry, lock): Locked<T>| {
            let name = format!("{}/{key}", kind.folder());
            self.opened.lock().unwrap_or_else(PoisonError::into_inner).push((name, lock));
            entry
        };
        let damage = match open_existing(&path, &open_checked)? {
            Ok(found) => return Ok((register(found), true)),
            Err(damage) => damage,
        };
        let _lock = match (self.lock(kind, key, report), damage) {
            (Err(error), Some(DataError::Damaged { path, message })) => {
                return Err(DataError::damaged(&path, format!("{message}; it cannot be rebuilt: {error}")));
            }
            (lock, _) => lock?,
        };
        let damage = match open_existing(&path, &open_checked)? {
            Ok(found) => return Ok((register(found), true)),
            Err(damage) => damage,
        };
        let stage = self.stage()?;
        if let Some(damage) = damage {
            if !kind.is_own(&path) {
                let message = "it contains files that runner did not write; move it away";
                return Err(DataError::file(&path, format!("{damage}; {message}")));
            }
            report(Progress::Repairing(kind.noun()));
            // A process that has it mapped keeps its pages.
            fs::rename(&path, stage.dir.path().join(STAGE_REMOVED[0])).map_err(DataError::io(&path))?;
        }
        build(&stage.content)?;
        if kind.has_hashes() {
            write_hashes(&stage.content)?;
        }
        stage.publish(&path)?;
        // No process removes it before it is locked, because that takes the lock on building it.
        let lock = lock_in_use(&path).map_err(DataError::io(&path))?;
        Ok((register((open_checked(&path)?, lock)), false))
    }

    /// Notes that the data known as `data` consists of the entries that were opened. Returns their locks, which the caller holds while
    /// it uses the entries.
    pub(super) fn take_locks(&self, data: &str) -> Vec<File> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let names: BTreeSet<&str> = opened.iter().map(|(name, _)| name.as_str()).collect();
        // A note that cannot be written costs space: the entries stay until it is.
        let _ = serde_json::to_vec(&names).map(|bytes| self.write_small_file(USES, data, &bytes));
        opened.drain(..).filter_map(|(_, lock)| lock).collect()
    }

    /// Writes `value` to the small file `kind`/`name`.json, unless it has that content. A memo that cannot be written is not an error: its
    /// value is computed again.
    pub(super) fn write_memo(&self, kind: &str, name: &str, value: &impl Serialize) {
        let memo = Memo { name: format!("{kind}/{name}"), value };
        let _ = seal(&memo).map(|bytes| self.write_small_file(kind, name, &bytes));
    }

    /// Reads a memo; `None` if there is none, or it is not what was written under this name.
    pub(super) fn read_memo<T: DeserializeOwned>(&self, kind: &str, name: &str) -> Option<T> {
        let text = read_regular_text(&self.root.join(kind).join(format!("{name}.json"))).ok()?;
        let memo: Memo<T> = serde_json::from_str(&text).ok().filter(|_| is_intact(&text))?;
        (memo.name == format!("{kind}/{name}")).then_some(memo.value)
    }

    fn write_small_file(&self, kind: &str, name: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.root.join(kind);
        let path = folder.join(format!("{name}.json"));
        if read_regular(&path).is_ok_and(|known| known == bytes) {
            return Ok(());
        }
        fs::create_dir_all(&folder)?;
        let mut file = runner_files::temporary_file(&self.tmp())?;
        file.write_all(bytes)?;
        runner_files::put_in_place(file, &path, true)
    }

    /// The value in the memo `kind`/`name`; computes it and writes the memo if there is none.
    pub(super) fn remember<T: Serialize + DeserializeOwned>(
        &self,
        kind: &str,
        name: &str,
        compute: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if let Some(value) = self.read_memo(kind, name) {
            return Ok(value);
        }
        let value = compute()?;
        self.write_memo(kind, name, &value);
        Ok(value)
    }

    /// Removes the entry `kind`/`key`, unless a process builds or uses it, or it has files that the program did not write. Returns whether it
    /// did.
    pub(super) fn evict(&self, kind: EntryKind, key: &str) -> io::Result<bool> {
        let path = self.path(kind, key);
        let building = self.building_lock(kind, key).map_err(io::Error::other)?.0;
        // Without locks in the file system, it is unknown whether a process uses an entry, so none is removed.
        if building.try_lock().is_err() {
            return Ok(false);
        }
        if !mark::is_marked(&self.root) || !kind.is_own(&path) {
            return Ok(false);
        }
        let using = File::open(&path)?;
        if using.try_lock().is_err() {
            return Ok(false);
        }
        let stage = self.stage().map_err(io::Error::other)?;
        fs::rename(&path, stage.dir.path().join(STAGE_REMOVED[1]))?;
        drop(using);
        stage.dir.close()?;
        Ok(true)
    }

    /// The file that is locked while the entry `kind`/`key` is built, and its path.
    fn building_lock(&self, kind: EntryKind, key: &str) -> Result<(File, PathBuf)> {
        let folder = self.root.join(LOCKS);
        fs::create_dir_all(&folder).map_err(write_error(&folder))?;
        let path = folder.join(format!("{}-{key}", kind.folder()));
        Ok((open_lock_file(&path).map_err(write_error(&path))?, path))
    }

    /// Locks the building of an entry, so that one process builds it. `None` if the file system has no locks.
    fn lock(&self, kind: EntryKind, key: &str, report: &Report<'_>) -> Result<Option<File>> {
        let (file, path) = self.building_lock(kind, key)?;
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) => report(Progress::Waiting),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
            Err(TryLockError::Error(source)) => return Err(DataError::Io { path, source }),
        }
        file.lock().map_err(DataError::io(&path))?;
        Ok(Some(file))
    }

    /// Excludes the creation of stages from the removal of leftovers, so that a stage without a lock is a leftover.
    fn lock_tmp(&self) -> Option<File> {
        let file = open_lock_file(&self.tmp().join(TMP_LOCK)).ok()?;
        file.lock().ok()?;
        Some(file)
    }

    fn stage(&self) -> Result<Stage> {
        let tmp = self.tmp();
        let _exclusive = self.lock_tmp();
        let dir = runner_files::temporary_dir(&tmp, STAGE).map_err(DataError::io(&tmp))?;
        let lock = File::create(dir.path().join(STAGE_LOCK)).map_err(DataError::io(dir.path()))?;
        let _ = lock.try_lock();
        let content = dir.path().join(STAGE_CONTENT);
        fs::create_dir(&content).map_err(DataError::io(&content))?;
        Ok(Stage { content, dir, _lock: lock })
    }

    fn clean(&self) {
        if !mark::is_marked(&self.root) {
            return;
        }
        let Some(_exclusive) = self.lock_tmp() else { return };
        remove_all(&leftovers(&self.root));
    }
}

/// Opens a file for a lock. Its content stays: it may be a file of something else that has this name.
fn open_lock_file(path: &Path) -> io::Result<File> {
    open_owned(File::options().write(true).create(true).truncate(false), path)
}

/// What killed processes left behind under `tmp/` of the cache `root`.
pub(super) fn leftovers(root: &Path) -> Vec<PathBuf> {
    let tmp = root.join(TMP);
    if !is_real_folder(&tmp) {
        return Vec::new();
    }
    // A stage has no lock file if its process was killed between two system calls.
    let is_held = |lock: File| matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
    let is_left = |path: &PathBuf| is_own_stage(path) && !File::open(path.join(STAGE_LOCK)).is_ok_and(is_held);
    let mut left = runner_files::leftovers(&tmp, |_| false);
    left.retain(|path| is_older_than(path, LOOSE_FILE_AGE));
    left.extend(children(&tmp).into_iter().filter(is_left));
    left
}

/// Takes the shared lock of the folder `path`, which says that it is in use, and sets the folder's time to that of its last use. `None` if
/// the folder was removed meanwhile, or the file system has no locks.
fn lock_in_use(path: &Path) -> io::Result<Option<File>> {
    let folder = File::open(path)?;
    if folder.lock_shared().is_err() {
        return Ok(None);
    }
    let _ = folder.set_modified(SystemTime::now());
    let (ours, there) = (folder.metadata()?, fs::metadata(path)?);
    // The folder may have been removed, and built again, while this process waited.
    Ok(((ours.dev(), ours.ino()) == (there.dev(), there.ino())).then_some(folder))
}

/// An entry and its lock.
type Locked<T> = (T, Option<File>);

/// Opens the entry at `path`. If there is nothing to open, the inner error describes the damage; it is `None` if there is no entry.
fn open_existing<T>(path: &Path, open: &dyn Fn(&Path) -> Result<T>) -> Result<Result<Locked<T>, Option<DataError>>> {
    if path.exists() && !path.is_dir() {
        return Ok(Err(Some(DataError::damaged(path, "it is not a folder"))));
    }
    // An empty folder needs no removal: a rename replaces it.
    if !path.exists() || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) {
        return Ok(Err(None));
    }
    let opened = lock_in_use(path).map_err(DataError::io(path)).and_then(|lock| Ok((open(path)?, lock)));
    match opened {
        Ok(entry) => Ok(Ok(entry)),
        Err(damaged @ DataError::Damaged { .. }) => Ok(Err(Some(damaged))),
        // The entry was removed meanwhile, or lacks a file.
        Err(DataError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Ok(Err(path.exists().then(|| DataError::damaged(path, "a file is missing"))))
        }
        Err(error) => Err(error),
    }
}

/// An entry that is being built. It is removed on drop, unless published.
struct Stage {
    content: PathBuf,
    dir: tempfile::TempDir,
    _lock: File,
}

impl Stage {
    fn publish(self, target: &Path) -> Result<()> {
        let sync = |path: &Path| runner_files::sync_dir(path).map_err(DataError::io(path));
        for entry in fs::read_dir(&self.content).map_err(DataError::io(&self.content))? {
            sync(&entry.map_err(DataError::io(&self.content))?.path())?;
        }
        sync(&self.content)?;
        let parent = target.parent().unwrap_or(target);
        fs::create_dir_all(parent).map_err(DataError::io(parent))?;
        match fs::rename(&self.content, target) {
            Ok(()) => sync(parent),
            // Without locks, another process may have published the same entry first.
            Err(error) if matches!(error.kind(), io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists) => {
                Ok(())
            }
            Err(error) => Err(DataError::io(target)(error)),
        }
    }
}

#[cfg(test)]
mod tests;
