//! `reproduce` repeats a recorded run from its own folder, and compares the result with the record.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use runner_compare::drift::Drift;
use runner_compare::stored_plan;
use runner_compare::verdict::{self, ReproductionVerdict};
use runner_config::Loaded;
use runner_record::manifest::{ContinuedFrom, DataHashes, Manifest};
use runner_record::run_dir::{self, CHECKPOINTS, RunDir, VERDICT};
use runner_record::{CheckpointChoice, RecordError, catalog, checkpoint};
use runner_spec::experiment::{Precision, WeightInit};
use runner_spec::format::short_hash;

use crate::launched::{check_memory, find_devices};
use crate::outcome::RunOutcome;
use crate::recorded_summary::read_summary_or_warn;
use crate::run_opening::FoundRun;
use crate::run_start::{Beginning, Purpose, RecordedRun, RunStart};
use crate::session::{RunSession, SessionOptions};
use crate::session_facts::describe_session;
use runner_inputs::{
    Host, MovedData, PreparedRun, RecordedInputs, RunEvent, RunObserver, check_same_data, explain_missing_data,
};
use runner_spec::error::{CommandError, Result};
use runner_threads::stop::{StopReason, StopSwitch};

/// A request to `reproduce`.
#[derive(Debug, Clone)]
pub struct ReproduceRequest {
    /// The run to repeat: a folder, an id, or the unique prefix of an id.
    pub run: String,
    /// The steps to repeat, from the newest checkpoint of the run before them; `None`: all.
    pub steps: Option<RangeInclusive<u64>>,
    /// Where the data is now.
    pub data: MovedData,
    /// True to verify what others recorded: data that differs from what the run read is refused, the run's tokenizer is used where its files
    /// are gone, and nothing is sent to the servers that the run names.
    pub is_verification: bool,
    /// The largest relative difference of a loss; `None`: the largest that rounding alone causes in the run's precision.
    pub tolerance: Option<f64>,
    /// Options of the reproduction. Its `until_step` is that of the original.
    pub options: SessionOptions,
}

/// The result of a request to `reproduce`.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
pub enum Reproduction {
    /// The reproduction was interrupted; the same request continues it.
    Interrupted(StopReason),
    /// The reproduction in the run directory `path` was compared with the original. This call trained the steps after `began`; an earlier call has
    /// trained those before it.
    Judged { path: PathBuf, verdict: ReproductionVerdict, began: u64 },
}

/// The largest relative difference of losses of the same experiment by rounding alone: see `docs/reproduce.md`.
fn default_tolerance(precision: Precision) -> f64 {
    match precision {
        Precision::Fp32 | Precision::Tf32 => 1e-4,
        Precision::Bf16 => 1e-2,
    }
}

/// The run that is done again.
struct Original {
    run: RecordedRun,
    /// Its `resolved.yaml`, as this version writes it, with the places where its data is now.
    resolved: Loaded,
    /// Its record, read before anything is trained: the run may be removed meanwhile.
    recorded: verdict::OriginalRun,
    /// The step after which the repetition starts: that of an own checkpoint, or the last inherited one.
    from: u64,
    /// The hash of the own checkpoint that it starts from.
    state_hash: Option<String>,
}

/// The changes since the run that `request` names was made.
///
/// # Errors
/// If there is no such run, or its data is gone.
pub fn find_drift(request: &ReproduceRequest, host: &Host, observer: &mut dyn RunObserver) -> Result<Drift> {
    let (_, _, drift) = prepare_repetition(request, host, observer)?;
    Ok(drift)
}

