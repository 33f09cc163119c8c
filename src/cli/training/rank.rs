//! `runner rank`: one rank of a run, as a process that `runner apply` starts. The command is hidden: users do not type it.

use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Args;
use runner_ranks::RankProcess;
use runner_workflows::rank_inputs::work_as_process;
use signal_hook::consts::{SIGTERM, SIGUSR1};

use crate::cli::common::{ThreadArgs, host};
use crate::cli::terminal::exit::{CommandError, Exit, Result};
use crate::cli::terminal::output::print_to_stderr;

#[derive(Debug, Clone, Args)]
pub(crate) struct RankArgs {
    /// The run directory, which the parent holds.
    #[arg(long)]
    pub run: PathBuf,
    #[arg(long)]
    pub rank: usize,
    /// The descriptor of the memory that the ranks share.
    #[arg(long)]
    pub fd: RawFd,
}

/// # Errors
/// If `runner apply` did not start this process. Later errors are reported to the parent.
pub(crate) fn run(args: &RankArgs) -> Result<Exit> {
    // `runner apply` itself handles Ctrl-C and hangups.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGUSR1] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(CommandError::io("cannot receive signals"))?;
    }
    let rank = RankProcess { run: args.run.clone(), rank: args.rank, shared_memory: args.fd, stop };
    let host = host(PathBuf::new(), ThreadArgs { threads: None })?;
    match work_as_process(&rank, &host)? {
        None => Ok(Exit::Done),
        Some(line) => {
            print_to_stderr(&line);
            Ok(Exit::Failed)
        }
    }
}
