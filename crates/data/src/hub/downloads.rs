//! Downloads files of a dataset in their order, several at once, and at most a few ahead of the file that is read.
//!
//! What is read does not depend on the order in which downloads end. Files that are no longer needed can be removed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hf_hub::RepoType;

use super::client::Client;
use super::error::{HubError, Result};
use super::fetch::{Downloading, Report};
use super::listing::{ListedFile, check_free_space};
use super::settings::Settings;

/// The interval between two reports while a download is waited for.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Files of one commit, and the threads that download them.
#[derive(Debug)]
pub(crate) struct Downloads {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The commit that files are downloaded from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) settings: Settings,
    pub(super) memos: PathBuf,
    pub(super) name: String,
    pub(super) revision: String,
    pub(super) commit: String,
}

#[derive(Debug)]
struct Shared {
    origin: Origin,
    files: Vec<ListedFile>,
    progress: Mutex<State>,
    changed: Condvar,
    stopped: Arc<AtomicBool>,
}

#[derive(Debug)]
struct State {
    /// The file that is read now. Downloads begin with the first request.
    needed: Option<usize>,
    files: Vec<FileState>,
    /// Bytes of each file that are in the cache.
    bytes: Vec<u64>,
    /// Bytes that this process has received, and when it began.
    received: u64,
    started: Option<Instant>,
    error: Option<HubError>,
}

#[derive(Debug, Clone, PartialEq)]
enum FileState {
    Waiting,
    Running,
    Done(PathBuf),
}

impl Downloads {
    /// The files `files` of `origin`; nothing is downloaded before [`Self::path`] asks for a file.
    pub(super) fn new(origin: Origin, files: Vec<ListedFile>) -> Self {
        let client = Client::new(&origin.settings, &origin.memos, &|_| ());
        let repository = client.repository(RepoType::Dataset, &origin.name, &origin.revision);
        let is_cached = |file: &ListedFile| repository.has(&origin.commit, &file.path);
        let bytes = files.iter().map(|file| if is_cached(file) { file.size } else { 0 }).collect();
        let state = State {
            needed: None,
            files: vec![FileState::Waiting; files.len()],
            bytes,
            received: 0,
            started: None,
            error: None,
        };
        let shared =
            Shared { origin, files, progress: Mutex::new(state), changed: Condvar::new(), stopped: Arc::default() };
        Self { shared: Arc::new(shared), threads: Mutex::default() }
    }

    pub(crate) fn files(&self) -> &[ListedFile] {
        &self.shared.files
    }

    /// The etags of the files whose content is in the cache now.
    pub(crate) fn cached(&self) -> BTreeSet<String> {
        let is_there = |file: &&ListedFile| self.blob(file).is_file() || self.pointer(file).is_file();
        self.shared.files.iter().filter(is_there).map(|file| file.etag.clone()).collect()
    }

    /// Checks that the disk has room for the files from `first` on that are missing, or for those that are there at the same time if
    /// files are removed (`removes`), or if few may be needed (`is_limited`).
    ///
    /// # Errors
    /// If it has not.
    pub(crate) fn check_space(&self, first: usize, removes: bool, is_limited: bool) -> Result<()> {
        let missing: Vec<u64> = {
            let state = self.shared.lock();
            let sizes = self.shared.files.iter().zip(&state.bytes).skip(first);
            sizes.map(|(file, have)| file.size.saturating_sub(*have)).collect()
        };
        let sum = |sizes: &[u64]| sizes.iter().fold(0_u64, |sum, size| sum.saturating_add(*size));
        // The files that are downloaded ahead, the one that is read, and the one whose last tokens are not in a complete shard.
        let window = self.shared.origin.settings.downloads + 2;
        let needed = match (removes, is_limited) {
            (_, true) => sum(&missing[..window.min(missing.len())]),
            (true, false) => missing.windows(window.min(missing.len()).max(1)).map(sum).max().unwrap_or(0),
            (false, false) => sum(&missing),
        };
        check_free_space(&self.shared.origin.settings.cache, needed)
    }