/// Reads the run that `request` names, plans its repetition, and reports to `observer` what has changed since.
fn prepare_repetition(
    request: &ReproduceRequest,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<(Original, PreparedRun, Drift)> {
    let mut original = Original::open(request, host, observer)?;
    original.choose_steps(request.steps.as_ref())?;
    let ready = original.prepare(request, host, observer)?;
    let session = describe_session(host, &original.resolved.experiment, &ready.plan);
    let drift = Drift::detect(&original.run.path, &original.run.manifest, &ready.plan, &session, host.git().as_ref())?;
    observer.observe(&RunEvent::Drift { run: &original.run.path, drift: &drift });
    Ok((original, ready, drift))
}

/// Repeats the run that `request` names and judges the result; `observer` receives its events, and `stop` requests an early stop.
///
/// # Errors
/// If there is no such run, its data or the checkpoint that it started from is gone, or the reproduction failed (which its record then
/// shows, too).
pub fn reproduce(
    request: &ReproduceRequest,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
) -> Result<Reproduction> {
    let (original, ready, drift) = prepare_repetition(request, host, observer)?;
    let id = original.run.manifest.id.clone();
    original.check_initial_weights(&ready)?;
    check_memory(&ready.plan, None)?;
    let (from, last, steps) = (original.from, original.recorded.last_step(), ready.plan.totals.steps);
    if last <= from {
        let which = if from == 0 { "no steps" } else { "only inherited steps" };
        return Err(CommandError::request(format!("{id} has {which}, so there is nothing to compare")));
    }
    if last < steps && request.steps.is_none() {
        let note = format!("repeat {id} recorded {last} of {steps} steps; only these are repeated");
        observer.observe(&RunEvent::Note(&note));
    }
    let until_step = (last < steps).then_some(last);
    let options = &SessionOptions { until_step, ..request.options.clone() };
    let experiment = &original.resolved.experiment;
    let session = RunSession { options, host, experiment, ready: &ready, stop, launched: None };
    let opened = original.open_copy(&session, observer).map_err(|error| original.explain_busy(error))?;
    let (path, began) = match opened {
        FoundRun::Unfinished(run) => {
            let path = run.path().to_owned();
            if let RunOutcome::Interrupted(reason) = session.work(run, observer)?.outcome {
                return Ok(Reproduction::Interrupted(reason));
            }
            let began = run_dir::read_manifest(&path)?.sessions.last().map_or(from, |session| session.from_step);
            (path, began)
        }
        // Only its verdict is missing.
        FoundRun::Done(path) => (path, last),
    };
    let tolerance = request.tolerance.unwrap_or_else(|| default_tolerance(original.resolved.experiment.precision));
    let verdict = verdict::compare(&original.recorded, &path, &run_dir::read_manifest(&path)?, tolerance)?;
    let verdict = ReproductionVerdict { drift: drift.changes(), ..verdict };
    let copy = RunDir::open(&path).map_err(|error| original.explain_busy(error.into()))?;
    copy.write_json(VERDICT, &verdict)?;
    Ok(Reproduction::Judged { path, verdict, began })
}

impl Original {
    fn open(request: &ReproduceRequest, host: &Host, observer: &mut dyn RunObserver) -> Result<Self> {
        let path = catalog::resolve(&host.runs, &request.run)?;
        let manifest = run_dir::read_manifest(&path)?;
        let mut resolved = runner_config::load_resolved(&run_dir::resolved_file(&path)?)?;
        request.data.place(&path, &mut resolved.experiment)?;
        if request.is_verification {
            resolved.experiment.log.mlflow = None;
        }
        resolved.text = runner_config::to_yaml(&resolved.experiment);
        let summary = read_summary_or_warn(&path, observer);
        let recorded = verdict::OriginalRun::read(&path, &manifest, summary)?;
        if let Some(damage) = recorded.damage() {
            let text = format!("{damage}; the verdict will be `incomplete` at best");
            observer.observe(&RunEvent::Warning(&text));
        }
        let from = manifest.foreign_steps();
        Ok(Self { run: RecordedRun { path, manifest }, resolved, recorded, from, state_hash: None })
    }

    /// Limits the repetition to the `steps`, if there are any, and finds the checkpoint before them.
    ///
    /// # Errors
    /// If the run did not train them all.
    fn choose_steps(&mut self, steps: Option<&RangeInclusive<u64>>) -> Result<()> {
        let Some(steps) = steps else { return Ok(()) };
        let (id, inherited, recorded) = (&self.run.manifest.id, self.from, self.recorded.last_step());
        if steps.is_empty() || *steps.start() <= inherited || *steps.end() > recorded {
            return Err(CommandError::request(format!(
                "--steps must be within {}..{recorded}, the steps that {id} trained, got {}..{}",
                inherited + 1,
                steps.start(),
                steps.end()
            )));
        }
        let folder = self.run.checkpoints();
        let saved =
            checkpoint::saved_steps(&folder)?.into_iter().rfind(|saved| (inherited..*steps.start()).contains(saved));
        if let Some(saved) = saved {
            self.from = saved;
            self.state_hash = checkpoint::recorded_hash(&folder, saved).map(|hash| hash.state);
        }
        self.recorded.limit_to(self.from, *steps.end());
        Ok(())
    }

    /// The data and the plan of the repetition.
    fn prepare(&self, request: &ReproduceRequest, host: &Host, observer: &mut dyn RunObserver) -> Result<PreparedRun> {
        let experiment = &self.resolved.experiment;
        let has_checkpoint = self.state_hash.is_some();
        let recorded_inputs = if has_checkpoint || request.is_verification {
            let facts = stored_plan::data_facts(&self.run.path)?;
            let inputs = RecordedInputs::new(facts, &self.run.path, experiment)?;
            Some(RecordedInputs { has_same_weights: has_checkpoint, ..inputs })
        } else {
            None
        };
        let devices = find_devices(experiment, host, None)?;
        let ready = PreparedRun::new(experiment, recorded_inputs.as_ref(), self.from, devices, host, observer);
        let ready = ready.map_err(|error| explain_missing_data(error, &self.run.path, experiment))?;
        if request.is_verification || !request.data.is_empty() {
            let facts = stored_plan::data_facts(&self.run.path)?;
            check_same_data(&self.run.path, &facts, experiment, &ready.prepared, host, &[])?;
        }
        Ok(ready)
    }

    /// `error`, which names this run if another process works on its repetition.
    fn explain_busy(&self, error: CommandError) -> CommandError {
        match error.cause::<RecordError>() {
            Some(RecordError::Locked { id, holder }) => CommandError::request(format!(
                "another process{holder} is working on {id}, which repeats {}; wait for it",
                self.run.manifest.id
            )),
            _ => error,
        }
    }

    /// # Errors
    /// If the weights that the run started from have changed: a run that started elsewhere is not a reproduction.
    fn check_initial_weights(&self, ready: &PreparedRun) -> Result<()> {
        let (was, is) = (&self.run.manifest.data.weights, DataHashes::from(&ready.prepared.facts).weights);
        if *was == is {
            return Ok(());
        }
        let short = |hash: &Option<String>| hash.as_ref().map_or("none".to_owned(), |h| short_hash(h).to_owned());
        let place = match &self.resolved.experiment.model.init {
            Some(WeightInit::From(source)) => format!(" ({source})"),
            _ => String::new(),
        };
        Err(CommandError::request(format!(
            "{} cannot be reproduced: the weights that it started from{place} have changed: {}, was {}",
            self.run.manifest.id,
            short(&is),
            short(was)
        )))
    }

    /// Opens the run that repeats the steps, on which `session` is to work; it is done if only its verdict is missing.
    fn open_copy(&self, session: &RunSession<'_>, observer: &mut dyn RunObserver) -> Result<FoundRun> {
        let (id, state_hash) = (&self.run.manifest.id, self.state_hash.as_deref());
        let began = self.run.manifest.continued_from.as_ref().filter(|began| !began.is_same_computation);
        let other = began.filter(|_| state_hash.is_none()).map(|began| self.find_beginning(began)).transpose();
        // A repetition that has begun does not need it.
        let (other, lost) = other.map_or_else(|lost| (None, Some(lost.to_string())), |other| (other, None));
        let source = state_hash.map(|_| &self.run).or(other.as_ref());
        let source = source.map(|run| Ok::<_, CommandError>((run, stored_plan::read(&run.path)?))).transpose()?;
        let announce = |existing: Option<&Manifest>, observer: &mut dyn RunObserver| {
            let note = match (existing, &lost, &source) {
                (Some(copy), ..) => format!("repeat {id} continues with {}", copy.id),
                (None, Some(lost), _) => return Err(CommandError::request(lost.clone())),
                (None, None, Some((run, _))) => {
                    format!("repeat {id} from step {} of {}", self.from, run.path.display())
                }
                (None, None, None) => return Ok(()),
            };
            observer.observe(&RunEvent::Note(&note));
            Ok(())
        };
        let which = CheckpointChoice::Step(self.from);
        let start = RunStart {
            beginning: source.as_ref().map_or(Beginning::Scratch, |(run, plan)| Beginning::Checkpoint {
                run,
                plan,
                which,
            }),
            purpose: Purpose::Repeat { state_hash },
            parent: Some(&self.run.manifest),
            ..RunStart::new(&self.resolved, session)
        };
        start.open(&announce, observer)
    }

    /// A run that still has the checkpoint that this one began with: the run that saved it, or this one.
    fn find_beginning(&self, began: &ContinuedFrom) -> Result<RecordedRun> {
        let RecordedRun { path: own, manifest } = &self.run;
        let parent = own.parent().unwrap_or(Path::new(".")).join(&began.id);
        let same = run_dir::read_manifest(&parent).is_ok_and(|manifest| manifest.plan_hash == began.plan_hash);
        // A run of the same plan may have another state: on another machine, or in a folder that was copied.
        let is_the_one = |folder: &Path| {
            let hash = checkpoint::recorded_hash(folder, began.step).map(|hash| hash.state);
            began.state_hash.is_none() || hash == began.state_hash
        };
        for path in same.then_some(parent).into_iter().chain([own.clone()]) {
            let folder = path.join(CHECKPOINTS);
            if checkpoint::saved_steps(&folder)?.contains(&began.step) && is_the_one(&folder) {
                return Ok(RecordedRun { manifest: run_dir::read_manifest(&path)?, path });
            }
        }
        let (id, other, step) = (&manifest.id, &began.id, began.step);
        Err(CommandError::request(format!(
            "{id} started from the checkpoint of {other} after step {step}, which neither of them still has"
        )))
    }
}
