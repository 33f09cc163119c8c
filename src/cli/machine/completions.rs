//! Completion of commands, flags, files, runs and sweeps in a shell. `COMPLETE=bash runner` prints the script of a shell, which asks the
//! program for candidates. So they match its version and the current folder of runs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter};
use clap_complete::env::CompleteEnv;

use crate::cli::common::RUNS;
use runner_config::shape::{Shape, key_shapes, root};
use runner_record::catalog;
use runner_record::files::file_name;
use runner_sweep::sweep_dir;
use serde_json::Value;

/// Prints the script of a shell or answers it, and ends this process, if the variable `COMPLETE` asks for that.
pub(crate) fn answer_shell(program: fn() -> Command) {
    CompleteEnv::with_factory(program).complete();
}

/// Completes the keys of experiments, and the words that are their values: `optimizer.adamw.lr=`, `precision=bf16`.
pub(crate) fn settings_completer() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let settings = key_shapes(root()).into_iter().flat_map(|(key, shape)| {
            let help = shape.description.split_inclusive(". ").next().unwrap_or_default().trim().to_owned();
            let values = match shape.shape {
                Shape::Words(words) => words.iter().filter_map(Value::as_str).collect(),
                _ => vec![""],
            };
            let setting = move |value: &str| format!("{key}={value}");
            values
                .into_iter()
                .map(setting)
                .map(move |text| CompletionCandidate::new(text).help(Some(help.clone().into())))
        });
        matching(settings, current)
    })
}

/// Completes files of experiments and sweeps, and the folders that may have some.
pub(crate) fn experiments_completer() -> ArgValueCompleter {
    let is_experiment =
        |path: &Path| path.extension().is_some_and(|end| ["yaml", "yml", "j2"].iter().any(|own| end == *own));
    ArgValueCompleter::new(PathCompleter::any().filter(move |path| path.is_dir() || is_experiment(path)))
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
