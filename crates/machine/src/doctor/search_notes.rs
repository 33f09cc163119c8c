//! Oddities of the search for libraries, even if no library is missing.

use std::env;
use std::ffi::OsStr;
use std::path::Path;

use super::library::{LIBRARY_FOLDERS, Library, candidates};

/// One line per oddity. `listed`: the value of `RUNNER_CUDA_LIBS`, in whose folders `libraries` are looked for first;
/// `driver`: the file that was taken for the driver's library.
pub(super) fn search_notes(listed: &OsStr, libraries: &[&Library], driver: Option<&Path>) -> Vec<String> {
    let mut notes = Vec::new();
    for folder in env::split_paths(listed).filter(|folder| !folder.as_os_str().is_empty()) {
        let files = || libraries.iter().flat_map(|library| library.files);
        if !folder.is_dir() {
            notes.push(format!("{LIBRARY_FOLDERS}: there is no folder {}", folder.display()));
        } else if files().all(|file| candidates(&folder, file).is_empty()) {
            let wanted = "none of these libraries is in it, nor in FOLDER/*/lib";
            notes.push(format!("{LIBRARY_FOLDERS}: {}: {wanted}", folder.display()));
        }
    }
    if let Some(path) = driver.filter(|path| path.components().any(|part| part.as_os_str() == "stubs")) {
        let stub = "is the toolkit's stand-in for linking, no driver: take its folder out of LD_LIBRARY_PATH";
        notes.push(format!("{} {stub}", path.display()));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::library::CUBLAS_LT;

    #[test]
    fn folders_that_lead_nowhere_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["empty", "full/cu13/lib"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        std::fs::write(dir.path().join("full/cu13/lib/libcublasLt.so.13"), "").unwrap();
        let of = |names: &[&str]| {
            let listed = env::join_paths(names.iter().map(|name| dir.path().join(name))).unwrap();
            let told = search_notes(&listed, &[&CUBLAS_LT], None);
            told.iter().map(|note| note.replace(dir.path().to_str().unwrap(), "DIR")).collect::<Vec<_>>()
        };
        assert_eq!(of(&["full"]), [""; 0]);
        assert_eq!(
            of(&["full", "absent", "empty"]),
            [
                "RUNNER_CUDA_LIBS: there is no folder DIR/absent",
                "RUNNER_CUDA_LIBS: DIR/empty: none of these libraries is in it, nor in FOLDER/*/lib"
            ]
        );
        assert_eq!(search_notes(OsStr::new(""), &[&CUBLAS_LT], None), [""; 0]);
    }

    #[test]
    fn a_stub_is_no_driver() {
        let at = |path: &str| search_notes(OsStr::new(""), &[], Some(Path::new(path)));
        assert_eq!(at("/usr/lib/libcuda.so.580"), [""; 0]);
        assert!(at("/usr/local/cuda/lib64/stubs/libcuda.so")[0].contains("stand-in"));
    }
}
