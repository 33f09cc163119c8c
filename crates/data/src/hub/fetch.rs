//! Downloads one file of a commit. An interrupted download continues, and the file gets its name after it was checked.
//!
//! Its length is checked, and also its content if the hub names it by its SHA-256 (large files). A part that another program began is
//! continued only if the content of the whole can be checked.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::client::{Downloading, Failure, HubAnswer, Method};
use super::error::{HubError, Result, quoted};
use super::repository::Repository;
use crate::hashing::sha256_of;
use runner_files::{append_owned, if_present};
use runner_spec::hub_name::{is_etag, is_inside};

const BLOCK_BYTES: usize = 256 << 10;

/// The most bytes that are accepted of a file whose size the hub states nowhere.
const MAX_UNSTATED_BYTES: u64 = 256 << 20;

/// The characters that are escaped in a part of a path.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'~').remove(b'=').remove(b'+').remove(b'@');

/// A download.
pub(super) struct Fetch<'a> {
    pub(super) repository: &'a Repository<'a>,
    pub(super) commit: &'a str,
    pub(super) path: &'a str,
    /// The number of the file, from 1, and the number of files.
    pub(super) number: (usize, usize),
}

/// A file of the hub, as the hub describes it before it is downloaded.
struct RemoteFile {
    etag: String,
    size: Option<u64>,
}

impl RemoteFile {
    /// The SHA-256 of the content in hexadecimal digits, if the etag is one.
    fn sha256(&self) -> Option<&str> {
        let digit = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
        Some(self.etag.as_str()).filter(|etag| etag.len() == 64 && etag.bytes().all(digit))
    }
}

impl Repository<'_> {
    /// The local file `path` of `commit`. `number`: its number, from 1, and the number of files.
    ///
    /// # Errors
    /// If it is not in the cache and cannot be downloaded.
    pub(super) fn file(&self, commit: &str, path: &str, number: (usize, usize)) -> Result<PathBuf> {
        if !is_inside(path) {
            return Err(self.wrong_answer(&format!("`{}` is not a path inside a repository", quoted(path))));
        }
        let pointer = self.pointer(commit, path);
        if pointer.is_file() {
            return Ok(pointer);
        }
        self.refuse_if_offline(path)?;
        let fetch = Fetch { repository: self, commit, path, number };
        fetch.run(&pointer).map_err(|error| self.name_missing(error, &format!("`{path}`")))
    }
}

