//! `runner sweep FILE`: starts a sweep, resumes it, or finds it finished.

use std::path::{Path, PathBuf};

use super::args::{RunArgs, SweepLauncherKind};
use super::screen::{SweepEnding, SweepScreen, print_summary};
use crate::cli::common::{OWN_VARIABLES, TemplateArgs, default_load_options, host};
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::interrupt::Interrupt;
use crate::cli::terminal::output::{exit_of_screen, print_json, table_width};
use crate::cli::terminal::repeated_command::repeated_command;
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_config::LoadOptions;
use runner_report::sweep_preview::SweepPreview;
use runner_report::sweep_results::SweepResultsText;
use runner_report::{OutputMode, Screen};
use runner_spec::format::{counted, printable};
use runner_sweep::SweepSpec;
use runner_sweep::run::slurm::{Submission, submit_sweep};
use runner_sweep::run::{
    OpenedSweep, SweepOutcome, SweepReport, SweepRequest, explain_damaged_copy, open_sweep, run_sweep,
};
use runner_sweep::summary::SweepSummary;
use runner_sweep::sweep_dir::{self, SweepDir};

/// # Errors
/// If the file or the flags are wrong, with all mistakes of all points; or the machine refuses.
pub(super) fn run(args: &RunArgs) -> Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut screen = Screen::new(OutputMode::detect(args.json, args.quiet));
    let file = args.file.as_ref().ok_or_else(|| CommandError::request("name the sweep file".to_owned()))?;
    if let Some(flag) = args.job.first_given().filter(|_| args.launcher == SweepLauncherKind::Local) {
        refuse!("{flag} needs `--launcher slurm`");
    }
    let SweepSource { spec, started, runs: root } = SweepSource::find(args, file, &screen)?;
    let is_slurm = args.launcher == SweepLauncherKind::Slurm;
    let host = host(root, if is_slurm { args.threads.of_jobs() } else { args.threads.here()? })?;
    let parallel = args.parallel.map_or(spec.parallel, usize::from).max(1);
    // Each job has its own processors.
    let of_jobs = args.threads.threads.filter(|_| is_slurm).map(usize::from);
    let threads = of_jobs.unwrap_or((host.threads / parallel).max(1));
    let files = args.overlays.iter().chain(&args.set_file.files).cloned().collect();
    let options = LoadOptions { files, sets: args.set.clone(), ..default_load_options() };
    let request = SweepRequest {
        spec: &spec,
        started,
        options: TemplateArgs::default().add_to(options)?,
        own_variables: &OWN_VARIABLES,
        start_new: args.new,
        dry_run: args.dry_run,
        parallel,
        threads,
        slurm: is_slurm.then(|| args.job.settings()).transpose()?,
    };
    let opened = open_sweep(&request, &host, &mut PreparationObserver::new(&mut screen))?;
    let preview = SweepPreview { parallel, threads, shows_all_points: args.dry_run, width: table_width() };
    let runs = args.root.runs.as_deref();
    let (sweep, changed_inputs) = match opened {
        OpenedSweep::Planned(record) => {
            if args.json {
                print_json(&record)?;
            } else {
                screen.result_line(&preview.text(&record));
            }
            return Ok(Exit::Done);
        }
        OpenedSweep::Finished { record, progress, changed_inputs } => {
            let summary = SweepSummary::new(&record, &progress);
            let results = SweepResultsText { record: &record, summary: &summary, runs };
            print_summary(&results, SweepEnding::UpToDate, &changed_inputs, &screen);
            return Ok(if summary.has_failed_points() { Exit::Failed } else { exit_of_done(&changed_inputs) });
        }
        OpenedSweep::Created(sweep) => {
            screen.line(&preview.text(sweep.record()));
            (sweep, Vec::new())
        }
        OpenedSweep::Resumed { sweep, changed_inputs } => (sweep, changed_inputs),
    };
    if let Some(settings) = &request.slurm
        && sweep.record().early_stop.is_none()
    {
        let submission = submit_sweep(&sweep, &request, &host, settings)?;
        show_submission(&submission, &sweep, parallel, &screen);
        return Ok(Exit::Done);
    }
    let mut observer = SweepScreen::new(screen, sweep.record());
    let report = interrupt.stoppable(|stop| run_sweep(&sweep, &request, &host, stop, &mut observer))?;
    let screen = observer.finish();
    if is_slurm && matches!(report.outcome, SweepOutcome::Interrupted(_)) {
        screen.line("jobs     stay in the queue");
    }
    show_results(&sweep, &report, runs, &changed_inputs, &screen)
}

