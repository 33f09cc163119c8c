//! Flags of the commands that train a run, and the common work of `apply`, `fork` and `resume`.

use clap::Args;
use runner_inputs::{Host, RunObserver};
use runner_report::OutputMode;
use runner_spec::error::CommandError;
use runner_threads::stop::StopSwitch;
use runner_workflows::outcome::RunReport;
use runner_workflows::session::SessionOptions;

use crate::cli::common::{RunsFolderArgs, ThreadArgs, host};
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::interrupt::Interrupt;
use crate::cli::terminal::repeated_command::repeated_command;
use crate::cli::terminal::screen_observer::ScreenObserver;

/// Follows the message of `apply` and `fork` that nothing is left to do.
pub(crate) const NEW_HINT: &str = " (use `--new` to start another)";

#[derive(Debug, Clone, Args)]
pub(crate) struct TrainingArgs {
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Stop after step N with a checkpoint; `runner resume` continues from it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub until_step: Option<u64>,
    /// Print only errors, warnings and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

impl TrainingArgs {
    /// The options of a session that these flags set.
    pub(crate) fn options(&self) -> SessionOptions {
        SessionOptions {
            until_step: self.until_step,
            has_other_runs_folder: self.root.runs.is_some(),
            ..SessionOptions::default()
        }
    }

    /// Does `work` on a run, which `interrupt` can stop, and shows its events. `up_to_date_hint` follows the message that the run is done.
    /// `is_launched` is true if a launcher started this process.
    ///
    /// # Errors
    /// Those of `work`; standard output that cannot be written.
    pub(crate) fn train(
        &self,
        interrupt: &Interrupt,
        up_to_date_hint: &'static str,
        is_launched: bool,
        work: impl FnOnce(&Host, &StopSwitch, &mut dyn RunObserver) -> Result<RunReport, CommandError>,
    ) -> Result<Exit> {
        // `resume` needs the run's folder on every machine, `apply` on the leader's alone.
        let resuming_command = is_launched.then(|| format!("{} (with the same launcher)", repeated_command()));
        let mut observer = ScreenObserver::new(OutputMode::detect(self.json, self.quiet), resuming_command)?;
        let host = host(self.root.root(), self.threads)?;
        let result = interrupt.stoppable(|stop| work(&host, stop, &mut observer));
        observer.close(result, up_to_date_hint)
    }
}
