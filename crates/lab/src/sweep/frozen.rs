//! `sweep.json`: what a sweep is, fixed when it starts. How far it has come is in its points' run directories.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::point::{ExpandedPoint, PointValues, ordered};
use super::schedule::{PointTask, PromotionRule, ScheduleDecision, SegmentResult, TrainingSegment, decide};
use super::spec::{AshaSettings, Goal, Objective};

/// Version of the file.
pub const FORMAT: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    pub format: u32,
    /// The folder's name.
    pub id: String,
    pub name: String,
    /// RFC 3339, UTC.
    pub created: String,
    /// Of this program.
    pub version: String,
    /// The sweep file, absolute; its text is beside this file.
    pub file: PathBuf,
    /// The other files that the points were made of: base or template, its includes.
    pub sources: Vec<SourceHash>,
    /// `--set` flags of the command.
    pub overrides: Vec<String>,
    /// The `RUNNER_…` variables that were read.
    pub environment: BTreeMap<String, String>,
    pub objective: Objective,
    pub early_stop: Option<AshaSettings>,
    /// Runs at once that early stopping reckons with: which points go on depends on it.
    pub workers: usize,
    /// Points that `exclude` left out.
    pub excluded: usize,
    pub points: Vec<PlannedPoint>,
}

/// A file as it was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHash {
    pub path: PathBuf,
    pub blake3: String,
}

/// A point, planned.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedPoint {
    /// From 1: the number of its file.
    pub index: usize,
    #[serde(with = "ordered")]
    pub values: PointValues,
    /// Its experiment's name.
    pub name: String,
    pub plan_hash: String,
    /// The earlier point that is the same run.
    pub same_as: Option<usize>,
    pub steps: u64,
    /// Steps after which it is judged; the last is all of them.
    pub rungs: Vec<u64>,
    pub tokens_per_step: u64,
    pub parameters: u64,
    /// Planned, of all its ranks, in bytes.
    pub memory_bytes: u64,
    pub flops_per_step: f64,
    /// Predicted; `None` where the machine was not calibrated.
    pub step_seconds: Option<f64>,
    /// Ranks, and how many CUDA devices it must see.
    pub ranks: usize,
    pub cuda_devices: usize,
}

impl PlannedPoint {
    /// As it was expanded.
    #[must_use]
    pub fn point(&self) -> ExpandedPoint {
        ExpandedPoint { index: self.index, values: self.values.clone() }
    }

    /// `lr=0.001 layers=2`.
    #[must_use]
    pub fn words(&self) -> String {
        words(&self.values)
    }
}

/// `lr=0.001 layers=2`, safe to show.
#[must_use]
pub fn words(values: &PointValues) -> String {
    let one = |(name, value): &(String, serde_json::Value)| format!("{name}={}", super::overlay::text(value));
    runner_spec::format::printable(&values.iter().map(one).collect::<Vec<_>>().join(" ")).replace('\n', " ")
}

/// What the scheduler works with: the points that are runs of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepTasks {
    pub tasks: Vec<PointTask>,
    /// Of each task, its place in `SweepRecord::points`.
    pub points: Vec<usize>,
    pub rule: PromotionRule,
    /// Whether a step's cost is in seconds.
    pub seconds: bool,
}

impl SweepRecord {
    /// The points that are runs of their own, as tasks. Costs are predicted seconds if all of them are known, else FLOPs.
    #[must_use]
    pub fn tasks(&self) -> SweepTasks {
        let distinct = || self.points.iter().enumerate().filter(|(_, p)| p.same_as.is_none());
        let seconds = distinct().all(|(_, p)| p.step_seconds.is_some());
        let task = |p: &PlannedPoint| PointTask {
            step_cost: positive(if seconds { p.step_seconds.unwrap_or(1.0) } else { p.flops_per_step }),
            rungs: p.rungs.clone(),
        };
        SweepTasks {
            tasks: distinct().map(|(_, p)| task(p)).collect(),
            points: distinct().map(|(i, _)| i).collect(),
            rule: PromotionRule { goal: self.objective.goal, reduction: self.early_stop.map(|asha| asha.reduction) },
            seconds,
        }
    }

    /// Runs at once: what the sweep began with where results decide, else as many as are wanted now.
    #[must_use]
    pub fn workers(&self, parallel: usize) -> usize {
        if self.early_stop.is_some() { self.workers } else { parallel }.max(1)
    }

    /// The point with this number.
    #[must_use]
    pub fn point(&self, index: usize) -> Option<&PlannedPoint> {
        self.points.iter().find(|p| p.index == index)
    }
}

