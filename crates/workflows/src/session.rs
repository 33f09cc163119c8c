//! One process's work on a run: the record is opened, the ranks train under the plan's layout, and the record shows how it ended.

use std::path::Path;
use std::time::Instant;

use runner_compare::session_facts::{describe_consequence, fact_changes};
use runner_machine::host::peak_rss_bytes;
use runner_ranks::{LaunchError, LaunchedTraining, RankBackend, TrainingAttempt, TrainingEnd, TrainingStart};
use runner_record::checkpoint::{self, Checkpoints, ChosenCheckpoint};
use runner_record::data_files::write_data_files_once;
use runner_record::manifest::{self, ContinuedFrom, RunOrigin, RunStatus};
use runner_record::run_dir::{self, CHECKPOINTS, LOG, METRICS, RunDir, TOKENIZER};
use runner_record::summary::{RankSummary, Summary, TestResult, headline, step_seconds};
use runner_record::{Log, OpenedRecorder, RecordError, Recorder, time};
use runner_spec::experiment::Experiment;
use runner_spec::forecast::ForecastBasis;
use runner_spec::format::{choice_name, count, counted};
use runner_spec::plan::{Plan, RankPlan};
use runner_spec::program::{Device, ParallelMode};

use crate::event_lines::EventLines;
use crate::final_test::test_best_checkpoint;
use crate::outcome::{RunOutcome, RunReport};
use crate::rank_inputs::rank_inputs;
use crate::recorded_summary::{report_nothing_to_do, warn_of_damaged_metrics};
use crate::recording::Recording;
use crate::restarts::AttemptProgress;
use crate::run_error::RunError;
use crate::session_facts::describe_session;
use crate::tracking::Tracking;
use runner_inputs::{Host, PreparedRun, RunEvent, RunObserver, data_files};
use runner_spec::error::{CommandError, Result};
use runner_threads::stop::{StopReason, StopSwitch};

/// Options of one process's work on a run.
#[derive(Debug, Clone, Default)]
pub struct SessionOptions {
    /// Overrides of keys.
    pub overrides: Vec<String>,
    /// The step after which to stop with a checkpoint.
    pub until_step: Option<u64>,
    /// True to record hashes of what each step computes.
    pub trace: bool,
    /// True if the folder of runs is not where other commands look by default, so they need the run's folder, not its id.
    pub has_other_runs_folder: bool,
    /// The number of times that a launcher restarted the ranks after one had failed, before this session.
    pub restarts: u32,
}

/// One process's work on a run.
#[derive(Clone, Copy)]
pub(crate) struct RunSession<'a> {
    pub options: &'a SessionOptions,
    pub host: &'a Host,
    pub experiment: &'a Experiment,
    pub ready: &'a PreparedRun,
    pub stop: &'a StopSwitch,
    /// The training of rank 0 of those that a launcher started; `None` if this process starts the ranks itself.
    pub launched: Option<&'a LaunchedTraining<'a>>,
}