/// Shows the results of a sweep whose command has ended with `report`.
fn show_results(
    sweep: &SweepDir,
    report: &SweepReport,
    runs: Option<&Path>,
    changed_inputs: &[String],
    screen: &Screen,
) -> Result<Exit> {
    let mut summary = SweepSummary::new(sweep.record(), &report.progress);
    summary.mark_failed(&report.failed);
    let results = SweepResultsText { record: sweep.record(), summary: &summary, runs };
    let ending = SweepEnding::Ran { outcome: report.outcome, failed: report.failed.len() };
    print_summary(&results, ending, changed_inputs, screen);
    let exit = match report.outcome {
        SweepOutcome::Done => exit_of_done(changed_inputs),
        SweepOutcome::Failed => Exit::Failed,
        SweepOutcome::Interrupted(reason) => reason.exit(),
    };
    exit_of_screen(screen, exit)
}

/// The exit code of a sweep whose points are done, and were made before `changed_inputs` changed.
fn exit_of_done(changed_inputs: &[String]) -> Exit {
    if changed_inputs.is_empty() { Exit::Done } else { Exit::Differ }
}

/// The sweep that the command line names.
struct SweepSource {
    spec: SweepSpec,
    /// The folder of the sweep to resume, if a started sweep was named.
    started: Option<PathBuf>,
    /// The folder of runs.
    runs: PathBuf,
}

impl SweepSource {
    /// The sweep that `wanted` names: a sweep file; or the folder, id or name of a started sweep, or its sweep file, which may have been
    /// removed since.
    ///
    /// # Errors
    /// All mistakes of the file; if there is neither a file nor a sweep of this name; `--new` without a sweep file.
    fn find(args: &RunArgs, wanted: &Path, screen: &Screen) -> Result<Self> {
        let runs = args.root.root();
        if wanted.exists() && !wanted.is_dir() {
            return Ok(Self { spec: runner_sweep::load(wanted)?, started: None, runs });
        }
        let Some(path) = sweep_dir::find(&runs, &wanted.to_string_lossy())? else {
            refuse!(
                "there is no sweep file {}, and no sweep of that name in {}; `runner sweep list` shows the sweeps",
                wanted.display(),
                runs.display()
            );
        };
        let record = sweep_dir::read_record(&path)?;
        if record.file == sweep_dir::absolute_path(wanted) {
            let (file, id) = (wanted.display(), &record.id);
            screen.warn(&printable(&format!("there is no file {file}; resuming {id}, which was started from it")));
        }
        if args.new {
            let (id, file) = (printable(&record.id), record.file.display());
            refuse!("--new needs the sweep file, which was {file} for {id}");
        }
        let spec =
            sweep_dir::read_copy(&path).map_err(|error| explain_damaged_copy(&error, &record.file, &record.id))?;
        Ok(Self { spec, runs: sweep_dir::runs_folder(&path), started: Some(path) })
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
        Submission::Submitted { points: submitted, jobs, script: path, left } => {
            let each = if jobs.len() > 1 { " of each" } else { "" };
            let (rest, refusal) = match left {
                None => ("those that failed".to_owned(), String::new()),
                Some((left, why)) => {
                    let others =
                        if *left == 1 { "the other point".to_owned() } else { format!("the other {left} points") };
                    (format!("{others}, and those that failed"), format!("refused  {others}: {}\n", printable(why)))
                }
            };
            screen.result_line(&format!(
                "sweep    {id}: {} submitted as job {}, {parallel}{each} at once ({})\n{refusal}\
                 next     runner sweep status {id} shows their status; `{}` submits {rest}",
                points(*submitted),
                jobs.join(" and "),
                path.display(),
                repeated_command()
            ));
        }
    }
}
