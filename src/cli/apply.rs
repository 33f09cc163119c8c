//! `runner apply`: makes an experiment's run be done, starting it, resuming it, or finding that it is.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;

use super::common::{self, ExperimentArgs, RootArgs, ThreadArgs};
use super::exit::{Exit, RequestError};
use super::interrupt::Interrupt;
use super::plan::{PEAK_FLOPS, peak_flops};
use crate::comm::Alone;
use crate::config::{self, Loaded};
use crate::data::Prepared;
use crate::exec::step::layout;
use crate::exec::{self, Event, ExecError, ObserveError, Observer, Peers, TrainState};
use crate::plan::{self, ClusterFacts, Plan};
use crate::report::summary::{closing, headline, up_to_date};
use crate::report::{JsonEvent, Lines, Mode, Screen};
use crate::store::manifest::{Manifest, Place, RunStatus};
use crate::store::run_dir::{self, LOG, METRICS, RunDir, RunFiles};
use crate::store::summary::{Outcome, Summary, step_seconds};
use crate::store::{Git, Log, Machine, Opened, Recorder, checkpoint, lock, machine, time};

#[derive(Debug, Clone, Args)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub experiment: ExperimentArgs,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RootArgs,
    /// Start another run, even if this experiment has one.
    #[arg(long)]
    pub new: bool,
    /// Print only errors and the last line.
    #[arg(long, short)]
    pub quiet: bool,
    /// Print events as JSON lines on standard output, everything else on standard error.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// A wrong request, a machine that refuses, or a run that failed (which its record then says too).
pub fn run(args: &ApplyArgs) -> anyhow::Result<Exit> {
    let interrupt = Interrupt::install()?;
    let mut screen = Screen::new(Mode::detect(args.json, args.quiet));
    let loaded = args.experiment.load()?;
    let pool = args.threads.pool()?;
    let prepared = common::prepare_data(&loaded.experiment, &pool, &mut screen)?;
    let cluster = ClusterFacts::local(args.threads.count()).with_peak_flops(peak_flops(env::var_os(PEAK_FLOPS))?);
    let plan = plan::compile(&loaded.experiment, &prepared.facts, &cluster)?;
    for note in &plan.notes {
        screen.line(&format!("plan   {note}"));
    }
    refuse_what_cannot_fit(&plan)?;
    let Some(run) = open_or_create(args, &loaded, &plan, &mut screen)? else { return Ok(Exit::Done) };
    let job = Job { args, loaded: &loaded, plan: &plan, prepared: &prepared, interrupt: &interrupt, pool: &pool };
    job.work(run, screen)
}

/// # Errors
/// If the plan needs more memory than its device has: the run would end in the middle of a step.
fn refuse_what_cannot_fit(plan: &Plan) -> anyhow::Result<()> {
    match plan.shortage() {
        Some(note) => Err(RequestError(note.to_owned()).into()),
        None => Ok(()),
    }
}

/// The run directory to work in; `None` if the run is done.
fn open_or_create(
    args: &ApplyArgs,
    loaded: &Loaded,
    plan: &Plan,
    screen: &mut Screen,
) -> anyhow::Result<Option<RunDir>> {
    let root = args.root.root();
    let mut found = run_dir::find(&root, plan);
    // Two calls at once must not both find nothing. Of a finished run nothing is written, no lock either.
    let finished = found.run.as_ref().is_some_and(|(_, manifest)| manifest.status == RunStatus::Done);
    let _turn = if args.new || !finished {
        let turn = lock::turn(&root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
        found = run_dir::find(&root, plan);
        Some(turn)
    } else {
        None
    };
    for broken in &found.broken {
        screen.warn(&format!("passed over: {broken}"));
    }
    if let Some((path, manifest)) = found.run.filter(|_| !args.new) {
        // Done is looked at before the lock: nothing is written then.
        if manifest.status != RunStatus::Done {
            let run = RunDir::open(&path)?;
            // Another process may have finished it in between.
            if run.manifest().status != RunStatus::Done {
                return Ok(Some(run));
            }
        }
        let summary = run_dir::summary(&path)?;
        screen.json(&JsonEvent::Summary { run: &path, up_to_date: true, summary: summary.as_ref() });
        screen.last(&up_to_date(&manifest.id, summary.as_ref()));
        return Ok(None);
    }
    let mut manifest = Manifest::new(plan, args.experiment.file.clone(), args.experiment.set.clone(), time::now());
    manifest.environment = environment(loaded);
    let resolved = config::to_yaml(&loaded.experiment);
    let files = RunFiles { experiment: &loaded.text, resolved: &resolved, plan, manifest };
    Ok(Some(RunDir::create(&root, files)?))
}

/// Of the environment, what this call read.
fn environment(loaded: &Loaded) -> BTreeMap<String, String> {
    loaded.env_read.iter().cloned().chain(common::own_environment()).collect()
}

struct Job<'a> {
    args: &'a ApplyArgs,
    loaded: &'a Loaded,
    plan: &'a Plan,
    prepared: &'a Prepared,
    interrupt: &'a Interrupt,
    pool: &'a rayon::ThreadPool,
}

