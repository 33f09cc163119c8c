//! `runner fork`: a new run from another run's settings, changed, from the start or from one of its checkpoints.

use std::str::FromStr;

use clap::Args;
use runner_engine::fork::{ForkRequest, fork};
use runner_engine::launch::Faults;
use runner_engine::session::SessionOptions;
use runner_report::OutputMode;
use runner_store::CheckpointChoice;

use super::common::{RootArgs, ThreadArgs, host};
use super::exit::Exit;
use super::interrupt::Interrupt;
use super::screen_observer::ScreenObserver;

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct ForkArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    /// Change a key of its settings, such as `optimizer.adamw.lr=1e-4`; may be given several times. Paths in values are relative
    /// to the current folder.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// Begin with the weights and the optimizer's state of its checkpoint after STEP, `latest` or `best` [default: from the start].
    #[arg(long, value_name = "STEP")]
    pub from: Option<Checkpoint>,
    /// The name of the new run, as `name` in an experiment.
    #[arg(long)]
    pub name: Option<String>,
    /// Start another fork, even if the same fork exists.
    #[arg(long)]
    pub new: bool,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Stop after step N with a checkpoint; the same command without this goes on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
    /// Record hashes of what each step computes, which `runner reproduce --trace` compares.
    #[arg(long)]
    pub trace: bool,
    /// Print only errors and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
    /// For the tests of this program.
    #[arg(long, hide = true, value_name = "KEY=NUMBER")]
    pub test_faults: Option<Faults>,
}

/// A checkpoint, in words or by its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint(CheckpointChoice);

impl FromStr for Checkpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("latest", _) => Ok(Self(CheckpointChoice::Latest)),
            ("best", _) => Ok(Self(CheckpointChoice::Best)),
            (_, Ok(step)) => Ok(Self(CheckpointChoice::Step(step))),
            _ => Err("take a step, `latest` or `best`".to_owned()),
        }
    }
}

/// # Errors
/// If there is no such run or checkpoint, the changes do not fit it, or the new run failed (which its record then says too).
pub(crate) fn run(args: &ForkArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut observer = ScreenObserver::new(OutputMode::detect(args.json, args.quiet))?;
    let request = ForkRequest {
        run: args.run.clone(),
        from: args.from.map(|Checkpoint(which)| which),
        name: args.name.clone(),
        start_new: args.new,
        options: SessionOptions {
            overrides: args.set.clone(),
            until_step: args.until_step,
            trace: args.trace,
            has_other_runs_folder: args.root.runs.is_some(),
            faults: args.test_faults.clone().unwrap_or_default(),
        },
    };
    let report = fork(&request, &host(args.root.root(), args.threads)?, interrupt.stop(), &mut observer)?;
    observer.close(&report)
}
