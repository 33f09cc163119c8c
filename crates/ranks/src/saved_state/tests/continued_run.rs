//! A run that begins with the checkpoint of another run.

use std::fs;

use super::super::*;
use super::recorder::open;
use runner_checkpoint::Checkpoints;
use runner_compute::testing::{layout, random_state, values};
use runner_plan::testing::{compiled, experiment};
use runner_record::manifest::Manifest;
use runner_record::run_dir::{BeginningCheckpoint, CHECKPOINTS, METRICS, RunDir, RunFiles, read_manifest};
use runner_record::time;
use runner_spec::error::{Classified as _, ErrorKind};

#[test]
fn a_run_continues_another() {
    let root = tempfile::tempdir().unwrap();
    let plan = compiled(&experiment());
    let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], time::now());
    let files = RunFiles {
        experiment: "a: 1\n",
        resolved: "b: 2\n",
        template: None,
        merged: None,
        is_private: false,
        plan: &plan,
        manifest,
    };
    let first = RunDir::create(root.path(), files, None).unwrap();
    let checkpoints = Checkpoints::open(&first.path().join(CHECKPOINTS), &plan.hash, 9).unwrap();
    for step in [2, 4] {
        checkpoints.save(&state_reader(&random_state(step, 2)), None).unwrap();
    }
    let line = |step: u64| format!("{{\"kind\":\"train\",\"step\":{step}}}\n");
    let lines = |through: u64| (1..=through).map(line).collect::<String>();
    fs::write(first.path().join(METRICS), lines(5)).unwrap();
    let mut other = plan.clone();
    other.hash = "f".repeat(64);
    let files = || RunFiles {
        experiment: "a: 1\n",
        resolved: "b: 2\n",
        template: None,
        merged: None,
        is_private: false,
        plan: &other,
        manifest: Manifest::new(&other, "exp.yaml".into(), vec![], time::now()),
    };
    let from = |which| BeginningCheckpoint { path: first.path(), plan: &plan, which, is_same_computation: false };
    for (which, step) in [(CheckpointChoice::Latest, 4), (CheckpointChoice::Step(2), 2)] {
        let run = RunDir::create(root.path(), files(), Some(&from(which))).unwrap();
        let began = run.manifest().continued_from.clone().unwrap();
        assert_eq!((began.id, began.step, &began.plan_hash), (first.id(), step, &plan.hash));
        assert_eq!(&read_manifest(run.path()).unwrap(), run.manifest());
        assert_eq!(fs::read_to_string(run.path().join(METRICS)).unwrap(), lines(step));
        let opened = open(run.path(), &other.hash);
        let path = opened.resumed.unwrap().path;
        let state = load_state(&path, Some(&other.hash), &layout(), 2, DType::F32).unwrap();
        assert_eq!(values(&state), values(&random_state(step, 2)));
        assert!(opened.warnings.is_empty(), "{:?}", opened.warnings);
    }
    let before = fs::read_dir(root.path()).unwrap().count();
    let error = RunDir::create(root.path(), files(), Some(&from(CheckpointChoice::Step(3)))).unwrap_err();
    assert!(error.kind() == ErrorKind::Request && error.to_string().contains("no checkpoint of step 3"), "{error}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), before, "no half of a run");
    assert_eq!(fs::read_to_string(first.path().join(METRICS)).unwrap(), lines(5));
}
