//! The mark of a cache folder, without which nothing in the folder is removed.
//!
//! The mark is a `CACHEDIR.TAG`, by which backup programs recognize caches, with a line that names this program and the version of the
//! folder's layout.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::{TAG, foreign_path};
use crate::error::{DataError, Result};
use runner_files::{create_dir_all, open_regular, write_atomic};
use runner_yaml::source::read_limited;

/// The first line of the file in every program's cache.
const SIGNATURE: &str = "Signature: 8a477f597d28d172789f06886806bc55";
/// The line of this program, up to the version.
const PROGRAM: &str = "# runner cache, version ";
/// The version of the layout that this program reads and writes.
const VERSION: &str = "1";
const MAX_TAG_BYTES: u64 = 1 << 16;

/// A folder that may be used as a cache.
#[derive(Debug, PartialEq, Eq)]
enum Mark {
    Present,
    /// The folder is missing or empty. It may have a tag without the program's line.
    Absent {
        tag: Option<String>,
    },
}

/// True if `root` carries the mark.
pub(super) fn is_marked(root: &Path) -> bool {
    matches!(read_mark(root), Ok(Mark::Present))
}

/// Checks that `root` may be used as a cache: it is marked, missing or empty. Changes nothing.
///
/// # Errors
/// If the folder belongs to something else, or cannot be read.
pub(crate) fn check_cache(root: &Path) -> Result<()> {
    read_mark(root).map(|_| ())
}

/// Creates the cache folder `root` if it is missing, and marks it.
///
/// # Errors
/// Those of `check_cache`, or if the folder cannot be created or marked.
pub fn claim_cache(root: &Path) -> Result<PathBuf> {
    let Mark::Absent { tag } = read_mark(root)? else { return Ok(root.to_owned()) };
    let text = match tag {
        Some(text) => format!("{}\n{PROGRAM}{VERSION}\n", text.trim_end()),
        None => format!(
            "{SIGNATURE}\n{PROGRAM}{VERSION}\n# Everything here can be made again. Backup programs may leave it out.\n"
        ),
    };
    let path = root.join(TAG);
    create_dir_all(root).and_then(|()| write_atomic(&path, text.as_bytes())).map_err(write_error(&path))?;
    Ok(root.to_owned())
}

/// The error that `path`, the cache or something in it, cannot be written, with what to do if that is not permitted.
pub(super) fn write_error(path: &Path) -> impl FnOnce(io::Error) -> DataError + '_ {
    move |error| {
        let advice = "set RUNNER_CACHE to a writable folder";
        let is_read_only = matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem);
        let explained = if is_read_only { io::Error::new(error.kind(), format!("{error}; {advice}")) } else { error };
        DataError::io(path)(explained)
    }
}

fn read_mark(root: &Path) -> Result<Mark> {
    let read = || read_tag(root).map_err(DataError::io(root));
    let mut tag = read()?;
    loop {
        let mark = mark_with_tag(root, tag.as_deref());
        let now = read()?;
        // Another process may have marked the folder since its tag was read.
        if mark.is_ok() || now == tag {
            return mark;
        }
        tag = now;
    }
}

/// What the folder `root` is, given the text of its tag.
fn mark_with_tag(root: &Path, tag: Option<&str>) -> Result<Mark> {
    match tag.and_then(|tag| tag.lines().find_map(|line| line.strip_prefix(PROGRAM))) {
        Some(VERSION) => return Ok(Mark::Present),
        Some(other) => {
            let message = format!(
                "this cache has version {} of the layout, but this version of runner uses {VERSION}; set RUNNER_CACHE to a different folder",
                other.escape_default()
            );
            return Err(DataError::file(root, message));
        }
        None => {}
    }
    match foreign_path(root, tag.is_some()).map_err(DataError::io(root))? {
        None => Ok(Mark::Absent { tag: tag.map(str::to_owned) }),
        Some(foreign) => {
            let message = format!(
                "not a cache of runner: it has no {TAG} of runner and contains `{}`; set RUNNER_CACHE to a missing or empty folder",
                foreign.display()
            );
            Err(DataError::file(root, message))
        }
    }
}

