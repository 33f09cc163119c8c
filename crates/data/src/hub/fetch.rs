//! Downloads one file of a commit. An interrupted download continues, and the file gets its name after it was checked: its length, and its
//! content if the hub names it by its SHA-256 (large files).

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::client::{Downloading, Failure};
use super::error::{HubError, Result, quoted};
use super::listing::ListedFile;
use super::repository::Repository;
use crate::hashing::sha256_of;
use runner_files::append_owned;
use runner_spec::hub_name::is_inside;

const BLOCK_BYTES: usize = 256 << 10;

/// The characters that are escaped in a part of a path.
const ESCAPED: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'~').remove(b'=').remove(b'+').remove(b'@');

impl Repository<'_> {
    /// The local file `listed` of `commit`. `number`: its number, from 1, and the number of files.
    ///
    /// # Errors
    /// If it is not in the cache and cannot be downloaded.
    pub(super) fn file(&self, commit: &str, listed: &ListedFile, number: (usize, usize)) -> Result<PathBuf> {
        let path = &listed.path;
        if !is_inside(path) {
            return Err(self.wrong_answer(&format!("`{}` is not a path inside a repository", quoted(path))));
        }
        let pointer = self.pointer(commit, path);
        if pointer.is_file() {
            return Ok(pointer);
        }
        self.refuse_if_offline(path)?;
        self.check_content_is_named(listed)?;
        self.download(commit, listed, number).map_err(|error| self.name_missing(error, &format!("`{path}`")))?;
        Ok(pointer)
    }

    /// The local files `listed` of `commit`, one after another.
    ///
    /// # Errors
    /// Those of [`file`](Self::file).
    pub(super) fn download_all(&self, commit: &str, listed: &[&ListedFile]) -> Result<Vec<PathBuf>> {
        (1..).zip(listed).map(|(number, file)| self.file(commit, file, (number, listed.len()))).collect()
    }

    fn download(&self, commit: &str, listed: &ListedFile, number: (usize, usize)) -> Result<()> {
        let blob = self.blob(commit, &listed.etag);
        let parent = blob.parent().unwrap_or(&blob);
        fs::create_dir_all(parent).map_err(HubError::io(parent))?;
        let lock = self.open_lock(commit, &listed.etag)?;
        // Without locks in the file system, two processes may spoil each other's part, which its check reveals.
        let _ = lock.lock();
        if !fs::metadata(&blob).is_ok_and(|metadata| metadata.len() == listed.size) {
            let part = parent.join(format!("{}.incomplete", listed.etag));
            // A part that another program began is continued only if the whole can be checked.
            if listed.sha256().is_none() {
                let _ = fs::remove_file(&part);
            }
            self.client.with_retries(|| self.attempt_download(commit, listed, &part, number))?;
            fs::rename(&part, &blob).map_err(HubError::io(&blob))?;
        }
        link_blob(&blob, &self.pointer(commit, &listed.path), &listed.path)
    }

    fn url(&self, commit: &str, path: &str) -> String {
        let encoded: Vec<String> = path.split('/').map(|part| utf8_percent_encode(part, ESCAPED).to_string()).collect();
        let endpoint = &self.client.settings.endpoint;
        format!("{endpoint}/{}/resolve/{commit}/{}", self.repo(commit).url(), encoded.join("/"))
    }

    /// Continues the download in `part`, and checks what it got.
    fn attempt_download(
        &self,
        commit: &str,
        listed: &ListedFile,
        part: &Path,
        number: (usize, usize),
    ) -> Result<(), Failure> {
        let (path, size) = (&listed.path, listed.size);
        let io = |error| Failure::Final(HubError::io(part)(error));
        let mut file = append_owned(part).map_err(io)?;
        let mut have = file.metadata().map_err(io)?.len();
        // The next attempt begins at the start of the file.
        let discard = |message: String| {
            fs::File::options().write(true).open(part).and_then(|file| file.set_len(0)).map_err(io)?;
            Err(Failure::retry(format!("`{path}`: {message}")))
        };
        if have > size {
            file.set_len(0).map_err(io)?;
            have = 0;
        }
        if have < size || size == 0 {
            let answer = self.client.request(&self.url(commit, path), have)?;
            match answer.status {
                200 => {
                    file.set_len(0).map_err(io)?;
                    have = 0;
                }
                206 if answer.header("content-range").and_then(first_byte) == Some(have) => {}
                206 => return discard("the hub sent a different part from the one requested".to_owned()),
                416 => return discard("the hub has no more bytes".to_owned()),
                _ => return Err(self.refusal(&answer, Some(path)).into()),
            }
            let (start, begun, continues) = (have, Instant::now(), answer.status == 206);
            let (mut body, mut block) = (answer.into_body(), vec![0; BLOCK_BYTES]);
            let ended = loop {
                match body.read(&mut block) {
                    Ok(0) => break "the connection ended".to_owned(),
                    Ok(read) => {
                        self.client.check_not_stopped()?;
                        file.write_all(&block[..read]).map_err(io)?;
                        have += read as u64;
                        if have > size {
                            return discard(format!("it did not end after {size} bytes"));
                        }
                        (self.client.report)(Downloading {
                            file: number.0,
                            files: number.1,
                            bytes_done: have,
                            bytes_total: size,
                            bytes_per_second: (have - start) as f64 / begun.elapsed().as_secs_f64().max(1e-3),
                        });
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => break quoted(&error.to_string()),
                }
            };
            if have != size {
                let message = format!("`{path}`: {ended} after {have} of {size} bytes");
                return Err(Failure::Retry { message, after: None, moved: continues && have > start });
            }
        }
        if let Some(expected) = listed.sha256()
            && sha256_of(part).map_err(io)? != expected
        {
            return discard("its content does not match its SHA-256".to_owned());
        }
        file.sync_all().map_err(io)
    }
}

/// The first byte of a range, such as 5 of `bytes 5-9/10`.
fn first_byte(range: &str) -> Option<u64> {
    range.trim().strip_prefix("bytes")?.split_once('-')?.0.trim().parse().ok()
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
