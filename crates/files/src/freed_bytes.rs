//! The space that removing files and folders frees.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Counts the bytes that removing several things frees: of all files under them, links not followed. A file with several
/// names (a checkpoint that another run began with) counts once the last of them goes, if all do.
#[derive(Debug, Default)]
pub struct FreedBytes {
    /// For each file with several names, by device and inode, the number of names that were added.
    names: HashMap<(u64, u64), u64>,
}

impl FreedBytes {
    /// Bytes that removing `path` frees besides what was added before.
    pub fn add(&mut self, path: &Path) -> u64 {
        let Ok(meta) = fs::symlink_metadata(path) else { return 0 };
        if !meta.is_dir() {
            let seen = if meta.nlink() > 1 { self.names.entry((meta.dev(), meta.ino())).or_default() } else { &mut 0 };
            *seen += 1;
            return if *seen == meta.nlink() { meta.len() } else { 0 };
        }
        let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
        entries.map(|entry| self.add(&entry.path())).sum()
    }
}

/// Bytes that removing `path` alone frees.
pub fn bytes_freed(path: &Path) -> u64 {
    FreedBytes::default().add(path)
}
