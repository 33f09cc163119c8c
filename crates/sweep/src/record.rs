//! `sweep.json`: the definition of a sweep, fixed when it starts. Its progress is in the run directories of its points.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::point::{PointValues, ordered, value_text};
use super::schedule::{
    PointTask, PromotionRule, ScheduleDecision, SegmentResult, TrainingSegment, decide, valid_step_cost,
};
use super::spec::{AshaSettings, Goal, Objective};

/// Version of the file.
pub const FORMAT: u32 = 1;

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    pub format: u32,
    /// The name of the sweep's folder.
    pub id: String,
    pub name: String,
    /// RFC 3339, UTC.
    pub created: String,
    /// The version of the program that planned the sweep.
    pub version: String,
    /// The absolute path of the sweep file. A copy of its text is in the sweep's folder.
    pub file: PathBuf,
    /// The other files that the points were made from: the experiment, or the template and its includes.
    pub sources: Vec<SourceHash>,
    /// The `--set` flags of the command.
    pub overrides: Vec<String>,
    /// The environment variables that were read.
    pub environment: BTreeMap<String, String>,
    pub objective: Objective,
    pub early_stop: Option<AshaSettings>,
    /// The number of workers in the simulation of early stopping, on which promotions depend.
    pub workers: usize,
    /// The number of points that `exclude` left out.
    pub excluded: usize,
    /// The names of what varies that change nothing but the seed; `None` in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seeds: Option<Vec<String>>,
    pub points: Vec<PlannedPoint>,
}

/// The content hash of a file that points were made from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceHash {
    pub path: PathBuf,
    pub blake3: String,
}

/// A point and the figures of its plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlannedPoint {
    /// The number of the point, from 1.
    pub index: usize,
    #[serde(with = "ordered")]
    pub values: PointValues,
    /// The name of the point's experiment.
    pub name: String,
    pub plan_hash: String,
    /// The number of the earlier point that is the same run.
    pub same_as: Option<usize>,
    pub steps: u64,
    /// The steps after which the point is judged, ascending. The last one is `steps`.
    pub rungs: Vec<u64>,
    pub tokens_per_step: u64,
    pub parameters: u64,
    /// Planned host memory of all ranks.
    pub memory_bytes: u64,
    /// Planned host memory of the rank that needs the most; `None` in records of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank_memory_bytes: Option<u64>,
    pub flops_per_step: f64,
    /// Predicted seconds of a step; `None` if the machine was not calibrated.
    pub step_seconds: Option<f64>,
    /// True if the prediction comes from a calibration while other programs computed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_prediction_disturbed: bool,
    pub ranks: usize,
    /// The number of CUDA devices that the run's processes must see.
    pub cuda_devices: usize,
}

impl PlannedPoint {
    /// `point 3 (lr=0.001 layers=2)`.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("point {} ({})", self.index, describe_values(&self.values))
    }
}

/// `lr=0.001 layers=2`, without control characters.
#[must_use]
pub fn describe_values(values: &PointValues) -> String {
    let pair = |(name, value): &(String, serde_json::Value)| format!("{name}={}", value_text(value));
    runner_spec::format::printable(&values.iter().map(pair).collect::<Vec<_>>().join(" ")).replace('\n', " ")
}

/// The scheduler's view of a sweep: its points without duplicates.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepTasks {
    pub tasks: Vec<PointTask>,
    /// For each task, its position in `SweepRecord::points`.
    pub points: Vec<usize>,
    pub rule: PromotionRule,
    /// True if the cost of a step is in seconds.
    pub seconds: bool,
}

impl SweepRecord {
    /// The points without duplicates, as tasks. Costs are predicted seconds if all of them are known, else FLOPs.
    #[must_use]
    pub fn tasks(&self) -> SweepTasks {
        let distinct = || self.points.iter().enumerate().filter(|(_, p)| p.same_as.is_none());
        let seconds = distinct().all(|(_, p)| p.step_seconds.is_some());
        let task = |p: &PlannedPoint| PointTask {
            step_cost: valid_step_cost(p.step_seconds.filter(|_| seconds).unwrap_or(p.flops_per_step)),
            rungs: p.rungs.clone(),
        };
        SweepTasks {
            tasks: distinct().map(|(_, p)| task(p)).collect(),
            points: distinct().map(|(i, _)| i).collect(),
            rule: PromotionRule { goal: self.objective.goal, reduction: self.early_stop.map(|asha| asha.reduction) },
            seconds,
        }
    }

    /// The number of workers: with early stopping the recorded one, on which decisions depend, else `parallel`.
    #[must_use]
    pub fn workers(&self, parallel: usize) -> usize {
        if self.early_stop.is_some() { self.workers } else { parallel }.max(1)
    }

