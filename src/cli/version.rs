//! The text of `runner --version`.

use std::sync::OnceLock;

use runner_compute::kernels::cpu::simd::instruction_set;

/// The version and the commit of this program, what it was built with, and the instructions that it uses on this machine.
pub(super) fn long_version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let commit = option_env!("RUNNER_COMMIT").map_or_else(String::new, |commit| format!(" (commit {commit})"));
        let features: Vec<&str> = [("cuda", cfg!(feature = "cuda")), ("nccl", cfg!(feature = "nccl"))]
            .into_iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| name)
            .collect();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        format!(
            "{}{commit}\nfeatures: {features}\ninstructions: {} ({})",
            env!("CARGO_PKG_VERSION"),
            instruction_set(),
            std::env::consts::ARCH
        )
    })
}

#[cfg(test)]
#[path = "../../build/commit.rs"]
mod commit;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::commit::{files_with_commit, git_folder, read_commit};

    const HASH: &str = "0123456789abcdef0123456789abcdef01234567";

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_commit_is_read_from_every_kind_of_checkout() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        assert_eq!(git_folder(root), None, "an archive");
        let git = root.join(".git");
        write(&git.join("HEAD"), "ref: refs/heads/main\n");
        let commit = || read_commit(&git_folder(root).unwrap());
        assert_eq!(commit(), None, "no commit yet");
        write(
            &git.join("packed-refs"),
            &format!("# pack-refs with: peeled\n{} refs/heads/other\n{HASH} refs/heads/main\n", "f".repeat(40)),
        );
        assert_eq!(commit().unwrap(), "0123456789ab");
        write(&git.join("refs/heads/main"), &format!("abc{}\n", &HASH[3..]));
        assert_eq!(commit().unwrap(), "abc3456789ab", "newer than the packed one");
        write(&git.join("HEAD"), &format!("{HASH}\n"));
        assert_eq!(commit().unwrap(), "0123456789ab", "no branch");
        // A further work tree.
        let tree = root.join("tree");
        write(&tree.join(".git"), "gitdir: ../.git/worktrees/tree\n");
        write(&git.join("worktrees/tree/HEAD"), "ref: refs/heads/main\n");
        write(&git.join("worktrees/tree/commondir"), "../..\n");
        let tree = git_folder(&tree).unwrap();
        assert_eq!(read_commit(&tree).unwrap(), "abc3456789ab");
        assert!(files_with_commit(&tree).iter().all(|file| file.is_file()) && files_with_commit(&tree).len() == 3);
    }
}