fn positive(cost: f64) -> f64 {
    if cost.is_finite() && cost > 0.0 { cost } else { 1.0 }
}

impl SweepTasks {
    /// What is to be done, given what was found: with early stopping at most `workers` at once, else all that is left, in
    /// order. Where no result decides anything, there is none to wait for.
    #[must_use]
    pub fn decide(&self, workers: usize, found: &dyn Fn(usize, usize) -> Option<SegmentResult>) -> ScheduleDecision {
        if self.rule.reduction.is_some() {
            return decide(&self.tasks, workers, self.rule, found);
        }
        let last = |(task, t): (usize, &PointTask)| {
            let rung = t.rungs.len().checked_sub(1)?;
            Some(TrainingSegment { task, rung, until: t.rungs[rung] })
        };
        let order: Vec<TrainingSegment> = self.tasks.iter().enumerate().filter_map(last).collect();
        let due: Vec<TrainingSegment> = order.iter().filter(|s| found(s.task, s.rung).is_none()).copied().collect();
        ScheduleDecision { over: due.is_empty(), due, virtual_end: 0.0, order }
    }

    /// The whole sweep as it would go if what is not found yet came out in the order of the points.
    #[must_use]
    pub fn expected(&self, workers: usize, found: &dyn Fn(usize, usize) -> Option<SegmentResult>) -> ScheduleDecision {
        let sign = if self.rule.goal == Goal::Minimize { 1.0 } else { -1.0 };
        let assumed = |task: usize, rung: usize| found(task, rung).or(Some(SegmentResult::Value(sign * task as f64)));
        decide(&self.tasks, workers, self.rule, &assumed)
    }

    /// Steps of a segment.
    #[must_use]
    pub fn steps(&self, segment: &TrainingSegment) -> u64 {
        let rungs = &self.tasks[segment.task].rungs;
        let before = segment.rung.checked_sub(1).and_then(|rung| rungs.get(rung)).copied().unwrap_or(0);
        segment.until.saturating_sub(before)
    }

    /// Steps of all tasks, if none is stopped early.
    #[must_use]
    pub fn all_steps(&self) -> u64 {
        self.tasks.iter().filter_map(|task| task.rungs.last()).fold(0, |sum, &steps| sum.saturating_add(steps))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::sweep;

    #[test]
    fn duplicates_are_no_tasks() {
        let tasks = sweep().tasks();
        assert_eq!((tasks.tasks.len(), tasks.points.as_slice(), tasks.seconds), (2, [0, 1].as_slice(), false));
        assert_eq!((tasks.tasks[0].step_cost, tasks.all_steps()), (1e6, 80));
        let segment = |rung, until| TrainingSegment { task: 0, rung, until };
        assert_eq!([segment(0, 10), segment(2, 40)].map(|s| tasks.steps(&s)), [10, 20]);
    }

    #[test]
    fn predicted_seconds_are_the_cost_where_all_are_known() {
        let mut frozen = sweep();
        frozen.points[0].step_seconds = Some(0.5);
        assert!(!frozen.tasks().seconds);
        frozen.points[1].step_seconds = Some(f64::NAN);
        let tasks = frozen.tasks();
        assert_eq!((tasks.seconds, tasks.tasks[0].step_cost, tasks.tasks[1].step_cost), (true, 0.5, 1.0));
    }

    #[test]
    fn without_early_stopping_nothing_waits_for_a_result() {
        let mut frozen = sweep();
        frozen.early_stop = None;
        frozen.points.iter_mut().for_each(|p| p.rungs = vec![40]);
        let tasks = frozen.tasks();
        // The second is there, though in a simulation it would be long at work.
        let found = |task: usize, _| (task == 1).then_some(SegmentResult::Value(1.0));
        let decision = tasks.decide(1, &found);
        assert_eq!((decision.due, decision.over), (vec![TrainingSegment { task: 0, rung: 0, until: 40 }], false));
        assert!(tasks.decide(1, &|_, _| Some(SegmentResult::Failed)).over);
        assert_eq!(tasks.decide(1, &|_, _| None).due.len(), 2);
    }

    #[test]
    fn early_stopping_goes_on_with_what_it_began_with() {
        let mut frozen = sweep();
        assert_eq!(frozen.workers(8), 2);
        frozen.early_stop = None;
        assert_eq!((frozen.workers(8), frozen.workers(0)), (8, 1));
    }

    #[test]
    fn values_in_words() {
        assert_eq!(sweep().points[1].words(), "lr=0.01 layers=2");
        assert_eq!(words(&vec![("a".to_owned(), json!("x\u{1b}[2J"))]), "a=x\u{fffd}[2J");
    }
}