impl Job<'_> {
    /// Works on `run` until it is done, interrupted or failed, and records which.
    fn work(&self, mut run: RunDir, mut screen: Screen) -> anyhow::Result<Exit> {
        let experiment = &self.loaded.experiment;
        let program = &self.plan.ranks[0].program;
        let path = run.path().to_owned();
        let mut log = Log::append(&path.join(LOG))?;
        let layout = Arc::new(layout(program));
        let device = common::device(program.device)?;
        let moments = program.moments();
        let keep = experiment.checkpoint.keep;
        let Opened { recorder, resumed, warnings } =
            Recorder::open(&path, &self.plan.hash, keep, &layout, moments, &device)?;
        let fresh = run.manifest().sessions.is_empty();
        let from = resumed.as_ref().map_or(0, |r| r.state.step);
        let words = opening(&run, fresh, from, program.steps);
        let here = Machine::here();
        let foreign = if fresh { None } else { run.manifest().foreign_bits(&here) };
        for warning in warnings.iter().chain(&foreign) {
            log.line(&format!("warning: {warning}"))?;
            screen.warn(warning);
        }
        log.line(&words)?;
        screen.line(&words);
        let state = match resumed {
            Some(resumed) => resumed.state,
            None => self.pool.install(|| exec::initial_state(program))?,
        };
        let wall_before = wall_seconds(&path, from)?;
        run.begin(from, self.place())?;
        let started = Instant::now();
        screen.start_bar(from, program.steps);
        let lines = Lines::new(experiment.log.every);
        let mut watch = Watch { path: path.clone(), recorder, log, lines, screen };
        self.interrupt.arm();
        let ended = self.execute(state, &mut watch);
        let Watch { recorder, mut log, mut screen, .. } = watch;
        screen.clear();
        let (status, error, hash) = match &ended {
            Ok(outcome) => {
                let status = if outcome.interrupted { RunStatus::Interrupted } else { RunStatus::Done };
                let saved = recorder.saved().filter(|(step, _)| *step == outcome.state.step).map(|(_, h)| h.clone());
                let hash = saved.map_or_else(|| checkpoint::hashes(&outcome.state), Ok)?;
                (status, None, Some(hash))
            }
            Err(error) => (RunStatus::Failed, Some(error.to_string()), recorder.saved().map(|(_, h)| h.clone())),
        };
        let outcome = Outcome {
            id: run.id(),
            status,
            error: error.clone(),
            steps_total: program.steps,
            wall_seconds: wall_before + started.elapsed().as_secs_f64(),
            peak_rss_bytes: machine::peak_rss_bytes(),
            planned_memory_bytes: self.plan.ranks[0].memory.total(),
            hash,
        };
        let recorded = Summary::new(outcome, &path.join(METRICS)).and_then(|summary| {
            let words = error.as_ref().map_or_else(|| headline(&summary), |e| format!("failed: {e}"));
            log.line(&words)?;
            run.finish(&summary)?;
            Ok(summary)
        });
        match (ended, recorded) {
            // What stopped the run matters more than that the record could not say so.
            (Err(error), recorded) => Err(self.failure(error, recorded.ok().as_ref(), &path, &screen)),
            (Ok(_), Err(error)) => Err(error.into()),
            (Ok(_), Ok(summary)) => {
                self.close(&summary, &path, &screen);
                Ok(if status == RunStatus::Interrupted { Exit::Interrupted } else { Exit::Done })
            }
        }
    }

    fn execute(&self, state: TrainState, watch: &mut Watch) -> Result<exec::Outcome, ExecError> {
        let Prepared { dataset, tokenizer, choice, .. } = self.prepared;
        let resources = exec::Resources { dataset, tokenizer, choice: choice.as_deref() };
        let program = &self.plan.ranks[0].program;
        self.pool.install(|| {
            exec::run(program, &resources, Peers { comm: &Alone, monitor: &() }, state, self.interrupt.stop(), watch)
        })
    }

    fn place(&self) -> Place {
        let git = env::current_dir().ok().and_then(|folder| Git::of(&folder));
        Place {
            git,
            machine: Machine::here(),
            threads: self.args.threads.count(),
            overrides: self.args.experiment.set.clone(),
            environment: environment(self.loaded),
        }
    }

    /// The run's error with what to do about it.
    fn failure(&self, error: ExecError, summary: Option<&Summary>, path: &Path, screen: &Screen) -> anyhow::Error {
        screen.json(&JsonEvent::Summary { run: path, up_to_date: false, summary });
        let step = checkpoint::steps(&path.join(run_dir::CHECKPOINTS)).last().copied();
        let kept = step.map_or_else(String::new, |step| format!("; the checkpoint of step {step} is kept"));
        let next = match (&error, step) {
            (ExecError::NotFinite { .. }, _) => {
                "the same file goes the same way again: change it (a lower learning rate, a longer warmup)".to_owned()
            }
            (_, Some(_)) => "the same command resumes from it".to_owned(),
            (_, None) => "the same command starts it again".to_owned(),
        };
        // Observers' errors come from the record and say themselves what is left.
        let run = format!("run {} failed", self.name(path));
        let text = match error {
            ExecError::Observer(_) => run,
            _ => format!("{run}: {error}{kept}; {next}"),
        };
        anyhow::Error::from(error).context(text)
    }

    fn close(&self, summary: &Summary, path: &Path, screen: &Screen) {
        screen.json(&JsonEvent::Summary { run: path, up_to_date: false, summary: Some(summary) });
        match screen.mode() {
            Mode::Quiet => screen.last(&headline(summary)),
            _ => screen.line(&closing(summary, &self.name(path), path)),
        }
    }

    /// What other commands call the run: its id where they would look, its folder elsewhere.
    fn name(&self, path: &Path) -> String {
        let shown = if self.args.root.runs.is_none() { path.file_name().map(PathBuf::from) } else { None };
        shown.unwrap_or_else(|| path.to_owned()).display().to_string()
    }
}