impl RunSession<'_> {
    /// Works on `run` until it is done, interrupted or failed, and records which.
    ///
    /// # Errors
    /// If the run failed, which its record then shows, too; or the record cannot be written.
    pub(crate) fn work(&self, run: RunDir, observer: &mut dyn RunObserver) -> Result<RunReport> {
        let path = run.path().to_owned();
        Ok(RunReport { outcome: self.train_and_record(run, observer)?, run: Some(path) })
    }

    fn train_and_record(&self, mut run: RunDir, observer: &mut dyn RunObserver) -> Result<RunOutcome> {
        let path = run.path().to_owned();
        let log = Log::append(&path.join(LOG))?;
        let checkpoints = self.open_checkpoints(&run)?;
        let resume_point = checkpoints.choose()?;
        if let Some(resume_point) = resume_point.as_ref()
            && self.options.until_step.is_some_and(|until| until <= resume_point.step)
        {
            return self.find_nothing_to_do(&run, resume_point, log, observer);
        }
        let opened = Recorder::resume(&path, checkpoints, resume_point)?;
        let started = Instant::now();
        let (mut recording, resume_point, seconds_before) = self.begin(&mut run, opened, log, observer)?;
        self.stop.arm();
        let end = self.train(resume_point, &mut run, &mut recording);
        let (end, tested) = self.test(end, &run, &mut recording);
        let own_seconds = seconds_before + started.elapsed().as_secs_f64();
        let recorded = self.record_end(&mut run, &end, tested, own_seconds, &mut recording);
        let stop_reason = self.stop_reason(&end);
        self.report_end(&end, recorded.as_ref().ok(), recording);
        match (end, recorded) {
            // The error that stopped the run matters more than the one of writing the record.
            (Err(error), _) => Err(self.failure(error, &run)),
            (Ok(_), Err(error)) => Err(error.into()),
            (Ok(_), Ok(summary)) => {
                // A run that was asked to stop by a step and by a signal counts as interrupted.
                let reached = |step: &u64| *step == summary.steps && stop_reason.is_none();
                Ok(match (summary.status, self.options.until_step.filter(reached)) {
                    (RunStatus::Interrupted, Some(step)) => RunOutcome::StoppedAt(step),
                    (RunStatus::Interrupted, None) => {
                        RunOutcome::Interrupted(stop_reason.unwrap_or(StopReason::Interrupt))
                    }
                    _ => RunOutcome::Done,
                })
            }
        }
    }

    /// Reports that `run` has already reached the step at which it was to stop, at `resume_point`.
    fn find_nothing_to_do(
        &self,
        run: &RunDir,
        resume_point: &ChosenCheckpoint,
        mut log: Log,
        observer: &mut dyn RunObserver,
    ) -> Result<RunOutcome> {
        let path = run.path();
        warn_all(&resume_point.warnings, &mut log, observer)?;
        let is_damaged = warn_of_damaged_metrics(path, run.manifest(), observer)?;
        report_nothing_to_do(path, &self.name(path), is_damaged, observer);
        Ok(RunOutcome::AlreadyAt(resume_point.step))
    }

    /// Records and reports that the session begins with the record `opened`. Returns its recording, where it resumes, and the seconds that earlier
    /// sessions took.
    fn begin<'o>(
        &self,
        run: &mut RunDir,
        opened: OpenedRecorder,
        mut log: Log,
        observer: &'o mut dyn RunObserver,
    ) -> Result<(Recording<'o>, Option<ChosenCheckpoint>, f64)> {
        let path = run.path().to_owned();
        let OpenedRecorder { mut recorder, resumed: resume_point, mut warnings } = opened;
        let from = resume_point.as_ref().map_or(0, |checkpoint| checkpoint.step);
        let is_new = run.manifest().sessions.is_empty();
        if self.options.trace {
            recorder.start_trace()?;
        }
        let earlier = run_dir::read_summary(&path);
        warnings.extend(earlier.as_ref().err().map(|unreadable| format!("skipped: {unreadable}")));
        let session = describe_session(self.host, self.experiment, self.plan());
        let inherits = run.manifest().continued_from.as_ref().is_some_and(|from| !from.sessions.is_empty());
        if let Some(last) = run.manifest().described_sessions().last().filter(|_| !is_new || inherits) {
            let changes = fact_changes(last, &session).into_iter();
            warnings.extend(changes.map(|change| format!("{change}; {}", describe_consequence(&change))));
        }
        warnings.extend(run.manifest().continued_from.as_ref().filter(|_| is_new).and_then(describe_omissions));
        warnings.extend(run.lock_warning());
        warn_all(&warnings, &mut log, observer)?;
        let steps = self.plan().totals.steps;
        let model = describe_model(self.plan());
        log.line(&model)?;
        observer.observe(&RunEvent::Note(&model));
        let text = describe_start(run, is_new, from, steps);
        log.line(&text)?;
        let seconds_before = seconds_before(run, earlier.ok().flatten().as_ref(), from)?;
        let (plan, log_settings) = (self.plan(), &self.experiment.log);
        observer.observe(&RunEvent::Begin { run: &path, text: &text, step: from, plan, log: log_settings });
        run.write_once(TOKENIZER, || {
            self.ready.prepared.tokenizer.text.to_file().map_err(|error| CommandError::failure(error.to_string()))
        })?;
        let mut unread = Vec::new();
        let mut warn = |text: &str| unread.push(text.to_owned());
        write_data_files_once(&path, || data_files(self.experiment, &self.ready.prepared, self.host, &mut warn))?;
        warn_all(&unread, &mut log, observer)?;
        let overrides = self.options.overrides.clone();
        let restarts = self.options.restarts;
        let recorded = manifest::Session { started: time::now(), from_step: from, restarts, overrides, ..session };
        run.begin_session(self.host.git(), recorded, plan)?;
        let lines = EventLines::new(log_settings, plan.row_sequence());
        let tracking = Tracking::start(self.experiment, &path, self.host);
        Ok((Recording { path, recorder, log, lines, tracking, observer }, resume_point, seconds_before))
    }

    /// Tests the best checkpoint of `run`, if its training came to its end. A test that cannot be made is a failure of the run, and `resume`
    /// repeats it.
    fn test(
        &self,
        end: Result<TrainingEnd, RunError>,
        run: &RunDir,
        recording: &mut Recording<'_>,
    ) -> (Result<TrainingEnd, RunError>, Option<TestResult>) {
        if !matches!(end, Ok(TrainingEnd { interrupted: false, .. })) {
            return (end, None);
        }
        let first_step = run.manifest().inherited_steps();
        match test_best_checkpoint(self.experiment, self.ready, first_step, self.host, recording) {
            Ok(tested) => (end, tested),
            Err(error) => (Err(RunError::Test(Box::new(error))), None),
        }
    }

    /// Records how the session ended, after `own_seconds` of all sessions.
    fn record_end(
        &self,
        run: &mut RunDir,
        end: &Result<TrainingEnd, RunError>,
        test: Option<TestResult>,
        own_seconds: f64,
        recording: &mut Recording<'_>,
    ) -> Result<Summary, RecordError> {
        let (path, newest) = (recording.path.clone(), recording.recorder.newest_checkpoint());
        let (status, hash, mut peaks) = match end {
            Ok(TrainingEnd { interrupted, hash, peak_rss_bytes, .. }) => {
                let status = if *interrupted { RunStatus::Interrupted } else { RunStatus::Done };
                (status, hash.clone(), peak_rss_bytes.clone())
            }
            Err(_) => (RunStatus::Failed, newest.map(|(_, hash)| hash.clone()), Vec::new()),
        };
        if self.launched.is_none()
            && let Some(Some(first)) = peaks.first_mut()
        {
            // This process has started the processes of the ranks. The plan counts it with the first of them.
            *first += peak_rss_bytes().unwrap_or(0);
        }
        let error = end.as_ref().err().map(ToString::to_string);
        let (final_hash, weights_hash) = hash.map(|h| (h.state, h.weights)).unzip();
        let saved = newest.and_then(|(step, _)| checkpoint::recorded_position(&path.join(CHECKPOINTS), *step));
        let (manifest, began) = (run.manifest(), run.manifest().newest_layout_began());
        let numbers =
            Summary::from_metrics(&path.join(METRICS), manifest.continued_from.as_ref(), began, saved.as_ref())?
                .with_own_seconds(own_seconds);
        let forecast = self.plan().forecast.as_ref();
        let summary = Summary {
            id: run.id(),
            status,
            error: error.clone(),
            not_finite: end.as_ref().is_err_and(RunError::is_not_finite),
            steps_total: self.plan().totals.steps,
            predicted_step_ms: forecast.map(|forecast| forecast.step_seconds * 1e3),
            is_prediction_disturbed: forecast.is_some_and(|forecast| forecast.basis == ForecastBasis::Disturbed),
            peak_rss_bytes: match peaks.as_slice() {
                [] if self.ranks_are_processes() => None,
                [] => peak_rss_bytes(),
                peaks => peaks.iter().copied().sum(),
            },
            planned_memory_bytes: self.plan().ranks.iter().map(|rank| rank.memory.total()).fold(0, u64::saturating_add),
            ranks: self.rank_summaries(&peaks),
            final_hash,
            weights_hash,
            test,
            ..numbers
        };
        let text = error.map_or_else(|| headline(&summary), |error| format!("failed: {error}"));
        recording.log.line(&text)?;
        run.end_session(&summary)?;
        Ok(summary)
    }

    /// Reports the end of the session, and sends it to the programs that show the run.
    fn report_end(&self, end: &Result<TrainingEnd, RunError>, summary: Option<&Summary>, recording: Recording<'_>) {
        let Recording { path, mut log, mut tracking, observer, .. } = recording;
        tracking.flush();
        // The observer is called once the record is complete, because it may wait for a reader; and before the wait for a server.
        let (name, failed) = (self.name(&path), end.is_err());
        let was_interrupted = end.as_ref().is_ok_and(|end| end.interrupted);
        let interrupted = was_interrupted && self.stop_reason(end).is_some();
        observer.observe(&RunEvent::End { run: &path, name: &name, summary, up_to_date: false, failed, interrupted });
        for warning in tracking.finish(&path, &name, self.stop, &mut *observer) {
            // The log is complete without it, and the run has ended.
            let _ = log.line(&format!("warning: {warning}"));
            observer.observe(&RunEvent::Warning(&warning));
        }
    }

    /// The reason for which this process, or another rank, was asked to stop.
    fn stop_reason(&self, end: &Result<TrainingEnd, RunError>) -> Option<StopReason> {
        end.as_ref().ok().and_then(|end| end.stop_reason).or_else(|| self.stop.stop_reason())
    }

    fn plan(&self) -> &Plan {
        &self.ready.plan
    }

    /// True if each rank is a separate process. The ranks of `dp` are threads, but not on GPUs: threads share the launches of their
    /// process, so that ranks that wait for a sum could leave no room for the one that is missing.
    fn ranks_are_processes(&self) -> bool {
        let plan = self.plan();
        let on_gpu = |rank: &RankPlan| matches!(rank.program.device, Device::Cuda(_));
        match plan.mesh.mode {
            _ if self.launched.is_some() => true,
            ParallelMode::Ddp | ParallelMode::Pipeline => true,
            ParallelMode::Dp => plan.ranks.iter().any(on_gpu),
            ParallelMode::Single => false,
        }
    }

    /// Opens the checkpoints of `run` for writing. They carry the hash of the plan that it started with, whatever the layout of a session.
    fn open_checkpoints(&self, run: &RunDir) -> Result<Checkpoints, RecordError> {
        let (folder, keep) = (run.path().join(CHECKPOINTS), self.experiment.checkpoint.keep);
        Ok(Checkpoints::open(&folder, &run.manifest().plan_hash, keep)?.with_rows(self.plan().row_sequence()))
    }

    /// Trains from `resume_point`, or from the initial weights, to the end. When a rank's process is lost, the ranks are restarted from the
    /// newest checkpoint, as often as the experiment allows.
    fn train(
        &self,
        mut resume_point: Option<ChosenCheckpoint>,
        run: &mut RunDir,
        recording: &mut Recording<'_>,
    ) -> Result<TrainingEnd, RunError> {
        let max_restarts = self.experiment.parallel.max_restarts;
        let (mut restarts, mut last): (u32, Option<AttemptProgress>) = (0, None);
        loop {
            let from = resume_point.as_ref().map_or(0, |checkpoint| checkpoint.step);
            let error = match self.train_once(resume_point.as_ref(), recording) {
                Ok(ended) => return Ok(ended),
                Err(error) => error,
            };
            let may_restart = restarts < max_restarts && !self.stop.is_stop_requested();
            let Some(exited_in) = error.lost_rank().map(|failure| failure.step).filter(|_| may_restart) else {
                return Err(error.into());
            };
            let saved = recording.recorder.newest_checkpoint().map_or(0, |(step, _)| *step);
            let attempt = AttemptProgress { from, saved, exited_in };
            if last.is_some_and(|last| attempt.repeats(&last)) {
                return Err(RunError::Repeated(error));
            }
            last = Some(attempt);
            restarts += 1;
            run.record_restart()?;
            let checkpoints = self.open_checkpoints(run)?;
            let chosen = checkpoints.choose()?;
            let OpenedRecorder { recorder, resumed, warnings } = Recorder::resume(run.path(), checkpoints, chosen)?;
            recording.recorder = recorder;
            recording.tracking.restart(run.path());
            resume_point = resumed;
            let step = resume_point.as_ref().map_or(0, |checkpoint| checkpoint.step);
            let restart = format!("all ranks restart from step {step} (restart {restarts} of {max_restarts})");
            for warning in [format!("{error}; {restart}")].into_iter().chain(warnings) {
                recording.warn(warning)?;
            }
        }
    }

    /// Trains under the plan's layout, until the end or the first failure.
    fn train_once(
        &self,
        resume_point: Option<&ChosenCheckpoint>,
        recording: &mut Recording<'_>,
    ) -> Result<TrainingEnd, LaunchError> {
        let inputs = || rank_inputs(self.ready, self.experiment, self.host);
        let ranks = match self.launched {
            Some(launched) => RankBackend::Launched(launched),
            None if self.ranks_are_processes() => RankBackend::Processes(inputs()),
            None => RankBackend::Threads(inputs()),
        };
        let training = TrainingStart {
            checkpoint: resume_point.map(|checkpoint| checkpoint.path.clone()),
            until_step: self.options.until_step,
            trace: recording.recorder.is_tracing(),
        };
        let (folder, from) = (recording.path.clone(), resume_point.map_or(0, |checkpoint| checkpoint.step));
        ranks.train(&TrainingAttempt { folder: &folder, training: &training, from, stop: self.stop }, recording)
    }

    /// The summaries of the ranks, if there are several.
    fn rank_summaries(&self, peaks: &[Option<u64>]) -> Vec<RankSummary> {
        if self.plan().world_size < 2 {
            return Vec::new();
        }
        let summarize = |r: &RankPlan| RankSummary {
            rank: r.rank,
            stage: r.stage,
            replica: r.replica,
            peak_rss_bytes: peaks.get(r.rank).copied().flatten(),
            planned_memory_bytes: r.memory.total(),
        };
        self.plan().ranks.iter().map(summarize).collect()
    }

    /// The error of `run` with what to do next.
    fn failure(&self, error: RunError, run: &RunDir) -> CommandError {
        let name = self.name(run.path());
        let step = checkpoint::newest_step(&run.path().join(CHECKPOINTS));
        let command = match run.manifest().origin {
            Some(RunOrigin::Reproduction { .. }) => "the same command".to_owned(),
            // `resume` needs the run's folder on every machine, `apply` on the leader's alone.
            _ if self.launched.is_some() => "the same command without --new".to_owned(),
            _ => format!("`runner resume {name}`"),
        };
        let next = match step {
            _ if error.is_not_finite() => {
                "the same file would fail in the same way; change it (a lower learning rate, a longer warmup)"
                    .to_owned()
            }
            Some(_) => format!("{command} resumes from it"),
            None if !run.path().exists() => "the run's folder is gone; apply the experiment again".to_owned(),
            None => format!("{command} restarts it"),
        };
        let error = CommandError::from(error).context(format!("run {name} failed"));
        let kept = step.into_iter().map(|step| format!("the checkpoint of step {step} is kept"));
        kept.chain([next]).fold(error, CommandError::hint)
    }

    fn name(&self, path: &Path) -> String {
        self.options.name_of(path, self.host)
    }
}

