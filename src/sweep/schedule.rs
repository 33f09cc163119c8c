//! Which point is trained how far, and when: asynchronous successive halving that decides by results alone.

use super::spec::{Asha, Goal};

/// A point, as the scheduler sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Virtual cost of one step, such as planned FLOPs or predicted seconds; positive and finite.
    pub step_cost: f64,
    /// Steps after which it is judged, ascending; the last is all of them.
    pub rungs: Vec<u64>,
}

/// What a segment ended with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Finding {
    /// The objective at its rung.
    Value(f64),
    Failed,
}

/// The steps of a task from one rung to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Index into the tasks.
    pub task: usize,
    /// Index into the task's rungs; the steps before it are those of the rung below.
    pub rung: usize,
    /// The task's step at its end.
    pub until: u64,
}

/// How tasks are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    pub goal: Goal,
    /// One of how many goes on to the next rung; `None` for no early stop.
    pub reduction: Option<u64>,
}

/// What is to be done now.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// To be running now, in the order of their virtual start; at most as many as there are workers.
    pub due: Vec<Segment>,
    /// Whether nothing runs and nothing can be started.
    pub over: bool,
    /// The virtual time that was reached.
    pub virtual_end: f64,
    /// All that was ever started, in virtual order.
    pub order: Vec<Segment>,
}

/// What to run, given what was found so far: `found(task, rung)`.
#[must_use]
pub fn decide(tasks: &[Task], workers: usize, rule: Rule, found: &dyn Fn(usize, usize) -> Option<Finding>) -> Decision {
    let _ = (tasks, workers, rule, found);
    Decision { due: Vec::new(), over: true, virtual_end: 0.0, order: Vec::new() }
}

/// The steps at which a point of `total` steps is judged: min_steps·reduction^k below `total`, each rounded up to a multiple of
/// `multiple` (the evaluation interval), and `total`.
#[must_use]
pub fn rungs(asha: &Asha, total: u64, multiple: u64) -> Vec<u64> {
    let _ = (asha, multiple);
    vec![total]
}
