//! What `runner sweep --json` tells: one object a line.

use std::path::Path;

use serde::Serialize;

use runner_lab::sweep::{Importance, Results};

/// One line of standard output. Points count from 1.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum SweepEvent<'a> {
    /// The first line: `runs` are the points that are runs of their own, `done` those that need no work.
    Sweep {
        id: &'a str,
        path: &'a Path,
        points: usize,
        runs: usize,
        done: usize,
    },
    Started {
        point: usize,
        from: u64,
        until: u64,
        steps: u64,
    },
    /// It did the steps to where it is judged; `done` if those are all.
    Finished {
        point: usize,
        step: u64,
        objective: Option<f64>,
        done: bool,
        run: Option<&'a str>,
    },
    /// `again` if it is tried once more.
    Failed {
        point: usize,
        error: &'a str,
        log: &'a Path,
        again: bool,
    },
    Best {
        point: usize,
        objective: f64,
    },
    /// The last line but one of a sweep that came to its end: those that were judged and do not go on.
    Stopped {
        points: &'a [usize],
    },
    /// The last line: all rows, the best first.
    Summary {
        status: Outcome,
        up_to_date: bool,
        results: &'a Results,
        importance: &'a [Importance],
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Done,
    /// Some points failed.
    Failed,
    Interrupted,
}