/// Sends `warnings` to the log and to `observer`.
fn warn_all(warnings: &[String], log: &mut Log, observer: &mut dyn RunObserver) -> Result<(), RecordError> {
    for warning in warnings {
        log.line(&format!("warning: {warning}"))?;
        observer.observe(&RunEvent::Warning(warning));
    }
    Ok(())
}

/// The seconds that the earlier sessions of `run` took up to the step `from`. The `summary` of the last session has them, unless that session
/// was killed: then the times of the recorded steps are added.
fn seconds_before(run: &RunDir, summary: Option<&Summary>, from: u64) -> Result<f64, RecordError> {
    match summary {
        Some(summary) if summary.steps == from => Ok(summary.own.wall_seconds),
        _ => step_seconds(&run.path().join(METRICS), run.manifest().inherited_steps()),
    }
}

/// The warning about the evaluations of the other run that the record leaves out; `None` if it has them all.
fn describe_omissions(from: &ContinuedFrom) -> Option<String> {
    let (id, omitted) = (&from.id, from.omitted_evaluations.join(" and "));
    (!omitted.is_empty()).then(|| {
        format!(
            "this run does not inherit all evaluations of {id}, because they do not compare with its own: {omitted}"
        )
    })
}

/// The model, its precision, and the device of each rank.
fn describe_model(plan: &Plan) -> String {
    let Some(program) = plan.ranks.first().map(|rank| &rank.program) else { return String::new() };
    let state = if program.master_weights { "" } else { ", bf16 weights and moments" };
    let ranks: Vec<String> = match plan.ranks.as_slice() {
        [only] => vec![only.device.to_string()],
        ranks => ranks.iter().map(|rank| format!("rank {} on {}", rank.rank, rank.device)).collect(),
    };
    let mode = match plan.world_size {
        1 => "on".to_owned(),
        ranks => format!("{ranks} ranks ({}):", choice_name(&plan.mesh.mode)),
    };
    format!(
        "model  {} parameters, {}{state}; {mode} {}",
        count(plan.totals.parameters),
        choice_name(&program.precision),
        ranks.join(", ")
    )
}

/// The first line of a session.
fn describe_start(run: &RunDir, is_new: bool, from: u64, steps: u64) -> String {
    let id = run.id();
    let manifest = run.manifest();
    let (from, steps) = (count(from), counted(steps, "step"));
    match (&manifest.error, is_new, &manifest.continued_from) {
        (_, true, Some(other)) => format!("run    {id}: continuing {} from step {from} of {steps}", other.id),
        (_, true, None) => format!("run    {id}: {steps}"),
        (Some(error), false, _) => format!("run    {id} failed ({error}); resuming from step {from} of {steps}"),
        (None, false, _) => format!("run    {id}: resuming from step {from} of {steps}"),
    }
}
