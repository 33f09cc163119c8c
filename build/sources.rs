//! The hash of the program's sources: equal on every machine, and in a folder without git.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The files and folders, below the root of the workspace, with the sources that decide what the program computes.
pub(crate) const ROOTS: [&str; 7] = ["Cargo.lock", "Cargo.toml", "build", "build.rs", "crates", "src", "templates"];

/// The endings of the files that count. Files that editors and systems leave behind have others.
const EXTENSIONS: [&str; 15] =
    ["c", "css", "cu", "cuh", "h", "html", "inc", "j2", "js", "json", "lock", "rs", "schema", "toml", "yaml"];

/// Tests and what they compare with. They are not part of the program.
const TESTS: [&str; 5] = ["benches", "examples", "snapshots", "tests", "tests.rs"];

/// BLAKE3 over path, length and content of each source file below `root`, in the order of the paths. `None` if the folder has not
/// all sources: a package of the command line alone lacks the crates.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn hash_sources(root: &Path) -> io::Result<Option<String>> {
    if ROOTS.iter().any(|name| !root.join(name).exists()) {
        return Ok(None);
    }
    let mut hasher = blake3::Hasher::new();
    for file in source_files(root)? {
        let content = fs::read(root.join(&file))?;
        for bytes in [file.as_bytes(), &content] {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        }
    }
    Ok(Some(hasher.finalize().to_hex().to_string()))
}

/// The paths of the source files, relative to `root`, with `/` between their parts, in order.
pub(crate) fn source_files(root: &Path) -> io::Result<Vec<String>> {
    let (mut files, mut pending) = (Vec::new(), ROOTS.map(PathBuf::from).to_vec());
    while let Some(path) = pending.pop() {
        let full = root.join(&path);
        if full.is_dir() {
            for entry in fs::read_dir(&full)? {
                let name = entry?.file_name();
                let name = name.to_string_lossy();
                if !name.starts_with('.') && !TESTS.contains(&&*name) {
                    pending.push(path.join(&*name));
                }
            }
        } else if path.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known)) {
            let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
            files.push(parts.join("/"));
        }
    }
    files.sort();
    Ok(files)
}
