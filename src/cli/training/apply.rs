//! `runner apply`: trains what an experiment describes, resumes it, or finds it done.

use clap::Args;
use runner_config::{ExperimentFile, LoadOptions, ModelFetcher};
use runner_inputs::{Host, RunObserver};
use runner_record::manifest::SweepPoint;
use runner_threads::stop::StopSwitch;
use runner_workflows::apply::{ApplyRequest, apply};
use runner_workflows::continuation::ContinueRequest;
use runner_workflows::session::SessionOptions;

use crate::cli::args::launcher::LauncherArgs;
use crate::cli::args::training::{NEW_HINT, TrainingArgs};
use crate::cli::common::ExperimentArgs;
use crate::cli::machine::completions::runs_completer;
use crate::cli::sweep::RunArgs;
use crate::cli::terminal::exit::{ErrorKind, Exit, Result, refuse, render};
use crate::cli::terminal::interrupt::{Interrupt, install_for};
use crate::cli::terminal::output::print_to_stderr;

#[derive(Debug, Clone, Args)]
pub(crate) struct ApplyArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    #[command(flatten)]
    pub training: TrainingArgs,
    #[command(flatten)]
    pub launcher: LauncherArgs,
    /// Start a new run, even if this experiment already has one.
    #[arg(long)]
    pub new: bool,
    /// Start from the record and the newest checkpoint of this run, whose training the file repeats: in another layout, or up to that checkpoint.
    #[arg(long = "continue", value_name = "RUN", add = runs_completer())]
    pub continue_run: Option<String>,
    /// Use its checkpoint after this many steps instead of the newest.
    #[arg(long = "continue-step", value_name = "N", requires = "continue_run")]
    pub continue_step: Option<u64>,
    /// Record hashes of what each step computes, which `runner reproduce --trace` compares.
    #[arg(long)]
    pub trace: bool,
    /// Do nothing unless the plan's hash is HASH or starts with HASH (at least 8 digits).
    #[arg(long, value_name = "HASH", value_parser = parse_plan_hash)]
    pub expect_plan: Option<String>,
    /// The point of a sweep that this run is.
    #[arg(long, hide = true, value_name = "ID:N", value_parser = parse_sweep_point)]
    pub sweep_point: Option<SweepPoint>,
}

/// # Errors
/// A wrong request, a machine that refuses, or a run that failed (which its record then shows, too).
pub(crate) fn run(args: &ApplyArgs) -> Result<Exit> {
    if let Some(group) = group_of(args)? {
        return crate::cli::sweep::run_group(&group);
    }
    let is_point = args.sweep_point.is_some();
    let launched = args.launcher.launched_rank()?;
    // A point that a sweep starts ends when the sweep does.
    let interrupt =
        if is_point && launched.is_none() { Interrupt::install_as_child()? } else { install_for(launched.as_ref())? };
    // A sweep restarts its points itself.
    let restarts = if is_point { 0 } else { args.launcher.restarts()? };
    let load = |fetch: &ModelFetcher<'_>| {
        args.experiment.load_with(&LoadOptions { fetch_model: Some(fetch), ..args.experiment.options()? })
    };
    let request = ApplyRequest {
        start_new: args.new,
        continue_from: args.continue_run.clone().map(|run| ContinueRequest { run, step: args.continue_step }),
        options: SessionOptions {
            overrides: args.experiment.set.clone(),
            trace: args.trace,
            restarts,
            ..args.training.options()
        },
        expected_plan: args.expect_plan.clone(),
        sweep_point: args.sweep_point.clone(),
        launched: launched.clone(),
        ..ApplyRequest::new(&load)
    };
    let work = |host: &Host, stop: &StopSwitch, observer: &mut dyn RunObserver| apply(&request, host, stop, observer);
    match args.training.train(&interrupt, NEW_HINT, launched.is_some(), work) {
        Err(error) if is_point && error.kind() == ErrorKind::Busy => {
            print_to_stderr(&render(&error, console::colors_enabled_stderr()));
            Ok(Exit::TryAgain)
        }
        other => other,
    }
}

/// The command that trains the group of an experiment with `seeds`; `None` for one run.
///
/// # Errors
/// A file that cannot be read; flags that one run has and a group does not.
fn group_of(args: &ApplyArgs) -> Result<Option<RunArgs>> {
    let path = &args.experiment.file;
    // A pipe can be read once.
    if !path.is_file() || !runner_sweep::makes_group(&ExperimentFile::read(path)?) {
        return Ok(None);
    }
    for overlay in args.experiment.overlays.iter().rev() {
        match ExperimentFile::read(overlay)?.entry("seeds") {
            Some((_, entry)) if entry.value.is_null() => return Ok(None),
            Some(_) => refuse!("{}: `seeds` belongs in {}", overlay.display(), path.display()),
            None => {}
        }
    }
    let ApplyArgs { experiment, training, continue_run, trace, expect_plan, sweep_point, .. } = args;
    // `--set seeds=null` makes it one run, as points are.
    if sweep_point.is_some() || experiment.set.iter().any(|set| set.starts_with("seeds=")) {
        return Ok(None);
    }
    for (flag, is_given) in [
        ("--continue", continue_run.is_some()),
        ("--trace", *trace),
        ("--expect-plan", expect_plan.is_some()),
        ("--until-step", training.until_step.is_some()),
    ] {
        if is_given {
            refuse!("{flag} is for one run, and `seeds` in {} makes a group; add `--set seeds=null`", path.display());
        }
    }
    Ok(Some(RunArgs::of_group(experiment, args.new, training)))
}

/// A plan's hash, or its beginning.
fn parse_plan_hash(text: &str) -> Result<String, String> {
    /// The number of digits that distinguishes plans well enough.
    const MIN_DIGITS: usize = 8;
    /// The number of digits of a whole hash.
    const HASH_DIGITS: usize = 64;
    let digits = text.bytes().all(|b| b.is_ascii_hexdigit());
    if digits && (MIN_DIGITS..=HASH_DIGITS).contains(&text.len()) {
        Ok(text.to_ascii_lowercase())
    } else {
        Err(format!("must be the first {MIN_DIGITS} to {HASH_DIGITS} hexadecimal digits of a plan's hash"))
    }
}

/// `ID:N`, with N from 1.
fn parse_sweep_point(text: &str) -> Result<SweepPoint, String> {
    let wrong = || format!("expected ID:N, for example `lr-0a1b2c3d:4`, found {text:?}");
    let (id, point) = text.rsplit_once(':').ok_or_else(wrong)?;
    match point.parse() {
        Ok(point) if point > 0 && !id.is_empty() => Ok(SweepPoint { id: id.to_owned(), point }),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_taken_whole_or_in_part() {
        let whole = "0123456789abcdef".repeat(4);
        for good in [&whole[..], &whole[..8], "ABCDEF012345"] {
            assert_eq!(parse_plan_hash(good).unwrap(), good.to_ascii_lowercase());
        }
        for bad in ["", "1234567", "0123456z", &format!("{whole}0")] {
            assert!(parse_plan_hash(bad).is_err(), "{bad}");
        }
    }
}
