//! Downloads files of a dataset in their order, several at once, and at most a few ahead of the file that is read.
//!
//! The order in which downloads end does not change the text that is read. Files that are no longer needed can be removed.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hf_hub::RepoType;

use super::client::Client;
use super::download_record::line;
use super::error::{HubError, Result};
use super::fetch::{Downloading, Report};
use super::listing::ListedFile;
use super::repository::Repository;
use super::settings::Settings;

/// The interval between two reports while a download is waited for.
const REPORT_INTERVAL: Duration = Duration::from_millis(200);

/// Files of one commit, and the threads that download them.
#[derive(Debug)]
pub(crate) struct Downloads {
    shared: Arc<SharedDownloads>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// For each etag the last file that has it.
    last_files: HashMap<String, usize>,
    /// The files before this one were removed.
    removed_until: Mutex<usize>,
}

/// The files of a preparation that are in the cache at the same time. By default all of them are.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HeldFiles {
    /// The preparation ends after about this many bytes of the files.
    pub(crate) limit_bytes: Option<u64>,
    /// Files are removed, and about this many bytes of them are not yet in complete shards.
    pub(crate) unsaved_bytes: Option<u64>,
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
        let last_files = shared.files.iter().enumerate().map(|(index, file)| (file.etag.clone(), index)).collect();
        Self { shared: Arc::new(shared), threads: Mutex::default(), last_files, removed_until: Mutex::default() }
    }

    pub(crate) fn files(&self) -> &[ListedFile] {
        &self.shared.files
    }

    /// The bytes to download that are in the cache at the same time, for the files from `first` on.
    pub(crate) fn needed_bytes(&self, first: usize, held: &HeldFiles) -> u64 {
        let sizes: Vec<(u64, u64)> = {
            let state = self.shared.lock();
            let files = self.shared.files.iter().zip(&state.bytes).skip(first);
            files.map(|(file, have)| (file.size, file.size.saturating_sub(*have))).collect()
        };
        most_held_bytes(&sizes, held, self.shared.origin.settings.downloads)
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

    /// Removes those of the files `0..end` from the cache that the record of the settings names. A content that a later file also has stays
    /// until that file is removed, and so does one that another process downloads. A file that is already gone is no error.
    ///
    /// # Errors
    /// If one cannot be removed.
    pub(crate) fn remove(&self, end: usize) -> Result<()> {
        let Some(record) = &self.shared.origin.settings.record else { return Ok(()) };
        let mut removed_until = self.removed_until.lock().unwrap_or_else(PoisonError::into_inner);
        if *removed_until >= end {
            return Ok(());
        }
        let recorded = record.read().map_err(|error| HubError::Other(format!("the record of downloads: {error}")))?;
        self.with_repository(|repository| {
            for (index, file) in self.shared.files.iter().enumerate().take(end).skip(*removed_until) {
                let is_needed = self.last_files.get(&file.etag).is_some_and(|last| *last >= end);
                self.remove_file(repository, file, is_needed, &recorded)?;
                let mut state = self.shared.lock();
                if matches!(state.files[index], FileState::Done(_)) {
                    state.files[index] = FileState::Waiting;
                }
            }
            Ok(())
        })?;
        *removed_until = end;
        Ok(())
    }

    /// Removes the link of `file`, and its content unless `is_needed`, if it is among the files that are `recorded`.
    fn remove_file(
        &self,
        repository: &Repository<'_>,
        file: &ListedFile,
        is_needed: bool,
        recorded: &BTreeSet<String>,
    ) -> Result<()> {
        let commit = &self.shared.origin.commit;
        let (pointer, blob) = (repository.pointer(commit, &file.path), repository.blob(commit, &file.etag));
        let part = blob.with_file_name(format!("{}.incomplete", file.etag));
        let is_recorded =
            |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| recorded.contains(&line(&file.etag, &found)));
        let remove = |path: &PathBuf| fs::remove_file(path).map_err(HubError::io(path));
        if ![&blob, &part].into_iter().any(is_recorded) {
            return Ok(());
        }
        if is_needed {
            return pointer.symlink_metadata().map_or(Ok(()), |_| remove(&pointer));
        }
        let lock = repository.open_lock(commit, &file.etag)?;
        if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            return Ok(());
        }
        if is_recorded(&blob) && pointer.symlink_metadata().is_ok() {
            remove(&pointer)?;
        }
        [blob, part].iter().filter(|path| is_recorded(path)).try_for_each(remove)
    }

    /// Ends all downloads, and waits until nothing writes to the cache any more.
    pub(crate) fn stop_and_wait(&self) {
        self.stop();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A thread that panicked has ended, too.
            let _ = thread.join();
        }
        // The download of a file may have ended after its removal.
        *self.removed_until.lock().unwrap_or_else(PoisonError::into_inner) = 0;
    }

    fn start_threads(&self) -> Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_empty() {
            let count = self.shared.origin.settings.downloads.min(self.shared.files.len()).max(1);
            for _ in 0..count {
                let shared = self.shared.clone();
                let thread = runner_machine::threads::spawn("download", move || shared.download_files());
                threads.push(thread.map_err(|error| HubError::Other(error.to_string()))?);
            }
        }
        Ok(())
    }

    fn with_repository<T>(&self, work: impl FnOnce(&Repository<'_>) -> T) -> T {
        let origin = &self.shared.origin;
        let client = Client::new(&origin.settings, &origin.memos, &|_| ());
        work(&client.repository(RepoType::Dataset, &origin.name, &origin.revision))
    }
}

