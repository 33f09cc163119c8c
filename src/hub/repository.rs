//! One repository at one revision: its files, from the cache or from the hub.
//!
//! The cache is laid out as Python's huggingface_hub does it, and shared with it: `refs/` says which commit a branch is,
//! `snapshots/<commit>/` has links to files in `blobs/`. What is there is taken without asking, so that a branch stays at the
//! commit at which it was first read. Only the list of a commit's files has no place there: it is kept in our own cache.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use hf_hub::api::{RepoInfo, Siblings};
use hf_hub::{Cache, CacheRepo, Repo, RepoType};

use super::client::{Answer, Client, Failure, Method};
use super::error::{HubError, quoted};
use super::name::{is_commit, is_etag, is_inside};
use super::progress::{Downloading, Report};
use crate::config::diagnostic::nearest;

const BLOCK: usize = 256 << 10;

pub(super) struct Repository<'a> {
    pub(super) client: &'a Client<'a>,
    /// For lists of files.
    pub(super) memos: &'a Path,
    pub(super) report: &'a Report<'a>,
    pub(super) kind: RepoType,
    pub(super) name: &'a str,
    pub(super) revision: &'a str,
}

/// The files of a commit.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Snapshot {
    pub(super) commit: String,
    pub(super) files: Vec<String>,
    /// Whether these are only those that are in the cache.
    pub(super) partial: bool,
}

