//! The events that a run sends to its caller while it is prepared, trained and closed.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use runner_compare::drift::Drift;
use runner_data::Progress;
use runner_record::summary::Summary;
use runner_spec::event::Event;
use runner_spec::experiment::Log;
use runner_spec::plan::Plan;

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
    /// The training of `plan` begins after `step` steps. `text` says which run it is, and whether it is new or resumed; `log` says which
    /// steps are worth a line, and what is in it.
    Begin { run: &'a Path, text: &'a str, step: u64, plan: &'a Plan, log: &'a Log },
    /// An event of the training.
    Training { run: &'a Path, event: &'a Event },
    /// The run's work in this process is over and recorded, or there was nothing to do; `up_to_date` is true if there was nothing to
    /// do and no damage was found. `name` is what other
    /// commands call the run; `interrupted` is true if a signal stopped it.
    End {
        run: &'a Path,
        name: &'a str,
        summary: Option<&'a Summary>,
        up_to_date: bool,
        failed: bool,
        interrupted: bool,
    },
    /// The changes since a run was made that is about to be reproduced.
    Drift { run: &'a Path, drift: &'a Drift },
}

/// Receives the events of a run, from its preparation to its end, in order. It cannot fail: the record does not depend on it.
///
/// The work on the run waits while it handles an event. While ranks train in other processes, a slow observer delays the recording of
/// their reports and the detection of failed ranks.
pub trait RunObserver: Send {
    fn observe(&mut self, event: &RunEvent<'_>);
}

/// An observer that ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct IgnoreEvents;

impl RunObserver for IgnoreEvents {
    fn observe(&mut self, _: &RunEvent<'_>) {}
}

/// Runs `work` with a function that passes its progress on to `observer` from any thread; then says that the data is ready.
pub(crate) fn with_progress<T>(
    observer: &mut dyn RunObserver,
    work: impl FnOnce(&(dyn Fn(Progress) + Sync)) -> T,
) -> T {
    let shared = Mutex::new(&mut *observer);
    let result = work(&|progress| {
        shared.lock().unwrap_or_else(PoisonError::into_inner).observe(&RunEvent::Preparing(progress));
    });
    observer.observe(&RunEvent::Prepared);
    result
}