/// The most bytes to download that are in the cache at the same time. `sizes` has the size of each file, and the part of it that is
/// missing.
fn most_held_bytes(sizes: &[(u64, u64)], held: &HeldFiles, downloads: usize) -> u64 {
    let sums = |part: fn(&(u64, u64)) -> u64| -> Vec<u128> {
        let sums = sizes.iter().scan(0_u128, |sum, file| {
            *sum += u128::from(part(file));
            Some(*sum)
        });
        std::iter::once(0).chain(sums).collect()
    };
    let (whole, missing) = (sums(|file| file.0), sums(|file| file.1));
    // The end of the files that are in the cache, if `bytes` lie between the first complete file `from` and the one that is read. Beside
    // the file before `from` there are the one that is read and those that are downloaded ahead.
    let end = |from: usize, bytes: u64| {
        let most = whole[from.min(sizes.len())] + u128::from(bytes);
        (whole.partition_point(|sum| *sum <= most) + downloads).min(sizes.len())
    };
    let last = held.limit_bytes.map_or(sizes.len(), |bytes| (end(0, bytes) + 1).min(sizes.len()));
    let most = match held.unsaved_bytes {
        None => missing[last],
        Some(bytes) => {
            let windows = (0..last).map(|start| missing[end(start + 1, bytes).min(last)] - missing[start]);
            windows.max().unwrap_or(0)
        }
    };
    most.try_into().unwrap_or(u64::MAX)
}

impl Drop for Downloads {
    fn drop(&mut self) {
        self.stop_and_wait();
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
            let message = format!("`{}` has another content than the list of files says", listed.path);
            return Err(repository.wrong_answer(&message));
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::super::download_record::DownloadRecord;
    use super::*;
    use std::sync::mpsc::channel;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    /// Downloads of files with these etags, all of which are in a cache in `folder`. All but `cc` are recorded.
    fn cached_files(folder: &Path, etags: &[&str]) -> Downloads {
        let settings = Settings {
            endpoint: "http://127.0.0.1:1".to_owned(),
            cache: folder.join("hub"),
            token: None,
            offline: true,
            wait: Duration::ZERO,
            downloads: 1,
            record: Some(DownloadRecord::of_folder(folder, &folder.join("memos")).unwrap()),
        };
        let record = settings.record.clone().unwrap();
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
            if *etag != "cc" {
                record.add(etag, &fs::File::open(blob).unwrap()).unwrap();
            }
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

    #[test]
    fn removal_spares_what_is_locked_needed_later_or_not_recorded() {
        let folder = tempfile::tempdir().unwrap();
        let downloads = cached_files(folder.path(), &["aa", "bb", "cc", "dd", "aa", "ee", "ff"]);
        let folder_of_blobs = folder.path().join("hub/datasets--own--lines/blobs");
        let blobs = || {
            let names = fs::read_dir(&folder_of_blobs).unwrap();
            names.map(|name| name.unwrap().file_name().into_string().unwrap()).collect::<BTreeSet<_>>()
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        // Another program downloads a file again.
        fs::write(folder_of_blobs.join("new"), "{}").unwrap();
        fs::rename(folder_of_blobs.join("new"), folder_of_blobs.join("ff")).unwrap();
        let locks = folder.path().join("hub/.locks/datasets--own--lines");
        fs::create_dir_all(&locks).unwrap();
        let lock = fs::File::create(locks.join("bb.lock")).unwrap();
        lock.lock().unwrap();
        downloads.remove(4).unwrap();
        assert_eq!(blobs(), names(&["aa", "bb", "cc", "ee", "ff"]));
        // Removed files are not checked again before the end.
        drop(lock);
        downloads.remove(5).unwrap();
        assert_eq!(blobs(), names(&["bb", "cc", "ee", "ff"]));
        downloads.stop_and_wait();
        downloads.remove(7).unwrap();
        assert_eq!(blobs(), names(&["cc", "ff"]));
        let snapshot = folder.path().join("hub/datasets--own--lines/snapshots").join(COMMIT);
        assert_eq!(fs::read_dir(snapshot).unwrap().count(), 2);
    }

    #[test]
    fn held_bytes_depend_on_limit_and_removal() {
        let most = |sizes: &[u64], limit_bytes, unsaved_bytes, downloads| {
            let sizes: Vec<(u64, u64)> = sizes.iter().map(|size| (*size, *size)).collect();
            most_held_bytes(&sizes, &HeldFiles { limit_bytes, unsaved_bytes }, downloads)
        };
        let files = [10; 100];
        assert_eq!(most(&files, None, None, 4), 1000);
        // A limit that is far away needs all files, and a near one those that are downloaded ahead.
        assert_eq!(most(&files, Some(2000), None, 4), 1000);
        assert_eq!(most(&files, Some(0), None, 4), 60);
        assert_eq!(most(&files, Some(300), None, 4), 360);
        // Small files stay until a shard of theirs is complete.
        assert_eq!(most(&files, None, Some(0), 4), 60);
        assert_eq!(most(&files, None, Some(305), 4), 360);
        assert_eq!(most(&files, None, Some(5000), 4), 1000);
        assert_eq!(most(&files, Some(0), Some(5000), 4), 60);
        // The largest window counts.
        assert_eq!(most(&[1, 1, 1, 1, 9, 9], None, Some(0), 1), 19);
        assert_eq!(most(&[u64::MAX; 3], None, None, 4), u64::MAX);
        assert_eq!(most(&[], Some(5), Some(5), 4), 0);
    }
}
