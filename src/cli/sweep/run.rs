//! `runner sweep FILE`: starts a sweep, resumes it, or finds it finished.

use std::fs;
use std::io::ErrorKind;

use super::args::{RunArgs, SweepLauncherKind};
use super::screen::{FailedPoints, SweepScreen, print_summary};
use crate::cli::common::{OWN_VARIABLES, TemplateArgs, experiment_environment, host};
use crate::cli::exit::{Exit, RequestError, refuse};
use crate::cli::interrupt::Interrupt;
use crate::cli::output::{exit_of_screen, print_json};
use crate::cli::repeated_command::repeated_command;
use crate::cli::screen_observer::PreparationObserver;
use runner_config::LoadOptions;
use runner_engine::sweep::slurm::{Submission, TEMPLATE, submit_sweep};
use runner_engine::sweep::{OpenedSweep, SweepEvent, SweepLauncher, SweepOutcome, SweepRequest, open_sweep, run_sweep};
use runner_lab::sweep;
use runner_lab::sweep::summary::SweepSummary;
use runner_lab::sweep_dir::SweepDir;
use runner_report::sweep_preview::SweepPreview;
use runner_report::sweep_results::SweepResultsText;
use runner_report::{OutputMode, Screen};
use runner_spec::format::counted;

/// # Errors
/// If the file or the flags are wrong, with all mistakes of all points; or the machine refuses.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut screen = Screen::new(OutputMode::detect(args.json, args.quiet));
    let file = args.file.as_ref().ok_or_else(|| RequestError("name the sweep file".to_owned()))?;
    let spec = sweep::load(file)?;
    let host = host(args.root.root(), args.threads)?;
    let parallel = args.parallel.map_or(spec.parallel, usize::from).max(1);
    let threads = match (args.launcher, args.threads.threads) {
        // Each job has processors of its own.
        (SweepLauncherKind::Slurm, Some(threads)) => usize::from(threads),
        _ => (host.threads / parallel).max(1),
    };
    let options = LoadOptions { sets: args.set.clone(), env: experiment_environment(), ..LoadOptions::default() };
    let request = SweepRequest {
        spec: &spec,
        options: TemplateArgs::default().add_to(options)?,
        own_variables: &OWN_VARIABLES,
        start_new: args.new,
        dry_run: args.dry_run,
        parallel,
        threads,
        launcher: match args.launcher {
            SweepLauncherKind::Local => SweepLauncher::Local,
            SweepLauncherKind::Slurm => {
                SweepLauncher::Slurm { options: args.slurm_option.clone(), template: read_slurm_template()? }
            }
        },
    };
    let opened = open_sweep(&request, &host, &mut PreparationObserver::new(&mut screen))?;
    let preview = SweepPreview { parallel, threads, shows_all_points: args.dry_run };
    let runs = args.root.runs.as_deref();
    let sweep = match opened {
        OpenedSweep::Planned(record) => {
            if args.json {
                print_json(&record)?;
            } else {
                screen.result_line(&preview.text(&record));
            }
            return Ok(Exit::Done);
        }
        OpenedSweep::Finished { path, record, progress } => {
            let summary = SweepSummary::new(&path, &record, &progress);
            let results = SweepResultsText { record: &record, summary: &summary, runs };
            print_summary(&results, SweepOutcome::Done, None, &screen);
            return Ok(if summary.has_failed_points() { Exit::Failed } else { Exit::Done });
        }
        OpenedSweep::Created(sweep) => {
            screen.line(&preview.text(sweep.record()));
            sweep
        }
        OpenedSweep::Resumed(sweep) => sweep,
    };
    if let SweepLauncher::Slurm { options, template } = &request.launcher {
        let submission = submit_sweep(&sweep, &request, &host, options, template.as_deref())?;
        show_submission(&submission, &sweep, parallel, &screen);
        return Ok(Exit::Done);
    }
    let mut observer = SweepScreen::new(screen, sweep.record());
    let report = interrupt.stoppable(|stop| run_sweep(&sweep, &request, &host, stop, &mut observer));
    let screen = observer.finish();
    let mut summary = SweepSummary::new(sweep.path(), sweep.record(), &report.progress);
    summary.mark_failed(&report.failed);
    let stopped = summary.stopped_points();
    if !stopped.is_empty() {
        let points = runner_engine::sweep::describe_points(&stopped, usize::MAX);
        screen.line(&format!("stopped  early: {points}"));
        screen.json(&SweepEvent::Stopped { points: &stopped });
    }
    let results = SweepResultsText { record: sweep.record(), summary: &summary, runs };
    let failed = FailedPoints { all: report.failed.len(), blocked: report.blocked.len() };
    print_summary(&results, report.outcome, Some(failed), &screen);
    let exit = match report.outcome {
        SweepOutcome::Done => Exit::Done,
        SweepOutcome::Failed => Exit::Failed,
        SweepOutcome::Interrupted => Exit::Interrupted,
    };
    exit_of_screen(&screen, exit)
}

/// The user's template of the batch script, in the current folder, if there is one.
fn read_slurm_template() -> anyhow::Result<Option<String>> {
    match fs::read_to_string(TEMPLATE) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => refuse!("{TEMPLATE}: {error}"),
    }
}

fn show_submission(submission: &Submission, sweep: &SweepDir, parallel: usize, screen: &Screen) {
    let id = &sweep.record().id;
    let points = |n: usize| counted(n as u64, "point");
    match submission {
        Submission::NothingToSubmit { queued_or_running } => {
            let open = points(*queued_or_running);
            screen.line(&format!("sweep    {id}: {open} queued or running, the others are done"));
        }
        Submission::Submitted { points: submitted, job, script: path } => screen.result_line(&format!(
            "sweep    {id}: {} submitted as job {job}, {parallel} at once ({})\n\
             next     runner sweep status {id} shows their status; `{}` submits those that failed",
            points(*submitted),
            path.display(),
            repeated_command()
        )),
    }
}
