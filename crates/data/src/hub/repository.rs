//! One repository at one revision: its files, from the cache or from the hub.
//!
//! The cache has the layout of Python's huggingface_hub, and is shared with it: `refs/` says which commit a branch is,
//! `snapshots/<commit>/` has links to files in `blobs/`. A cached branch or file is not requested again, so a branch stays at the
//! commit at which it was first read. That layout has no place for the list of a commit's files, so it is in this program's cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use hf_hub::{Cache, CacheRepo, Repo, RepoType};
use serde::Deserialize;
use serde_json::Value;

use super::client::{Client, HubAnswer};
use super::error::{HubError, Result, quoted};
use super::listing::ListedFile;
use runner_files::{open_owned, read_regular, read_regular_text};
use runner_spec::diagnostic::nearest;
use runner_spec::hub_name::{is_commit, is_etag, is_inside};

pub(super) struct Repository<'a> {
    pub(super) client: &'a Client<'a>,
    pub(super) kind: RepoType,
    pub(super) name: &'a str,
    pub(super) revision: &'a str,
}

/// The files of a commit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snapshot {
    pub(super) commit: String,
    pub(super) files: Vec<ListedFile>,
    /// The reason why `files` are only those in the cache; `None` if they are all.
    pub(super) partial: Option<String>,
}

impl Snapshot {
    /// The file `path`, if the commit has it.
    pub(super) fn file(&self, path: &str) -> Option<&ListedFile> {
        self.files.iter().find(|file| file.path == path)
    }

    /// The paths of all files.
    pub(super) fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }
}

/// The hub's answer about a commit.
#[derive(Deserialize)]
struct CommitInfo {
    sha: String,
    siblings: Vec<Value>,
}