/// What is said first.
fn opening(run: &RunDir, fresh: bool, from: u64, steps: u64) -> String {
    let id = run.id();
    let manifest = run.manifest();
    match (&manifest.error, fresh) {
        (_, true) => format!("run    {id}: {steps} steps"),
        (Some(error), false) => format!("run    {id} failed ({error}); resuming from step {from} of {steps}"),
        (None, false) => format!("run    {id}: resuming from step {from} of {steps}"),
    }
}

/// Time that earlier sessions worked on the steps up to `from`: as the summary says, if it was written at that step; of
/// a session that was killed, the time in its steps.
fn wall_seconds(path: &Path, from: u64) -> anyhow::Result<f64> {
    match run_dir::summary(path) {
        Ok(Some(summary)) if summary.steps == from => Ok(summary.wall_seconds),
        _ => Ok(step_seconds(&path.join(METRICS))?),
    }
}

/// Passes events on: first to the record, then to the log and the screen.
struct Watch {
    path: PathBuf,
    recorder: Recorder,
    log: Log,
    lines: Lines,
    screen: Screen,
}

impl Observer for Watch {
    fn observe(&mut self, event: &Event<'_>) -> Result<(), ObserveError> {
        self.recorder.observe(event)?;
        let line = self.lines.line(event);
        if let Some(line) = &line {
            self.log.line(line).map_err(|error| ObserveError(Box::new(error)))?;
        }
        self.screen.json(&JsonEvent::new(event, &self.path));
        match event {
            Event::Step(metrics) => {
                self.screen.step(metrics.step, || self.lines.numbers(metrics));
                if let Some(line) = line.filter(|_| self.screen.mode() != Mode::Bar) {
                    self.screen.line(&line);
                }
            }
            Event::Warning(message) => self.screen.warn(message),
            _ => line.iter().for_each(|line| self.screen.line(line)),
        }
        Ok(())
    }
}
