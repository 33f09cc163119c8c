//! `apply` where the weights of `model.init.from` are gone: a run that began with them recorded what they say about the model, and goes on
//! with its checkpoint.

use std::path::{Path, PathBuf};

use runner_config::{LoadOptions, Loaded, ModelFetcher, RecordedWeights, WrittenInputs};
use runner_files::read_regular;
use runner_lab::stored_plan;
use runner_record::manifest::RunStatus;
use runner_record::run_dir::{self, CHECKPOINTS, EXPERIMENT};
use runner_record::{RecordError, catalog, checkpoint};
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::{Experiment, HubModel, Tokenizer, WeightInit, WeightsSource};
use runner_spec::plan::Plan;

use crate::continuation::ContinueRequest;
use crate::host::Host;
use crate::observer::{RunEvent, RunObserver};
use crate::opened_run::resolved_experiment;
use crate::prepare::{RecordedInputs, model_fetcher};
use runner_spec::error::CommandError;

/// Loads an experiment. The arguments are for `LoadOptions`: what the record of a run says about weights that are gone, and what finds
/// models of the hub.
pub type LoadExperiment<'a> = dyn Fn(&[RecordedWeights], &ModelFetcher<'_>) -> Result<Loaded, ConfigError> + 'a;

/// The key that names the weights.
const KEY: &str = "model.init.from";

/// Weights that are gone, as a run recorded them.
pub(crate) struct AbsentWeights {
    pub(crate) inputs: RecordedInputs,
    /// The error of a start from these weights.
    error: ConfigError,
}

/// A run whose record may replace weights that are gone.
struct Candidate {
    path: PathBuf,
    experiment: Experiment,
    /// The inputs as the run's file named them; `None` if the record does not tell.
    written: Option<WrittenInputs>,
    weights: RecordedWeights,
}

