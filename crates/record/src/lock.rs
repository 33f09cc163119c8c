//! Locks of runs: one process at a time works on a run, and one at a time finds or creates the run of a name.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::error::RecordError;
use super::files::file_name;
pub use super::names::LOCK;
#[cfg(any(test, feature = "testing"))]
pub use super::names::NO_LOCKS;
use super::names::is_id;
use runner_files::{explain_io_error, is_lock_service_gone, open_owned, open_regular};

/// The wait for the lock of a run: `runner runs` probes locks, and holds each for microseconds.
const RUN_LOCK_TIMEOUT: Duration = Duration::from_millis(200);
/// The wait for the lock of a name, which another process holds as long as it takes to create a run.
const NAME_LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A lock that this process holds. The kernel releases it when the process ends, however it ends.
#[derive(Debug)]
pub struct RunLock {
    _file: File,
    /// False on a file system without locks.
    is_exclusive: bool,
}

/// The result of an attempt to lock a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockAttempt {
    Locked,
    /// Another process held the lock all the time.
    TimedOut,
    /// The file system has no locks.
    Unsupported,
}

impl RunLock {
    /// Takes the lock of the run directory `run`. On a file system without locks the run is not guarded.
    ///
    /// # Errors
    /// `Locked` if another process holds it, naming that process.
    pub fn take(run: &Path) -> Result<Self, RecordError> {
        Self::take_run(run, false)
    }

    /// Takes the lock of the run directory `run` in order to remove something from it.
    ///
    /// # Errors
    /// `Locked` if another process holds it; `Refused` on a file system without locks, where one may hold it unnoticed.
    pub fn take_to_remove(run: &Path) -> Result<Self, RecordError> {
        Self::take_run(run, true)
    }

    fn take_run(run: &Path, to_remove: bool) -> Result<Self, RecordError> {
        let path = run.join(LOCK);
        let mut file = open_or_create(&path)?;
        let attempt = wait_for_lock(&file, &path, RUN_LOCK_TIMEOUT)?;
        match attempt {
            LockAttempt::Unsupported if to_remove => {
                let text = "is on a file system without locks, so a process may be working on it";
                let what = "nothing was removed; if no process uses it, delete it yourself";
                return Err(RecordError::Refused(format!("{} {text}: {what}", run.display())));
            }
            LockAttempt::TimedOut => {
                let holder = holder(&mut file).map_or_else(String::new, |pid| format!(" (pid {pid})"));
                return Err(RecordError::Locked { id: file_name(run), holder });
            }
            LockAttempt::Locked | LockAttempt::Unsupported => {}
        }
        let mut write_pid = || -> std::io::Result<()> {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write_pid().map_err(RecordError::io("writing", &path))?;
        Ok(Self { _file: file, is_exclusive: attempt == LockAttempt::Locked })
    }

    /// False on a file system without locks, where another process can take it, too.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Waits for the lock of the name `base` in `root`, under which this process then finds or creates a run.
    ///
    /// # Errors
    /// If the folder cannot be written; `Busy` if another process holds the lock for ten seconds.
    pub fn take_name(root: &Path, base: &str) -> Result<Self, RecordError> {
        Self::take_name_within(root, base, NAME_LOCK_TIMEOUT)
    }

    fn take_name_within(root: &Path, base: &str, timeout: Duration) -> Result<Self, RecordError> {
        runner_files::create_dir_all(root).map_err(RecordError::io("creating", root))?;
        let path = root.join(format!(".{base}.{LOCK}"));
        let started = Instant::now();
        loop {
            let file = open_or_create(&path)?;
            match wait_for_lock(&file, &path, timeout.saturating_sub(started.elapsed()))? {
                LockAttempt::TimedOut => return Err(RecordError::Busy { path }),
                // The file was removed before it was locked: other processes wait for the new file.
                LockAttempt::Locked if !is_same_file(&file, &path) => {}
                attempt => return Ok(Self { _file: file, is_exclusive: attempt == LockAttempt::Locked }),
            }
        }
    }

    /// True if a process works on the run directory `run` now.
    pub fn is_held(run: &Path) -> bool {
        open_regular(&run.join(LOCK)).is_ok_and(|f| matches!(f.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// True if it is certain that no process works on the run directory `run` now. Without locks it never is.
    pub fn is_free(run: &Path) -> bool {
        match open_regular(&run.join(LOCK)) {
            Ok(file) => supports_locks(run) && file.try_lock_shared().is_ok(),
            // No process has worked on it yet.
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }
}

fn open_or_create(path: &Path) -> Result<File, RecordError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    open_owned(&mut options, path).map_err(RecordError::io("opening", path))
}

fn wait_for_lock(file: &File, path: &Path, timeout: Duration) -> Result<LockAttempt, RecordError> {
    if !path.parent().is_none_or(supports_locks) {
        return Ok(LockAttempt::Unsupported);
    }
    let started = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(LockAttempt::Locked),
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => return Ok(LockAttempt::Unsupported),
            Err(TryLockError::Error(e)) if is_lock_service_gone(&e) => {
                return Err(RecordError::Refused(format!(
                    "{}: {}; or use a different folder (`--runs` sets the folder of runs)",
                    path.display(),
                    explain_io_error(&e)
                )));
            }
            Err(TryLockError::Error(e)) => return Err(RecordError::io("locking", path)(e)),
            Err(TryLockError::WouldBlock) if started.elapsed() >= timeout => return Ok(LockAttempt::TimedOut),
            Err(TryLockError::WouldBlock) => thread::sleep(RETRY_INTERVAL.min(timeout)),
        }
    }
}

/// True if `path` names the open file `file`.
fn is_same_file(file: &File, path: &Path) -> bool {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    file.metadata().and_then(|ours| Ok(same(ours, fs::metadata(path)?))).unwrap_or(false)
}

/// True if `path` is the file of a lock of a run's name: hidden, empty, and named after the run.
pub fn is_name_lock(path: &Path) -> bool {
    let name = file_name(path);
    let base = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(LOCK)?.strip_suffix('.'));
    base.is_some_and(is_id)
        && fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.len() == 0)
}

