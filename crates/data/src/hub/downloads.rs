//! Downloads files of a dataset in their order, several at once, and at most a few ahead of the file that is read.
//!
//! The order in which downloads end does not change the text that is read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hf_hub::RepoType;

use super::client::{Client, Downloading, Report};
use super::error::{HubError, Result};
use super::listing::ListedFile;
use super::settings::Settings;

/// The interval between two reports while a download is waited for.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Files of one commit, and the threads that download them.
#[derive(Debug)]
pub(crate) struct Downloads {
    shared: Arc<SharedDownloads>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The commit that files are downloaded from.
#[derive(Debug, Clone)]
pub(super) struct HubCommit {
    pub(super) settings: Settings,
    pub(super) memos: PathBuf,
    pub(super) name: String,
    pub(super) revision: String,
    pub(super) commit: String,
}

#[derive(Debug)]
struct SharedDownloads {
    origin: HubCommit,
    files: Vec<ListedFile>,
    progress: Mutex<DownloadProgress>,
    changed: Condvar,
    stopped: Arc<AtomicBool>,
}

#[derive(Debug)]
struct DownloadProgress {
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
    pub(super) fn new(origin: HubCommit, files: Vec<ListedFile>) -> Self {
        let client = Client::new(&origin.settings, &origin.memos, &|_| ());
        let repository = client.repository(RepoType::Dataset, &origin.name, &origin.revision);
        let is_cached = |file: &ListedFile| repository.has(&origin.commit, &file.path);
        let bytes = files.iter().map(|file| if is_cached(file) { file.size } else { 0 }).collect();
        let state = DownloadProgress {
            needed: None,
            files: vec![FileState::Waiting; files.len()],
            bytes,
            received: 0,
            started: None,
            error: None,
        };
        let shared = SharedDownloads {
            origin,
            files,
            progress: Mutex::new(state),
            changed: Condvar::new(),
            stopped: Arc::default(),
        };
        Self { shared: Arc::new(shared), threads: Mutex::default() }
    }

    pub(crate) fn files(&self) -> &[ListedFile] {
        &self.shared.files
    }

    /// The bytes of the files from `first` on that are not in the cache.
    pub(crate) fn missing_bytes(&self, first: usize) -> u64 {
        let state = self.shared.lock();
        let files = self.shared.files.iter().zip(&state.bytes).skip(first);
        files.fold(0, |sum, (file, have)| sum.saturating_add(file.size.saturating_sub(*have)))
    }

    /// The local path of the file `index`. Waits for its download, and lets the files after it be downloaded meanwhile.
    ///
    /// # Errors
    /// If it cannot be downloaded, no thread can be started, or [`Self::stop`] was called.
    pub(crate) fn path(&self, index: usize, report: &Report<'_>) -> Result<PathBuf> {
        self.start_threads()?;
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
        // Takes the lock: otherwise a thread could check `stopped`, miss this notification, and wait for ever.
        let _state = self.shared.lock();
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
    }

    fn start_threads(&self) -> Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            let count = self.shared.origin.settings.downloads.min(self.shared.files.len()).max(1);
            for _ in 0..count {
                let shared = self.shared.clone();
                let thread = runner_threads::threads::spawn("download", move || shared.download_files());
                threads.push(thread.map_err(|error| HubError::Other(error.to_string()))?);
            }
        }
        Ok(())
    }
}

impl Drop for Downloads {
    /// Ends all downloads, and waits until none writes to the cache.
    fn drop(&mut self) {
        self.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
    }
}

/// Reports the panic of a download thread to the thread that waits for its file.
struct PanicReport<'a>(&'a SharedDownloads);

impl Drop for PanicReport<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let mut state = self.0.lock();
            state.error.get_or_insert_with(|| HubError::Other("a download thread panicked".to_owned()));
            self.0.stopped.store(true, Ordering::SeqCst);
            self.0.changed.notify_all();
        }
    }
}

impl SharedDownloads {
    fn lock(&self) -> MutexGuard<'_, DownloadProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn describe(&self, state: &DownloadProgress) -> Downloading {
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
        let _report = PanicReport(self);
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
            let message = format!("the content of `{}` differs from what the list of files says", listed.path);
            return Err(repository.wrong_answer(&message));
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// Downloads of files with these etags, all of which are in a cache in `folder`.
    fn cached_files(folder: &Path, etags: &[&str]) -> Downloads {
        let settings = Settings {
            endpoint: "http://127.0.0.1:1".to_owned(),
            cache: folder.join("hub"),
            token: None,
            offline: true,
            wait: Duration::ZERO,
            downloads: 1,
        };
        let (memos, revision) = (folder.join("memos"), "main".to_owned());
        let origin = HubCommit { settings, memos, name: "own/lines".to_owned(), revision, commit: COMMIT.to_owned() };
        let repository = folder.join("hub/datasets--own--lines");
        let snapshot = repository.join("snapshots").join(COMMIT);
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(repository.join("blobs")).unwrap();
        let list = |(index, etag): (usize, &&str)| {
            let path = format!("{index}.jsonl");
            let blob = repository.join("blobs").join(etag);
            fs::write(&blob, "{}").unwrap();
            std::os::unix::fs::symlink(format!("../../blobs/{etag}"), snapshot.join(&path)).unwrap();
            ListedFile { path, size: 2, etag: (*etag).to_owned() }
        };
        Downloads::new(origin, etags.iter().enumerate().map(list).collect())
    }

    #[test]
    fn a_panic_of_a_thread_is_an_error_of_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let downloads = cached_files(folder.path(), &["aa"]);
        // The thread reads beyond the end.
        downloads.shared.lock().bytes.clear();
        let (sender, receiver) = channel();
        thread::spawn(move || sender.send(downloads.path(0, &|_| ()).map_err(|error| error.to_string())));
        let result = receiver.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(result.unwrap_err(), "a download thread panicked");
    }
}
