//! Recognizes files and folders that this program wrote, by their names. A symbolic link is never one of them.

use std::ffi::OsStr;
use std::fs::{self, File, FileType};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::file_system::if_present;

/// The prefix of the names of unfinished files and folders. They are never read; the owner of the folder removes them.
pub const TEMPORARY_PREFIX: &str = ".tmp-";

/// The number of random characters at the end of a temporary name.
pub(crate) const RANDOM_CHARACTERS: usize = 6;

/// True if `name` is a temporary name that begins with `prefix`, as [`super::temporary_file`] and [`super::temporary_dir`] make it.
pub fn is_temporary_name(name: &OsStr, prefix: &str) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(prefix));
    random.is_some_and(|random| random.len() == RANDOM_CHARACTERS && random.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// The prefix of the temporary names of the output file or folder `target`.
pub fn temporary_prefix(target: &Path) -> String {
    /// A name has at most 255 bytes.
    const MAX_CHARACTERS: usize = 60;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!("{TEMPORARY_PREFIX}{}-", name.chars().take(MAX_CHARACTERS).collect::<String>())
}

/// Removes the files and folders in `folder` under temporary names that begin with `prefix`, for which `is_own` is true, unless a process
/// holds their lock. A process locks such a file or folder while it writes it. One that cannot be removed stays.
pub fn remove_abandoned(folder: &Path, prefix: &str, is_own: &dyn Fn(&Path) -> bool) {
    /// A process that has just created one has perhaps not locked it yet.
    const LEAST_AGE: Duration = Duration::from_secs(10);
    let is_abandoned = |path: &PathBuf| {
        path.file_name().is_some_and(|name| is_temporary_name(name, prefix))
            && is_older_than(path, LEAST_AGE)
            && is_own(path)
            && File::open(path).is_ok_and(|file| file.try_lock().is_ok())
    };
    remove_all(&children(folder).into_iter().filter(is_abandoned).collect::<Vec<_>>());
}

/// True if `path` was changed longer than `age` ago. A link is not followed.
pub fn is_older_than(path: &Path, age: Duration) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    changed.is_ok_and(|changed| changed.elapsed().is_ok_and(|elapsed| elapsed > age))
}

/// True if `text` consists of decimal digits.
pub fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// True if `path` is a folder and not a link.
pub fn is_real_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// The paths in `folder`, sorted. A folder that cannot be read has none.
pub fn children(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The path within `folder` of the first thing below it for which `is_own` is false; `None` if there is nothing. `is_own` receives the names
/// from `folder` on, and what the last one is. A missing folder has nothing in it.
///
/// # Errors
/// If a folder cannot be read.
pub fn foreign_path(folder: &Path, is_own: &dyn Fn(&[&str], FileType) -> bool) -> io::Result<Option<PathBuf>> {
    let mut open = vec![PathBuf::new()];
    while let Some(inner) = open.pop() {
        // Another process may have removed it.
        for entry in if_present(fs::read_dir(folder.join(&inner)))?.into_iter().flatten() {
            let entry = entry?;
            let (path, kind) = (inner.join(entry.file_name()), entry.file_type()?);
            let names: Option<Vec<&str>> = path.iter().map(OsStr::to_str).collect();
            if !names.is_some_and(|names| is_own(&names, kind)) {
                return Ok(Some(path));
            }
            if kind.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(None)
}

/// True if `path` is a folder, and `is_own` is true for everything below it, as in [`foreign_path`].
pub fn has_only(path: &Path, is_own: &dyn Fn(&[&str], FileType) -> bool) -> bool {
    is_real_folder(path) && matches!(foreign_path(path, is_own), Ok(None))
}

/// The files and folders of `folder` that an earlier, killed process left unfinished: files under temporary names, and folders for whose
/// names behind [`TEMPORARY_PREFIX`] `is_own` is true.
pub fn leftovers(folder: &Path, is_own: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let is_left = |path: &PathBuf| {
        let (Some(name), Ok(found)) = (path.file_name(), fs::symlink_metadata(path)) else { return false };
        let is_folder = || name.to_str().and_then(|name| name.strip_prefix(TEMPORARY_PREFIX)).is_some_and(&is_own);
        found.is_file() && is_temporary_name(name, TEMPORARY_PREFIX) || found.is_dir() && is_folder()
    };
    children(folder).into_iter().filter(is_left).collect()
}

/// Removes files and folders. One that cannot be removed stays.
pub fn remove_all(paths: &[PathBuf]) {
    for path in paths {
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_leftovers_are_removed_and_everything_else_stays() {
        let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = |name: &str| dir.path().join(name);
        fs::write(elsewhere.path().join("kept"), "").unwrap();
        for folder in [".tmp-step-1/deep", ".tmp-a1B2c3", ".tmp-step-mine", "deep/.tmp-step-1"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        for file in [".tmp-x1Y2z3", ".tmp-x1Y2z", ".tmp-notes.txt", ".tmp-step-3", "kept"] {
            fs::write(path(file), "").unwrap();
        }
        std::os::unix::fs::symlink(elsewhere.path(), path(".tmp-step-2")).unwrap();
        std::os::unix::fs::symlink(elsewhere.path().join("kept"), path(".tmp-l1L2l3")).unwrap();
        remove_all(&leftovers(dir.path(), |name| matches!(name, "step-1" | "step-2" | "step-3")));
        let left: Vec<_> = children(dir.path()).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        let expected = [
            ".tmp-a1B2c3",
            ".tmp-l1L2l3",
            ".tmp-notes.txt",
            ".tmp-step-2",
            ".tmp-step-3",
            ".tmp-step-mine",
            ".tmp-x1Y2z",
            "deep",
            "kept",
        ];
        assert_eq!(left, expected);
        assert!(elsewhere.path().join("kept").exists() && path("deep/.tmp-step-1").exists());
    }

    #[test]
    fn the_first_foreign_path_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let own = |names: &[&str], kind: FileType| matches!(names, ["a"] if kind.is_dir()) || names == ["a", "b"];
        let found = || foreign_path(dir.path(), &own).unwrap();
        assert!(found().is_none() && foreign_path(&dir.path().join("none"), &own).unwrap().is_none());
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/b"), "").unwrap();
        assert!(found().is_none() && has_only(dir.path(), &own) && !has_only(&dir.path().join("none"), &own));
        fs::write(dir.path().join("a/c"), "").unwrap();
        assert_eq!(found(), Some("a/c".into()));
        let linked = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(linked.path(), linked.path().join("a")).unwrap();
        assert_eq!(foreign_path(linked.path(), &own).unwrap(), Some("a".into()));
        assert!(!has_only(&linked.path().join("a"), &|_, _| true), "a link is not followed");
    }
}