/// The text of a cache's tag in `root`. `None` if there is none, or the file is something else.
fn read_tag(root: &Path) -> io::Result<Option<String>> {
    let path = root.join(TAG);
    if !fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_file()) {
        return Ok(None);
    }
    let bytes = read_limited(open_regular(&path)?, MAX_TAG_BYTES)?;
    Ok(String::from_utf8(bytes).ok().filter(|text| text.starts_with(SIGNATURE)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use runner_spec::error::{Classified as _, ErrorKind};

    use super::*;

    #[test]
    fn a_new_or_empty_folder_is_marked() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("missing/deep");
        claim_cache(&root).unwrap();
        assert!(
            claim_cache(&dir.path().join("missing")).is_err(),
            "it contains a folder that does not belong to a cache"
        );
        let text = fs::read_to_string(root.join(TAG)).unwrap();
        // The specification compares the first 43 bytes.
        assert_eq!(&text.as_bytes()[..43], b"Signature: 8a477f597d28d172789f06886806bc55");
        assert!(text.contains("\n# runner cache, version 1\n") && is_marked(&root));
        claim_cache(&root).unwrap();
        assert_eq!(fs::read_to_string(root.join(TAG)).unwrap(), text);
        let empty = tempfile::tempdir().unwrap();
        check_cache(empty.path()).unwrap();
        assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0, "a check changes nothing");
        claim_cache(empty.path()).unwrap();
        assert!(is_marked(empty.path()));
    }

    #[test]
    fn processes_that_claim_a_new_folder_at_once_all_get_it() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..200 {
            let root = dir.path().join(round.to_string());
            let claim = || {
                let root = claim_cache(&root)?;
                create_dir_all(&root.join("made-by-a-later-version")).map_err(DataError::io(&root))
            };
            std::thread::scope(|s| {
                let claims: Vec<_> = (0..4).map(|_| s.spawn(claim)).collect();
                for claim in claims {
                    claim.join().unwrap().unwrap();
                }
            });
        }
    }

    #[test]
    fn a_folder_of_something_else_is_refused() {
        let refused = |fill: &dyn Fn(&Path)| {
            let dir = tempfile::tempdir().unwrap();
            fill(dir.path());
            let error = claim_cache(dir.path()).unwrap_err();
            assert!(error.kind() == ErrorKind::Request && check_cache(dir.path()).is_err(), "{error}");
            assert!(!is_marked(dir.path()));
            error.to_string()
        };
        let text = refused(&|root| fs::write(root.join("notes.txt"), "mine").unwrap());
        assert!(text.contains("contains `notes.txt`; set RUNNER_CACHE"), "{text}");
        let text = refused(&|root| fs::create_dir_all(root.join("tmp/project")).unwrap());
        assert!(text.contains("`tmp`"), "{text}");
        let text = refused(&|root| symlink("/tmp", root.join("tmp")).unwrap());
        assert!(text.contains("`tmp`"), "{text}");
        // Tags of other programs, and of a later version.
        let text = refused(&|root| {
            fs::write(root.join(TAG), format!("{SIGNATURE}\n# made by cargo\n")).unwrap();
            fs::create_dir(root.join("debug")).unwrap();
        });
        assert!(text.contains("`debug`"), "{text}");
        let text = refused(&|root| fs::write(root.join(TAG), "not a tag").unwrap());
        assert!(text.contains("`CACHEDIR.TAG`"), "{text}");
        let text = refused(&|root| fs::write(root.join(TAG), format!("{SIGNATURE}\n{PROGRAM}2\n")).unwrap());
        assert!(text.contains("version 2 of the layout"), "{text}");
    }

    #[test]
    fn a_tag_and_what_a_killed_process_left_of_one_do_not_prevent_the_mark() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        fs::write(root.join(".tmp-CACHEDIR.TAG-a1B2c3"), "").unwrap();
        // Its owner excluded it from backups.
        fs::write(root.join(TAG), format!("{SIGNATURE}\n# excluded from backups\n")).unwrap();
        check_cache(root).unwrap();
        assert!(!is_marked(root));
        claim_cache(root).unwrap();
        assert!(is_marked(root));
        assert!(fs::read_to_string(root.join(TAG)).unwrap().contains("# excluded from backups\n"));
    }
}
