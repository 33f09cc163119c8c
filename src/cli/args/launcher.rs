//! The flag `--launcher`, which selects the program that starts the ranks of a run, and the restarts of ranks.

use clap::{Args, ValueEnum};
use runner_ranks::launcher_environment::{assigned_rank, assigned_rank_of_several, restart_count};
use runner_spec::error::PlainError;
use runner_workflows::launched::LaunchedRank;

use crate::cli::common::utf8_environment;
use crate::cli::terminal::exit::Result;
use crate::cli::terminal::output::print_to_stderr;

/// The programs that can start the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RankLauncher {
    /// A launcher if its variables are set, else this process.
    #[default]
    Auto,
    /// This process, even if the variables of a launcher are set.
    Local,
    /// torchrun, srun or mpirun: this process is one of the ranks.
    Env,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct LauncherArgs {
    /// The program that starts the ranks of a plan with several ranks.
    #[arg(long, value_enum, default_value_t, value_name = "LAUNCHER")]
    pub launcher: RankLauncher,
}

impl LauncherArgs {
    /// The rank that a launcher assigned to this process; `None` if this process starts the ranks itself.
    ///
    /// # Errors
    /// If a launcher was asked for and there is none, or its variables make no sense.
    pub(crate) fn launched_rank(self) -> Result<Option<LaunchedRank>> {
        let variables = utf8_environment().collect();
        let assigned = match self.launcher {
            RankLauncher::Local => return Ok(None),
            RankLauncher::Auto => assigned_rank_of_several(&variables),
            RankLauncher::Env => {
                let missing = || {
                    PlainError::request(
                        "--launcher env: neither RANK and WORLD_SIZE nor the variables of a Slurm step or of mpirun are set",
                    )
                };
                assigned_rank(&variables).and_then(|rank| rank.map(Some).ok_or_else(missing))
            }
        };
        let assigned = assigned?;
        let report_wait = |what: &str| print_to_stderr(&format!("waiting: {what}"));
        Ok(assigned.map(|assigned| LaunchedRank { assigned, report_wait }))
    }

    /// The number of times that a launcher has restarted the ranks.
    ///
    /// # Errors
    /// If the launcher's variable is not a number.
    pub(crate) fn restarts(self) -> Result<u32> {
        match self.launcher {
            RankLauncher::Local => Ok(0),
            RankLauncher::Auto | RankLauncher::Env => Ok(restart_count(&utf8_environment().collect())?),
        }
    }
}
