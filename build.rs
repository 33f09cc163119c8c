//! Gives the program the commit of the checkout, the hash of its sources, and the target that it is built for.

#[path = "build/commit.rs"]
mod commit;
#[path = "build/sources.rs"]
mod sources;

use std::path::{Path, PathBuf};

fn main() {
    let Some(root) = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from) else { return };
    for name in sources::ROOTS {
        println!("cargo::rerun-if-changed={name}");
    }
    // A folder without all sources, such as the package of the command line alone, has no hash.
    match sources::hash_sources(&root) {
        Ok(Some(hash)) => println!("cargo::rustc-env=RUNNER_SOURCE_HASH={hash}"),
        Ok(None) => {}
        Err(error) => println!("cargo::error=hashing the sources: {error}"),
    }
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo::rustc-env=RUNNER_TARGET={target}");
    }
    give_commit(&root);
}

/// Gives the commit of the checkout in `root` to the program.
fn give_commit(root: &Path) {
    // In the development profile a commit alone does not rebuild the program and its tests.
    if std::env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        return;
    }
    // A folder without git, such as an unpacked archive, has no commit.
    let Some(git) = commit::git_folder(root) else { return };
    for file in commit::files_with_commit(&git) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    if let Some(commit) = commit::read_commit(&git) {
        println!("cargo::rustc-env=RUNNER_COMMIT={commit}");
    }
}
