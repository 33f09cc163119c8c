//! The content of a dataset's files as the hub lists it, before they are downloaded: their names on the hub and their sizes.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{HubError, Result};
use super::repository::{Repository, write_file};
use crate::hashing::sha256_of;
use runner_files::read_regular;
use runner_spec::hub_name::is_etag;

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedFile {
    pub(crate) path: String,
    /// In bytes; 0 if nothing states it. It is for progress and the check of the disk's space: a download is checked by its own answer.
    pub(crate) size: u64,
    /// The hub's name of the content: the SHA-256 of a large file, the git blob of a small one.
    pub(crate) etag: String,
}

impl Repository<'_> {
    /// The listed content of `files` of `commit`. The hub is asked only if a file is not in the cache and no earlier answer is kept.
    ///
    /// # Errors
    /// If the hub is needed and refuses, or its answer makes no sense.
    pub(super) fn listed_files(&self, commit: &str, files: &[String]) -> Result<Vec<ListedFile>> {
        let memo = self.memo(&format!("{commit} contents"));
        let known = read_regular(&memo).ok().and_then(|bytes| serde_json::from_slice::<Vec<ListedFile>>(&bytes).ok());
        let known: HashMap<String, ListedFile> =
            known.into_iter().flatten().map(|file| (file.path.clone(), file)).collect();
        let cached: Option<Vec<ListedFile>> =
            files.iter().map(|path| self.cached_content(commit, path, known.get(path))).collect();
        if let Some(cached) = cached {
            return Ok(cached);
        }
        let find = |path: &String| known.get(path).filter(|file| is_etag(&file.etag)).cloned();
        if let Some(known) = files.iter().map(find).collect() {
            return Ok(known);
        }
        let missing = files.iter().find(|path| !self.has(commit, path)).map_or("README.md", String::as_str);
        self.refuse_if_offline(missing)?;
        let url = format!("{}/api/{}?blobs=true", self.client.settings.endpoint, self.repo(commit).api_url());
        let answer: Result<Value> = self.client.json(&url, &|answer| self.refusal(answer, None));
        let answer = answer.map_err(|error| self.name_missing(error, &format!("`{missing}`")))?;
        let siblings = answer["siblings"].as_array().into_iter().flatten();
        let listed: HashMap<&str, &Value> =
            siblings.filter_map(|file| Some((file["rfilename"].as_str()?, file))).collect();
        let parse = |path: &String| {
            let file = listed.get(path.as_str()).and_then(|file| parse_listed_file(path, file));
            file.ok_or_else(|| {
                let advice = "download the dataset and name its files";
                self.wrong_answer(&format!("it gives neither the size nor the hash of `{path}`; {advice}"))
            })
        };
        let listed = files.iter().map(parse).collect::<Result<Vec<_>>>()?;
        let all: HashMap<&str, &ListedFile> =
            known.values().chain(&listed).map(|file| (file.path.as_str(), file)).collect();
        write_file(&memo, &runner_spec::format::json_bytes(&all.values().collect::<Vec<_>>()))?;
        Ok(listed)
    }

    /// The content of a file in the cache. Its link names it. Where the file system has no links, the hub's earlier list (`known`) does,
    /// or else its SHA-256.
    fn cached_content(&self, commit: &str, path: &str, known: Option<&ListedFile>) -> Option<ListedFile> {
        let pointer = self.pointer(commit, path);
        let size = fs::metadata(&pointer).ok().filter(fs::Metadata::is_file)?.len();
        let etag = match fs::read_link(&pointer) {
            Ok(target) => target.file_name()?.to_str().filter(|etag| is_etag(etag))?.to_owned(),
            Err(_) => match known.filter(|known| is_etag(&known.etag) && known.size == size) {
                Some(known) => known.etag.clone(),
                None => sha256_of(&pointer).ok()?,
            },
        };
        Some(ListedFile { path: path.to_owned(), size, etag })
    }
}

/// Parses the hub's description of a file; `None` if it has no name of the content.
fn parse_listed_file(path: &str, file: &Value) -> Option<ListedFile> {
    let etag =
        file["lfs"]["sha256"].as_str().or_else(|| file["lfs"]["oid"].as_str()).or_else(|| file["blobId"].as_str());
    let etag = etag.filter(|etag| is_etag(etag))?.to_owned();
    let size = file["lfs"]["size"].as_u64().or_else(|| file["size"].as_u64())?;
    Some(ListedFile { path: path.to_owned(), size, etag })
}

/// Checks that `folder`, or the nearest folder above it, has room for `needed` bytes.
///
/// # Errors
/// If there is too little space; the message says how to make room.
pub(crate) fn check_free_space(folder: &Path, needed: u64) -> Result<()> {
    let existing = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(folder);
    // A file system that does not say is not refused.
    let Ok(found) = rustix::fs::statvfs(existing) else { return Ok(()) };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    if needed <= free {
        return Ok(());
    }
    Err(HubError::Request(format!(
        "the downloads need {needed} bytes, but {} has {free} bytes free; make room, set HF_HOME to a different folder, or give `runner \
         data prepare` a limit (--max-tokens, --max-rows)",
        existing.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::super::client::Client;
    use super::super::settings::Settings;
    use super::*;

    /// A small file has the same content name before and after its download, even if it is not a link.
    #[test]
    fn a_cached_file_without_link_has_the_etag_of_the_list() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            endpoint: "http://127.0.0.1:1".to_owned(),
            cache: folder.path().join("hub"),
            token: None,
            offline: true,
            wait: std::time::Duration::ZERO,
            downloads: 1,
        };
        let memos = folder.path().join("memos");
        let client = Client::new(&settings, &memos, &|_| ());
        let repository = client.repository(hf_hub::RepoType::Dataset, "own/lines", "main");
        let commit = "0123456789abcdef0123456789abcdef01234567";
        write_file(&repository.pointer(commit, "a.txt"), b"text").unwrap();
        let etag = |size: u64| {
            let listed = [ListedFile { path: "a.txt".to_owned(), size, etag: "abc123".to_owned() }];
            write_file(&repository.memo(&format!("{commit} contents")), &serde_json::to_vec(&listed).unwrap()).unwrap();
            repository.listed_files(commit, &["a.txt".to_owned()]).unwrap()[0].etag.clone()
        };
        assert_eq!(etag(4), "abc123");
        // The list is of a different content.
        assert_eq!(etag(5).len(), 64);
    }
}
