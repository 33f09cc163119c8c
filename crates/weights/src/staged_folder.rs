//! A folder of files that belong together: they are written to a temporary folder, and put in place when all of them are complete.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::error::WeightsError;
use runner_files::{
    TEMPORARY_PREFIX, create_dir_all, has_only, if_present, is_temporary_name, remove_abandoned, sync_dir,
    temporary_dir, temporary_prefix,
};
use runner_spec::format::counted;

/// An unfinished folder beside `to`. It is removed if it is dropped before it is finished.
#[derive(Debug)]
pub(super) struct StagedFolder {
    to: PathBuf,
    aside: tempfile::TempDir,
    /// Its lock, which says that this process writes it.
    _lock: File,
    names: Vec<String>,
    /// True for the name of a file that an export may have written, and that would be read with the new ones.
    is_own: fn(&str) -> bool,
    /// The names of files of other programs that would be read with the new ones.
    foreign: &'static [&'static str],
    force: bool,
}

impl StagedFolder {
    /// Begins the files `names`, which replace files of the same names. Files that would be read with them have names for which `is_own` is true,
    /// as earlier exports wrote them, or the names `foreign`.
    /// Removes what killed processes left of folders of this name.
    ///
    /// # Errors
    /// If `to` has any of `names` and not `force`, if it has a stale file, or if the folder cannot be made.
    pub(super) fn begin(
        to: &Path,
        names: Vec<String>,
        is_own: fn(&str) -> bool,
        foreign: &'static [&'static str],
        force: bool,
    ) -> Result<Self, WeightsError> {
        if to.symlink_metadata().is_ok() && !to.is_dir() {
            return Err(WeightsError::is_a_file(to));
        }
        let to = std::path::absolute(to).map_err(WeightsError::io(to))?;
        let (Some(parent), Some(_)) = (to.parent(), to.file_name()) else {
            return Err(WeightsError::Request(format!(
                "cannot write in {}; name a folder that you can write to",
                to.display()
            )));
        };
        create_dir_all(parent).map_err(WeightsError::io(parent))?;
        let is_part = |file: &str| is_own(file) || names.iter().any(|name| name == file);
        let is_unfinished = |file: &str| is_temporary_name(file.as_ref(), TEMPORARY_PREFIX);
        let prefix = temporary_prefix(&to);
        remove_abandoned(parent, &prefix, &|path| {
            has_only(
                path,
                &|names, kind| matches!(names, [file] if kind.is_file() && (is_part(file) || is_unfinished(file))),
            )
        });
        let aside = temporary_dir(parent, &prefix).map_err(WeightsError::io(parent))?;
        let lock = File::open(aside.path()).map_err(WeightsError::io(aside.path()))?;
        // Without locks in the file system, nothing is removed.
        let _ = lock.try_lock();
        let folder = Self { to, aside, _lock: lock, names, is_own, foreign, force };
        folder.check_free()?;
        Ok(folder)
    }

    /// The path at which the file `name` is written.
    /// The folder while it is not in place.
    pub(super) fn unfinished(&self) -> &Path {
        self.aside.path()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.aside.path().join(name)
    }

    /// Puts the files in place: the folder itself if there is none. Otherwise the new files are renamed into the folder, one after another.
    /// Files of other names stay.
    ///
    /// # Errors
    /// Those of `begin`, since another process may have written meanwhile.
    pub(super) fn finish(self) -> Result<(), WeightsError> {
        let sync = |path: &Path| sync_dir(path).map_err(WeightsError::io(path));
        sync(self.aside.path())?;
        let parent = self.to.parent().unwrap_or(&self.to);
        // The rename also replaces an empty folder.
        match fs::rename(self.aside.path(), &self.to) {
            Ok(()) => return sync(parent),
            Err(error) if !self.to.is_dir() => return Err(WeightsError::io(&self.to)(error)),
            Err(_) => {}
        }
        // Processes that export to this folder take turns. On a file system without locks, their files may mix.
        let folder = File::open(&self.to).map_err(WeightsError::io(&self.to))?;
        let _ = folder.lock();
        self.check_free()?;
        for name in &self.names {
            let to = self.to.join(name);
            fs::rename(self.path(name), &to).map_err(WeightsError::io(&to))?;
        }
        sync(&self.to)
    }

    /// The files in the folder that would be read with the new ones, in the order of their names.
    fn stale_files(&self) -> Result<Vec<PathBuf>, WeightsError> {
        let entries = if_present(fs::read_dir(&self.to)).map_err(WeightsError::io(&self.to))?;
        let is_loaded = |name: &str| (self.is_own)(name) || self.foreign.contains(&name);
        let is_stale = |name: &str| is_loaded(name) && !self.names.iter().any(|n| n == name);
        let stale = entries
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .filter(|entry| entry.file_name().to_str().is_some_and(is_stale));
        let mut stale: Vec<PathBuf> = stale.map(|entry| entry.path()).collect();
        stale.sort();
        Ok(stale)
    }

    /// Checks that the folder has no file that would be replaced, unless that is forced, and none that would be read with the new ones. Such a
    /// file may be of another program, so it is never removed.
    fn check_free(&self) -> Result<(), WeightsError> {
        let mut files = self.names.iter().map(|name| self.to.join(name));
        if let Some(path) = files.find(|path| !self.force && path.symlink_metadata().is_ok()) {
            return Err(WeightsError::already_exists(&path));
        }
        let stale = self.stale_files()?;
        stale.first().map_or(Ok(()), |path| {
            let others = stale.len() - 1;
            let more = if others == 0 { String::new() } else { format!(" and {}", counted(others as u64, "more file")) };
            let path = path.display();
            let message =
                format!("{path}{more}: not part of this export, but would be loaded with it; remove old files, or export to a new folder");
            Err(WeightsError::Request(message))
        })
    }
}
