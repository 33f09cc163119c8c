//! Runs and checkpoints for tests.

#![allow(clippy::unwrap_used, reason = "fixtures of tests")]

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoints, NumberType, StateReader};
use crate::files::write_sealed_json;
use crate::manifest::{Manifest, Session};
use crate::run_dir::{MANIFEST, METRICS, RunDir, RunFiles};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::parameters;
use runner_spec::plan::Plan;

/// Saves a checkpoint of `step` for the model of `plan`, with one moment, whose numbers depend on the step. `offset` is added to its first weight.
pub fn save_checkpoint(checkpoints: &Checkpoints, plan: &Plan, step: u64, offset: f32, val_loss: Option<f64>) {
    let layout = ParamLayout::new(parameters(&plan.ranks[0].program.model));
    let number = |index: usize| ((index as u64 + 31 * step) % 1009) as f32 / 1009.0;
    let mut numbers: Vec<f32> = (0..2 * layout.total).map(number).collect();
    numbers[0] += offset;
    let state = StateReader {
        step,
        tokens: 96 * step,
        best: None,
        layout: &layout,
        moments: 1,
        number_type: NumberType::F32,
        read: Box::new(|section, range, sink| {
            let section = &numbers[section * layout.total..][range];
            sink(&section.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>())
        }),
    };
    checkpoints.save(&state, val_loss).unwrap();
}

/// A run of `plan` in `root` with the metrics `lines`, and with sessions that began after these steps at these times.
pub fn timed_run(root: &Path, plan: &Plan, sessions: &[(u64, &str)], lines: &str) -> PathBuf {
    let manifest = Manifest::new(plan, "exp.yaml".into(), vec![], "2026-01-01T00:00:00.000Z".into());
    let files = RunFiles {
        experiment: "",
        resolved: "name: tiny\n",
        plan,
        manifest,
        template: None,
        merged: None,
        is_private: false,
    };
    let run = RunDir::create(root, files, None).unwrap();
    let path = run.path().to_owned();
    let mut manifest = run.manifest().clone();
    for (from, started) in sessions {
        let session = Session { started: (*started).to_owned(), from_step: *from, threads: 1, ..Session::default() };
        manifest.begin_session(None, session, plan);
    }
    write_sealed_json(&path.join(MANIFEST), &manifest).unwrap();
    std::fs::write(path.join(METRICS), lines).unwrap();
    path
}

pub fn train(step: u64, loss: &str) -> String {
    format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"lr\":0.1,\"tokens\":8,\"step_ms\":500.0}}\n")
}

pub fn eval(step: u64, loss: &str) -> String {
    format!("{{\"kind\":\"eval\",\"step\":{step},\"val_loss\":{loss}}}\n")
}