impl Repository<'_> {
    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.name.to_owned(), self.kind, revision.to_owned())
    }

    fn cached(&self, revision: &str) -> CacheRepo {
        Cache::new(self.client.settings.cache.clone()).repo(self.repo(revision))
    }

    /// As `dataset a/b`.
    fn title(&self) -> String {
        format!("{} {}", self.noun(), self.name)
    }

    fn noun(&self) -> &'static str {
        if matches!(self.kind, RepoType::Dataset) { "dataset" } else { "model" }
    }

    /// The page of the repository.
    fn page(&self) -> String {
        format!("{}/{}", self.client.settings.endpoint, self.repo(self.revision).url())
    }

    /// Which commit the revision is, and what it holds.
    ///
    /// # Errors
    /// If that is not in the cache, and the hub does not say.
    pub(super) fn snapshot(&self) -> Result<Snapshot, HubError> {
        let Some(commit) = self.known_commit() else {
            let info = self.info(self.revision)?;
            self.remember_commit(&info.sha)?;
            return Ok(info.into());
        };
        let memo = self.memo(&commit);
        let known = fs::read(&memo).ok().and_then(|bytes| serde_json::from_slice::<Vec<String>>(&bytes).ok());
        if let Some(files) = known.filter(|files| files.iter().all(|file| is_inside(file))) {
            return Ok(Snapshot { commit, files, partial: false });
        }
        match self.info(&commit) {
            Ok(info) if info.sha == commit => Ok(info.into()),
            Ok(info) => Err(self.wrong(format!("commit {commit} is said to be {}", quoted(&info.sha)))),
            Err(error) => {
                let root = self.cached(&commit).pointer_path(&commit);
                let mut files = Vec::new();
                walk(&root, "", &mut files);
                if files.is_empty() { Err(error) } else { Ok(Snapshot { commit, files, partial: true }) }
            }
        }
    }

    fn known_commit(&self) -> Option<String> {
        if is_commit(self.revision) {
            return Some(self.revision.to_owned());
        }
        let path = self.folder().join("refs").join(self.revision);
        let commit = fs::read_to_string(path).ok()?.trim().to_owned();
        is_commit(&commit).then_some(commit)
    }

    fn remember_commit(&self, commit: &str) -> Result<(), HubError> {
        if !is_commit(self.revision) {
            write_whole(&self.folder().join("refs").join(self.revision), commit.as_bytes())?;
        }
        Ok(())
    }

    fn folder(&self) -> PathBuf {
        self.client.settings.cache.join(self.repo(self.revision).folder_name())
    }

    fn memo(&self, commit: &str) -> PathBuf {
        let name = format!("{} {commit}", self.repo(commit).folder_name());
        self.memos.join(format!("{}.json", blake3::hash(name.as_bytes()).to_hex()))
    }

    fn wrong(&self, message: String) -> HubError {
        HubError::Answer { what: format!("the hub's answer about {}", self.title()), message }
    }

    fn missing(&self, what: &str, why: &str) -> String {
        format!(
            "{what} of {} ({}) is not in the cache {}, and {why}",
            self.title(),
            self.revision,
            self.client.settings.cache.display()
        )
    }

    /// Asks the hub about `revision`, and keeps the list of files.
    fn info(&self, revision: &str) -> Result<RepoInfo, HubError> {
        if self.client.settings.offline {
            return Err(HubError::Request(self.missing("the list of files", "HF_HUB_OFFLINE is set")));
        }
        let url = format!("{}/api/{}", self.client.settings.endpoint, self.repo(revision).api_url());
        let info: RepoInfo =
            self.client.json(&url, &|answer| self.refused(answer, None)).map_err(|error| match error {
                HubError::Unreachable(why) => HubError::Unreachable(self.missing("the list of files", &why)),
                other => other,
            })?;
        if !is_commit(&info.sha) {
            return Err(self.wrong(format!("`{}` is no commit", quoted(&info.sha))));
        }
        if let Some(outside) = info.siblings.iter().find(|file| !is_inside(&file.rfilename)) {
            return Err(self.wrong(format!("`{}` is no file of a repository", quoted(&outside.rfilename))));
        }
        let files: Vec<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        write_whole(&self.memo(&info.sha), &serde_json::to_vec(&files).unwrap_or_default())?;
        Ok(info)
    }

    /// What an answer means that brings nothing. `file` if it was asked for one.
    fn refused(&self, answer: &Answer, file: Option<&str>) -> HubError {
        let code = answer.header("x-error-code").unwrap_or_default();
        let said = answer.header("x-error-message").map(quoted).filter(|said| !said.is_empty());
        let said = said.map_or_else(String::new, |said| format!(" (the hub says: {said})"));
        let (title, page) = (self.title(), self.page());
        let token = if self.client.settings.token.is_some() {
            "the token has no right to it"
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
                format!("{title} has no revision `{}`{}", self.revision, self.revisions())
            }
            (404, "EntryNotFound") => format!("{title} has no file `{}`{said}", file.unwrap_or_default()),
            (401, _) => format!("{title} is not there, or not for everybody: {token}{said}"),
            (404, _) => match file {
                Some(file) => format!("{title} has no file `{file}`{said}"),
                None => format!("there is no {title} at {}{}", self.client.settings.endpoint, self.similar()),
            },
            (status, _) => format!("{title}: the hub refuses with status {status}{said}"),
        })
    }

    /// The branches and tags that there are, as far as the hub tells.
    fn revisions(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Named {
            name: String,
        }
        #[derive(serde::Deserialize)]
        struct Refs {
            branches: Vec<Named>,
            #[serde(default)]
            tags: Vec<Named>,
        }
        let url = self.client.settings.endpoint.clone()
            + "/api/"
            + &self.repo("main").api_url().replace("/revision/main", "/refs");
        let Ok(refs) = self.client.json::<Refs>(&url, &|_| HubError::Request(String::new())) else {
            return String::new();
        };
        let names: Vec<String> =
            refs.branches.iter().chain(&refs.tags).map(|named| quoted(&named.name)).take(50).collect();
        among(self.revision, &names)
    }

    /// Repositories of a similar name.
    fn similar(&self) -> String {
        #[derive(serde::Deserialize)]
        struct Found {
            id: String,
        }
        let last = self.name.rsplit('/').next().unwrap_or(self.name);
        let url = format!("{}/api/{}s?search={last}&limit=20", self.client.settings.endpoint, self.noun());
        let Ok(found) = self.client.json::<Vec<Found>>(&url, &|_| HubError::Request(String::new())) else {
            return String::new();
        };
        let names: Vec<String> = found.iter().map(|found| quoted(&found.id)).collect();
        let same_end = names.iter().find(|name| name.rsplit('/').next() == Some(last));
        match nearest(self.name, names.iter().map(String::as_str)).or(same_end.map(String::as_str)) {
            Some(near) => format!(": did you mean `{near}`?"),
            None => String::new(),
        }
    }

    /// The file `path` of `commit` on this machine, number `number` of some.
    ///
    /// # Errors
    /// If it is not in the cache and cannot be downloaded.
    pub(super) fn file(&self, commit: &str, path: &str, number: (usize, usize)) -> Result<PathBuf, HubError> {
        if !is_inside(path) {
            return Err(self.wrong(format!("`{}` is no file of a repository", quoted(path))));
        }
        let pointer = self.cached(commit).pointer_path(commit).join(path);
        if pointer.is_file() {
            return Ok(pointer);
        }
        let what = format!("`{path}`");
        if self.client.settings.offline {
            return Err(HubError::Request(self.missing(&what, "HF_HUB_OFFLINE is set")));
        }
        let fetch = Fetch { repository: self, commit, path, number };
        fetch.run(&pointer).map_err(|error| match error {
            HubError::Unreachable(why) => HubError::Unreachable(self.missing(&what, &why)),
            other => other,
        })
    }
}

