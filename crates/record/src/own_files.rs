//! Which files and folders of a run or a sweep the program wrote, by their names. Folders with anything else in them are not removed.
//!
//! A symbolic link is never the program's own.

use std::ffi::OsStr;
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

use super::checkpoint::{is_checkpoint_file, is_checkpoint_folder};
use super::names::{
    CHECKPOINTS, DATA, EXPERIMENT, JOB_LOG, LOCK, LOG, MANIFEST, MERGED_FILES, METRICS, PLAN, RANKS, RESOLVED, ROWS,
    SAMPLES, SLURM_SCRIPT, SUMMARY, SWEEP_FILE, SWEEP_POINTS, SWEEP_RECORD, TEMPLATE, TENSORBOARD, TOKENIZER, TRACE,
    VERDICT,
};
use super::tags::TAGS;
use super::timeline::TIMELINE;
use runner_files::{TEMPORARY_PREFIX, foreign_path, is_number, is_temporary_name};

/// The files of a run directory.
const RUN_FILES: [&str; 20] = [
    EXPERIMENT,
    TEMPLATE,
    MERGED_FILES,
    RESOLVED,
    PLAN,
    TOKENIZER,
    DATA,
    MANIFEST,
    METRICS,
    SAMPLES,
    ROWS,
    TIMELINE,
    TRACE,
    VERDICT,
    LOG,
    SUMMARY,
    TAGS,
    LOCK,
    SLURM_SCRIPT,
    JOB_LOG,
];
/// The files of a sweep's folder.
const SWEEP_FILES: [&str; 4] = [SWEEP_FILE, SWEEP_RECORD, SLURM_SCRIPT, LOCK];

/// The path within the run directory `path` of something that the program did not write; `None` if there is nothing.
///
/// # Errors
/// If a folder cannot be read.
pub fn foreign_path_in_run(path: &Path) -> io::Result<Option<PathBuf>> {
    foreign_path(path, &is_own_in_run)
}

/// The path within the run directory `path` of something among its checkpoints that the program did not write; `None` if there is nothing.
///
/// # Errors
/// If a folder cannot be read.
pub fn foreign_path_in_checkpoints(path: &Path) -> io::Result<Option<PathBuf>> {
    foreign_path(path, &|names, kind| !names.starts_with(&[CHECKPOINTS]) || is_own_in_run(names, kind))
}

/// The path within the folder `path` of a sweep of something that the program did not write; `None` if there is nothing.
///
/// # Errors
/// If a folder cannot be read.
pub fn foreign_path_in_sweep(path: &Path) -> io::Result<Option<PathBuf>> {
    foreign_path(path, &is_own_in_sweep)
}

fn is_own_in_run(names: &[&str], kind: FileType) -> bool {
    let (is_folder, is_file) = (kind.is_dir(), kind.is_file());
    #[cfg(any(test, feature = "testing"))]
    if names == [super::names::NO_LOCKS] {
        return true;
    }
    match names {
        [CHECKPOINTS | TENSORBOARD | RANKS] => is_folder,
        [CHECKPOINTS, checkpoint] => is_folder && is_checkpoint_folder(checkpoint),
        [CHECKPOINTS, _, file] => is_file && is_checkpoint_file(file),
        [TENSORBOARD, file] => is_file && (file.starts_with("events.out.tfevents.") || is_unfinished(file)),
        [RANKS, file] => {
            is_file && file.strip_prefix("rank-").and_then(|n| n.strip_suffix(".log")).is_some_and(is_number)
        }
        [file] => is_file && (RUN_FILES.contains(file) || is_unfinished(file)),
        _ => false,
    }
}

fn is_own_in_sweep(names: &[&str], kind: FileType) -> bool {
    let (is_folder, is_file) = (kind.is_dir(), kind.is_file());
    match names {
        [SWEEP_POINTS] => is_folder,
        [SWEEP_POINTS, file] => {
            let of_point =
                file.rsplit_once('.').is_some_and(|(n, end)| is_number(n) && ["yaml", "log", "job"].contains(&end));
            is_file && (of_point || is_unfinished(file))
        }
        [file] => is_file && (SWEEP_FILES.contains(file) || is_unfinished(file)),
        _ => false,
    }
}

fn is_unfinished(name: &str) -> bool {
    is_temporary_name(OsStr::new(name), TEMPORARY_PREFIX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn put(folder: &Path, names: &[&str]) {
        for name in names {
            let path = folder.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    #[test]
    fn everything_the_program_writes_is_recognized() {
        let run = tempfile::tempdir().unwrap();
        put(run.path(), &RUN_FILES);
        put(
            run.path(),
            &[
                ".tmp-a1B2c3",
                "checkpoints/step-00000008/model.safetensors",
                "checkpoints/step-00000008/state.json",
                "checkpoints/step-00000009.damaged/model-00001-of-00002.safetensors",
                "checkpoints/.tmp-step-00000010/optimizer.safetensors",
                "checkpoints/.tmp-old-step-00000003/optimizer-00002-of-00002.safetensors",
                "ranks/rank-0.log",
                "tensorboard/events.out.tfevents.1767225600.runner",
            ],
        );
        assert_eq!(foreign_path_in_run(run.path()).unwrap(), None);
        let sweep = tempfile::tempdir().unwrap();
        put(sweep.path(), &SWEEP_FILES);
        put(sweep.path(), &["points/0001.yaml", "points/0001.log", "points/0012.job"]);
        assert_eq!(foreign_path_in_sweep(sweep.path()).unwrap(), None);
    }

    #[test]
    fn foreign_files_are_named() {
        for name in [
            "notes.txt",
            "plots/loss.png",
            "checkpoints/notes.txt",
            "checkpoints/step-00000008/notes.txt",
            "checkpoints/step-best/model.safetensors",
            "checkpoints/step-00000008/mine/model.safetensors",
            "ranks/notes.txt",
            "tensorboard/mine/events.out.tfevents.1.runner",
            ".tmp-notes",
            "manifest.json/mine",
        ] {
            let run = tempfile::tempdir().unwrap();
            put(run.path(), &[name]);
            let found = foreign_path_in_run(run.path()).unwrap();
            assert!(found.is_some_and(|found| Path::new(name).starts_with(found)), "{name}");
        }
        let (run, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(elsewhere.path(), run.path().join(CHECKPOINTS)).unwrap();
        assert_eq!(foreign_path_in_run(run.path()).unwrap(), Some(CHECKPOINTS.into()));
        let sweep = tempfile::tempdir().unwrap();
        put(sweep.path(), &["points/notes.txt"]);
        assert_eq!(foreign_path_in_sweep(sweep.path()).unwrap(), Some("points/notes.txt".into()));
    }
}
