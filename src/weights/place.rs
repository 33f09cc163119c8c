//! A folder of files that belong together: made aside, and put in place when all of them are whole.

use std::fs;
use std::path::{Path, PathBuf};

use super::error::WeightsError;

/// A folder in the making beside `to`; dropped unfinished, it is removed.
#[derive(Debug)]
pub(super) struct Draft {
    to: PathBuf,
    aside: PathBuf,
}

impl Draft {
    /// # Errors
    /// If `to` has one of `names` and not `force`, or the folder cannot be made.
    pub(super) fn begin(to: &Path, names: &[String], force: bool) -> Result<Self, WeightsError> {
        let there = names.iter().map(|name| to.join(name)).find(|path| path.symlink_metadata().is_ok());
        if let Some(path) = there.filter(|_| !force) {
            return Err(WeightsError::Request(format!("{} is there already: --force replaces it", path.display())));
        }
        let to = std::path::absolute(to).map_err(WeightsError::io(to))?;
        if to.symlink_metadata().is_ok() && !to.is_dir() {
            return Err(WeightsError::Request(format!("{} is not a folder", to.display())));
        }
        let (Some(parent), Some(name)) = (to.parent(), to.file_name()) else {
            return Err(WeightsError::Request(format!("{} cannot be written to: name a folder in it", to.display())));
        };
        fs::create_dir_all(parent).map_err(WeightsError::io(parent))?;
        let mut hidden = std::ffi::OsString::from(".tmp-");
        hidden.push(name);
        let aside = parent.join(hidden);
        // What a killed process left.
        if aside.is_dir() {
            fs::remove_dir_all(&aside).map_err(WeightsError::io(&aside))?;
        }
        fs::create_dir(&aside).map_err(WeightsError::io(&aside))?;
        Ok(Self { to, aside })
    }

    /// Where the file `name` is written.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.aside.join(name)
    }

    /// Puts the files in place: the folder itself if there is none, else one file after another, after those of `stale` that are
    /// there were removed. Files of other names stay.
    pub(super) fn finish(self, names: &[String], stale: impl Fn(&str) -> bool) -> Result<(), WeightsError> {
        let sync = |path: &Path| fs::File::open(path).and_then(|f| f.sync_all()).map_err(WeightsError::io(path));
        sync(&self.aside)?;
        let parent = self.to.parent().unwrap_or(&self.to);
        // Also takes the place of an empty folder.
        if fs::rename(&self.aside, &self.to).is_ok() {
            return sync(parent);
        }
        let entries = fs::read_dir(&self.to).map_err(WeightsError::io(&self.to))?;
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| stale(name) && !names.iter().any(|n| n == name)) {
                fs::remove_file(entry.path()).map_err(WeightsError::io(&entry.path()))?;
            }
        }
        for name in names {
            let to = self.to.join(name);
            fs::rename(self.aside.join(name), &to).map_err(WeightsError::io(&to))?;
        }
        sync(&self.to)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.aside);
    }
}