    /// The names of what varies that change nothing but the seed. In records of older versions, which do not list them, it is the key `seed`.
    #[must_use]
    pub fn seed_names(&self) -> Vec<&str> {
        self.seeds.as_ref().map_or_else(|| vec!["seed"], |seeds| seeds.iter().map(String::as_str).collect())
    }

    /// The point with this number.
    #[must_use]
    pub fn point(&self, index: usize) -> Option<&PlannedPoint> {
        self.points.iter().find(|p| p.index == index)
    }
}

impl SweepTasks {
    /// Decides what is due, given the results so far: with early stopping at most `workers` segments, else every segment without a
    /// result, in order. Without early stopping no decision depends on a result.
    #[must_use]
    pub fn decide(
        &self,
        workers: usize,
        result_of: &dyn Fn(usize, usize) -> Option<SegmentResult>,
    ) -> ScheduleDecision {
        if self.rule.reduction.is_some() {
            return decide(&self.tasks, workers, self.rule, result_of);
        }
        let last = |(task, t): (usize, &PointTask)| {
            let rung = t.rungs.len().checked_sub(1)?;
            Some(TrainingSegment { task, rung, until: t.rungs[rung] })
        };
        let order: Vec<TrainingSegment> = self.tasks.iter().enumerate().filter_map(last).collect();
        let due: Vec<TrainingSegment> = order.iter().filter(|s| result_of(s.task, s.rung).is_none()).copied().collect();
        ScheduleDecision { is_finished: due.is_empty(), due, virtual_end: 0.0, order }
    }

    /// Simulates the rest of the sweep, as if the missing results were in the order of the points.
    #[must_use]
    pub fn simulate_rest(
        &self,
        workers: usize,
        result_of: &dyn Fn(usize, usize) -> Option<SegmentResult>,
    ) -> ScheduleDecision {
        let sign = if self.rule.goal == Goal::Minimize { 1.0 } else { -1.0 };
        let assumed =
            |task: usize, rung: usize| result_of(task, rung).or(Some(SegmentResult::Value(sign * task as f64)));
        decide(&self.tasks, workers, self.rule, &assumed)
    }

    /// The number of steps of a segment.
    #[must_use]
    pub fn steps(&self, segment: &TrainingSegment) -> u64 {
        let rungs = &self.tasks[segment.task].rungs;
        let before = segment.rung.checked_sub(1).and_then(|rung| rungs.get(rung)).copied().unwrap_or(0);
        segment.until.saturating_sub(before)
    }

    /// The number of steps of all tasks, if none is stopped early.
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
        let mut record = sweep();
        record.points[0].step_seconds = Some(0.5);
        assert!(!record.tasks().seconds);
        record.points[1].step_seconds = Some(f64::NAN);
        let tasks = record.tasks();
        assert_eq!((tasks.seconds, tasks.tasks[0].step_cost, tasks.tasks[1].step_cost), (true, 0.5, 1.0));
    }

    #[test]
    fn without_early_stopping_nothing_waits_for_a_result() {
        let mut record = sweep();
        record.early_stop = None;
        record.points.iter_mut().for_each(|p| p.rungs = vec![40]);
        let tasks = record.tasks();
        // The second is there, though in a simulation it would be long at work.
        let found = |task: usize, _| (task == 1).then_some(SegmentResult::Value(1.0));
        let decision = tasks.decide(1, &found);
        assert_eq!(
            (decision.due, decision.is_finished),
            (vec![TrainingSegment { task: 0, rung: 0, until: 40 }], false)
        );
        assert!(tasks.decide(1, &|_, _| Some(SegmentResult::Failed)).is_finished);
        assert_eq!(tasks.decide(1, &|_, _| None).due.len(), 2);
    }

    #[test]
    fn early_stopping_goes_on_with_what_it_began_with() {
        let mut record = sweep();
        assert_eq!(record.workers(8), 2);
        record.early_stop = None;
        assert_eq!((record.workers(8), record.workers(0)), (8, 1));
    }

    #[test]
    fn a_variable_called_seed_is_a_seed_only_in_older_records() {
        let older: SweepRecord = serde_json::from_value(serde_json::to_value(sweep()).unwrap()).unwrap();
        assert_eq!(older.seed_names(), ["seed"]);
        let record = SweepRecord { seeds: Some(Vec::new()), ..older };
        let record: SweepRecord = serde_json::from_value(serde_json::to_value(record).unwrap()).unwrap();
        assert!(record.seed_names().is_empty());
    }

    #[test]
    fn values_are_described() {
        assert_eq!(describe_values(&sweep().points[1].values), "lr=0.01 layers=2");
        assert_eq!(describe_values(&vec![("a".to_owned(), json!("x\u{1b}[2J"))]), "a=x\u{fffd}[2J");
    }
}