impl Fetch<'_> {
    /// Downloads the file, and makes `pointer` a link to it.
    ///
    /// # Errors
    /// If the hub does not have the file, or the download is incomplete.
    pub(super) fn run(&self, pointer: &Path) -> Result<PathBuf> {
        let Self { repository, commit, path, .. } = *self;
        let (client, url, facts) = (repository.client, self.url(), self.request_facts()?);
        let etag = &facts.etag;
        let blob = repository.blob(commit, etag);
        let parent = blob.parent().unwrap_or(&blob).to_owned();
        fs::create_dir_all(&parent).map_err(HubError::io(&parent))?;
        let held = repository.open_lock(commit, etag)?;
        // If the file system has no locks, other processes may write to the part of that name, so this one writes to a separate part.
        let own = if held.lock().is_ok() {
            None
        } else {
            let named = tempfile::Builder::new().prefix(etag).suffix(".incomplete").tempfile_in(&parent);
            Some(named.map_err(HubError::io(&parent))?.into_temp_path())
        };
        let whole = |path: &Path| fs::metadata(path).is_ok_and(|m| facts.size.is_none_or(|size| m.len() == size));
        if !whole(&blob) {
            let part = own.as_ref().map_or_else(|| parent.join(format!("{etag}.incomplete")), |own| own.to_path_buf());
            let has_bytes = fs::symlink_metadata(&part).is_ok_and(|metadata| metadata.len() > 0);
            if !has_bytes || facts.sha256().is_none() {
                let create = || if_present(fs::remove_file(&part)).and_then(|_| File::create_new(&part));
                create().map_err(HubError::io(&part))?;
            }
            let mut most_bytes = 0;
            client.with_retries(|| self.attempt_download(&url, &part, &facts, &mut most_bytes))?;
            fs::rename(&part, &blob).map_err(HubError::io(&blob))?;
        }
        link_blob(&blob, pointer, path)?;
        Ok(pointer.to_owned())
    }

    fn url(&self) -> String {
        let Self { repository, commit, path, .. } = *self;
        let encoded: Vec<String> = path.split('/').map(|part| utf8_percent_encode(part, ESCAPED).to_string()).collect();
        let endpoint = &repository.client.settings.endpoint;
        format!("{endpoint}/{}/resolve/{commit}/{}", repository.repo(commit).url(), encoded.join("/"))
    }

    fn request_facts(&self) -> Result<RemoteFile> {
        let Self { repository, commit, path, .. } = *self;
        let url = self.url();
        let mut facts = repository.client.with_retries(|| {
            let answer = repository.client.request(Method::Head, &url, 0)?;
            if !(200..400).contains(&answer.status) {
                return Err(repository.refusal(&answer, Some(path)).into());
            }
            self.facts(&answer).map_err(Failure::from)
        })?;
        facts.size = facts.size.or_else(|| repository.listed_size(commit, path));
        Ok(facts)
    }

    /// The name of the content, and its length.
    fn facts(&self, answer: &HubAnswer) -> Result<RemoteFile> {
        let wrong = |message: String| self.repository.wrong_answer(&format!("`{}`: {message}", self.path));
        if let Some(other) = answer.header("x-repo-commit").filter(|other| *other != self.commit) {
            return Err(wrong(format!("it is of commit {}, expected {}", quoted(other), self.commit)));
        }
        let etag = answer.header("x-linked-etag").or_else(|| answer.header("etag"));
        let etag = etag.ok_or_else(|| wrong("it has no etag".to_owned()))?;
        let etag = etag.trim().trim_start_matches("W/").trim_matches('"');
        if !is_etag(etag) {
            return Err(wrong(format!("invalid etag `{}`", quoted(etag))));
        }
        // The length of a redirect is the length of its body, not of the file.
        let length = if answer.status == 200 { answer.header("content-length") } else { None };
        let size = answer.header("x-linked-size").or(length);
        let size = size.map(|size| size.trim().parse().map_err(|_| wrong(format!("invalid size `{}`", quoted(size)))));
        Ok(RemoteFile { etag: etag.to_owned(), size: size.transpose()? })
    }

    /// Continues the download in `part`; `most_bytes` is the highest number of bytes that any attempt reached.
    #[expect(clippy::too_many_lines, reason = "one exchange with a server")]
    fn attempt_download(
        &self,
        url: &str,
        part: &Path,
        facts: &RemoteFile,
        most_bytes: &mut u64,
    ) -> Result<(), Failure> {
        let io = |error| Failure::Final(HubError::io(part)(error));
        let mut file = append_owned(part).map_err(io)?;
        let mut have = file.metadata().map_err(io)?.len();
        if facts.size == Some(have) && have > 0 && is_content(part, facts).map_err(io)? {
            return file.sync_all().map_err(io);
        }
        // Without a length, these bytes may not be a part of the file.
        if facts.size.is_none_or(|size| have >= size) {
            file.set_len(0).map_err(io)?;
            have = 0;
        }
        let answer = self.repository.client.request(Method::Get, url, have)?;
        // The next attempt begins at the start of the file.
        let discard = |file: &File, message: &str| {
            file.set_len(0).map_err(io)?;
            Err(Failure::retry(format!("`{}`: {message}", self.path)))
        };
        let length: Option<u64> = match answer.status {
            200 => {
                file.set_len(0).map_err(io)?;
                have = 0;
                answer.header("content-length").and_then(|length| length.trim().parse().ok())
            }
            206 => {
                let range = answer.header("content-range").and_then(content_range);
                let is_rest = |(from, total): (u64, Option<u64>)| {
                    from == have && total.zip(facts.size).is_none_or(|(total, size)| total == size)
                };
                if !range.is_some_and(is_rest) {
                    return discard(&file, "the hub sent a different part from the one requested");
                }
                range.and_then(|(_, total)| total)
            }
            416 => return discard(&file, "the hub has no more bytes"),
            _ => return Err(self.repository.refusal(&answer, Some(self.path)).into()),
        };
        let size = facts.size.or(length);
        let chunked = answer.header("transfer-encoding").is_some_and(|how| how.to_lowercase().contains("chunked"));
        if size.is_none() && !chunked && facts.sha256().is_none() {
            let message = format!("`{}`: its length is unknown", self.path);
            return Err(Failure::Final(self.repository.wrong_answer(&message)));
        }
        let (start, begun, mut body, mut block) = (have, Instant::now(), answer.into_body(), vec![0; BLOCK_BYTES]);
        // The reason why reading ended; an error is never the end of the file.
        let (ended, failed) = loop {
            match body.read(&mut block) {
                Ok(0) => break ("the connection ended".to_owned(), false),
                Ok(read) => {
                    self.repository.client.check_not_stopped()?;
                    file.write_all(&block[..read]).map_err(io)?;
                    have += read as u64;
                    let seconds = begun.elapsed().as_secs_f64().max(1e-3);
                    (self.repository.client.report)(Downloading {
                        file: self.number.0,
                        files: self.number.1,
                        bytes_done: have,
                        bytes_total: size.unwrap_or(have),
                        bytes_per_second: (have - start) as f64 / seconds,
                    });
                    if size.is_some_and(|size| have > size) {
                        break ("it did not end".to_owned(), true);
                    }
                    if size.is_none() && have > MAX_UNSTATED_BYTES {
                        let most = runner_spec::format::bytes(MAX_UNSTATED_BYTES);
                        let message = format!("`{}` has no stated size, and is larger than {most}", self.path);
                        file.set_len(0).map_err(io)?;
                        return Err(Failure::Final(self.repository.wrong_answer(&message)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break (quoted(&error.to_string()), true),
            }
        };
        if failed || size.is_some_and(|size| have != size) {
            if size.is_some_and(|size| have > size) {
                file.set_len(0).map_err(io)?;
            }
            let total = size.map_or_else(String::new, |size| format!(" of {size}"));
            let message = format!("`{}`: {ended} after {have}{total} bytes", self.path);
            // No progress: a server that starts over each time, and bytes that the next attempt will not continue.
            let moved = have > *most_bytes && facts.size.is_some_and(|size| have < size);
            *most_bytes = have.max(*most_bytes);
            return Err(Failure::Retry { message, after: None, moved });
        }
        if !is_content(part, facts).map_err(io)? {
            return discard(&file, "its content does not match its SHA-256");
        }
        file.sync_all().map_err(io)
    }
}

/// True if the file `part` has the content that `facts` name, or they name none.
fn is_content(part: &Path, facts: &RemoteFile) -> io::Result<bool> {
    let Some(expected) = facts.sha256() else { return Ok(true) };
    Ok(sha256_of(part)? == expected)
}

/// The first byte and the length of the whole, such as 5 and 10 in `bytes 5-9/10`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim().split_once('/')?;
    Some((range.split_once('-')?.0.trim().parse().ok()?, total.trim().parse().ok()))
}

/// Makes `pointer`, which is `path` in a snapshot, a link to `blob`.
fn link_blob(blob: &Path, pointer: &Path, path: &str) -> Result<()> {
    let folder = pointer.parent().unwrap_or(pointer);
    fs::create_dir_all(folder).map_err(HubError::io(folder))?;
    let name = blob.file_name().unwrap_or_default();
    let up = "../".repeat(2 + path.matches('/').count());
    let target = Path::new(&up).join("blobs").join(name);
    // Another download of this file may have made the link, and a reader may be about to follow it.
    if fs::read_link(pointer).is_ok_and(|present| present == target) && pointer.is_file() {
        return Ok(());
    }
    // It may be a link to a blob that was removed.
    let _ = fs::remove_file(pointer);
    match std::os::unix::fs::symlink(&target, pointer) {
        Err(_) if pointer.is_file() => Ok(()),
        Err(_) => fs::hard_link(blob, pointer).map_err(HubError::io(pointer)),
        Ok(()) => Ok(()),
    }
}
