//! `reproduce` repeats a recorded run from its own folder, and compares the result with the record.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use runner_compare::drift::Drift;
use runner_compare::stored_plan;
use runner_compare::verdict::{self, ReproductionVerdict};
use runner_config::Loaded;
use runner_record::manifest::{ContinuedFrom, DataHashes, Manifest, RunOrigin, RunStatus};
use runner_record::run_dir::{self, BeginningCheckpoint, CHECKPOINTS, RESOLVED, RunDir, VERDICT};
use runner_record::{CheckpointChoice, RecordError, RunLock, catalog, checkpoint};
use runner_spec::experiment::{Precision, WeightInit};
use runner_spec::format::short_hash;

use crate::launched::{check_memory, find_devices};
use crate::outcome::RunOutcome;
use crate::recorded_summary::read_summary_or_warn;
use crate::run_opening::create_run;
use crate::session::{RunSession, SessionOptions};
use crate::session_facts::describe_session;
use runner_machine::stop::{StopReason, StopSwitch};
use runner_prepare::{
    Host, MovedData, PreparedRun, RecordedInputs, RunEvent, RunObserver, check_same_data, explain_missing_data,
};
use runner_spec::error::{CommandError, Result};

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
    /// True to look for drift only.
    pub only_check: bool,
    /// Options of the reproduction. Its `until_step` is that of the original.
    pub options: SessionOptions,
}

/// The result of a request to `reproduce`.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one of it at a time")]
pub enum Reproduction {
    /// Only drift was looked for.
    Checked(Drift),
    /// The reproduction was interrupted; the same request continues it.
    Interrupted(StopReason),
    /// The reproduction was judged.
    Judged(JudgedReproduction),
}

/// A reproduction and how it compares with the original.
#[derive(Debug)]
pub struct JudgedReproduction {
    /// Its run directory.
    pub path: PathBuf,
    pub verdict: ReproductionVerdict,
    /// The step after which this call trained; an earlier call has trained those before it.
    pub began: u64,
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
    path: PathBuf,
    manifest: Manifest,
    /// Its `resolved.yaml`, as this version writes it, with the places where its data is now.
    resolved: Loaded,
    /// Its record, read before anything is trained: the run may be removed meanwhile.
    recorded: verdict::OriginalRun,
    /// The step after which the repetition starts: that of an own checkpoint, or the last inherited one.
    from: u64,
    /// The hash of the own checkpoint that it starts from.
    state_hash: Option<String>,
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
    let mut original = Original::open(request, host, observer)?;
    let id = original.manifest.id.clone();
    original.choose_steps(request.steps.as_ref())?;
    let ready = original.prepare(request, host, observer)?;
    let session = describe_session(host, &original.resolved.experiment, &ready.plan);
    let drift = Drift::detect(&original.path, &original.manifest, &ready.plan, &session, host.git().as_ref())?;
    observer.observe(&RunEvent::Drift { run: &original.path, drift: &drift });
    if request.only_check {
        return Ok(Reproduction::Checked(drift));
    }
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
    let (path, run) = original.open_or_create(&ready, host, observer)?;
    let mut began = last;
    if let Some(run) = run {
        let options = SessionOptions { until_step: (last < steps).then_some(last), ..request.options.clone() };
        let (experiment, options) = (&original.resolved.experiment, &options);
        let session = RunSession { options, host, experiment, ready: &ready, stop, launched: None };
        if let RunOutcome::Interrupted(reason) = session.work(run, observer)?.outcome {
            return Ok(Reproduction::Interrupted(reason));
        }
        began = run_dir::read_manifest(&path)?.sessions.last().map_or(from, |session| session.from_step);
    }
    let tolerance = request.tolerance.unwrap_or_else(|| default_tolerance(original.resolved.experiment.precision));
    let verdict = verdict::compare(&original.recorded, &path, &run_dir::read_manifest(&path)?, tolerance)?;
    let verdict = ReproductionVerdict { drift: drift.changes(), ..verdict };
    original.lock(&path)?.write_json(VERDICT, &verdict)?;
    Ok(Reproduction::Judged(JudgedReproduction { path, verdict, began }))
}

impl Original {
    fn open(request: &ReproduceRequest, host: &Host, observer: &mut dyn RunObserver) -> Result<Self> {
        let path = catalog::resolve(&host.runs, &request.run)?;
        let manifest = run_dir::read_manifest(&path)?;
        let mut resolved = runner_config::load_resolved(&run_dir::resolved_file(&path)?)?;
        request.data.place(&path, &mut resolved.experiment, host)?;
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
        Ok(Self { path, manifest, resolved, recorded, from, state_hash: None })
    }

