//! `runner completions`: completion of commands, flags, files, runs and sweeps in a shell. The script of a shell asks the program for
//! candidates, which therefore match its version and the current folder of runs.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use clap_complete::env::{Bash, CompleteEnv, EnvCompleter, Fish, Zsh};

use crate::cli::common::RUNS;
use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result};
use crate::cli::terminal::output::print_content;
use runner_record::catalog;
use runner_record::files::file_name;
use runner_sweep::sweep_dir;

/// The variable by which the script of a shell asks for candidates.
const REQUEST: &str = "RUNNER_COMPLETE";

/// Print the script that completes commands, flags, files, runs and sweeps in a shell.
///
/// For bash, add `source <(runner completions bash)` to ~/.bashrc; for zsh, the same with `zsh` to ~/.zshrc, after `compinit`; for fish,
/// add `runner completions fish | source` to ~/.config/fish/config.fish.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// # Errors
/// If the program's file cannot be found, or standard output cannot be written.
pub(crate) fn run(args: &CompletionsArgs) -> Result<Exit> {
    let completer: &dyn EnvCompleter = match args.shell {
        Shell::Bash => &Bash,
        Shell::Zsh => &Zsh,
        Shell::Fish => &Fish,
    };
    let program = std::env::current_exe().context("finding the program's file")?;
    let program = program.to_str().ok_or_else(|| CommandError::failure("the program's path is not UTF-8"))?;
    let mut script = Vec::new();
    completer.write_registration(REQUEST, "runner", "runner", program, &mut script)?;
    print_content(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// Answers the script of a shell and ends this process, if a script started it.
pub(crate) fn answer_shell<C: CommandFactory>() {
    CompleteEnv::with_factory(C::command).var(REQUEST).complete();
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
