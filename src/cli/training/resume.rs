//! `runner resume`: continues a run from its own directory. The experiment file may have been removed.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use runner_inputs::MovedData;
use runner_workflows::resume::{ResumeRequest, resume};
use runner_workflows::session::SessionOptions;

use crate::cli::args::launcher::LauncherArgs;
use crate::cli::args::training::TrainingArgs;
use crate::cli::common::MovedDataArgs;
use crate::cli::machine::completions::runs_completer;
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::interrupt::install_for;

#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// A run directory, a run's id, or a prefix of an id that no other run shares.
    #[arg(add = runs_completer())]
    pub run: String,
    /// Continue under another layout, which replaces the section `parallel`, such as '{mode: ddp, replicas: 2}'. Later sessions keep it.
    #[arg(long, value_name = "SECTION", value_parser = NonEmptyStringValueParser::new())]
    pub parallel: Option<String>,
    #[command(flatten)]
    pub data: MovedDataArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    pub launcher: LauncherArgs,
}

/// # Errors
/// If there is no such run, it cannot be resumed here, or it failed (which its record then shows, too).
pub(crate) fn run(args: &ResumeArgs) -> Result<Exit> {
    let launched = args.launcher.launched_rank()?;
    let interrupt = install_for(launched.as_ref())?;
    let is_launched = launched.is_some();
    let (run, parallel) = (args.run.clone(), args.parallel.clone());
    let options = SessionOptions { restarts: args.launcher.restarts()?, ..args.training.options() };
    let request = ResumeRequest { run, parallel, data: MovedData::parse(&args.data.data)?, options, launched };
    args.training.train(&interrupt, "", is_launched, |host, stop, observer| resume(&request, host, stop, observer))
}
