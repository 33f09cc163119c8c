//! `runner submit`: a run as a job of Slurm.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use runner_batch_jobs::{BatchJob, JobNeeds, check_folder, slurm};
use runner_config::{LoadOptions, ModelFetcher};
use runner_record::catalog::{SLURM_SCRIPT, serialize_path};
use runner_record::files::file_name;
use runner_record::write_atomic;
use runner_report::Screen;
use runner_spec::format::{counted, duration, printable, shell_word};
use runner_sweep::sweep_dir::absolute_path;
use runner_workflows::apply::ApplyRequest;
use runner_workflows::session::SessionOptions;
use runner_workflows::submission::{RunToSubmit, SubmissionTarget, open_to_submit};
use serde::Serialize;

use crate::cli::args::job::JobArgs;
use crate::cli::args::training::NEW_HINT;
use crate::cli::common::{BF16_PRODUCTS, ExperimentArgs, JobThreadArgs, RunsFolderArgs, host, read_cluster};
use crate::cli::terminal::exit::{Context as _, ErrorKind, Exit, Result, refuse};
use crate::cli::terminal::output::{print, print_result};
use crate::cli::terminal::screen_observer::PreparationObserver;

/// Submit the run of an experiment to Slurm, which trains it from its own folder, however the file changes meanwhile.
///
/// The experiment is planned here, and its run is created or found; the job resumes it. The same command submits the rest of a run that was
/// interrupted or failed, and nothing while a job of the run is queued or running. `runner runs` shows which it is. All machines must see the
/// folder of runs and the data.
#[derive(Debug, Clone, Args)]
pub(crate) struct SubmitArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    #[command(flatten)]
    pub job: JobArgs,
    /// Plan for this cluster instead of this machine: `1x8xH100` (nodes, devices per node, device), or a YAML file that describes it.
    #[arg(long, value_name = "NxMxDEVICE|FILE")]
    pub cluster: Option<String>,
    #[command(flatten)]
    pub threads: JobThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Start a new run, even if this experiment already has one.
    #[arg(long)]
    pub new: bool,
    /// Print the job, and write and submit nothing.
    #[arg(long, conflicts_with = "json")]
    pub dry_run: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If the experiment is wrong, its run cannot be created, or Slurm refuses.
pub(crate) fn run(args: &SubmitArgs) -> Result<Exit> {
    let settings = args.job.settings()?;
    let cluster = args.cluster.as_deref().map(read_cluster).transpose()?;
    if !args.dry_run {
        slurm::check_commands()?;
    }
    let host = host(args.root.root(), args.threads.of_jobs())?;
    check_folder(&absolute_path(&host.runs))?;
    let load = |fetch: &ModelFetcher<'_>| {
        args.experiment.load_with(&LoadOptions { fetch_model: Some(fetch), ..args.experiment.options()? })
    };
    let request = ApplyRequest {
        start_new: args.new,
        options: SessionOptions {
            overrides: args.experiment.set.clone(),
            has_other_runs_folder: args.root.runs.is_some(),
            ..SessionOptions::default()
        },
        ..ApplyRequest::new(&load)
    };
    let target = SubmissionTarget {
        // The memory of this machine is not that of several.
        checks_memory: cluster.is_some() || settings.nodes.is_none_or(|nodes| nodes == 1),
        cluster,
        dry_run: args.dry_run,
    };
    let mut screen = Screen::on_standard_error();
    let mut open = |target| open_to_submit(&request, target, &host, &mut PreparationObserver::new(&mut screen));
    let ((plan, run), busy) = match open(target.clone()) {
        // Perhaps the run's job works on it.
        Err(busy) if busy.kind() == ErrorKind::Busy && !args.dry_run => {
            (open(SubmissionTarget { dry_run: true, ..target })?, Some(busy))
        }
        opened => (opened?, None),
    };
    let needs = JobNeeds::of_plan(&plan);
    if settings.nodes.is_some_and(|nodes| nodes > needs.ranks) {
        refuse!("--nodes must be at most {}, the number of the plan's ranks", needs.ranks);
    }
    let path = match &run {
        RunToSubmit::Planned(path) | RunToSubmit::Done(path) => path,
        RunToSubmit::Opened(run) => run.path(),
    };
    let (path, runs) = (absolute_path(path), absolute_path(&host.runs));
    let job = BatchJob {
        settings: &settings,
        id: &file_name(&path),
        needs,
        threads: host.threads,
        command: job_command(&path)?,
        output: &path,
        runs: &runs,
        array: None,
    };
    match run {
        RunToSubmit::Planned(_) => match busy {
            Some(busy) => find_job(&job)?.ok_or(busy)?.print(&job, args),
            None => print(&job.script()?).map(|()| Exit::Done),
        },
        RunToSubmit::Done(_) => Submission::new(&job, SubmissionStatus::UpToDate, None).print(&job, args),
        // No other process creates or submits the run while this one holds it.
        RunToSubmit::Opened(_held) => submit(&job)?.print(&job, args),
    }
}

