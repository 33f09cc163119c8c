//! One process's work on a run: opening the record, training under the plan's layout, and recording how it ended.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::Context;

use super::came::{Came, RunError};
use super::common;
use super::exit::Exit;
use super::interrupt::Interrupt;
use super::printer::Printer;
use super::ready::Ready;
use super::test;
use super::watch::Watch;
use super::world::{Joined, state_of};
use runner_comm::Alone;
use runner_compute::observer::Observer;
use runner_compute::state::TrainState;
use runner_data::Prepared;
use runner_engine::launch;
use runner_engine::launch::member::Kept;
use runner_engine::launch::threads::Seated;
use runner_engine::launch::{Attempt, Faults, Launch, supervise};
use runner_exec::parameter_layout;
use runner_exec::{Peers, Resources, RunControls};
use runner_machine::host::{Git, Machine, peak_rss_bytes};
use runner_report::summary::{closing_text, headline};
use runner_report::{EventLines, JsonEvent, OutputMode as ScreenMode, Screen};
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;
use runner_spec::program::{Mode, Program};
use runner_store::checkpoint;
use runner_store::checkpoint::StateHash;
use runner_store::manifest::{RunStatus, SessionContext};
use runner_store::run_dir;
use runner_store::run_dir::{CHECKPOINTS, LOG, METRICS, RunDir, TOKENIZER};
use runner_store::summary::{RankSummary, Summary, step_seconds};
use runner_store::{Log, OpenedRecorder, Recorder};

/// How this process was asked to work on a run, by whatever command.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    pub threads: usize,
    /// `--set` flags, and of the environment what was read.
    pub overrides: Vec<String>,
    pub environment: BTreeMap<String, String>,
    /// The step after which to stop.
    pub until: Option<u64>,
    /// Whether to record the hashes of what is computed.
    pub trace: bool,
    /// Whether runs are in a folder that other commands must be told of.
    pub elsewhere: bool,
    pub faults: Option<Faults>,
}

pub(super) struct Job<'a> {
    pub call: &'a Call,
    pub experiment: &'a Experiment,
    pub ready: &'a Ready,
    pub interrupt: &'a Interrupt,
    /// This rank among those that a launcher started; `None`: this process starts the ranks itself.
    pub joined: Option<&'a Joined<'a>>,
}

/// What training begins with.
enum Begin {
    /// The initial weights.
    Fresh,
    /// A checkpoint, read; and where it lies.
    State(Box<TrainState>, PathBuf),
    /// One that each rank reads.
    Checkpoint(PathBuf, u64),
}

/// A record that is open, and where training begins.
struct Record {
    recorder: Recorder,
    begin: Begin,
    warnings: Vec<String>,
}

/// How training ended well.
struct Ended {
    interrupted: bool,
    hash: Option<StateHash>,
    /// Of each rank, where they are processes.
    peaks: Vec<Option<u64>>,
}

impl Begin {
    fn step(&self) -> u64 {
        match self {
            Self::Fresh => 0,
            Self::State(state, _) => state.step,
            Self::Checkpoint(_, step) => *step,
        }
    }
}

