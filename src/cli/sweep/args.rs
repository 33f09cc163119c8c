//! The command line of `runner sweep`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{point, results, status};
use crate::cli::common::{RootArgs, ThreadArgs};
use crate::cli::exit::Exit;

/// Train the points of a sweep file, as many at once as it says, or go on with them, or find them done.
///
/// All points are made, checked and planned before the first one starts, and stay what they were then. Ctrl-C has the runs
/// save and exits with code 130; the same command goes on from there, as after a crash.
#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct SweepArgs {
    #[command(subcommand)]
    pub command: Option<SweepCommand>,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command")]
pub(crate) struct RunArgs {
    /// The sweep file.
    #[arg(required = true)]
    pub file: Option<PathBuf>,
    /// Show the points and what they would take, and start nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Start another sweep, even if this file has one. Runs that are done already are not run again.
    #[arg(long)]
    pub new: bool,
    /// Runs at once [default: what the file says].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parallel: Option<u16>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Override a key of every point's experiment, such as `train.steps=10`; may be given several times.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    /// What starts the runs.
    #[arg(long, value_enum, default_value_t = Launcher::Local)]
    pub launcher: Launcher,
    /// A further option of each job, such as --partition=long; may be given several times.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub slurm_option: Vec<String>,
    /// Print only errors and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

/// What starts the runs of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Launcher {
    /// This process, on this machine.
    Local,
    /// Slurm: an array of jobs, one for each point. The folder of runs lies where all machines see it.
    Slurm,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SweepCommand {
    /// Show how the points of a sweep stand.
    Status(StatusArgs),
    /// Show what came out of a sweep, the best point first.
    Results(ResultsArgs),
    #[command(hide = true)]
    Point(PointArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    /// A sweep's folder, its id, or the beginning of an id that no other sweep shares [default: the newest].
    pub sweep: Option<String>,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResultsArgs {
    /// A sweep's folder, its id, or the beginning of an id that no other sweep shares [default: the newest].
    pub sweep: Option<String>,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print CSV.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct PointArgs {
    /// The sweep's folder.
    pub sweep: PathBuf,
    /// The point's number, from 1.
    pub point: usize,
    #[command(flatten)]
    pub threads: ThreadArgs,
}

/// # Errors
/// A wrong request, or a sweep that could not go on.
pub(crate) fn run(args: &SweepArgs) -> anyhow::Result<Exit> {
    match &args.command {
        None => super::run::run(&args.run),
        Some(SweepCommand::Status(args)) => status::run(args),
        Some(SweepCommand::Results(args)) => results::run(args),
        Some(SweepCommand::Point(args)) => point::run(args),
    }
}