    /// The local path of the file `index`. Waits for its download, and lets the files after it be downloaded meanwhile.
    ///
    /// # Errors
    /// If it cannot be downloaded, or [`Self::stop`] was called.
    pub(crate) fn path(&self, index: usize, report: &Report<'_>) -> Result<PathBuf> {
        self.start_threads();
        let mut state = self.shared.lock();
        state.needed = Some(index);
        state.started.get_or_insert_with(Instant::now);
        self.shared.changed.notify_all();
        loop {
            if let FileState::Done(path) = &state.files[index] {
                return Ok(path.clone());
            }
            // The thread that failed has stopped the others.
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if self.shared.is_stopped() {
                return Err(HubError::Other("the download was stopped".to_owned()));
            }
            let waited = self.shared.changed.wait_timeout(state, REPORT_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            report(self.shared.describe(&state));
        }
    }

    /// The local path of the file `index` if its download has ended, without waiting for it.
    pub(crate) fn finished_path(&self, index: usize) -> Option<PathBuf> {
        match self.shared.lock().files.get(index) {
            Some(FileState::Done(path)) => Some(path.clone()),
            _ => None,
        }
    }

    /// The progress of all files together; `None` before the first file is asked for.
    pub(crate) fn progress(&self) -> Option<Downloading> {
        let state = self.shared.lock();
        state.started.map(|_| self.shared.describe(&state))
    }

    /// Ends all downloads. What they have received stays, and a later process continues them.
    pub(crate) fn stop(&self) {
        // With the lock, so that no thread is between its look at `stopped` and its wait.
        let _state = self.shared.lock();
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
    }

    /// Removes the files `0..end` from the cache, except those whose etag is in `kept`. Without such a file nothing happens.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub(crate) fn remove(&self, end: usize, kept: &BTreeSet<String>) -> Result<()> {
        for (index, file) in self.shared.files.iter().enumerate().take(end) {
            let is_needed = self.shared.files.iter().skip(end).any(|later| later.etag == file.etag);
            if is_needed || kept.contains(&file.etag) {
                continue;
            }
            let blob = self.blob(file);
            for path in [self.pointer(file), blob.with_file_name(format!("{}.incomplete", file.etag)), blob] {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(HubError::io(&path)(error));
                    }
                    _ => {}
                }
            }
            let mut state = self.shared.lock();
            if matches!(state.files[index], FileState::Done(_)) {
                state.files[index] = FileState::Waiting;
            }
        }
        Ok(())
    }

    /// Ends all downloads, and waits until nothing writes to the cache any more.
    pub(crate) fn stop_and_wait(&self) {
        self.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }

    fn start_threads(&self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            let count = self.shared.origin.settings.downloads.min(self.shared.files.len()).max(1);
            threads.extend((0..count).map(|_| {
                let shared = self.shared.clone();
                std::thread::spawn(move || shared.download_files())
            }));
        }
    }

    fn pointer(&self, file: &ListedFile) -> PathBuf {
        self.with_repository(|repository| repository.pointer(&self.shared.origin.commit, &file.path))
    }

    fn blob(&self, file: &ListedFile) -> PathBuf {
        self.with_repository(|repository| repository.cached(&self.shared.origin.commit).blob_path(&file.etag))
    }

    fn with_repository<T>(&self, work: impl FnOnce(&super::repository::Repository<'_>) -> T) -> T {
        let origin = &self.shared.origin;
        let client = Client::new(&origin.settings, &origin.memos, &|_| ());
        work(&client.repository(RepoType::Dataset, &origin.name, &origin.revision))
    }
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.stop_and_wait();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn describe(&self, state: &State) -> Downloading {
        let seconds = state.started.map_or(0.0, |started| started.elapsed().as_secs_f64()).max(1e-3);
        Downloading {
            file: state.needed.unwrap_or(0) + 1,
            files: self.files.len(),
            bytes_done: state.bytes.iter().sum(),
            bytes_total: self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size)),
            bytes_per_second: state.received as f64 / seconds,
        }
    }

    /// Downloads one file after the other until [`Downloads::stop`].
    fn download_files(&self) {
        while let Some(index) = self.take_file() {
            let result = self.download(index);
            let mut state = self.lock();
            match result {
                Ok(path) => {
                    state.bytes[index] = self.files[index].size;
                    state.files[index] = FileState::Done(path);
                }
                Err(error) => {
                    state.files[index] = FileState::Waiting;
                    if !self.is_stopped() {
                        state.error.get_or_insert(error);
                        self.stopped.store(true, Ordering::SeqCst);
                    }
                }
            }
            self.changed.notify_all();
        }
    }

    /// Waits for a file to download; `None` once downloads end.
    fn take_file(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if self.is_stopped() {
                return None;
            }
            if let Some(needed) = state.needed {
                let end = (needed + self.origin.settings.downloads).min(self.files.len());
                if let Some(index) = (needed..end).find(|&index| state.files[index] == FileState::Waiting) {
                    state.files[index] = FileState::Running;
                    return Some(index);
                }
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn download(&self, index: usize) -> Result<PathBuf> {
        let (origin, listed) = (&self.origin, &self.files[index]);
        let report = |part: Downloading| {
            let mut state = self.lock();
            let before = std::mem::replace(&mut state.bytes[index], part.bytes_done);
            state.received += part.bytes_done.saturating_sub(before);
        };
        let client = Client::new(&origin.settings, &origin.memos, &report).stopped_by(self.stopped.clone());
        let repository = client.repository(RepoType::Dataset, &origin.name, &origin.revision);
        let path = repository.file(&origin.commit, &listed.path, (index + 1, self.files.len()))?;
        let target = fs::read_link(&path).ok();
        let etag = target.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        if etag.is_some_and(|etag| etag != listed.etag) {
            let message = format!("`{}` has another content than the list of files says", listed.path);
            return Err(repository.wrong_answer(&message));
        }
        Ok(path)
    }
}