impl Job<'_> {
    /// Works on `run`, says what came of it, and gives the command's exit code.
    ///
    /// # Errors
    /// As `work`.
    pub(super) fn carry_out(&self, run: RunDir, screen: Screen) -> anyhow::Result<Exit> {
        let mode = screen.mode();
        let came = self.work(run, screen)?;
        came.tell(mode);
        Ok(came.exit())
    }

    /// Works on `run` until it is done, interrupted or failed, and records which.
    pub(super) fn work(&self, mut run: RunDir, mut screen: Screen) -> anyhow::Result<Came> {
        let path = run.path().to_owned();
        let mut log = Log::append(&path.join(LOG))?;
        let Record { mut recorder, begin, warnings } = self.open_record(&path)?;
        let fresh = run.manifest().sessions.is_empty();
        let from = begin.step();
        if self.call.until.is_some_and(|until| until <= from) {
            let summary = run_dir::read_summary(&path)?;
            screen.json(&JsonEvent::Summary { run: &path, up_to_date: true, summary: summary.as_ref() });
            return Ok(Came::Already(from));
        }
        if let Some(faults) = &self.call.faults {
            log.line(&format!("warning: made to fail for a test: {faults:?}"))?;
        }
        if self.call.trace {
            recorder.start_trace()?;
        }
        let words = opening(&run, fresh, from, self.plan().totals.steps);
        let here = Machine::detect();
        let foreign = if fresh { None } else { run.manifest().bit_drift(&here) };
        for warning in warnings.iter().chain(&foreign) {
            log.line(&format!("warning: {warning}"))?;
            screen.warn(warning);
        }
        log.line(&words)?;
        screen.line(&words);
        let wall_before = wall_seconds(&path, from)?;
        screen.start_bar(from, self.plan().totals.steps);
        let screen = Printer::new(screen).context("starting a thread")?;
        run.write_once(TOKENIZER, || self.ready.prepared.tokenizer.to_file().map_err(anyhow::Error::from))?;
        run.begin_session(from, self.place())?;
        let started = Instant::now();
        let lines = EventLines::new(self.experiment.log.every);
        let mut watch = Watch { path: path.clone(), recorder, log, lines, screen };
        self.interrupt.arm();
        let ended = self.train(begin, &mut run, &mut watch);
        let tested = match &ended {
            Ok(Ended { interrupted: false, .. }) => test::test(self.experiment, self.ready, &path, &mut watch),
            _ => Ok(None),
        };
        // A test that cannot be made is a failure of the run, which `resume` mends.
        let (ended, tested) = match tested {
            Ok(tested) => (ended, tested),
            Err(error) => (Err(RunError::Test(error)), None),
        };
        let Watch { recorder, mut log, screen, .. } = watch;
        let (status, error, hash, peaks) = match &ended {
            Ok(Ended { interrupted, hash, peaks }) => {
                let status = if *interrupted { RunStatus::Interrupted } else { RunStatus::Done };
                (status, None, hash.clone(), peaks.clone())
            }
            Err(error) => (
                RunStatus::Failed,
                Some(error.to_string()),
                recorder.newest_checkpoint().map(|(_, h)| h.clone()),
                Vec::new(),
            ),
        };
        let continued_from = run.manifest().continued_from.as_ref().map_or(0, |c| c.step);
        let (final_hash, weights_hash) = hash.map(|h| (h.state, h.weights)).unzip();
        let numbers = Summary::from_metrics(&path.join(METRICS), continued_from);
        let recorded = numbers.map(|numbers| Summary {
            id: run.id(),
            status,
            error: error.clone(),
            not_finite: ended.as_ref().is_err_and(RunError::not_finite),
            steps_total: self.plan().totals.steps,
            wall_seconds: wall_before + started.elapsed().as_secs_f64(),
            predicted_step_ms: self.plan().forecast.as_ref().map(|f| f.step_seconds * 1e3),
            peak_rss_bytes: match peaks.as_slice() {
                [] if self.in_processes() => None,
                [] => peak_rss_bytes(),
                peaks => peaks.iter().copied().sum(),
            },
            planned_memory_bytes: self.plan().ranks.iter().map(|r| r.memory.total()).fold(0, u64::saturating_add),
            ranks: self.ranks(&peaks),
            final_hash,
            weights_hash,
            test: tested,
            ..numbers
        });
        let recorded = recorded.and_then(|summary| {
            let words = error.as_ref().map_or_else(|| headline(&summary), |e| format!("failed: {e}"));
            log.line(&words)?;
            run.end_session(&summary)?;
            Ok(summary)
        });
        // Only now: whoever reads it may let it wait, and the record does not.
        let mut screen = screen.finish();
        screen.clear();
        match (ended, recorded) {
            // What stopped the run matters more than that the record could not say so.
            (Err(error), recorded) => Err(self.failure(error, recorded.ok().as_ref(), &path, &screen)),
            (Ok(_), Err(error)) => Err(error.into()),
            (Ok(_), Ok(summary)) => {
                self.close(&summary, &path, &screen);
                screen.json_result().context("standard output; the run itself is well, and recorded")?;
                // Who asks twice, by a flag and by a signal, waits for the signal's effect.
                let asked = self.call.until.filter(|step| *step == summary.steps && !self.stopping());
                Ok(match (status, asked) {
                    (RunStatus::Interrupted, Some(step)) => Came::Until(step),
                    (RunStatus::Interrupted, None) => Came::Interrupted,
                    _ => Came::Done,
                })
            }
        }
    }

    fn plan(&self) -> &Plan {
        &self.ready.plan
    }

    /// Whether each rank is a process of its own.
    fn in_processes(&self) -> bool {
        matches!(self.plan().mesh.mode, Mode::Ddp | Mode::Pipeline) || self.joined.is_some()
    }

    /// The program of the first rank.
    fn program(&self) -> &Program {
        &self.plan().ranks[0].program
    }

    /// Opens the record to go on with it: in this process the state is read with it, else each rank reads its own.
    fn open_record(&self, path: &Path) -> anyhow::Result<Record> {
        let keep = self.experiment.checkpoint.keep;
        if self.in_processes() {
            let OpenedRecorder { recorder, resumed, warnings } =
                Recorder::open_for_ranks(path, &self.plan().hash, keep)?;
            let begin = resumed.map_or(Begin::Fresh, |c| Begin::Checkpoint(c.path, c.step));
            return Ok(Record { recorder, begin, warnings });
        }
        let program = self.program();
        // The rank takes it to its device.
        let (layout, device) = (Arc::new(parameter_layout(program)), candle_core::Device::Cpu);
        let OpenedRecorder { recorder, resumed, warnings } =
            Recorder::open(path, &self.plan().hash, keep, &layout, program.moments(), &device)?;
        let begin = resumed.map_or(Begin::Fresh, |r| Begin::State(Box::new(r.state), r.path));
        Ok(Record { recorder, begin, warnings })
    }

    /// Trains to the end; after the death of a rank's process from the last checkpoint again, as often as allowed.
    fn train(&self, mut begin: Begin, run: &mut RunDir, watch: &mut Watch) -> Result<Ended, RunError> {
        let most = self.experiment.parallel.max_restarts;
        let (mut restarts, mut last): (u32, Option<Attempt>) = (0, None);
        loop {
            let from = begin.step();
            let error = match self.once(begin, watch) {
                Ok(ended) => return Ok(ended),
                Err(RunError::Process(error)) if error.died() && restarts < most && !self.stopping() => error,
                Err(error) => return Err(error),
            };
            let saved = watch.recorder.newest_checkpoint().map_or(0, |(step, _)| *step);
            let attempt = Attempt { from, saved, died_in: error.step().unwrap_or(from) };
            if last.is_some_and(|last| attempt.repeats(&last)) {
                return Err(RunError::Repeats(error));
            }
            last = Some(attempt);
            restarts += 1;
            run.record_restart()?;
            let keep = self.experiment.checkpoint.keep;
            let OpenedRecorder { recorder, resumed, warnings } =
                Recorder::open_for_ranks(run.path(), &self.plan().hash, keep)?;
            watch.recorder = recorder;
            begin = resumed.map_or(Begin::Fresh, |c| Begin::Checkpoint(c.path, c.step));
            let step = begin.step();
            watch.warn(&format!("{error}; all ranks start again from step {step} (restart {restarts} of {most})"))?;
            for warning in &warnings {
                watch.warn(warning)?;
            }
        }
    }

    fn orders(&self, watch: &Watch) -> RunControls<'_> {
        RunControls { stop: self.interrupt.stop(), until: self.call.until, trace: watch.recorder.is_tracing() }
    }

    fn stopping(&self) -> bool {
        self.interrupt.stop().load(Ordering::SeqCst)
    }

    /// Trains under the plan's layout.
    fn once(&self, begin: Begin, watch: &mut Watch) -> Result<Ended, RunError> {
        if let Some(joined) = self.joined {
            return self.lead(joined, &begin, watch);
        }
        match self.plan().mesh.mode {
            Mode::Single => self.alone(begin, watch),
            Mode::Dp => self.threads(begin, watch),
            Mode::Ddp | Mode::Pipeline => self.processes(&begin, watch),
        }
    }

    fn alone(&self, begin: Begin, watch: &mut Watch) -> Result<Ended, RunError> {
        let resources = self.resources();
        let program = self.program();
        let orders = self.orders(watch);
        let outcome = self.ready.pool.install(|| {
            let state = match begin {
                Begin::State(state, _) => *state,
                _ => common::initial_state(self.experiment, program, &self.plan().data)?,
            };
            let observer: &mut dyn Observer = watch;
            runner_exec::run(program, &resources, Peers { comm: &Alone, monitor: &() }, state, orders, observer)
        })?;
        Self::ended(&outcome, watch)
    }

    fn threads(&self, begin: Begin, watch: &mut Watch) -> Result<Ended, RunError> {
        let (mut first, path) = match begin {
            Begin::State(state, path) => (Some(*state), Some(path)),
            _ => (None, None),
        };
        let mut ranks = Vec::with_capacity(self.plan().ranks.len());
        for rank in &self.plan().ranks {
            let program = &rank.program;
            let state = match (first.take(), &path) {
                (Some(state), _) => state,
                (None, Some(path)) => {
                    let layout = Arc::new(parameter_layout(program));
                    let device = candle_core::Device::Cpu;
                    checkpoint::load_state(path, Some(&self.plan().hash), &layout, program.moments(), &device)?
                }
                (None, None) => {
                    self.ready.pool.install(|| common::initial_state(self.experiment, program, &self.plan().data))?
                }
            };
            ranks.push(Seated { program, threads: rank.hardware.threads, state });
        }
        let slots = self.plan().channel_slots;
        let orders = self.orders(watch);
        let outcomes = launch::threads::run(ranks, slots, &self.resources(), orders, watch)?;
        match outcomes.first() {
            Some(outcome) => Self::ended(outcome, watch),
            None => Ok(Ended { interrupted: false, hash: None, peaks: Vec::new() }),
        }
    }

    fn processes(&self, begin: &Begin, watch: &mut Watch) -> Result<Ended, RunError> {
        let run = watch.path.clone();
        let none = Faults::default();
        let launch = Launch {
            plan: self.plan(),
            experiment: self.experiment,
            run: &run,
            checkpoint: match begin {
                Begin::Checkpoint(path, _) => Some(path),
                _ => None,
            },
            from: begin.step(),
            until: self.call.until,
            trace: watch.recorder.is_tracing(),
            faults: self.call.faults.as_ref().unwrap_or(&none),
        };
        let ended = supervise::run(&launch, self.interrupt.stop(), watch);
        // What ranks wrote and nobody committed.
        watch.recorder.abandon_all();
        let supervise::Ended { interrupted, peak_rss_bytes } = ended?;
        let hash = watch.recorder.newest_checkpoint().map(|(_, hash)| hash.clone());
        Ok(Ended { interrupted, hash, peaks: peak_rss_bytes })
    }

    /// As the first of the ranks that a launcher started.
    fn lead(&self, joined: &Joined<'_>, begin: &Begin, watch: &mut Watch) -> Result<Ended, RunError> {
        let run = watch.path.clone();
        let none = Faults::default();
        let resources = self.resources();
        let state = state_of(self.experiment, self.plan(), &joined.program);
        let faults = self.call.faults.as_ref().unwrap_or(&none);
        let task = joined.task(self.ready, &resources, &state, self.interrupt, faults);
        let kept = Kept {
            run: &run,
            checkpoint: match begin {
                Begin::Checkpoint(path, _) => Some(path),
                _ => None,
            },
            until: self.call.until,
            trace: watch.recorder.is_tracing(),
        };
        let ended = task.lead(&kept, watch);
        // What ranks wrote and nobody committed.
        watch.recorder.abandon_all();
        let supervise::Ended { interrupted, peak_rss_bytes } = ended?;
        let hash = watch.recorder.newest_checkpoint().map(|(_, hash)| hash.clone());
        Ok(Ended { interrupted, hash, peaks: peak_rss_bytes })
    }

    /// Of a run whose whole state is in this process.
    fn ended(outcome: &runner_exec::RankOutcome, watch: &Watch) -> Result<Ended, RunError> {
        let saved =
            watch.recorder.newest_checkpoint().filter(|(step, _)| *step == outcome.state.step).map(|(_, h)| h.clone());
        let hash = saved.map_or_else(|| checkpoint::hash_state(&outcome.state), Ok)?;
        Ok(Ended { interrupted: outcome.interrupted, hash: Some(hash), peaks: Vec::new() })
    }

    fn resources(&self) -> Resources<'_> {
        let Prepared { dataset, tokenizer, choice, .. } = &self.ready.prepared;
        Resources { dataset, tokenizer, choice: choice.as_deref() }
    }

    /// What the summary says of each rank, where there are several.
    fn ranks(&self, peaks: &[Option<u64>]) -> Vec<RankSummary> {
        if self.plan().world_size < 2 {
            return Vec::new();
        }
        let one = |r: &runner_spec::plan::RankPlan| RankSummary {
            rank: r.rank,
            stage: r.stage,
            replica: r.replica,
            peak_rss_bytes: peaks.get(r.rank).copied().flatten(),
            planned_memory_bytes: r.memory.total(),
        };
        self.plan().ranks.iter().map(one).collect()
    }

    fn place(&self) -> SessionContext {
        let git = env::current_dir().ok().and_then(|folder| Git::state_of(&folder));
        SessionContext {
            git,
            machine: Machine::detect(),
            threads: self.call.threads,
            overrides: self.call.overrides.clone(),
            environment: self.call.environment.clone(),
        }
    }

    /// The run's error with what to do about it.
    fn failure(&self, error: RunError, summary: Option<&Summary>, path: &Path, screen: &Screen) -> anyhow::Error {
        screen.json(&JsonEvent::Summary { run: path, up_to_date: false, summary });
        let step = checkpoint::saved_steps(&path.join(CHECKPOINTS)).last().copied();
        let kept = step.map_or_else(String::new, |step| format!("; the checkpoint of step {step} is kept"));
        let next = match step {
            _ if error.not_finite() => {
                "the same file goes the same way again: change it (a lower learning rate, a longer warmup)".to_owned()
            }
            Some(_) => "the same command resumes from it".to_owned(),
            None => "the same command starts it again".to_owned(),
        };
        // Observers' errors come from the record and say themselves what is left.
        let run = format!("run {} failed", self.name(path));
        let text = if error.is_of_the_record() { run } else { format!("{run}: {error}{kept}; {next}") };
        error.into_anyhow().context(text)
    }

    fn close(&self, summary: &Summary, path: &Path, screen: &Screen) {
        screen.json(&JsonEvent::Summary { run: path, up_to_date: false, summary: Some(summary) });
        match screen.mode() {
            ScreenMode::Quiet => screen.result_line(&headline(summary)),
            _ => screen.line(&closing_text(summary, &self.name(path), path)),
        }
    }

    /// What other commands call the run: its id where they would look, its folder elsewhere.
    fn name(&self, path: &Path) -> String {
        let shown = if self.call.elsewhere { None } else { path.file_name().map(PathBuf::from) };
        shown.unwrap_or_else(|| path.to_owned()).display().to_string()
    }
}

/// What is said first.
fn opening(run: &RunDir, fresh: bool, from: u64, steps: u64) -> String {
    let id = run.id();
    let manifest = run.manifest();
    match (&manifest.error, fresh, &manifest.continued_from) {
        (_, true, Some(other)) => format!("run    {id}: continuing {} from step {from} of {steps}", other.id),
        (_, true, None) => format!("run    {id}: {steps} steps"),
        (Some(error), false, _) => format!("run    {id} failed ({error}); resuming from step {from} of {steps}"),
        (None, false, _) => format!("run    {id}: resuming from step {from} of {steps}"),
    }
}

/// Time that earlier sessions worked on the steps up to `from`: as the summary says, if it was written at that step; of
/// a session that was killed, the time in its steps.
fn wall_seconds(path: &Path, from: u64) -> anyhow::Result<f64> {
    match run_dir::read_summary(path) {
        Ok(Some(summary)) if summary.steps == from => Ok(summary.wall_seconds),
        _ => Ok(step_seconds(&path.join(METRICS))?),
    }
}
