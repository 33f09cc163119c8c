//! The files that a preparation downloaded. It removes no others.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use runner_files::{append_owned, create_dir_all, if_present, parent_folder, read_regular_text};

/// The file in which a preparation notes each file that it creates in the hub's cache, before it downloads the content. A line has the file's
/// etag, device, inode and, if the file system has it, time of creation, which stay the same when the file gets its final name. So a file
/// that another program downloaded is not taken for one of them, and a kill loses nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DownloadRecord(PathBuf);

impl DownloadRecord {
    /// The record of the preparation that writes to `folder`, in the folder `memos`.
    ///
    /// # Errors
    /// If the current folder is unknown.
    pub(crate) fn of_folder(folder: &Path, memos: &Path) -> io::Result<Self> {
        let folder = std::path::absolute(folder)?;
        let name = blake3::hash(folder.as_os_str().as_encoded_bytes()).to_hex();
        Ok(Self(memos.join(name.as_str())))
    }

    /// Notes `file`, which this process has created for the content `etag`.
    pub(super) fn add(&self, etag: &str, file: &File) -> io::Result<()> {
        create_dir_all(parent_folder(&self.0))?;
        let mut record = append_owned(&self.0)?;
        record.write_all(line(etag, &file.metadata()?).as_bytes())?;
        record.sync_data()
    }

    /// The lines of all files.
    pub(super) fn read(&self) -> io::Result<BTreeSet<String>> {
        let text = if_present(read_regular_text(&self.0))?.unwrap_or_default();
        Ok(text.split_inclusive('\n').map(str::to_owned).collect())
    }

    /// Removes the record, once the files are removed.
    pub(crate) fn remove(&self) -> io::Result<()> {
        if_present(fs::remove_file(&self.0)).map(drop)
    }
}

/// The line about the file of the content `etag` that `metadata` describes.
pub(super) fn line(etag: &str, metadata: &Metadata) -> String {
    let created = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    format!("{etag} {} {} {}\n", metadata.dev(), metadata.ino(), created.as_nanos())
}
