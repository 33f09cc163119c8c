//! One process at a time works on a run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::error::StoreError;

/// The file in a run directory whose lock says that a process works on it.
pub const LOCK: &str = "lock";

/// How often and how long to wait for a lock: `runner runs` probes locks and holds each for microseconds.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);

/// How long to wait for the turn to find or create a run, which others hold for as long as that takes.
const TURN: Duration = Duration::from_secs(10);

/// Held while a process works on a run; the kernel lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
}

/// Waits for the turn to find or create a run called `base` in `root`; it ends when the file is dropped.
///
/// # Errors
/// If the folder cannot be written; `Busy` if another process keeps its turn for ten seconds.
pub fn turn(root: &Path, base: &str) -> Result<File, StoreError> {
    turn_within(root, base, TURN)
}

fn turn_within(root: &Path, base: &str, limit: Duration) -> Result<File, StoreError> {
    fs::create_dir_all(root).map_err(StoreError::io("creating", root))?;
    let path = root.join(format!(".{base}.{LOCK}"));
    let open = || {
        let open = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        open.map_err(StoreError::io("opening", &path))
    };
    let mut file = open()?;
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) if is_at(&file, &path) => return Ok(file),
            // It was removed before we had it: others wait at the one that is there now.
            Ok(()) => file = open()?,
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => return Ok(file),
            Err(TryLockError::Error(e)) => return Err(StoreError::io("locking", &path)(e)),
            Err(TryLockError::WouldBlock) if started.elapsed() >= limit => return Err(StoreError::Busy { path }),
            Err(TryLockError::WouldBlock) => thread::sleep(PAUSE.min(limit)),
        }
    }
}

/// Whether `file` is what `path` names now.
fn is_at(file: &File, path: &Path) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().and_then(|ours| Ok(same(ours, fs::metadata(path)?))).unwrap_or(false)
}

/// Removes the file of a turn, `path`, if nobody has that turn; whether it did.
pub fn remove_turn(path: &Path) -> bool {
    // Removed while held: whoever opened it before sees that it is gone, and takes a new one.
    OpenOptions::new()
        .write(true)
        .open(path)
        .is_ok_and(|file| file.try_lock().is_ok() && is_at(&file, path) && fs::remove_file(path).is_ok())
}

/// Whether nobody has the turn whose file is `path`.
pub fn turn_is_free(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| file.try_lock_shared().is_ok())
}

impl RunLock {
    /// Takes the lock of the run directory `path`.
    ///
    /// # Errors
    /// `Locked` if another process holds it, naming that process.
    pub fn take(path: &Path) -> Result<Self, StoreError> {
        Self::take_with(path, false)
    }

    /// As `take`, for who removes: what may be in use stays.
    ///
    /// # Errors
    /// As `take`; `Refused` on a file system without locks, where nobody knows whether a process works on the run.
    pub fn take_to_remove(path: &Path) -> Result<Self, StoreError> {
        Self::take_with(path, true)
    }

    fn take_with(path: &Path, surely: bool) -> Result<Self, StoreError> {
        let file_path = path.join(LOCK);
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&file_path);
        let mut file = open.map_err(StoreError::io("opening", &file_path))?;
        for attempt in 1.. {
            match without_locks(path).and_then(|()| file.try_lock()) {
                Ok(()) => break,
                Err(TryLockError::Error(e)) if surely && e.kind() == ErrorKind::Unsupported => {
                    let text = "is on a file system without locks, so it is not known whether a process works on it";
                    let what = "nothing is removed from it; remove it yourself if none does";
                    return Err(StoreError::Refused(format!("{} {text}: {what}", path.display())));
                }
                // A file system without locks: better an unguarded run than none.
                Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => break,
                Err(TryLockError::Error(e)) => return Err(StoreError::io("locking", &file_path)(e)),
                Err(TryLockError::WouldBlock) if attempt == TRIES => {
                    let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    let holder = holder(&mut file).map_or_else(String::new, |pid| format!(" (pid {pid})"));
                    return Err(StoreError::Locked { id, holder });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            }
        }
        let mut note = || -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        note().map_err(StoreError::io("writing", &file_path))?;
        Ok(Self { _file: file })
    }