/// Loads an experiment. If its weights are gone, the record of a run in the folder of runs replaces them: of the run that it
/// continues, or of the newest run of this name that began with the same weights.
///
/// # Errors
/// All mistakes of the experiment. Missing weights are one, unless such a run has a checkpoint.
pub(crate) fn load_experiment(
    load: &LoadExperiment<'_>,
    continue_from: Option<&ContinueRequest>,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<(Loaded, Option<AbsentWeights>), CommandError> {
    let fetch = model_fetcher(host, observer);
    let error = match load(&[], &fetch) {
        Ok(loaded) => return Ok((loaded, None)),
        Err(error) => error,
    };
    let (loaded, absent, note) = load_from_record(load, continue_from, &host.runs, &fetch, error)?;
    drop(fetch);
    if let Some(note) = note {
        observer.observe(&RunEvent::Note(&note));
    }
    Ok((loaded, Some(absent)))
}

/// Loads the experiment, which had the mistakes `error`, with the record of a run in place of its weights. The last value is a note about the
/// models of the hub whose place the record takes.
fn load_from_record(
    load: &LoadExperiment<'_>,
    continue_from: Option<&ContinueRequest>,
    runs: &Path,
    fetch: &ModelFetcher<'_>,
    error: ConfigError,
) -> Result<(Loaded, AbsentWeights, Option<String>), CommandError> {
    if !error.diagnostics.iter().any(|diagnostic| diagnostic.key == KEY) {
        return Err(error.into());
    }
    let mut candidates: Vec<Candidate> = if let Some(other) = continue_from {
        Candidate::read(catalog::resolve(runs, &other.run)?, true).into_iter().collect()
    } else {
        // A folder of runs that cannot be read has no run to go on with.
        let newest_first = catalog::list(runs).into_iter().flatten().rev();
        newest_first.filter_map(|run| Candidate::read(run.path, false)).collect()
    };
    let mut damage: Option<RecordError> = None;
    while !candidates.is_empty() {
        let weights: Vec<RecordedWeights> = candidates.iter().map(|candidate| candidate.weights.clone()).collect();
        let Ok(mut loaded) = load(&weights, fetch) else { break };
        let used = loaded.recorded_weights.as_ref();
        let Some(number) = candidates.iter().position(|candidate| Some(&candidate.weights) == used) else { break };
        let candidate = &candidates[number];
        let facts = match stored_plan::data_facts(&candidate.path) {
            Ok(facts) => facts,
            // An older run may be whole.
            Err(error) => {
                damage.get_or_insert(error);
                candidates.remove(number);
                continue;
            }
        };
        if continue_from.is_none() {
            check_same_weights(candidate, &facts, &candidates)?;
        }
        let note = candidate.use_recorded_tokenizer(&mut loaded.experiment);
        let inputs = RecordedInputs::read(&candidate.path, &candidate.experiment, &loaded.experiment)?;
        return Ok((loaded, AbsentWeights { inputs, error }, note));
    }
    Err(damage.map_or_else(|| error.into(), CommandError::from))
}

/// # Errors
/// If a run of `all` with the name of `used` began with other weights at the same place than `used`, which has the `facts`. A run with a
/// damaged plan does not count.
fn check_same_weights(used: &Candidate, facts: &DataFacts, all: &[Candidate]) -> Result<(), CommandError> {
    let has_others = |candidate: &&Candidate| {
        let (own, other) = (&used.experiment, &candidate.experiment);
        (&own.name, &own.model.init) == (&other.name, &other.model.init)
            && stored_plan::data_facts(&candidate.path).is_ok_and(|theirs| theirs.weights != facts.weights)
    };
    let Some(other) = all.iter().find(has_others) else { return Ok(()) };
    Err(CommandError::request(format!(
        "{KEY}: the weights are gone, and {} and {} began with different ones: `runner resume` with one of these names goes on with it",
        used.id(),
        other.id()
    )))
}

impl Candidate {
    /// Reads the run in `path`; `None` if it has no checkpoint, cannot be read or draws its weights. If the experiment does not continue
    /// this run, the run's record is for experiments of its name.
    fn read(path: PathBuf, is_continued: bool) -> Option<Self> {
        if !has_checkpoint(&path) {
            return None;
        }
        let experiment = resolved_experiment(&path).ok()?;
        let written = written_inputs(&path);
        let source = written.as_ref().and_then(|written| written.weights.clone());
        let name = (!is_continued).then(|| experiment.name.clone());
        let weights = RecordedWeights::of_experiment(&experiment, source, name)?;
        Some(Self { path, experiment, written, weights })
    }

    fn id(&self) -> String {
        self.path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    }

    /// Replaces a branch or tag of the tokenizer's model in `experiment` by the commit in the record, if the run's file named the same one.
    /// Returns a note about the models of the hub whose place the record takes.
    fn use_recorded_tokenizer(&self, experiment: &mut Experiment) -> Option<String> {
        let mut replaced = Vec::new();
        if let Some(WeightInit::From(source @ WeightsSource::Hub(_))) = &experiment.model.init {
            replaced.push(source.to_string());
        }
        if let (Tokenizer::Hub(named), Tokenizer::Hub(recorded)) =
            (&mut experiment.data.tokenizer, &self.experiment.data.tokenizer)
            && (named == recorded || self.written_tokenizer() == Some(named))
        {
            named.clone_from(recorded);
            let text = WeightsSource::Hub(recorded.clone()).to_string();
            if !replaced.contains(&text) {
                replaced.push(text);
            }
        }
        let (id, replaced) = (self.id(), replaced.join(" and "));
        (!replaced.is_empty())
            .then(|| format!("run    the weights are gone: the record of {id} takes the place of {replaced}"))
    }

    /// The tokenizer's model as the run's file named it. By default, it is that of the weights.
    fn written_tokenizer(&self) -> Option<&HubModel> {
        let written = self.written.as_ref()?;
        match (&written.tokenizer, &written.weights) {
            (Some(model), _) | (None, Some(WeightsSource::Hub(model))) => Some(model),
            _ => None,
        }
    }
}

/// The inputs that the file of the run in `path` named when the run began.
fn written_inputs(path: &Path) -> Option<WrittenInputs> {
    /// The sections that name inputs, as variables set them.
    const VARIABLES: [&str; 2] = ["RUNNER_MODEL", "RUNNER_DATA"];
    let session = run_dir::read_manifest(path).ok()?.sessions.into_iter().next()?;
    let text = String::from_utf8(read_regular(&path.join(EXPERIMENT)).ok()?).ok()?;
    let is_input = |(name, _): &(String, String)| VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    let env = session.environment.into_iter().filter(is_input).collect();
    WrittenInputs::read(&text, &LoadOptions { sets: session.overrides, env, ..LoadOptions::default() })
}

impl AbsentWeights {
    /// Checks that the run of `plan` in `runs` has a resume point, so that it does not need the weights.
    ///
    /// # Errors
    /// If it would start from the weights.
    pub(crate) fn check_has_resume_point(
        &self,
        runs: &Path,
        plan: &Plan,
        starts_new: bool,
    ) -> Result<(), CommandError> {
        let found = run_dir::find_run(runs, plan).run.filter(|_| !starts_new);
        let goes_on = found.is_some_and(|(path, manifest)| manifest.status == RunStatus::Done || has_checkpoint(&path));
        if goes_on { Ok(()) } else { Err(self.error.clone().into()) }
    }
}

/// True if the run in `path` has a checkpoint.
fn has_checkpoint(path: &Path) -> bool {
    checkpoint::saved_steps(&path.join(CHECKPOINTS)).is_ok_and(|steps| !steps.is_empty())
}
