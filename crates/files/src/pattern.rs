//! Patterns of files: `*`, `?`, `[…]`, and `**` for any folders.
//!
//! They leave out hidden files and folders, and folders that begin with `__`, such as `.ipynb_checkpoints` and `__pycache__`, unless a
//! part of the pattern begins in the same way.

use glob::{GlobResult, PatternError, glob};

/// The hidden parts of a path or pattern, and its folders that begin with `__`. A pattern that matches a path names the special parts of the
/// path if it has as many.
#[must_use]
pub fn special_parts(path: &str) -> (usize, usize) {
    let is_hidden = |part: &&str| part.starts_with('.') && part.contains(|c| c != '.');
    let folders = path.rsplit_once('/').map_or("", |(folders, _)| folders).split('/');
    (path.split('/').filter(is_hidden).count(), folders.filter(|part| part.starts_with("__")).count())
}

/// The parts `.` and `..`. To `glob`, `.*` matches them.
fn parents(path: &str) -> usize {
    path.split('/').filter(|part| matches!(*part, "." | "..")).count()
}

/// The files and folders that match `pattern`, in alphabetical order.
///
/// # Errors
/// If it is not a pattern.
pub fn matching_paths(pattern: &str) -> Result<impl Iterator<Item = GlobResult> + use<>, PatternError> {
    let (special, parents) = (special_parts(pattern), parents(pattern));
    let is_named = move |found: &GlobResult| match found {
        Ok(path) => path.to_str().is_none_or(|path| special_parts(path) == special && self::parents(path) <= parents),
        // A folder that cannot be read matters only if its files could match.
        Err(error) => {
            let (hidden, folders) = special_parts(&format!("{}/", error.path().display()));
            hidden <= special.0 && folders <= special.1
        }
    };
    Ok(glob(pattern)?.filter(is_named))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn special_files_and_folders_match_only_if_they_are_named() {
        let folder = tempfile::tempdir().unwrap();
        // The folder above may be hidden: it is named.
        let base = folder.path().join(".work");
        for path in [
            "a.txt",
            ".b.txt",
            "x/c.txt",
            "x/.ipynb_checkpoints/c.txt",
            "__pycache__/d.txt",
            "__e.txt",
            ".h/.i.txt",
            ".h/j.txt",
        ] {
            fs::create_dir_all(base.join(path).parent().unwrap()).unwrap();
            fs::write(base.join(path), path).unwrap();
        }
        let found = |pattern: &str| {
            let paths = matching_paths(&format!("{}/{pattern}", base.display())).unwrap().map(Result::unwrap);
            let name = |path: std::path::PathBuf| path.strip_prefix(&base).unwrap().to_str().unwrap().to_owned();
            paths.filter(|path| path.is_file()).map(name).collect::<Vec<_>>()
        };
        for (pattern, expected) in [
            ("*.txt", &["__e.txt", "a.txt"][..]),
            ("**/*.txt", &["__e.txt", "a.txt", "x/c.txt"]),
            (".*", &[".b.txt"]),
            ("[.]b.txt", &[]),
            (".b.txt", &[".b.txt"]),
            (".h/*", &[".h/j.txt"]),
            (".h/.*", &[".h/.i.txt"]),
            ("x/.*/*", &["x/.ipynb_checkpoints/c.txt"]),
            ("__*/*", &["__pycache__/d.txt"]),
            ("*/*.txt", &["x/c.txt"]),
        ] {
            assert_eq!(found(pattern), expected, "{pattern}");
        }
        assert!(matching_paths("***").is_err());
    }
}
