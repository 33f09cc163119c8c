//! `runner sweep`: many runs from one file.

mod args;
mod fit;
mod list;
mod point;
mod results;
mod rm;
mod run;
mod screen;

use args::SweepCommand;
pub(crate) use args::{RunArgs, SweepArgs};

use super::terminal::exit::{Exit, Result};

/// Trains the group of an experiment.
///
/// # Errors
/// Those of [`run`].
pub(crate) fn run_group(args: &RunArgs) -> Result<Exit> {
    run::run(args)
}

/// # Errors
/// If the request is wrong, or the sweep cannot be run.
pub(crate) fn run(args: &SweepArgs) -> Result<Exit> {
    match &args.command {
        None => run::run(&args.run),
        Some(SweepCommand::Status(args)) => results::show_status(args),
        Some(SweepCommand::Results(args)) => results::show_results(args),
        Some(SweepCommand::Fit(args)) => fit::run(args),
        Some(SweepCommand::List(args)) => list::run(args),
        Some(SweepCommand::Rm(args)) => rm::run(args),
        Some(SweepCommand::Point(args)) => point::run(args),
    }
}
