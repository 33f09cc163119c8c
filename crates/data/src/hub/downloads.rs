//! The files of a split on the hub, which are downloaded when they are needed: one when it is read, or all of them, several at once.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use hf_hub::RepoType;
use runner_threads::threads::spawn_scoped;

use super::client::{Client, Downloading, Report};
use super::error::{HubError, Result};
use super::listing::ListedFile;
use super::settings::Settings;
use runner_spec::experiment::{FileFormat, HubSource, Source};

/// Files that are downloaded at the same time.
const DOWNLOADS: usize = 4;

/// A split of a dataset whose files are known, and are downloaded when they are read.
#[derive(Debug)]
pub(crate) struct HubSplit {
    pub(super) settings: Settings,
    /// The source with the commit as its revision.
    pub(crate) pinned: HubSource,
    /// The branch, tag or commit that was asked for, for messages.
    pub(super) revision: String,
    pub(super) format: &'static FileFormat,
    pub(crate) files: Vec<ListedFile>,
}

impl HubSplit {
    /// The source with `files` of this machine.
    pub(crate) fn local_source(&self, files: Vec<PathBuf>) -> Source {
        self.format.source(files, self.pinned.column.clone(), self.pinned.template.clone())
    }

    /// The local path of the file `index`, which is downloaded first if it is not in the cache.
    ///
    /// # Errors
    /// If it cannot be downloaded.
    pub(crate) fn path(&self, index: usize, report: &Report<'_>) -> Result<PathBuf> {
        self.path_unless_stopped(index, report, &Arc::default())
    }

    fn path_unless_stopped(&self, index: usize, report: &Report<'_>, stopped: &Arc<AtomicBool>) -> Result<PathBuf> {
        let client = Client::new(&self.settings, report).stopped_by(stopped.clone());
        let repository = client.repository(RepoType::Dataset, &self.pinned.dataset, &self.revision);
        repository.file(&self.pinned.revision, &self.files[index], (index + 1, self.files.len()))
    }

    /// The bytes of the files that are not in the cache.
    pub(crate) fn missing_bytes(&self) -> u64 {
        let client = Client::new(&self.settings, &|_| ());
        client
            .repository(RepoType::Dataset, &self.pinned.dataset, &self.revision)
            .missing_bytes(&self.pinned.revision, &self.files)
    }

    /// The local paths of all files. The first error ends all downloads; what they have received stays, and a later process continues them.
    ///
    /// # Errors
    /// If a file cannot be downloaded, or no thread can be started.
    pub(crate) fn download_all(&self, report: &Report<'_>) -> Result<Vec<PathBuf>> {
        let (next, stopped) = (AtomicUsize::new(0), Arc::<AtomicBool>::default());
        let (started, bytes_total) =
            (Instant::now(), self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.size)));
        // The bytes of each file that was asked for, by its index: all, and those that this process received.
        let received = Mutex::new(BTreeMap::<usize, (u64, u64)>::new());
        let report_total = |index: usize, part: Downloading| {
            let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
            let (have, new) = received.entry(index).or_insert((part.bytes_done, 0));
            *new += part.bytes_done.saturating_sub(*have);
            *have = part.bytes_done;
            let (bytes_done, new) = received.values().fold((0, 0), |(all, new), file| (all + file.0, new + file.1));
            let bytes_per_second = new as f64 / started.elapsed().as_secs_f64().max(1e-3);
            let (file, files) = (index + 1, self.files.len());
            report(Downloading { file, files, bytes_done, bytes_total, bytes_per_second });
        };
        let paths = Mutex::new(vec![PathBuf::new(); self.files.len()]);
        let error = Mutex::new(None);
        let fail = |found: HubError| {
            stopped.store(true, Ordering::SeqCst);
            error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(found);
        };
        let download = || {
            while !stopped.load(Ordering::SeqCst) {
                let index = next.fetch_add(1, Ordering::SeqCst);
                if index >= self.files.len() {
                    break;
                }
                match self.path_unless_stopped(index, &|part| report_total(index, part), &stopped) {
                    Ok(path) => paths.lock().unwrap_or_else(PoisonError::into_inner)[index] = path,
                    Err(error) => fail(error),
                }
            }
        };
        thread::scope(|scope| {
            for _ in 0..DOWNLOADS.min(self.files.len()) {
                if let Err(error) = spawn_scoped(scope, "download", download) {
                    fail(HubError::Other(error.to_string()));
                }
            }
        });
        match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(paths.into_inner().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}
