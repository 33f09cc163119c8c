//! What ranks train with, however they are started.

use std::path::Path;

use rayon::ThreadPool;
use runner_compute::state::TrainState;
use runner_executor::{Resources, StopRequest};
use runner_spec::error::Result;
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;
use runner_spec::program::Program;

use super::protocol::TrainingStart;

/// Reads the training state that the rank of a program begins with: that of a checkpoint, or that of step 0.
pub type LoadState<'a> = Box<dyn Fn(&Program, Option<&Path>) -> Result<TrainState> + Sync + 'a>;

/// What the ranks of a plan train with.
pub struct RankInputs<'a> {
    pub plan: &'a Plan,
    pub experiment: &'a Experiment,
    pub resources: Resources<'a>,
    /// The threads of this process.
    pub pool: &'a ThreadPool,
    pub load_state: LoadState<'a>,
}

/// The training of ranks from one start to their end.
#[derive(Debug, Clone, Copy)]
pub struct TrainingAttempt<'a> {
    /// The run directory, which this process holds.
    pub folder: &'a Path,
    pub training: &'a TrainingStart,
    /// The step at which training begins, from 0.
    pub from: u64,
    /// Asks the ranks to stop at the end of their step.
    pub stop: &'a dyn StopRequest,
}
