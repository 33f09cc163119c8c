//! The files of a commit as the hub lists them: their paths, the names of their contents, and their sizes.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::{HubError, Result};
use crate::hashing::{is_hash, sha256_of};
use runner_spec::hub_name::is_etag;

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ListedFile {
    pub(crate) path: String,
    pub(crate) size: u64,
    /// The hub's name of the content: the SHA-256 of a large file, the git blob of a small one. Empty if the list has no name or no size.
    pub(crate) etag: String,
}

impl ListedFile {
    /// Parses the hub's description of a file.
    pub(super) fn parse(file: &Value) -> Option<Self> {
        let path = file["rfilename"].as_str()?.to_owned();
        let names = [&file["lfs"]["sha256"], &file["lfs"]["oid"], &file["blobId"]];
        let etag = names.into_iter().find_map(Value::as_str).filter(|etag| is_etag(etag));
        let size = file["lfs"]["size"].as_u64().or_else(|| file["size"].as_u64());
        let (etag, size) = etag.zip(size).unwrap_or_default();
        Some(Self { path, size, etag: etag.to_owned() })
    }

    /// The file `path` in the cache, where it is `pointer`. Its link names its content; where the file system has no links, its SHA-256 does.
    pub(super) fn cached(path: &str, pointer: &Path) -> Option<Self> {
        let size = pointer.metadata().ok()?.len();
        let etag = match pointer.read_link() {
            Ok(target) => target.file_name()?.to_str().filter(|etag| is_etag(etag))?.to_owned(),
            Err(_) => sha256_of(pointer).ok()?,
        };
        Some(Self { path: path.to_owned(), size, etag })
    }

    /// The SHA-256 of the content in hexadecimal digits, if it is named by that.
    pub(super) fn sha256(&self) -> Option<&str> {
        Some(self.etag.as_str()).filter(|etag| is_hash(etag))
    }
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