    /// Limits the repetition to the `steps`, if there are any, and finds the checkpoint before them.
    ///
    /// # Errors
    /// If the run did not train them all.
    fn choose_steps(&mut self, steps: Option<&RangeInclusive<u64>>) -> Result<()> {
        let Some(steps) = steps else { return Ok(()) };
        let (id, inherited, recorded) = (&self.manifest.id, self.from, self.recorded.last_step());
        if steps.is_empty() || *steps.start() <= inherited || *steps.end() > recorded {
            return Err(CommandError::request(format!(
                "--steps must be within {}..{recorded}, the steps that {id} trained, got {}..{}",
                inherited + 1,
                steps.start(),
                steps.end()
            )));
        }
        let folder = self.path.join(CHECKPOINTS);
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
            let facts = stored_plan::data_facts(&self.path)?;
            let inputs = RecordedInputs::new(facts, &self.path, experiment)?;
            Some(RecordedInputs { has_same_weights: has_checkpoint, ..inputs })
        } else {
            None
        };
        let devices = find_devices(experiment, host, None)?;
        let ready = PreparedRun::new(experiment, recorded_inputs.as_ref(), self.from, devices, host, observer);
        let ready = ready.map_err(|error| explain_missing_data(error, &self.path, experiment))?;
        if request.is_verification || !request.data.is_empty() {
            let facts = stored_plan::data_facts(&self.path)?;
            check_same_data(&self.path, &facts, experiment, &ready.prepared, host, &[])?;
        }
        Ok(ready)
    }

    /// Locks the reproduction in `path` for this process.
    fn lock(&self, path: &Path) -> Result<RunDir> {
        RunDir::open(path).map_err(|error| match error {
            RecordError::Locked { id, holder } => CommandError::request(format!(
                "another process{holder} is working on {id}, which repeats {}; wait for it",
                self.manifest.id
            )),
            other => other.into(),
        })
    }

    /// # Errors
    /// If the weights that the run started from have changed: a run that started elsewhere is not a reproduction.
    fn check_initial_weights(&self, ready: &PreparedRun) -> Result<()> {
        let (was, is) = (&self.manifest.data.weights, DataHashes::from(&ready.prepared.facts).weights);
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
            self.manifest.id,
            short(&is),
            short(was)
        )))
    }

    fn origin(&self) -> RunOrigin {
        let Manifest { id, plan_hash, .. } = self.manifest.clone();
        RunOrigin::Reproduction { id, plan_hash, state_hash: self.state_hash.clone() }
    }

    /// The folder of the reproduction, and the run to work on; `None` if only its verdict is missing.
    fn open_or_create(
        &self,
        ready: &PreparedRun,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<(PathBuf, Option<RunDir>)> {
        let (plan, root) = (&ready.plan, &host.runs);
        let _turn = RunLock::take_name(root, &run_dir::base_id(&plan.experiment_name, &plan.hash))?;
        let is_of_this = |manifest: &Manifest| manifest.origin.as_ref() == Some(&self.origin());
        let unfinished = run_dir::runs_of_plan(root, plan)
            .into_iter()
            .rev()
            .find(|(path, manifest)| is_of_this(manifest) && !path.join(VERDICT).exists());
        if let Some((path, manifest)) = unfinished {
            let note = format!("repeat {} continues with {}", self.manifest.id, manifest.id);
            observer.observe(&RunEvent::Note(&note));
            let run = if manifest.status == RunStatus::Done { None } else { Some(self.lock(&path)?) };
            return Ok((path, run));
        }
        let source = match (&self.state_hash, &self.manifest.continued_from) {
            (Some(_), _) => Some(self.path.clone()),
            (None, Some(began)) if !began.is_same_computation => Some(self.find_beginning(began)?),
            (None, _) => None,
        };
        let mut beginning = None;
        if let Some(path) = source {
            let note = format!("repeat {} from step {} of {}", self.manifest.id, self.from, path.display());
            observer.observe(&RunEvent::Note(&note));
            beginning = Some((stored_plan::read(&path)?, path, CheckpointChoice::Step(self.from)));
        }
        let beginning = beginning.as_ref().map(|(plan, path, which)| BeginningCheckpoint {
            path,
            plan,
            which: *which,
            is_same_computation: false,
        });
        let identify = |manifest: &mut Manifest| manifest.origin = Some(self.origin());
        let file = self.path.join(RESOLVED);
        let run = create_run(host, &self.resolved, plan, &file, &[], identify, beginning.as_ref())?;
        Ok((run.path().to_owned(), Some(run)))
    }

    /// The folder of a run that still has the checkpoint that this one began with: that run, or this one.
    fn find_beginning(&self, began: &ContinuedFrom) -> Result<PathBuf> {
        let parent = self.path.parent().unwrap_or(Path::new(".")).join(&began.id);
        let same = run_dir::read_manifest(&parent).is_ok_and(|manifest| manifest.plan_hash == began.plan_hash);
        // A run of the same plan may have another state: on another machine, or in a folder that was copied.
        let is_the_one = |folder: &Path| {
            let hash = checkpoint::recorded_hash(folder, began.step).map(|hash| hash.state);
            began.state_hash.is_none() || hash == began.state_hash
        };
        for run in same.then_some(parent).into_iter().chain([self.path.clone()]) {
            let folder = run.join(CHECKPOINTS);
            if checkpoint::saved_steps(&folder)?.contains(&began.step) && is_the_one(&folder) {
                return Ok(run);
            }
        }
        let (id, other, step) = (&self.manifest.id, &began.id, began.step);
        Err(CommandError::request(format!(
            "{id} started from the checkpoint of {other} after step {step}, which neither of them still has"
        )))
    }
}