impl From<RepoInfo> for Snapshot {
    fn from(info: RepoInfo) -> Self {
        let files = info.siblings.into_iter().map(|Siblings { rfilename }| rfilename).collect();
        Self { commit: info.sha, files, partial: false }
    }
}

/// "did you mean", and all there are.
pub(super) fn among(name: &str, all: &[String]) -> String {
    let known = crate::config::diagnostic::list(all, "and");
    match nearest(name, all.iter().map(String::as_str)) {
        _ if all.is_empty() => String::new(),
        Some(near) => format!(": did you mean `{near}`? there is {known}"),
        None => format!("; there is {known}"),
    }
}

/// A download.
struct Fetch<'a> {
    repository: &'a Repository<'a>,
    commit: &'a str,
    path: &'a str,
    number: (usize, usize),
}

impl Fetch<'_> {
    fn run(&self, pointer: &Path) -> Result<PathBuf, HubError> {
        let Self { repository, commit, path, .. } = *self;
        let client = repository.client;
        let repo = repository.repo(commit);
        let encoded: Vec<String> = path.split('/').map(percent).collect();
        let url = format!("{}/{}/resolve/{commit}/{}", client.settings.endpoint, repo.url(), encoded.join("/"));
        let (etag, size) = client.patiently(|| {
            let answer = client.once(Method::Head, &url, 0)?;
            if !(200..400).contains(&answer.status) {
                return Err(repository.refused(&answer, Some(path)).into());
            }
            self.facts(&answer).map_err(Failure::from)
        })?;
        let blob = repository.cached(commit).blob_path(&etag);
        let locks = client.settings.cache.join(".locks").join(repo.folder_name());
        let parent = blob.parent().unwrap_or(&blob).to_owned();
        for folder in [&parent, &locks] {
            fs::create_dir_all(folder).map_err(HubError::io(folder))?;
        }
        // The same lock as huggingface_hub's.
        let lock = locks.join(format!("{etag}.lock"));
        let held = File::create(&lock).map_err(HubError::io(&lock))?;
        let _ = held.lock();
        let whole = |path: &Path| fs::metadata(path).is_ok_and(|m| size.is_none_or(|size| m.len() == size));
        if !whole(&blob) {
            let part = parent.join(format!("{etag}.incomplete"));
            let (begun, mut most) = (Instant::now(), 0);
            client.patiently(|| self.attempt(&url, &part, size, begun, &mut most))?;
            fs::rename(&part, &blob).map_err(HubError::io(&blob))?;
        }
        link(&blob, pointer, path)?;
        Ok(pointer.to_owned())
    }

    /// Name of the content, and its length.
    fn facts(&self, answer: &Answer) -> Result<(String, Option<u64>), HubError> {
        let wrong = |message: String| self.repository.wrong(format!("`{}`: {message}", self.path));
        if let Some(other) = answer.header("x-repo-commit").filter(|other| *other != self.commit) {
            return Err(wrong(format!("of commit {}, not {}", quoted(other), self.commit)));
        }
        let etag = answer.header("x-linked-etag").or_else(|| answer.header("etag"));
        let etag = etag.ok_or_else(|| wrong("no etag".to_owned()))?;
        let etag = etag.trim().trim_start_matches("W/").trim_matches('"');
        if !is_etag(etag) {
            return Err(wrong(format!("`{}` is no etag", quoted(etag))));
        }
        // Of a redirect, the length is that of the redirect.
        let length = if answer.status == 200 { answer.header("content-length") } else { None };
        let size = answer.header("x-linked-size").or(length);
        let size = size.map(|size| size.trim().parse().map_err(|_| wrong(format!("`{}` is no size", quoted(size)))));
        Ok((etag.to_owned(), size.transpose()?))
    }

    /// Goes on with the download in `part` where it ended; `most` is how far it ever came.
    fn attempt(
        &self,
        url: &str,
        part: &Path,
        size: Option<u64>,
        begun: Instant,
        most: &mut u64,
    ) -> Result<(), Failure> {
        let io = |error| Failure::Final(HubError::io(part)(error));
        let mut file = OpenOptions::new().append(true).create(true).open(part).map_err(io)?;
        let mut have = file.metadata().map_err(io)?.len();
        if size.is_none_or(|size| have > size) {
            file.set_len(0).map_err(io)?;
            have = 0;
        }
        if size == Some(have) && have > 0 {
            return Ok(());
        }
        let answer = self.repository.client.once(Method::Get, url, have)?;
        match answer.status {
            200 => {
                file.set_len(0).map_err(io)?;
                have = 0;
            }
            206 => {
                let range = answer.header("content-range").and_then(content_range);
                if range.is_none_or(|(from, total)| from != have || total.zip(size).is_some_and(|(a, b)| a != b)) {
                    file.set_len(0).map_err(io)?;
                    return Err(Failure::again(format!("`{}`: it sends another part than was asked for", self.path)));
                }
            }
            416 => {
                file.set_len(0).map_err(io)?;
                return Err(Failure::again(format!("`{}`: it has no more bytes", self.path)));
            }
            _ => return Err(self.repository.refused(&answer, Some(self.path)).into()),
        }
        let size = size.or_else(|| answer.header("content-length")?.trim().parse().ok());
        let (start, mut body, mut block) = (have, answer.into_body(), vec![0; BLOCK]);
        let ended = loop {
            match body.read(&mut block) {
                Ok(0) => break "the connection ended".to_owned(),
                Ok(read) => {
                    file.write_all(&block[..read]).map_err(io)?;
                    have += read as u64;
                    let seconds = begun.elapsed().as_secs_f64().max(1e-3);
                    (self.repository.report)(Downloading {
                        file: self.number.0,
                        files: self.number.1,
                        bytes_done: have,
                        bytes_total: size.unwrap_or(have),
                        bytes_per_second: (have - start) as f64 / seconds,
                    });
                    if size.is_some_and(|size| have > size) {
                        break "it goes on behind its end".to_owned();
                    }
                }
                Err(error) => break quoted(&error.to_string()),
            }
        };
        if size.is_some_and(|size| have != size) {
            if size.is_some_and(|size| have > size) {
                file.set_len(0).map_err(io)?;
            }
            let of = size.unwrap_or_default();
            let message = format!("`{}`: {ended} after {have} of {of} bytes", self.path);
            // A server that begins anew each time brings nothing.
            let moved = have > *most && have < of;
            *most = have.max(*most);
            return Err(Failure::Again { message, after: None, moved });
        }
        file.sync_all().map_err(io)
    }
}

