//! The checkpoint of a run, on the command line.

use runner_record::CheckpointChoice;

/// The checkpoint of a run, on the command line.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct CheckpointArgs {
    /// The checkpoint after this many steps [default: the newest].
    #[arg(long, value_name = "N")]
    pub step: Option<u64>,
    /// The checkpoint with the lowest validation loss.
    #[arg(long, conflicts_with = "step")]
    pub best: bool,
}

impl CheckpointArgs {
    #[must_use]
    pub(crate) fn which(self) -> CheckpointChoice {
        match self.step {
            Some(step) => CheckpointChoice::Step(step),
            None if self.best => CheckpointChoice::Best,
            None => CheckpointChoice::Latest,
        }
    }
}
