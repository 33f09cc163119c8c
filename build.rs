//! Gives the commit of the checkout to the program, for `runner --version`.

#[path = "build/commit.rs"]
mod commit;

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/commit.rs");
    // In the development profile a commit alone is no reason to build the program and its tests again.
    if std::env::var("PROFILE").is_ok_and(|profile| profile != "release") {
        return;
    }
    // A folder without git, such as an unpacked archive, has no commit.
    let Some(git) = std::env::var_os("CARGO_MANIFEST_DIR").and_then(|root| commit::git_folder(Path::new(&root))) else {
        return;
    };
    for file in commit::files_with_commit(&git) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    if let Some(commit) = commit::read_commit(&git) {
        println!("cargo::rustc-env=RUNNER_COMMIT={commit}");
    }
}
