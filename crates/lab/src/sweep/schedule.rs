//! Which point is trained how far, and when: asynchronous successive halving that decides by results alone.
//!
//! The rule is ASHA's (Li et al. 2020, "A system for massively parallel hyperparameter tuning", algorithm 2): a worker that has
//! nothing to do promotes a task that is among the best of its rung, from the highest rung down, or else starts a new one.
//! There, what is known at that moment depends on how fast the machine happens to be. Here the moments are those of a
//! simulation: virtual workers, on which a step takes its task's virtual cost. A result counts from its virtual end on, however
//! early it is there, and the simulation waits for one that is not. So the same results lead to the same decisions, on any
//! machine, after any interruption; the price is that a real worker waits at times where ASHA's would not.
//!
//! Running what is due, and asking again when something ends, is others' work.

use std::cmp::Ordering;

use super::spec::{AshaSettings, Goal};

/// A point, as the scheduler sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct PointTask {
    /// Virtual cost of one step, such as planned FLOPs or predicted seconds; positive and finite (else it counts as 1).
    pub step_cost: f64,
    /// Steps after which it is judged, ascending; the last is all of them.
    pub rungs: Vec<u64>,
}

/// What a segment ended with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SegmentResult {
    /// The objective at its rung.
    Value(f64),
    Failed,
}

/// The steps of a task from one rung to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrainingSegment {
    /// Index into the tasks.
    pub task: usize,
    /// Index into the task's rungs; it begins where the rung below ends. Without early stop the last one, from step 0.
    pub rung: usize,
    /// The task's step at its end.
    pub until: u64,
}

/// How tasks are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromotionRule {
    pub goal: Goal,
    /// One of how many goes on to the next rung; `None`: every task does all its steps, in one segment.
    pub reduction: Option<u64>,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleDecision {
    /// To be running now, in the order of their virtual start; at most as many as there are workers.
    pub due: Vec<TrainingSegment>,
    /// Whether nothing runs and nothing can be started.
    pub over: bool,
    /// The virtual time that was reached; once it is over, that of the last end.
    pub virtual_end: f64,
    /// All that was ever started, in virtual order. With more findings it only grows.
    pub order: Vec<TrainingSegment>,
}

/// What to run, given what was found so far: `found(task, rung)`, asked only for segments that were started.
///
/// Ends are handled in the order of (virtual end, worker). Of equal values the task with the lower index is better; NaN and
/// `Failed` are worse than any number, count among the findings of their rung, and are never promoted. A task whose last rung
/// this is counts, too, and has nowhere to go.
#[must_use]
pub fn decide(
    tasks: &[PointTask],
    workers: usize,
    rule: PromotionRule,
    found: &dyn Fn(usize, usize) -> Option<SegmentResult>,
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
            return ScheduleDecision { due: Vec::new(), over: true, virtual_end: now, order: state.order };
        };
        let Some(finding) = found(first.segment.task, first.segment.rung) else {
            let mut waiting: Vec<RunningSegment> = workers.into_iter().flatten().collect();
            waiting.sort_by_key(|running| running.started);
            let due = waiting.iter().map(|r| r.segment).filter(|s| found(s.task, s.rung).is_none()).collect();
            return ScheduleDecision { due, over: false, virtual_end: now, order: state.order };
        };
        *worker = None;
        now = first.end;
        state.learn(first.segment, finding);
    }
}

/// The steps at which a point of `total` steps is judged: min_steps·reduction^k below `total`, each rounded up to a multiple of
/// `multiple` (the evaluation interval), and `total`.
#[must_use]
pub fn rungs(asha: &AshaSettings, total: u64, multiple: u64) -> Vec<u64> {
    let mut out = Vec::new();
    let mut at = Some(asha.min_steps.max(1));
    while let Some(step) = at.filter(|&step| step < total) {
        match step.checked_next_multiple_of(multiple.max(1)) {
            Some(rounded) if rounded < total => {
                if out.last() != Some(&rounded) {
                    out.push(rounded);
                }
            }
            _ => break,
        }
        at = step.checked_mul(asha.reduction.max(2));
    }
    out.push(total);
    out
}

/// A segment on a virtual worker.
#[derive(Clone, Copy)]
struct RunningSegment {
    segment: TrainingSegment,
    end: f64,
    /// Its number among all that were started.
    started: usize,
}

struct Simulation<'t> {
    tasks: &'t [PointTask],
    rule: PromotionRule,
    /// The first task that was not looked at yet.
    next: usize,
    rungs: Vec<RungResults>,
    order: Vec<TrainingSegment>,
}

/// What is known at a rung, each list with the best first.
#[derive(Default)]
struct RungResults {
    all: Vec<RankedTask>,
    /// Those that can be promoted and were not.
    waiting: Vec<RankedTask>,
}

/// A task among the others at a rung; the smaller the better.
#[derive(Clone, Copy)]
struct RankedTask {
    bad: bool,
    /// Negated where more is better; 0 for a bad one.
    value: f64,
    task: usize,
}

impl RankedTask {
    fn new(goal: Goal, finding: SegmentResult, task: usize) -> Self {
        match finding {
            // Adding zero makes -0 and 0 equal.
            SegmentResult::Value(value) if !value.is_nan() => {
                let value = if goal == Goal::Minimize { value } else { -value };
                Self { bad: false, value: value + 0.0, task }
            }
            SegmentResult::Value(_) | SegmentResult::Failed => Self { bad: true, value: 0.0, task },
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        self.bad.cmp(&other.bad).then(self.value.total_cmp(&other.value)).then(self.task.cmp(&other.task))
    }

    fn insert_into(self, list: &mut Vec<Self>) {
        let at = list.partition_point(|other| other.order(&self).is_lt());
        list.insert(at, self);
    }
}

impl Simulation<'_> {
    /// What a worker does that has nothing to do.
    fn choose(&mut self) -> Option<TrainingSegment> {
        self.promote().or_else(|| self.start())
    }

    fn promote(&mut self) -> Option<TrainingSegment> {
        let reduction = usize::try_from(self.rule.reduction?.max(1)).unwrap_or(usize::MAX);
        for (rung, found) in self.rungs.iter_mut().enumerate().rev() {
            let Some(best) = found.waiting.first().copied() else { continue };
            // All that are better than the best that waits were promoted, so it is the only one to look at.
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
            // One without steps has nothing to run.
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
        let PointTask { step_cost, rungs } = &self.tasks[segment.task];
        let from = match (self.rule.reduction, segment.rung) {
            (None, _) | (_, 0) => 0,
            (Some(_), rung) => rungs[rung - 1],
        };
        let step_cost = if step_cost.is_finite() && *step_cost > 0.0 { *step_cost } else { 1.0 };
        segment.until.saturating_sub(from) as f64 * step_cost
    }

    fn learn(&mut self, segment: TrainingSegment, finding: SegmentResult) {
        if self.rungs.len() <= segment.rung {
            self.rungs.resize_with(segment.rung + 1, RungResults::default);
        }
        let rung = &mut self.rungs[segment.rung];
        let rank = RankedTask::new(self.rule.goal, finding, segment.task);
        rank.insert_into(&mut rung.all);
        if !rank.bad && segment.rung + 1 < self.tasks[segment.task].rungs.len() {
            rank.insert_into(&mut rung.waiting);
        }
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
