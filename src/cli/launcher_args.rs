//! The flag that says who starts the ranks of a run.

use clap::{Args, ValueEnum};
use runner_engine::launch::environment::{self, EnvironmentError};
use runner_engine::launched::LaunchedRank;

use super::common::utf8_environment;
use super::exit::RequestError;
use super::output::complain;

/// Who starts the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Launcher {
    /// A launcher if its variables say so, else this process.
    #[default]
    Auto,
    /// This process, whatever variables are set.
    Local,
    /// torchrun, srun or mpirun: this process is one of the ranks.
    Env,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct LauncherArgs {
    /// Who starts the ranks of a plan with several.
    #[arg(long, value_enum, default_value_t, value_name = "WHO")]
    pub launcher: Launcher,
}

impl LauncherArgs {
    /// The rank that a launcher made this process; `None` if this process starts the ranks itself.
    ///
    /// # Errors
    /// If a launcher was asked for and there is none, or its variables make no sense.
    pub(crate) fn launched_rank(self) -> anyhow::Result<Option<LaunchedRank>> {
        let variables = utf8_environment().collect();
        let seat = match self.launcher {
            Launcher::Local => return Ok(None),
            Launcher::Auto => environment::seat_of_several(&variables),
            Launcher::Env => {
                environment::seat(&variables).and_then(|seat| seat.map(Some).ok_or(EnvironmentError::None))
            }
        };
        let seat = seat.map_err(|error| RequestError(error.to_string()))?;
        Ok(seat.map(|seat| LaunchedRank { seat, announce_wait: |what| complain(&format!("waiting: {what}")) }))
    }
}
