//! The record of a run, read once: its path, manifest, summary and metrics.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::planned_experiment::{PlannedExperiment, cluster_of};
use runner_config::LoadOptions;
use runner_plan::PlanError;
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;
use runner_store::StoreError;
use runner_store::catalog;
use runner_store::catalog::ListedStatus;
use runner_store::manifest::Manifest;
use runner_store::metrics::{EvalLine, MetricLine, for_each_metric};
use runner_store::run_dir;
use runner_store::run_dir::{METRICS, RESOLVED};
use runner_store::summary::{Summary, median};

/// One step. Values that are unknown or not finite are NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepRecord {
    pub step: u64,
    /// The number of valid tokens up to and including this step.
    pub tokens: u64,
    pub loss: f64,
    pub lr: f64,
    pub grad_norm: f64,
    pub tokens_per_second: f64,
    pub mfu: f64,
}

/// The record of a run.
#[derive(Debug, Clone)]
pub struct RunRecord {
    pub path: PathBuf,
    pub status: ListedStatus,
    pub manifest: Manifest,
    /// `None` if the run was resumed since, or has no summary.
    pub summary: Option<Summary>,
    pub steps: Vec<StepRecord>,
    pub evals: Vec<EvalLine>,
}

/// The figures of a run; `None` if not measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunFigures {
    pub steps: u64,
    pub train_loss: Option<f64>,
    /// The loss of the last evaluation.
    pub val_loss: Option<f64>,
    pub best_val_loss: Option<f64>,
    pub hellaswag_acc: Option<f64>,
    pub hellaswag_acc_norm: Option<f64>,
    /// The median over the steps.
    pub tokens_per_second: Option<f64>,
    pub peak_memory_bytes: Option<u64>,
    pub wall_seconds: Option<f64>,
    pub final_hash: Option<String>,
    pub weights_hash: Option<String>,
}

/// The experiment and the plan of the run in `path`.
///
/// # Errors
/// `StoreError` for the plan, `ConfigError` for `resolved.yaml`.
pub fn read_experiment_and_plan(path: &Path) -> Result<(Experiment, Plan), RecordError> {
    let plan = crate::stored_plan::read(path)?;
    let options = LoadOptions { absent_files: true, ..LoadOptions::default() };
    Ok((runner_config::load(&path.join(RESOLVED), &options)?.experiment, plan))
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("{0}")]
    Config(#[from] ConfigError),
}

/// Plans the experiment of a recorded run again with this version, on its data and devices.
///
/// # Errors
/// If they cannot be planned any more.
pub fn plan_again(experiment: Experiment, stored: &Plan) -> Result<PlannedExperiment, PlanError> {
    PlannedExperiment::new(experiment, stored.data.clone(), cluster_of(stored))
}

impl RunRecord {
    /// Reads the run directory `path`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let manifest = run_dir::read_manifest(path)?;
        let status = catalog::describe(path).status;
        // The summary of an earlier session is out of date.
        let summary =
            run_dir::read_summary(path)?.filter(|s| s.status == manifest.status && status != ListedStatus::Running);
        let (mut steps, mut evals, mut tokens) = (Vec::<StepRecord>::new(), Vec::new(), 0_u64);
        for_each_metric(&path.join(METRICS), &mut |line| match line {
            MetricLine::Train(t) => {
                tokens = tokens.saturating_add(t.tokens);
                let number = |x: Option<f64>| x.unwrap_or(f64::NAN);
                steps.push(StepRecord {
                    step: t.step,
                    tokens,
                    loss: number(t.loss),
                    lr: number(t.lr),
                    grad_norm: number(t.grad_norm),
                    tokens_per_second: number(t.tokens_per_second),
                    mfu: number(t.mfu),
                });
            }
            MetricLine::Eval(e) => evals.push(e),
        })?;
        Ok(Self { path: path.to_owned(), status, manifest, summary, steps, evals })
    }

    /// The figures of the run.
    #[must_use]
    pub fn figures(&self) -> RunFigures {
        let skip = self.manifest.continued_from.as_ref().map_or(0, |c| c.step);
        let own = self.steps.iter().filter(|p| p.step > skip);
        let mut speeds: Vec<f64> = own.map(|p| p.tokens_per_second).filter(|x| x.is_finite()).collect();
        let last = |of: fn(&EvalLine) -> Option<f64>| self.evals.iter().rev().find_map(of);
        let losses = self.evals.iter().filter_map(|e| e.val_loss);
        let summary = self.summary.as_ref();
        RunFigures {
            steps: self.steps.last().map_or(0, |p| p.step),
            train_loss: self.steps.last().map(|p| p.loss).filter(|x| x.is_finite()),
            val_loss: last(|e| e.val_loss),
            best_val_loss: losses.min_by(f64::total_cmp),
            hellaswag_acc: last(|e| e.hellaswag_acc),
            hellaswag_acc_norm: last(|e| e.hellaswag_acc_norm),
            tokens_per_second: median(&mut speeds),
            peak_memory_bytes: summary.and_then(|s| s.peak_rss_bytes),
            wall_seconds: summary.map(|s| s.wall_seconds),
            final_hash: summary.and_then(|s| s.final_hash.clone()),
            weights_hash: summary.and_then(|s| s.weights_hash.clone()),
        }
    }
}
