//! The record of a run, read once: its path, manifest, summary and metrics.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::planned_experiment::{PlannedExperiment, cluster_of};
use super::stored_plan;
use runner_plan::PlanError;
use runner_record::catalog::ListedStatus;
use runner_record::manifest::Manifest;
use runner_record::metrics::{MetricLine, TrainLine};
use runner_record::record_check::{describe_changed_descriptions, for_each_checked_metric};
use runner_record::run_dir;
use runner_record::summary::{Summary, median};
use runner_spec::error::Result;
use runner_spec::event::Evaluation;
use runner_spec::experiment::Experiment;
use runner_spec::measure::{Measured, serialize_with_nulls};
use runner_spec::plan::Plan;

/// The record of a run.
#[derive(Debug, Clone)]
pub struct RunRecord {
    pub path: PathBuf,
    pub status: ListedStatus,
    pub manifest: Manifest,
    /// `None` if the run was resumed since, or has no summary.
    pub summary: Option<Summary>,
    /// The lines of the metrics.
    pub lines: Vec<MetricLine>,
    /// Warnings about what is damaged, missing or changed.
    pub problems: Vec<String>,
}

/// The figures of a run; `None` if not measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct RunFigures {
    /// Optimizer steps, valid tokens and seconds that the model was trained for, inherited steps included: the losses follow from all of
    /// them. `own_…` are the amounts of the run itself.
    pub steps: u64,
    pub own_steps: u64,
    pub tokens: Option<u64>,
    pub own_tokens: Option<u64>,
    pub wall_seconds: Option<f64>,
    pub own_wall_seconds: Option<f64>,
    pub train_loss: Option<f64>,
    /// The last evaluations: of the loss, and of each task.
    #[serde(flatten, serialize_with = "serialize_with_nulls")]
    pub evaluated: Measured,
    pub best_val_loss: Option<f64>,
    /// The loss of the best checkpoint on the test data.
    pub test_loss: Option<f64>,
    /// The median over the steps in the newest layout.
    pub tokens_per_second: Option<f64>,
    pub peak_memory_bytes: Option<u64>,
    pub final_hash: Option<String>,
    pub weights_hash: Option<String>,
}

/// The experiment and the plan of the run in `path`.
///
/// # Errors
/// `RecordError` for the plan, `ConfigError` for `resolved.yaml`.
pub fn read_experiment_and_plan(path: &Path) -> Result<(Experiment, Plan)> {
    let plan = stored_plan::read(path)?;
    Ok((stored_plan::resolved_experiment(path)?, plan))
}

/// Plans the experiment of a recorded run again with this version, on its data and devices.
///
/// # Errors
/// If they can no longer be planned.
pub fn plan_again(experiment: Experiment, stored: &Plan) -> Result<PlannedExperiment, PlanError> {
    PlannedExperiment::new(experiment, stored.data.clone(), cluster_of(stored))
}

impl RunRecord {
    /// Reads the run directory `path`, which is listed with `status`.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(path: &Path, status: ListedStatus) -> Result<Self> {
        let manifest = run_dir::read_manifest(path)?;
        let (summary, unreadable) = match run_dir::read_summary(path) {
            Ok(summary) => (summary, None),
            Err(error) => (None, Some(format!("skipped: {error}"))),
        };
        let summary = summary.filter(|s| s.is_current(manifest.status));
        let mut lines = Vec::new();
        let problem = for_each_checked_metric(path, &manifest, summary.as_ref(), &mut |line| lines.push(line))?;
        let problems =
            unreadable.or(problem).into_iter().chain(describe_changed_descriptions(path, &manifest)).collect();
        Ok(Self { path: path.to_owned(), status, manifest, summary, lines, problems })
    }

    /// The optimizer steps.
    pub fn steps(&self) -> impl Iterator<Item = &TrainLine> {
        self.lines.iter().filter_map(|line| match line {
            MetricLine::Train(step) => Some(step),
            MetricLine::Eval(_) => None,
        })
    }

    /// The step after which the run changed to its newest layout, in which its speed is measured; `None` if it has had one layout.
    #[must_use]
    pub fn moved_after(&self) -> Option<u64> {
        Some(self.manifest.newest_layout_began()).filter(|began| *began > self.manifest.inherited_steps())
    }

    /// The figures of the run.
    #[must_use]
    pub fn figures(&self) -> RunFigures {
        let skip = self.manifest.foreign_steps();
        let timed = self.steps().filter(|step| step.step > self.manifest.newest_layout_began());
        let mut speeds: Vec<f64> = timed.filter_map(|step| step.tokens_per_second).collect();
        let evaluations = || {
            self.lines.iter().filter_map(|line| match line {
                MetricLine::Train(_) => None,
                MetricLine::Eval(evaluation) => Some(evaluation),
            })
        };
        let mut evaluated = Measured::default();
        evaluations().for_each(|evaluation| evaluated.update(&evaluation.measured));
        // An evaluation of weights that another plan led to is not this run's best.
        let losses = evaluations().filter(|e| skip == 0 || e.step > skip).filter_map(Evaluation::val_loss);
        let last_step = self.steps().last();
        let summary = self.summary.as_ref();
        let own = summary.map(|summary| summary.own);
        let steps = summary.map_or_else(|| last_step.map_or(0, |step| step.step), |s| s.steps);
        RunFigures {
            steps,
            own_steps: steps.saturating_sub(self.manifest.inherited_steps()),
            tokens: summary.map(|s| s.tokens),
            own_tokens: own.map(|own| own.tokens),
            wall_seconds: summary.map(|s| s.wall_seconds),
            own_wall_seconds: own.map(|own| own.wall_seconds),
            train_loss: summary.map_or_else(|| last_step.and_then(|step| step.loss), |s| s.final_train_loss),
            evaluated,
            best_val_loss: losses.min_by(f64::total_cmp),
            test_loss: summary.and_then(|s| s.test.as_ref()).map(|test| test.loss),
            tokens_per_second: median(&mut speeds),
            peak_memory_bytes: summary.and_then(|s| s.peak_rss_bytes),
            final_hash: summary.and_then(|s| s.final_hash.clone()),
            weights_hash: summary.and_then(|s| s.weights_hash.clone()),
        }
    }
}
