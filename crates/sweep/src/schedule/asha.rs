//! The schedule of a sweep: asynchronous successive halving (ASHA) that depends on results alone, not on the machine's speed.
//!
//! The rule is ASHA's (Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2): an idle worker
//! promotes a task that is among the best of its rung, from the highest rung down, or else starts a new task. In ASHA the results
//! that are known at that moment depend on the speed of the machine. Here the moments are those of a simulation with virtual
//! workers, on which a step takes the virtual cost of its task. A result counts from its virtual end on, even if it is known
//! earlier, and the simulation waits for a result that is missing. So the same results lead to the same decisions, on any machine
//! and after any interruption. In exchange, a real worker sometimes waits where ASHA's would not.
//!
//! This module only decides. The engine runs the segments that are due, and asks again when one ends.

use std::cmp::Ordering;

use crate::spec::{AshaSettings, Goal, MilestoneUnit, steps_to};
use runner_spec::plan::Pace;

/// A point without its parameters, for the scheduler.
#[derive(Debug, Clone, PartialEq)]
pub struct PointTask {
    /// The virtual cost of one step, such as planned FLOPs or predicted seconds. A cost that is not positive and finite counts as 1.
    pub step_cost: f64,
    /// The steps after which the task is judged, ascending. The last one ends it.
    pub rungs: Vec<u64>,
    /// The first steps, which another task trains for this one. 0 with early stopping.
    pub shared: u64,
}

/// The result of a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SegmentResult {
    /// The objective at the segment's rung.
    Value(f64),
    Failed,
}

/// The steps of a task from one rung to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrainingSegment {
    /// Index into the tasks.
    pub task: usize,
    /// Index into the task's rungs. The segment starts where the rung below ends; without early stopping it starts at step 0 and
    /// its rung is the last one.
    pub rung: usize,
    /// The last step of the segment.
    pub until: u64,
}

/// The rule by which tasks are promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromotionRule {
    pub goal: Goal,
    /// One of this many tasks is promoted to the next rung. `None`: every task does all its steps, in one segment.
    pub reduction: Option<u64>,
}

/// The segments that are due, and the state of the simulation that decided on them.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleDecision {
    /// The segments that should be running now, in the order of their virtual start; at most as many as there are workers.
    pub due: Vec<TrainingSegment>,
    /// True if nothing runs and nothing can be started.
    pub is_finished: bool,
    /// The virtual time that the simulation reached.
    pub virtual_end: f64,
    /// All segments that were started, in virtual order. With more results the list only grows.
    pub order: Vec<TrainingSegment>,
}

/// Decides which segments to run, given the results so far. `result_of(task, rung)` is called only for segments that were started.
///
/// Segments end in the order of (virtual end, worker). Of equal values the task with the lower index is better. NaN and `Failed` are
/// worse than any number, count among the results of their rung, and are never promoted. A task at its last rung counts too, and is
/// not promoted.
#[must_use]
pub fn decide(
    tasks: &[PointTask],
    workers: usize,
    rule: PromotionRule,
    result_of: &dyn Fn(usize, usize) -> Option<SegmentResult>,
) -> ScheduleDecision {
    let mut state = Simulation { tasks, rule, next: 0, rungs: Vec::new(), order: Vec::new() };
    let mut workers: Vec<Option<RunningSegment>> = vec![None; workers.max(1)];
    let mut now = 0.0;
    loop {
        for worker in workers.iter_mut().filter(|w| w.is_none()) {
            let Some(segment) = state.choose() else { break };
            *worker = Some(RunningSegment { segment, end: now + state.cost(segment), started: state.order.len() });
            state.order.push(segment);
        }
        // `min_by` takes the first of equals: the lower worker.
        let ends = workers.iter_mut().filter_map(|w| w.map(|running| (running, w)));
        let Some((first, worker)) = ends.min_by(|(a, _), (b, _)| a.end.total_cmp(&b.end)) else {
            return ScheduleDecision { due: Vec::new(), is_finished: true, virtual_end: now, order: state.order };
        };
        let Some(result) = result_of(first.segment.task, first.segment.rung) else {
            let mut waiting: Vec<RunningSegment> = workers.into_iter().flatten().collect();
            waiting.sort_by_key(|running| running.started);
            let due = waiting.iter().map(|r| r.segment).filter(|s| result_of(s.task, s.rung).is_none()).collect();
            return ScheduleDecision { due, is_finished: false, virtual_end: now, order: state.order };
        };
        *worker = None;
        now = first.end;
        state.add_result(first.segment, result);
    }
}

/// `cost` if it is positive and finite, else 1.
pub(crate) fn valid_step_cost(cost: f64) -> f64 {
    if cost.is_finite() && cost > 0.0 { cost } else { 1.0 }
}

/// The length of a run and its measurements, from which its rungs follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunLength<'a> {
    pub steps: u64,
    pub pace: &'a Pace,
    /// Steps between measurements of the objective.
    pub every: u64,
}

