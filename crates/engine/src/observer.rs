//! What a run tells its caller while it is prepared, trained and closed.

use std::path::Path;

use runner_data::Progress;
use runner_spec::event::Event;
use runner_store::summary::Summary;

use crate::drift::Drift;

/// One thing that happens on the way from an experiment to its finished record, in order.
#[derive(Debug)]
pub enum RunEvent<'a> {
    /// Data is being downloaded, read or tokenized.
    Preparing(Progress),
    /// The data is ready.
    Prepared,
    /// Something that a person should know.
    Note(&'a str),
    /// Something that a person should see, even if they do not read notes.
    Warning(&'a str),
    /// The training begins after `step` of `steps` steps. `text` says which run it is, and whether it is new or resumed; one step
    /// in `log_every` is worth a line.
    Begin { run: &'a Path, text: &'a str, step: u64, steps: u64, log_every: u64 },
    /// An event of the training.
    Training { run: &'a Path, event: &'a Event },
    /// The run's work in this process is over and recorded, or there was nothing to do (`up_to_date`). `name` is what other
    /// commands call the run.
    End { run: &'a Path, name: &'a str, summary: Option<&'a Summary>, up_to_date: bool, failed: bool },
    /// What has changed since a run that is about to be reproduced was made.
    Drift { run: &'a Path, drift: &'a Drift },
}

/// Hears of a run from its preparation to its end. It cannot fail and must not block: the record does not depend on it.
pub trait RunObserver: Send {
    fn observe(&mut self, event: &RunEvent<'_>);
}

/// Hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl RunObserver for Silent {
    fn observe(&mut self, _: &RunEvent<'_>) {}
}