/// First byte and length of the whole, of `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    Some((range.split_once('-')?.0.trim().parse().ok()?, total.trim().parse().ok()))
}

/// A part of a path, in an address.
fn percent(part: &str) -> String {
    let keep = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'~' | b'=' | b'+' | b'@');
    part.bytes().map(|b| if keep(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// `pointer`, which is `path` in a snapshot, becomes a link to `blob`.
fn link(blob: &Path, pointer: &Path, path: &str) -> Result<(), HubError> {
    let folder = pointer.parent().unwrap_or(pointer);
    fs::create_dir_all(folder).map_err(HubError::io(folder))?;
    let name = blob.file_name().unwrap_or_default();
    let up = "../".repeat(2 + path.matches('/').count());
    let target = Path::new(&up).join("blobs").join(name);
    // It may be a link to a blob that went away.
    let _ = fs::remove_file(pointer);
    match std::os::unix::fs::symlink(&target, pointer) {
        Err(_) if pointer.is_file() => Ok(()),
        Err(_) => fs::hard_link(blob, pointer).map_err(HubError::io(pointer)),
        Ok(()) => Ok(()),
    }
}

/// Writes a small file under a temporary name, and renames it.
fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(HubError::io(folder))?;
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(HubError::io(folder))?;
    file.write_all(bytes).map_err(HubError::io(path))?;
    file.persist(path).map_err(|error| HubError::io(path)(error.error))?;
    Ok(())
}

/// The files below `folder`, whose path is `prefix`.
fn walk(folder: &Path, prefix: &str, out: &mut Vec<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            walk(&entry.path(), &path, out);
        } else if entry.path().is_file() && is_inside(&path) {
            out.push(path);
        }
    }
    out.sort();
}