/// Removes `path`, the lock file of a name, unless a process holds the lock. Returns true if it did.
pub fn remove_name_lock(path: &Path) -> bool {
    // It is removed while it is locked: a process that opened it before sees that it is gone, and makes a new one.
    open_owned(OpenOptions::new().write(true), path)
        .is_ok_and(|file| file.try_lock().is_ok() && is_same_file(&file, path) && fs::remove_file(path).is_ok())
}

/// True if no process holds the lock of a name whose file is `path`.
pub fn name_lock_is_free(path: &Path) -> bool {
    open_regular(path).is_ok_and(|file| file.try_lock_shared().is_ok())
}

#[cfg(any(test, feature = "testing"))]
fn supports_locks(folder: &Path) -> bool {
    !folder.join(NO_LOCKS).exists()
}

#[cfg(not(any(test, feature = "testing")))]
fn supports_locks(_: &Path) -> bool {
    true
}

/// The process that wrote its id into the lock file.
fn holder(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use runner_spec::error::{Classified as _, ErrorKind};

    use super::*;

    #[test]
    fn a_held_lock_is_refused_and_names_its_holder() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a-12345678");
        fs::create_dir(&dir).unwrap();
        assert!(!RunLock::is_held(&dir), "no lock file yet");
        let first = RunLock::take(&dir).unwrap();
        assert!(RunLock::is_held(&dir));
        let error = RunLock::take(&dir).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        let text = error.to_string();
        assert!(text.contains("a-12345678") && text.contains(&format!("pid {}", std::process::id())), "{text}");
        drop(first);
        assert!(!RunLock::is_held(&dir));
        RunLock::take(&dir).unwrap();
    }

    #[test]
    fn without_locks_a_run_trains_but_may_be_in_use() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NO_LOCKS), "").unwrap();
        assert!(RunLock::is_free(dir.path()), "no process has worked on it yet");
        let training = RunLock::take(dir.path()).unwrap();
        assert!(!training.is_exclusive() && !RunLock::is_free(dir.path()));
        let error = RunLock::take_to_remove(dir.path()).unwrap_err();
        assert!(error.kind() == ErrorKind::Request && error.to_string().contains("without locks"), "{error}");
        fs::remove_file(dir.path().join(NO_LOCKS)).unwrap();
        let training = RunLock::take(dir.path()).unwrap();
        assert!(training.is_exclusive());
        assert!(matches!(RunLock::take_to_remove(dir.path()), Err(RecordError::Locked { .. })));
    }

    #[test]
    fn waiting_for_the_lock_of_a_name_times_out() {
        let root = tempfile::tempdir().unwrap();
        let first = RunLock::take_name(root.path(), "a-12345678").unwrap();
        let error = RunLock::take_name_within(root.path(), "a-12345678", Duration::from_millis(1)).unwrap_err();
        assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("/.a-12345678.lock"), "{error}");
        RunLock::take_name_within(root.path(), "another", Duration::ZERO).unwrap();
        drop(first);
        RunLock::take_name_within(root.path(), "a-12345678", Duration::ZERO).unwrap();
    }

    #[test]
    fn the_lock_file_of_a_name_is_removed_only_while_it_is_free() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(".a-12345678.lock");
        let held = RunLock::take_name(root.path(), "a-12345678").unwrap();
        assert!(!name_lock_is_free(&path) && !remove_name_lock(&path) && path.exists());
        drop(held);
        assert!(name_lock_is_free(&path) && remove_name_lock(&path) && !path.exists());
        // A process that opened the file before it was removed must not hold a lock that no other process sees.
        let holders = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let held = RunLock::take_name(root.path(), "a-12345678").unwrap();
                        assert_eq!(holders.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two at a time");
                        holders.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        drop(held);
                        remove_name_lock(&path);
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
