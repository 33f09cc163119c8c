//! `runner resume`: goes on with a run from its own folder, whatever became of its file.

use clap::Args;
use runner_engine::resume::{ResumeRequest, resume};
use runner_engine::session::SessionOptions;
use runner_report::OutputMode;

use super::common::{RootArgs, ThreadArgs, host};
use super::exit::Exit;
use super::interrupt::install_for;
use super::launcher_args::LauncherArgs;
use super::screen_observer::ScreenObserver;

#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub launcher: LauncherArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Stop after step N with a checkpoint; the same command without this goes on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
    /// Print only errors and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, it cannot be resumed here, or it failed (which its record then says too).
pub(crate) fn run(args: &ResumeArgs) -> anyhow::Result<Exit> {
    let launched = args.launcher.launched_rank()?;
    let interrupt = install_for(launched.as_ref())?;
    let mut observer = ScreenObserver::new(OutputMode::detect(args.json, args.quiet))?;
    let request = ResumeRequest {
        run: args.run.clone(),
        options: SessionOptions {
            until_step: args.until_step,
            has_other_runs_folder: args.root.runs.is_some(),
            ..SessionOptions::default()
        },
        launched,
    };
    let report = resume(&request, &host(args.root.root(), args.threads)?, interrupt.stop(), &mut observer)?;
    observer.close(&report)
}
