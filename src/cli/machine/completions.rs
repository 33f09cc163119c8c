//! Completion of commands, flags, files, runs and sweeps in a shell. `COMPLETE=bash runner` prints the script of a shell, which asks the
//! program for candidates. So they match its version and the current folder of runs.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::CompleteEnv;

use crate::cli::common::RUNS;
use runner_record::catalog;
use runner_record::files::file_name;
use runner_sweep::sweep_dir;

/// Prints the script of a shell or answers it, and ends this process, if the variable `COMPLETE` asks for that.
pub(crate) fn answer_shell<C: CommandFactory>() {
    CompleteEnv::with_factory(C::command).complete();
}

/// Completes the ids of runs, with their status.
pub(crate) fn runs_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let all = catalog::list(&runs_folder()).unwrap_or_default();
        let candidates =
            all.into_iter().map(|run| CompletionCandidate::new(run.id).help(Some(run.status.name().into())));
        matching(candidates, current)
    })
}

/// Completes the ids of runs and of sweeps.
pub(crate) fn runs_and_sweeps_completer() -> ArgValueCompleter {
    let (runs, sweeps) = (runs_completer(), sweeps_completer());
    ArgValueCompleter::new(move |current: &OsStr| {
        runs.complete(current).into_iter().chain(sweeps.complete(current)).collect()
    })
}

/// Completes the ids of sweeps.
pub(crate) fn sweeps_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let all = sweep_dir::folders(&runs_folder());
        matching(all.iter().map(|path| CompletionCandidate::new(file_name(path))), current)
    })
}

/// The folder of runs. A flag `--runs` in the unfinished command is unknown here.
fn runs_folder() -> PathBuf {
    std::env::var_os(RUNS).map_or_else(|| PathBuf::from("runs"), PathBuf::from)
}

/// Those of `candidates` that begin with `current`.
fn matching(candidates: impl Iterator<Item = CompletionCandidate>, current: &OsStr) -> Vec<CompletionCandidate> {
    let current = current.to_string_lossy();
    candidates.filter(|candidate| candidate.get_value().to_string_lossy().starts_with(&*current)).collect()
}