impl Repository<'_> {
    /// # Errors
    /// If the hub does not say what the content of `file` is.
    pub(super) fn check_content_is_named(&self, file: &ListedFile) -> Result<()> {
        if is_etag(&file.etag) {
            return Ok(());
        }
        let advice = "download the dataset and name its files";
        Err(self.wrong_answer(&format!("it gives neither the size nor the hash of `{}`; {advice}", file.path)))
    }

    pub(super) fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.name.to_owned(), self.kind, revision.to_owned())
    }

    pub(super) fn cached(&self, revision: &str) -> CacheRepo {
        Cache::new(self.client.settings.cache.clone()).repo(self.repo(revision))
    }

    /// The kind and name, such as `dataset a/b`.
    fn title(&self) -> String {
        let noun = if matches!(self.kind, RepoType::Dataset) { "dataset" } else { "model" };
        format!("{noun} {}", self.name)
    }

    /// The page of the repository.
    fn page(&self) -> String {
        format!("{}/{}", self.client.settings.endpoint, self.repo(self.revision).url())
    }

    /// The commit of the revision, and its files.
    ///
    /// # Errors
    /// If they are not in the cache, and the hub does not list them.
    pub(super) fn snapshot(&self) -> Result<Snapshot> {
        let Some(commit) = self.known_commit() else {
            let snapshot = self.request_snapshot(self.revision)?;
            if !is_commit(self.revision) {
                write_file(&self.reference(), snapshot.commit.as_bytes())?;
            }
            return Ok(snapshot);
        };
        let known = read_regular(&self.memo(&commit)).ok();
        let known = known.and_then(|bytes| serde_json::from_slice::<Vec<ListedFile>>(&bytes).ok());
        if let Some(files) = known.filter(|files| files.iter().all(|file| is_inside(&file.path))) {
            return Ok(Snapshot { commit, files, partial: None });
        }
        match self.request_snapshot(&commit) {
            Ok(snapshot) if snapshot.commit == commit => Ok(snapshot),
            Ok(Snapshot { commit: other, .. }) => {
                Err(self.wrong_answer(&format!("asked for commit {commit}, got {other}")))
            }
            // A refusal of the hub is final.
            Err(error) if error.is_unreachable() => {
                let files = list_files(&self.cached(&commit).pointer_path(&commit));
                if files.is_empty() {
                    return Err(error);
                }
                Ok(Snapshot { commit, files, partial: Some(error.to_string()) })
            }
            Err(error) => Err(error),
        }
    }

    fn known_commit(&self) -> Option<String> {
        if is_commit(self.revision) {
            return Some(self.revision.to_owned());
        }
        let commit = read_regular_text(&self.reference()).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    /// The file that says which commit the revision is.
    fn reference(&self) -> PathBuf {
        self.client.settings.cache.join(self.repo(self.revision).folder_name()).join("refs").join(self.revision)
    }

    /// The file that keeps the list of the files of `commit`.
    fn memo(&self, commit: &str) -> PathBuf {
        let name = format!("{} {commit}", self.repo(commit).folder_name());
        self.client.settings.memos.join(format!("{}.json", blake3::hash(name.as_bytes()).to_hex()))
    }

    pub(super) fn wrong_answer(&self, message: &str) -> HubError {
        HubError::Other(format!("the hub's answer about {}: {message}", self.title()))
    }

    fn describe_missing(&self, what: &str, why: &str) -> String {
        format!(
            "{what} of {} ({}) is not in the cache {}, and {why}",
            self.title(),
            self.revision,
            self.client.settings.cache.display()
        )
    }

    /// Adds the missing file or list to an error of the connection.
    pub(super) fn name_missing(&self, error: HubError, what: &str) -> HubError {
        match error {
            HubError::Unreachable(why) => HubError::Unreachable(self.describe_missing(what, &why)),
            other => other,
        }
    }

    /// Asks the hub about `revision`, and keeps the list of files.
    fn request_snapshot(&self, revision: &str) -> Result<Snapshot> {
        if self.client.settings.offline {
            return Err(HubError::Offline(self.describe_missing("the list of files", "HF_HUB_OFFLINE is set")));
        }
        let url = format!("{}/api/{}?blobs=true", self.client.settings.endpoint, self.repo(revision).api_url());
        let info: CommitInfo = self
            .client
            .json(&url, &|answer| self.refusal(answer, None))
            .map_err(|error| self.name_missing(error, "the list of files"))?;
        if !is_commit(&info.sha) {
            return Err(self.wrong_answer(&format!("invalid commit `{}`", quoted(&info.sha))));
        }
        let files: Vec<ListedFile> = info.siblings.iter().filter_map(ListedFile::parse).collect();
        if let Some(outside) = files.iter().find(|file| !is_inside(&file.path)) {
            return Err(self.wrong_answer(&format!("`{}` is not a path inside a repository", quoted(&outside.path))));
        }
        write_file(&self.memo(&info.sha), &runner_spec::format::json_bytes(&files))?;
        Ok(Snapshot { commit: info.sha, files, partial: None })
    }

    /// The error for an answer without content, to a request for `file` or for the repository.
    pub(super) fn refusal(&self, answer: &HubAnswer, file: Option<&str>) -> HubError {
        let code = answer.header("x-error-code").unwrap_or_default();
        let said = answer.header("x-error-message").map(quoted).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(" (the hub says: {said})"));
        let (title, page) = (self.title(), self.page());
        let token = if self.client.settings.token.is_some() {
            "the token does not give access to it"
        } else {
            "set HF_TOKEN to a token that may read it"
        };
        HubError::Request(match (answer.status, code) {
            (_, "GatedRepo") | (403, _) => {
                format!(
                    "{title} is gated: accept its terms at {page}, and set HF_TOKEN to a token of that account{said}"
                )
            }
            (404, "RevisionNotFound") => {
                format!("{title} has no revision `{}`", self.revision)
            }
            (404, "EntryNotFound") => format!("{title} has no file `{}`{said}", file.unwrap_or_default()),
            (401, _) => format!("{title} does not exist, or is private: {token}{said}"),
            (404, _) => match file {
                Some(file) => format!("{title} has no file `{file}`{said}"),
                None => format!("there is no {title} at {}", self.client.settings.endpoint),
            },
            (status, _) => format!("{title}: the hub refused with status {status}{said}"),
        })
    }

    /// The content of the name `etag` in the cache.
    pub(super) fn blob(&self, commit: &str, etag: &str) -> PathBuf {
        self.cached(commit).blob_path(etag)
    }

    /// The file that a process locks while it writes or removes the content of the name `etag`: the same as huggingface_hub's.
    pub(super) fn open_lock(&self, commit: &str, etag: &str) -> Result<File> {
        let folder = self.client.settings.cache.join(".locks").join(self.repo(commit).folder_name());
        fs::create_dir_all(&folder).map_err(HubError::io(&folder))?;
        let path = folder.join(format!("{etag}.lock"));
        let mut options = File::options();
        open_owned(options.write(true).create(true).truncate(false), &path).map_err(HubError::io(&path))
    }

    pub(super) fn pointer(&self, commit: &str, path: &str) -> PathBuf {
        self.cached(commit).pointer_path(commit).join(path)
    }

    /// True if the file `path` of `commit` is in the cache.
    pub(super) fn has(&self, commit: &str, path: &str) -> bool {
        is_inside(path) && self.pointer(commit, path).is_file()
    }

    /// The bytes of those of `files` of `commit` that are not in the cache.
    pub(super) fn missing_bytes<'f>(&self, commit: &str, files: impl IntoIterator<Item = &'f ListedFile>) -> u64 {
        let missing = files.into_iter().filter(|file| !self.has(commit, &file.path));
        missing.fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// # Errors
    /// If no requests may be sent, and so the missing file `path` cannot be downloaded.
    pub(super) fn refuse_if_offline(&self, path: &str) -> Result<()> {
        if self.client.settings.offline {
            return Err(HubError::Offline(self.describe_missing(&format!("`{path}`"), "HF_HUB_OFFLINE is set")));
        }
        Ok(())
    }
}

/// The nearest of `all` names and the names themselves, for a message.
pub(super) fn suggestion(name: &str, all: &[impl AsRef<str>]) -> String {
    let known = runner_spec::diagnostic::list(all, "and");
    match nearest(name, all.iter().map(AsRef::as_ref)) {
        _ if all.is_empty() => String::new(),
        Some(near) => format!(": did you mean `{near}`? available: {known}"),
        None => format!("; available: {known}"),
    }
}

/// Writes a small file, and its folder if necessary.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = runner_files::parent_folder(path);
    fs::create_dir_all(folder).and_then(|()| runner_files::write_atomic(path, bytes)).map_err(HubError::io(path))
}

/// The files below `folder` of the cache.
fn list_files(folder: &Path) -> Vec<ListedFile> {
    let pattern = format!("{}/**/*", glob::Pattern::escape(&folder.to_string_lossy()));
    let paths = glob::glob(&pattern).into_iter().flatten().filter_map(Result::ok).filter(|path| path.is_file());
    let file = |path: PathBuf| {
        let within = path.strip_prefix(folder).ok()?.to_str().filter(|within| is_inside(within))?;
        ListedFile::cached(within, &path)
    };
    let mut files: Vec<ListedFile> = paths.filter_map(file).collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}
