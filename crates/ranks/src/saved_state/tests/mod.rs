//! States that are saved and read again.

mod continued_run;
mod damage;
mod damaged_parts;
mod hashes;
mod parts;
mod recorder;
mod saving;

use std::path::PathBuf;

use super::*;
use runner_checkpoint::{Checkpoints, ChosenCheckpoint, dir_name, saved_steps};
use runner_compute::testing::{layout, random_state, values};

const PLAN: &str = "aaaaaaaabbbbbbbb";

/// A folder of checkpoints.
struct Fixture {
    _dir: tempfile::TempDir,
    folder: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("checkpoints");
        Self { _dir: dir, folder }
    }

    fn open(&self, keep: usize) -> Checkpoints {
        Checkpoints::open(&self.folder, PLAN, keep).unwrap()
    }

    /// Saves `steps`, the last of which is the newest.
    fn with(steps: &[u64]) -> Self {
        let fixture = Self::new();
        for &step in steps {
            fixture.open(10).save(&state_reader(&random_state(step, 2)), None).unwrap();
        }
        fixture
    }

    fn file(&self, step: u64, name: &str) -> PathBuf {
        self.folder.join(dir_name(step)).join(name)
    }

    fn steps(&self) -> Vec<u64> {
        saved_steps(&self.folder).unwrap()
    }

    fn choose(&self) -> Result<Option<ChosenCheckpoint>, RecordError> {
        self.open(10).choose()
    }

    /// Reads the checkpoint of `step` with two moments into the layout of the tests.
    fn load(&self, step: u64) -> Result<TrainState, RecordError> {
        load_state(&self.folder.join(dir_name(step)), Some(PLAN), &layout(), 2, DType::F32)
    }

    /// Resumes from step 1 with a warning that holds `text`, or fails with it if step 2 is the only one.
    fn falls_back(&self, text: &str) {
        let resumed = self.choose().unwrap().unwrap();
        assert_eq!(resumed.step, 1, "falls back");
        assert_eq!(values(&self.load(1).unwrap()), values(&random_state(1, 2)));
        let warning = resumed.warnings.join("\n");
        assert!(warning.contains(text) && warning.contains("falling back to step-00000001"), "{warning}");
        assert_eq!(self.steps(), [1]);
        assert!(self.folder.join("step-00000002.damaged").is_dir());
    }
}
