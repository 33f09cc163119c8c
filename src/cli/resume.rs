//! `runner resume`: goes on with a run from its own folder, whatever became of its file.

use clap::Args;
use runner_engine::resume::{ResumeRequest, resume};

use super::exit::Exit;
use super::interrupt::install_for;
use super::launcher_args::LauncherArgs;
use super::training_args::TrainingArgs;

#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    pub launcher: LauncherArgs,
}

/// # Errors
/// If there is no such run, it cannot be resumed here, or it failed (which its record then says too).
pub(crate) fn run(args: &ResumeArgs) -> anyhow::Result<Exit> {
    let launched = args.launcher.launched_rank()?;
    let interrupt = install_for(launched.as_ref())?;
    let request = ResumeRequest { run: args.run.clone(), options: args.training.options(), launched };
    args.training.train(&interrupt, "", |host, stop, observer| resume(&request, host, stop, observer))
}
