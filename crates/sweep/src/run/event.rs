//! The events of a running sweep.

use std::path::Path;
use std::time::Duration;

use runner_threads::stop::StopReason;
use serde::Serialize;

use super::point_process::ReportedProgress;
use crate::summary::{LeadingSetting, SweepSummary};

/// An event of a sweep. Those that are not skipped are the lines of `runner sweep --json`. Points are numbered from 1.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SweepEvent<'a> {
    /// The first event. `runs` counts the points without duplicates, `done` those that need no work, and `begun` those that have a run.
    Sweep {
        id: &'a str,
        path: &'a Path,
        points: usize,
        runs: usize,
        done: usize,
        #[serde(skip)]
        begun: usize,
    },
    Started {
        point: usize,
        from: u64,
        until: u64,
        steps: u64,
    },
    /// The run of the point begins with the first `steps` steps of the point `trunk`, which computes them to the same bits.
    Branched {
        point: usize,
        trunk: usize,
        steps: u64,
    },
    /// The point has done the steps to its next rung; `done` if these are all its steps.
    Finished {
        point: usize,
        step: u64,
        objective: Option<f64>,
        done: bool,
        run: Option<&'a str>,
    },
    /// `again` if the point is retried, for the `attempt`th time of at most `retries`.
    Failed {
        point: usize,
        error: &'a str,
        log: &'a Path,
        again: bool,
        #[serde(skip)]
        attempt: u32,
        #[serde(skip)]
        retries: u32,
    },
    /// Another setting leads: its first point, and its mean over `seeds` seeds.
    Leader {
        point: usize,
        objective: f64,
        seeds: usize,
    },
    /// The last event: all rows, the best first.
    Summary {
        status: SweepOutcome,
        /// True if nothing was to do, and the points are those that the file makes now.
        up_to_date: bool,
        /// The files and the environment variables that the points were made from and that have changed since.
        changed_inputs: &'a [String],
        #[serde(flatten)]
        summary: &'a SweepSummary,
    },
    /// Another process works on the point's run.
    #[serde(skip)]
    Waiting {
        point: usize,
        run: Option<&'a str>,
    },
    #[serde(skip)]
    Warning(&'a str),
    /// Comes many times a second.
    #[serde(skip)]
    Progress(&'a DriveProgress),
}

/// The outcome of the work on a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SweepOutcome {
    Done,
    /// Some points failed.
    Failed,
    Interrupted(StopReason),
}

/// The points that are running, and how far the whole sweep is.
#[derive(Debug)]
pub struct DriveProgress {
    pub running: Vec<RunningPoint>,
    pub done: usize,
    /// The points that have a result at a rung and neither run nor are done: they were stopped early, or wait for their promotion.
    pub judged: usize,
    pub failed: usize,
    pub queued: usize,
    pub leader: Option<LeadingSetting>,
    /// The share of the work that is done, from 0 to 1.
    pub share: f64,
    /// The predicted time until the end, at the speed so far.
    pub remaining: Option<Duration>,
}

/// A point that is running.
#[derive(Debug)]
pub struct RunningPoint {
    pub index: usize,
    pub steps: u64,
    pub progress: ReportedProgress,
}

/// Receives the events of a sweep. It cannot fail and must not block.
pub trait SweepObserver {
    fn observe(&mut self, event: &SweepEvent<'_>);
}
