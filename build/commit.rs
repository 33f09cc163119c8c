//! The commit of a checkout, from git's own files: a build must work without the program git.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder with git's files of the checkout in `root`; `None` if `root` is no checkout.
pub(crate) fn git_folder(root: &Path) -> Option<PathBuf> {
    let entry = root.join(".git");
    if entry.is_dir() {
        return Some(entry);
    }
    // In a further work tree `.git` is a file that names the folder.
    let text = fs::read_to_string(&entry).ok()?;
    let folder = root.join(text.strip_prefix("gitdir:")?.trim());
    folder.is_dir().then_some(folder)
}

/// The existing files of the folder `git` that change with the commit.
pub(crate) fn files_with_commit(git: &Path) -> Vec<PathBuf> {
    let shared = shared_folder(git);
    let reference =
        fs::read_to_string(git.join("HEAD")).ok().and_then(|head| Some(shared.join(head.strip_prefix("ref:")?.trim())));
    let files = [Some(git.join("HEAD")), Some(git.join("logs/HEAD")), reference, Some(shared.join("packed-refs"))];
    files.into_iter().flatten().filter(|file| file.is_file()).collect()
}

/// The commit that is checked out, in 12 digits.
pub(crate) fn read_commit(git: &Path) -> Option<String> {
    const DIGITS: usize = 12;
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let hash = match head.strip_prefix("ref:").map(str::trim) {
        None => head,
        Some(reference) => {
            let shared = shared_folder(git);
            let packed = || {
                let all = fs::read_to_string(shared.join("packed-refs")).ok()?;
                let line = all.lines().find_map(|line| line.strip_suffix(reference)?.strip_suffix(' '))?;
                Some(line.to_owned())
            };
            fs::read_to_string(shared.join(reference)).ok().or_else(packed)?
        }
    };
    let digits = hash.trim().get(..DIGITS)?;
    digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| digits.to_owned())
}

/// The folder with the references, which all work trees of a repository share.
fn shared_folder(git: &Path) -> PathBuf {
    let common = fs::read_to_string(git.join("commondir"));
    common.map_or_else(|_| git.to_owned(), |folder| git.join(folder.trim()))
}
