//! The command line of `runner sweep`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::cli::args::job::JobArgs;
use crate::cli::args::training::TrainingArgs;
use crate::cli::common::{ExperimentArgs, JobThreadArgs, RunsFolderArgs, SetFileArgs, ThreadArgs};
use crate::cli::machine::completions::{runs_completer, settings_completer, sweeps_completer};
use runner_config::LayerFile;
use runner_sweep::ladder::LadderTarget;

/// Train the points of a sweep file, several at once, resume them, or report that they are done.
///
/// All points are rendered, checked and planned before the first one starts, and do not change afterwards. Ctrl-C lets the runs save
/// and exits with code 130; the same command without `--new` resumes them, also after a crash.
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
    /// The sweep file; or the folder, id or name of a started sweep, which needs neither the file nor its base or template.
    #[arg(required = true)]
    pub file: Option<PathBuf>,
    /// Show the points with their cost and the predicted time, and start nothing.
    #[arg(long)]
    pub dry_run: bool,
    /// Start a new sweep, even if this file already has one. Runs that are done are not repeated.
    #[arg(long)]
    pub new: bool,
    /// The number of concurrent runs [default: the file's `parallel`].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub parallel: Option<u16>,
    #[command(flatten)]
    pub threads: JobThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Override a key of every point's experiment, such as `train.steps=10`; may be given several times.
    #[arg(long, value_name = "KEY.PATH=VALUE", add = settings_completer())]
    pub set: Vec<String>,
    #[command(flatten)]
    pub set_file: SetFileArgs,
    /// Files over every point's experiment.
    #[arg(skip)]
    pub overlays: Vec<LayerFile>,
    /// The program that starts the runs.
    #[arg(long, value_enum, default_value_t = SweepLauncherKind::Local)]
    pub launcher: SweepLauncherKind,
    #[command(flatten)]
    pub job: JobArgs,
    /// Print only errors, warnings and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

impl RunArgs {
    /// The command that trains the group of the experiment `file`, as `runner apply` is called.
    pub(crate) fn of_group(experiment: &ExperimentArgs, new: bool, training: &TrainingArgs) -> Self {
        Self {
            file: Some(experiment.file.clone()),
            dry_run: false,
            new,
            parallel: None,
            threads: JobThreadArgs { threads: training.threads.threads },
            root: training.root.clone(),
            set: experiment.set.clone(),
            set_file: SetFileArgs::default(),
            overlays: experiment.files_above(),
            launcher: SweepLauncherKind::Local,
            job: JobArgs::default(),
            quiet: training.quiet,
            json: training.json,
        }
    }
}

/// The program that starts the runs of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SweepLauncherKind {
    /// This process, on this machine.
    Local,
    /// Slurm: a job for each point. All machines must see the folder of runs. With early stopping this command submits the points that
    /// are due, and waits for their results; otherwise it submits all and ends.
    Slurm,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SweepCommand {
    /// Show the status of a sweep's points.
    Status(StatusArgs),
    /// Show the results of a sweep, the best point first.
    Results(ResultsArgs),
    /// Fit a scaling law to the results of a ladder, predict losses, or compare the ladder with another.
    Fit(FitArgs),
    /// List the sweeps: status, numbers of points, best point.
    List(ListArgs),
    /// Remove a sweep, after showing it and asking. Its runs stay unless --with-runs is given.
    Rm(RmArgs),
    #[command(hide = true)]
    Point(PointArgs),
}

/// The sweep that a command reads.
#[derive(Debug, Clone, Args)]
pub(crate) struct SweepNameArgs {
    /// A sweep's folder, id, name or sweep file, or a prefix of an id that no other sweep shares [default: the newest].
    #[arg(add = sweeps_completer())]
    pub sweep: Option<String>,
    #[command(flatten)]
    pub root: RunsFolderArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub sweep: SweepNameArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ResultsArgs {
    #[command(flatten)]
    pub sweep: SweepNameArgs,
    /// Print CSV.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct FitArgs {
    #[command(flatten)]
    pub sweep: SweepNameArgs,
    /// A scale at which to predict the loss: flops=X, parameters=X or tokens=X; may be given several times.
    #[arg(long, value_name = "SCALE=X", value_parser = LadderTarget::parse)]
    pub target: Vec<LadderTarget>,
    /// Another ladder: how much compute does the first one need for the same loss?
    #[arg(long, value_name = "LADDER", add = sweeps_completer())]
    pub against: Option<String>,
    /// Store the forecasts with the time and a hash, before their runs are trained.
    #[arg(long)]
    pub record: bool,
    /// A finished run: how far were the stored forecasts for runs of its size from what it measured?
    #[arg(long, value_name = "RUN", add = runs_completer(), conflicts_with_all = ["target", "against", "record"])]
    pub check: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct RmArgs {
    /// A sweep's folder, id, name or sweep file, or a prefix of an id that no other sweep shares.
    #[arg(add = sweeps_completer())]
    pub sweep: String,
    /// Also remove the runs that it started, except runs that have a tag, that a process is working on, that are points of another sweep,
    /// or from which a remaining run was made.
    #[arg(long)]
    pub with_runs: bool,
    /// Remove without asking.
    #[arg(long, short)]
    pub yes: bool,
    #[command(flatten)]
    pub root: RunsFolderArgs,
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
    /// Stop after step N with a checkpoint.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
}
