//! The text of `runner --version`.

use std::sync::OnceLock;

use runner_inputs::ProgramBuild;
use runner_spec::format::short_hash;
use runner_workflows::session_facts::cpu_instructions;

/// The target that this program was built for, and the hash of its sources.
pub(crate) fn program_build() -> ProgramBuild {
    ProgramBuild {
        target: option_env!("RUNNER_TARGET").map(str::to_owned),
        source_hash: option_env!("RUNNER_SOURCE_HASH").map(str::to_owned),
    }
}

/// The version, the commit and the sources of this program, what it was built with, and the instructions that it uses on this machine.
pub(crate) fn long_version() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let commit = option_env!("RUNNER_COMMIT").map_or_else(String::new, |commit| format!(" (commit {commit})"));
        let features: Vec<&str> = [("cuda", cfg!(feature = "cuda")), ("nccl", cfg!(feature = "nccl"))]
            .into_iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| name)
            .collect();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        let ProgramBuild { target, source_hash } = program_build();
        let sources = source_hash.as_deref().map_or("unknown", short_hash);
        format!(
            "{}{commit}\nsources: {sources}\ntarget: {}\nfeatures: {features}\n{}",
            env!("CARGO_PKG_VERSION"),
            target.as_deref().unwrap_or(std::env::consts::ARCH),
            cpu_instructions()
        )
    })
}

#[cfg(test)]
#[path = "../../../build/commit.rs"]
mod commit;
#[cfg(test)]
#[path = "../../../build/sources.rs"]
mod sources;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::commit::{files_with_commit, git_folder, read_commit};
    use super::program_build;
    use super::sources::{ROOTS, hash_sources, source_files};

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

    #[test]
    fn the_program_has_the_hash_of_its_sources() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let files = source_files(root).unwrap();
        for file in [
            "Cargo.lock",
            "src/main.rs",
            "build/sources.rs",
            "crates/compute/src/kernels/cpu/simd.rs",
            "crates/compute/src/kernels/cuda/adamw.cu",
            "crates/config/src/presets.yaml",
            "templates/starter.yaml.j2",
        ] {
            assert!(files.iter().any(|known| known == file), "{file}");
        }
        assert!(!files.iter().any(|file| file.contains("/tests/") || file.ends_with("tests.rs")));
        assert_eq!(program_build().source_hash, hash_sources(root).unwrap());
        assert!(program_build().target.unwrap().contains(std::env::consts::ARCH));
    }

    #[test]
    fn the_hash_depends_only_on_names_and_contents_of_sources() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let hash = || hash_sources(root).unwrap();
        for name in ROOTS {
            assert_eq!(hash(), None, "not all sources");
            let file = if name.contains('.') { name.to_owned() } else { format!("{name}/a.rs") };
            write(&root.join(file), "1");
        }
        let first = hash().unwrap();
        assert_eq!(first.len(), 64);
        for other in
            [".git/HEAD", "crates/.a.rs.swp", "crates/a.rs.orig", "crates/a/tests/b.rs", "src/tests.rs", "README.md"]
        {
            write(&root.join(other), "2");
            assert_eq!(hash().unwrap(), first, "{other}");
        }
        write(&root.join("crates/b.rs"), "1");
        let more = hash().unwrap();
        fs::rename(root.join("crates/b.rs"), root.join("crates/c.rs")).unwrap();
        let moved = hash().unwrap();
        write(&root.join("crates/c.rs"), "2");
        assert_eq!(
            [&first, &more, &moved, &hash().unwrap()].into_iter().collect::<std::collections::BTreeSet<_>>().len(),
            4
        );
    }
}