/// The steps at which a run is judged: for each milestone before its end the first measurement that reaches it, and the last step. Milestones
/// in steps that one measurement reaches are one rung. Milestones in tokens or FLOPs are not, because the same milestone must be the same
/// rung in runs whose steps differ.
#[must_use]
pub fn rungs(asha: &AshaSettings, run: RunLength<'_>) -> Vec<u64> {
    let RunLength { steps: total, pace, every } = run;
    let mut out: Vec<u64> = Vec::new();
    for milestone in asha.milestones() {
        let step = steps_to(milestone, asha.unit, pace, total);
        let rounded = step.and_then(|step| step.checked_next_multiple_of(every.max(1)));
        let Some(rounded) = rounded.filter(|&rounded| rounded < total) else {
            break;
        };
        if asha.unit != MilestoneUnit::Steps || out.last() != Some(&rounded) {
            out.push(rounded);
        }
    }
    out.push(total);
    out
}

/// A segment on a virtual worker.
#[derive(Clone, Copy)]
struct RunningSegment {
    segment: TrainingSegment,
    end: f64,
    /// The number of the segment among all that were started.
    started: usize,
}

struct Simulation<'t> {
    tasks: &'t [PointTask],
    rule: PromotionRule,
    /// The first task that was not considered yet.
    next: usize,
    rungs: Vec<RungResults>,
    order: Vec<TrainingSegment>,
}

/// The tasks with a result at a rung, each list with the best first.
#[derive(Default)]
struct RungResults {
    all: Vec<RankedTask>,
    /// The tasks that can be promoted and were not.
    waiting: Vec<RankedTask>,
}

/// A task in the order of its rung: smaller is better.
#[derive(Clone, Copy)]
struct RankedTask {
    /// True for a failed task and for NaN.
    is_bad: bool,
    /// The objective, negated if higher is better; 0 for a bad task.
    value: f64,
    task: usize,
}

impl RankedTask {
    fn new(goal: Goal, result: SegmentResult, task: usize) -> Self {
        match result {
            // Adding zero makes -0 and 0 equal.
            SegmentResult::Value(value) if !value.is_nan() => {
                let value = if goal == Goal::Minimize { value } else { -value };
                Self { is_bad: false, value: value + 0.0, task }
            }
            SegmentResult::Value(_) | SegmentResult::Failed => Self { is_bad: true, value: 0.0, task },
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.is_bad.cmp(&other.is_bad).then(self.value.total_cmp(&other.value)).then(self.task.cmp(&other.task))
    }

    fn insert_into(self, list: &mut Vec<Self>) {
        let at = list.partition_point(|other| other.order(&self).is_lt());
        list.insert(at, self);
    }
}

impl Simulation<'_> {
    /// The next segment for an idle worker.
    fn choose(&mut self) -> Option<TrainingSegment> {
        self.promote().or_else(|| self.start())
    }

    fn promote(&mut self) -> Option<TrainingSegment> {
        let reduction = usize::try_from(self.rule.reduction?.max(1)).unwrap_or(usize::MAX);
        for (rung, found) in self.rungs.iter_mut().enumerate().rev() {
            let Some(best) = found.waiting.first().copied() else { continue };
            // All better tasks were promoted already, so only the best of the waiting ones can be promoted.
            let better = found.all.partition_point(|other| other.order(&best).is_lt());
            if better < found.all.len() / reduction {
                found.waiting.remove(0);
                return self.segment(best.task, rung + 1);
            }
        }
        None
    }

    fn start(&mut self) -> Option<TrainingSegment> {
        while self.next < self.tasks.len() {
            let task = self.next;
            self.next += 1;
            let rung = match self.rule.reduction {
                Some(_) => 0,
                None => self.tasks[task].rungs.len().saturating_sub(1),
            };
            // A task without steps has nothing to run.
            if let Some(segment) = self.segment(task, rung) {
                return Some(segment);
            }
        }
        None
    }

    fn segment(&self, task: usize, rung: usize) -> Option<TrainingSegment> {
        Some(TrainingSegment { task, rung, until: *self.tasks.get(task)?.rungs.get(rung)? })
    }

    fn cost(&self, segment: TrainingSegment) -> f64 {
        let PointTask { step_cost, rungs, shared } = &self.tasks[segment.task];
        let from = match (self.rule.reduction, segment.rung) {
            (None, _) | (_, 0) => *shared,
            (Some(_), rung) => rungs[rung - 1],
        };
        segment.until.saturating_sub(from) as f64 * valid_step_cost(*step_cost)
    }

    fn add_result(&mut self, segment: TrainingSegment, result: SegmentResult) {
        if self.rungs.len() <= segment.rung {
            self.rungs.resize_with(segment.rung + 1, RungResults::default);
        }
        let rung = &mut self.rungs[segment.rung];
        let rank = RankedTask::new(self.rule.goal, result, segment.task);
        rank.insert_into(&mut rung.all);
        if !rank.is_bad && segment.rung + 1 < self.tasks[segment.task].rungs.len() {
            rank.insert_into(&mut rung.waiting);
        }
    }
}

#[cfg(test)]
mod tests;
