//! `runner fork`: a new run from another run's settings, changed, from the start or from one of its checkpoints.

use clap::Args;
use runner_inputs::{Host, RunObserver};
use runner_record::CheckpointChoice;
use runner_threads::stop::StopSwitch;
use runner_workflows::fork::{ForkRequest, ForkStart, fork};
use runner_workflows::session::SessionOptions;

use crate::cli::args::training::{NEW_HINT, TrainingArgs};
use crate::cli::machine::completions::{runs_completer, settings_completer};
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::interrupt::Interrupt;

#[derive(Debug, Clone, Args)]
pub(crate) struct ForkArgs {
    /// A run directory, a run's id, or a prefix of an id that no other run shares.
    #[arg(add = runs_completer())]
    pub run: String,
    /// Change a key of its settings, such as `optimizer.adamw.lr=1e-4`; may be given several times. Paths in values are relative
    /// to the current folder.
    #[arg(long, value_name = "KEY.PATH=VALUE", add = settings_completer())]
    pub set: Vec<String>,
    /// Where the new run starts: from scratch (`start`), or with the weights and the optimizer's state of the checkpoint `latest`, `best`
    /// or after STEP. Required if the run has a checkpoint.
    #[arg(long, value_name = "start|latest|best|STEP", value_parser = parse_fork_start)]
    pub from: Option<ForkStart>,
    /// The name of the new run, as `name` in an experiment.
    #[arg(long)]
    pub name: Option<String>,
    /// Start a new fork, even if the same fork already exists.
    #[arg(long)]
    pub new: bool,
    #[command(flatten)]
    pub training: TrainingArgs,
    /// Record hashes of what each step computes, which `runner reproduce --trace` compares.
    #[arg(long)]
    pub trace: bool,
}

/// Parses where a fork begins: a word, or the step of a checkpoint.
fn parse_fork_start(text: &str) -> Result<ForkStart, String> {
    match (text, text.parse()) {
        ("start", _) => Ok(ForkStart::Start),
        ("latest", _) => Ok(ForkStart::Checkpoint(CheckpointChoice::Latest)),
        ("best", _) => Ok(ForkStart::Checkpoint(CheckpointChoice::Best)),
        (_, Ok(step)) => Ok(ForkStart::Checkpoint(CheckpointChoice::Step(step))),
        _ => Err("must be `start`, `latest`, `best` or a step".to_owned()),
    }
}

/// # Errors
/// If there is no such run or checkpoint, the changes do not fit it, or the new run failed (which its record then shows, too).
pub(crate) fn run(args: &ForkArgs) -> Result<Exit> {
    let request = ForkRequest {
        run: args.run.clone(),
        from: args.from,
        name: args.name.clone(),
        start_new: args.new,
        options: SessionOptions { overrides: args.set.clone(), trace: args.trace, ..args.training.options() },
    };
    let work = |host: &Host, stop: &StopSwitch, observer: &mut dyn RunObserver| fork(&request, host, stop, observer);
    args.training.train(&Interrupt::install()?, NEW_HINT, false, work)
}
