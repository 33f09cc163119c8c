//! The points of a sweep as tasks, and the decisions on them, with early stopping or without it.

use std::collections::BTreeMap;

use super::asha::{
    PointTask, PromotionRule, ScheduleDecision, SegmentResult, TrainingSegment, decide, valid_step_cost,
};
use crate::record::{PlannedPoint, PointSetting, SweepRecord};
use crate::spec::Goal;

/// The scheduler's view of a sweep: its points without duplicates.
#[derive(Debug, Clone, PartialEq)]
pub struct SweepTasks {
    pub tasks: Vec<PointTask>,
    /// For each task, its position in `SweepRecord::points`.
    pub points: Vec<usize>,
    pub rule: PromotionRule,
    /// True if the cost of a step is in seconds.
    pub seconds: bool,
    /// The tasks that early stopping judges together, in the order of their seeds.
    pub settings: Vec<Vec<usize>>,
}

impl SweepRecord {
    /// The points without duplicates, as tasks. Costs are predicted seconds if all of them are known, else FLOPs.
    #[must_use]
    pub fn tasks(&self) -> SweepTasks {
        let distinct = || self.points.iter().enumerate().filter(|(_, p)| p.same_as.is_none());
        let seconds = distinct().all(|(_, p)| p.step_seconds.is_some());
        let task = |p: &PlannedPoint| PointTask {
            step_cost: valid_step_cost(
                p.step_seconds.filter(|_| seconds).unwrap_or_else(|| p.flops() / p.steps.max(1) as f64),
            ),
            rungs: p.rungs.clone(),
            shared: p.trunk.map_or(0, |trunk| trunk.steps),
        };
        let points: Vec<usize> = distinct().map(|(i, _)| i).collect();
        let task_of: BTreeMap<usize, usize> =
            points.iter().enumerate().map(|(task, &i)| (self.points[i].index, task)).collect();
        let members =
            |setting: PointSetting| setting.points.iter().filter_map(|p| task_of.get(&p.point).copied()).collect();
        SweepTasks {
            tasks: distinct().map(|(_, p)| task(p)).collect(),
            points,
            settings: self.settings().into_iter().map(members).collect(),
            rule: PromotionRule { goal: self.objective.goal(), reduction: self.early_stop.map(|asha| asha.reduction) },
            seconds,
        }
    }
}

impl SweepTasks {
    /// Decides what is due, given the results so far: with ASHA the segments of at most `workers` settings, else
    /// every segment without a result, in order. Without early stopping no decision depends on a result.
    #[must_use]
    pub fn decide(
        &self,
        workers: usize,
        result_of: &dyn Fn(usize, usize) -> Option<SegmentResult>,
    ) -> ScheduleDecision {
        if self.rule.reduction.is_some() {
            return self.decide_settings(workers, result_of);
        }
        let last = |(task, t): (usize, &PointTask)| {
            let rung = t.rungs.len().checked_sub(1)?;
            Some(TrainingSegment { task, rung, until: t.rungs[rung] })
        };
        let order: Vec<TrainingSegment> = self.tasks.iter().enumerate().filter_map(last).collect();
        let due: Vec<TrainingSegment> = order.iter().filter(|s| result_of(s.task, s.rung).is_none()).copied().collect();
        ScheduleDecision { is_finished: due.is_empty(), due, virtual_end: 0.0, order }
    }

    /// ASHA over the settings: the result of a setting is the mean over its seeds, once all of them have one.
    fn decide_settings(
        &self,
        workers: usize,
        result_of: &dyn Fn(usize, usize) -> Option<SegmentResult>,
    ) -> ScheduleDecision {
        let cost = |members: &Vec<usize>| members.iter().map(|&task| valid_step_cost(self.tasks[task].step_cost)).sum();
        let rungs =
            |members: &Vec<usize>| members.first().map_or_else(Vec::new, |&task| self.tasks[task].rungs.clone());
        let settings: Vec<PointTask> = self
            .settings
            .iter()
            .map(|members| PointTask { step_cost: cost(members), rungs: rungs(members), shared: 0 })
            .collect();
        let result = |setting: usize, rung: usize| {
            let members = &self.settings[setting];
            let results: Vec<SegmentResult> =
                members.iter().map(|&task| result_of(task, rung)).collect::<Option<Vec<_>>>()?;
            let values = results.iter().map(|result| match result {
                SegmentResult::Value(value) => Some(*value),
                SegmentResult::Failed => None,
            });
            let values: Option<Vec<f64>> = values.collect();
            Some(values.map_or(SegmentResult::Failed, |values| {
                SegmentResult::Value(values.iter().sum::<f64>() / values.len() as f64)
            }))
        };
        // A setting is trained by as many workers as it has seeds.
        let seeds = self.settings.iter().map(Vec::len).max().unwrap_or(1).max(1);
        let decision = decide(&settings, workers.div_ceil(seeds), self.rule, &result);
        let of_members = |segments: Vec<TrainingSegment>| -> Vec<TrainingSegment> {
            let members = |segment: TrainingSegment| {
                self.settings[segment.task].iter().map(move |&task| TrainingSegment { task, ..segment })
            };
            segments.into_iter().flat_map(members).collect()
        };
        let mut due = of_members(decision.due);
        due.retain(|segment| result_of(segment.task, segment.rung).is_none());
        ScheduleDecision { due, order: of_members(decision.order), ..decision }
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
        match self.rule.reduction {
            Some(_) => self.decide_settings(workers, &assumed),
            None => decide(&self.tasks, workers, self.rule, &assumed),
        }
    }

    /// The number of steps of a segment.
    #[must_use]
    pub fn steps(&self, segment: &TrainingSegment) -> u64 {
        let PointTask { rungs, shared, .. } = &self.tasks[segment.task];
        let before = segment.rung.checked_sub(1).and_then(|rung| rungs.get(rung)).copied().unwrap_or(*shared);
        segment.until.saturating_sub(before)
    }

    /// The number of steps of all tasks, if none is stopped early. Shared ones count once.
    #[must_use]
    pub fn all_steps(&self) -> u64 {
        let steps = |task: &PointTask| task.rungs.last().copied().unwrap_or(0).saturating_sub(task.shared);
        self.tasks.iter().fold(0, |sum, task| sum.saturating_add(steps(task)))
    }

    /// The number of steps that are trained by one task for others, as often as they are not trained again.
    #[must_use]
    pub fn shared_steps(&self) -> u64 {
        self.tasks.iter().fold(0, |sum, task| sum.saturating_add(task.shared))
    }
}

#[cfg(test)]
mod tests {
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
}