/// The command that trains the run in `path`, for a shell.
fn job_command(path: &Path) -> Result<String> {
    let program = std::env::current_exe().context("this program's file")?;
    let word = |path: &Path| shell_word(&path.to_string_lossy()).into_owned();
    // Not every Slurm gives a job the variables of the shell that submits it.
    let products = std::env::var(BF16_PRODUCTS).ok().filter(|method| !method.is_empty());
    let variable = products.map_or_else(String::new, |method| format!("env {BF16_PRODUCTS}={} ", shell_word(&method)));
    Ok(format!("{variable}{} resume {}", word(&program), word(path)))
}

/// Writes and submits `job`, unless Slurm has a job of the run.
fn submit(job: &BatchJob<'_>) -> Result<Submission> {
    let script = job.output.join(SLURM_SCRIPT);
    if let Some(queued) = find_job(job)? {
        return Ok(queued);
    }
    write_atomic(&script, job.script()?.as_bytes())?;
    Ok(Submission::new(job, SubmissionStatus::Submitted, Some(slurm::submit(&script)?)))
}

/// The job that Slurm has for the run of `job`.
///
/// # Errors
/// If Slurm does not show its queue.
fn find_job(job: &BatchJob<'_>) -> Result<Option<Submission>> {
    let queued = slurm::jobs_of_script(&job.output.join(SLURM_SCRIPT))?.into_iter().next();
    Ok(queued.map(|queued| Submission::new(job, SubmissionStatus::Queued, Some(queued.id))))
}

/// The output of `--json`.
#[derive(Debug, Serialize)]
struct Submission {
    run: String,
    #[serde(serialize_with = "serialize_path")]
    path: PathBuf,
    status: SubmissionStatus,
    /// The number of the job, if Slurm has one for the run.
    job: Option<String>,
    /// The file with the job.
    script: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum SubmissionStatus {
    /// The run is done.
    UpToDate,
    /// A job of the run was in the queue before.
    Queued,
    Submitted,
}

impl Submission {
    fn new(job: &BatchJob<'_>, status: SubmissionStatus, number: Option<String>) -> Self {
        let script = job.output.join(SLURM_SCRIPT);
        Self { run: job.id.to_owned(), path: job.output.to_owned(), status, job: number, script }
    }

    fn print(&self, job: &BatchJob<'_>, args: &SubmitArgs) -> Result<Exit> {
        print_result(args.json, self, || self.text(job))
    }

    fn text(&self, job: &BatchJob<'_>) -> String {
        let Self { run, status, script, .. } = self;
        let (run, number) = (printable(run), self.job.as_deref().unwrap_or_default());
        match status {
            SubmissionStatus::UpToDate => format!("up to date: {run}{NEW_HINT}\n"),
            SubmissionStatus::Queued => {
                format!("queued   {run} already has job {number}; `runner runs` shows its status\n")
            }
            SubmissionStatus::Submitted => format!(
                "submitted {run} as job {number}: {}\nscript   {}\nnext     `runner runs` shows its status; `scancel {number}` lets it \
                 save and ends it\n",
                describe_job(job),
                script.display()
            ),
        }
    }
}

/// What `job` asks for: `4 ranks on 2 nodes; time limit: 1h 40m`.
fn describe_job(job: &BatchJob<'_>) -> String {
    let (ranks, nodes) = (counted(job.needs.ranks as u64, "rank"), counted(job.nodes() as u64, "node"));
    let limit = job.time_limit_minutes().map_or_else(
        || "that of the partition, because the speed of the devices is unknown; `--time` sets one".to_owned(),
        |minutes| duration(Duration::from_mins(minutes)),
    );
    format!("{ranks} on {nodes}; time limit: {limit}")
}
