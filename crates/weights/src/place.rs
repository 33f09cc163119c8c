//! A folder of files that belong together: made aside, and put in place when all of them are whole.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::error::WeightsError;
use runner_files::temporary_dir;

/// A folder in the making beside `to`; dropped unfinished, it is removed.
#[derive(Debug)]
pub(super) struct Draft {
    to: PathBuf,
    aside: tempfile::TempDir,
    names: Vec<String>,
    /// Whether a file of this name that is not among `names` goes.
    stale: fn(&str) -> bool,
    force: bool,
}

impl Draft {
    /// A draft of the files `names`, which take the place of those of the same names, and of those that `stale` names.
    ///
    /// # Errors
    /// If `to` has any of them and not `force`, or the folder cannot be made.
    pub(super) fn begin(
        to: &Path,
        names: Vec<String>,
        stale: fn(&str) -> bool,
        force: bool,
    ) -> Result<Self, WeightsError> {
        if to.symlink_metadata().is_ok() && !to.is_dir() {
            return Err(WeightsError::Request(format!("{} is not a folder", to.display())));
        }
        check_free(to, &names, stale, force)?;
        let to = std::path::absolute(to).map_err(WeightsError::io(to))?;
        let (Some(parent), Some(_)) = (to.parent(), to.file_name()) else {
            return Err(WeightsError::Request(format!("{} cannot be written to: name a folder in it", to.display())));
        };
        fs::create_dir_all(parent).map_err(WeightsError::io(parent))?;
        let aside = temporary_dir(parent).map_err(WeightsError::io(parent))?;
        Ok(Self { to, aside, names, stale, force })
    }

    /// Where the file `name` is written.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.aside.path().join(name)
    }

    /// Puts the files in place: the folder itself if there is none, else one file after another, after the stale ones that are
    /// there were removed. Files of other names stay.
    ///
    /// # Errors
    /// As `begin`: another process may have been faster.
    pub(super) fn finish(self) -> Result<(), WeightsError> {
        let sync = |path: &Path| File::open(path).and_then(|f| f.sync_all()).map_err(WeightsError::io(path));
        sync(self.aside.path())?;
        let parent = self.to.parent().unwrap_or(&self.to);
        // Also takes the place of an empty folder.
        if fs::rename(self.aside.path(), &self.to).is_ok() {
            return sync(parent);
        }
        // One after another; where the file system has no locks, files of two may mix.
        let folder = File::open(&self.to).map_err(WeightsError::io(&self.to))?;
        let _ = folder.lock();
        check_free(&self.to, &self.names, self.stale, self.force)?;
        for path in there(&self.to, &self.names, self.stale)? {
            fs::remove_file(&path).map_err(WeightsError::io(&path))?;
        }
        for name in &self.names {
            let to = self.to.join(name);
            fs::rename(self.path(name), &to).map_err(WeightsError::io(&to))?;
        }
        sync(&self.to)
    }
}

/// The files of `folder` that are `stale` and not among `names`.
fn there(folder: &Path, names: &[String], stale: fn(&str) -> bool) -> Result<Vec<PathBuf>, WeightsError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(WeightsError::io(folder)(error)),
    };
    let goes = |name: &str| stale(name) && !names.iter().any(|n| n == name);
    let stale = entries.filter_map(Result::ok).filter(|entry| entry.file_name().to_str().is_some_and(goes));
    let mut stale: Vec<PathBuf> = stale.map(|entry| entry.path()).collect();
    stale.sort();
    Ok(stale)
}

/// # Errors
/// If `folder` has a file that would be replaced or removed, and not `force`.
fn check_free(folder: &Path, names: &[String], stale: fn(&str) -> bool, force: bool) -> Result<(), WeightsError> {
    if force {
        return Ok(());
    }
    if let Some(path) = names.iter().map(|name| folder.join(name)).find(|path| path.symlink_metadata().is_ok()) {
        return Err(WeightsError::Request(format!("{} is there already: --force replaces it", path.display())));
    }
    match there(folder, names, stale)?.first() {
        Some(path) => Err(WeightsError::Request(format!(
            "{} is there already, and of no use beside these weights: --force removes it",
            path.display()
        ))),
        None => Ok(()),
    }
}