    /// Whether a process works on the run directory `path` now.
    #[must_use]
    pub fn is_held(path: &Path) -> bool {
        File::open(path.join(LOCK)).is_ok_and(|f| matches!(f.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Whether surely no process works on the run directory `path` now: where there are no locks nobody knows.
    #[must_use]
    pub fn is_free(path: &Path) -> bool {
        match File::open(path.join(LOCK)) {
            Ok(file) => without_locks(path).and_then(|()| file.try_lock_shared()).is_ok(),
            // Nobody has worked on it yet.
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}

/// In tests a folder with a file of this name stands for one on a file system without locks.
#[cfg(any(test, feature = "testing"))]
pub const NO_LOCKS: &str = "no-locks";

#[cfg(any(test, feature = "testing"))]
fn without_locks(folder: &Path) -> Result<(), TryLockError> {
    let none = folder.join(NO_LOCKS).exists();
    if none { Err(TryLockError::Error(ErrorKind::Unsupported.into())) } else { Ok(()) }
}

#[cfg(not(any(test, feature = "testing")))]
#[expect(clippy::unnecessary_wraps, reason = "fails in tests")]
fn without_locks(_: &Path) -> Result<(), TryLockError> {
    Ok(())
}

fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_refused_and_told_by_whom() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a-12345678");
        fs::create_dir(&dir).unwrap();
        assert!(!RunLock::is_held(&dir), "no lock file yet");
        let first = RunLock::take(&dir).unwrap();
        assert!(RunLock::is_held(&dir));
        let error = RunLock::take(&dir).unwrap_err();
        assert!(error.is_request());
        let text = error.to_string();
        assert!(text.contains("a-12345678") && text.contains(&format!("pid {}", std::process::id())), "{text}");
        drop(first);
        assert!(!RunLock::is_held(&dir));
        RunLock::take(&dir).unwrap();
    }

    #[test]
    fn without_locks_a_run_trains_but_is_not_known_to_be_free() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NO_LOCKS), "").unwrap();
        assert!(RunLock::is_free(dir.path()), "nobody has worked on it yet");
        let _training = RunLock::take(dir.path()).unwrap();
        assert!(!RunLock::is_free(dir.path()));
        let error = RunLock::take_to_remove(dir.path()).unwrap_err();
        assert!(error.is_request() && error.to_string().contains("without locks"), "{error}");
        fs::remove_file(dir.path().join(NO_LOCKS)).unwrap();
        let _training = RunLock::take(dir.path()).unwrap();
        assert!(matches!(RunLock::take_to_remove(dir.path()), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn a_turn_that_does_not_come_is_given_up() {
        let root = tempfile::tempdir().unwrap();
        let first = turn(root.path(), "a-12345678").unwrap();
        let error = turn_within(root.path(), "a-12345678", Duration::from_millis(1)).unwrap_err();
        assert!(error.is_request() && error.to_string().contains("/.a-12345678.lock"), "{error}");
        turn_within(root.path(), "another", Duration::ZERO).unwrap();
        drop(first);
        turn_within(root.path(), "a-12345678", Duration::ZERO).unwrap();
    }

    #[test]
    fn a_turn_s_file_is_removed_by_nobody_but_while_it_is_free() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(".a-12345678.lock");
        let held = turn(root.path(), "a-12345678").unwrap();
        assert!(!turn_is_free(&path) && !remove_turn(&path) && path.exists());
        drop(held);
        assert!(turn_is_free(&path) && remove_turn(&path) && !path.exists());
        // Who opened the file before it went must not take a turn that nobody else sees.
        let turns = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let held = turn(root.path(), "a-12345678").unwrap();
                        assert_eq!(turns.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two at a time");
                        turns.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(held);
                        remove_turn(&path);
                    }
                });
            }
        });
    }

    #[test]
    fn a_probe_does_not_refuse_the_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        fs::write(path.join(LOCK), "99").unwrap();
        let probe = File::open(path.join(LOCK)).unwrap();
        probe.lock_shared().unwrap();
        let waiting = thread::spawn(move || RunLock::take(&path).is_ok());
        thread::sleep(Duration::from_millis(30));
        drop(probe);
        assert!(waiting.join().unwrap());
    }
}
