//! From an experiment to what a run needs before it begins: data, tokenizer, initial weights, and the plan for this machine.

mod hub_names;
mod prepared_run;
mod recorded_inputs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use runner_compute::state::TrainState;
use runner_data::{
    DataError, DataRequest, EvaluationData, EvaluationRequest, ModelTokenizer, Prepared, Progress, TextTokenizer,
    content_hash,
};
use runner_exec::{ExecError, parameter_layout, state_dtype};
use runner_files::is_absent;
use runner_launch::{LaunchError, World};
use runner_machine::host::Git;
use runner_machine::local_cluster::local_cluster;
use runner_machine::numa::{NumaNodes, RankThreads};
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::{DataFacts, WeightsFacts};
use runner_spec::experiment::{Experiment, WeightInit, WeightsSource};
use runner_spec::model::InitialWeights;
use runner_spec::program::Program;
use runner_weights::{OpenedWeights, WeightsError};

use crate::calibrate;
use crate::cut_text::warn_of_cut_text;
use crate::details::describe_data;
use crate::foreign_tokenizer::foreign_tokenizer;
use crate::observer::{IgnoreEvents, RunEvent, RunObserver};
use hub_names::lower_hub_of_run;
pub use hub_names::{
    fetch_model_folder, local_choice, local_tokenizer, lower_hub, model_fetch_error, model_fetcher, pin_hub_commits,
};
pub(crate) use prepared_run::PreparedInputs;
pub use prepared_run::PreparedRun;
pub(crate) use recorded_inputs::{RecordedInputs, recorded_tokenizer};
use runner_spec::error::CommandError;

/// The folders, threads and variables that the engine works with. It reads no environment variable itself.
#[derive(Debug, Clone)]
pub struct Host {
    /// The folder of run directories.
    pub runs: PathBuf,
    /// The folder of prepared data; `None` if the environment does not determine one.
    pub cache: Option<PathBuf>,
    /// Threads to compute with. The results do not depend on it.
    pub threads: usize,
    /// True if the number of threads was asked for; else it is the number of this machine's cores.
    pub has_given_threads: bool,
    /// The cores that this process's threads may run on; empty: all that it may use.
    pub bound_cores: Vec<usize>,
    /// The NUMA nodes to whose cores ranks are bound; `None`: ranks are not bound.
    pub bound_nodes: Option<NumaNodes>,
    /// Peak FLOP/s of each device, which utilization is reported against; `None`: as far as it is known.
    pub peak_flops: Option<f64>,
    /// Environment variables that the hub's settings are read from.
    pub environment: BTreeMap<String, String>,
    /// Variables of the program's own that had effect, for the record. Nothing secret.
    pub recorded_environment: BTreeMap<String, String>,
    /// The variables that `machine::doctor::shown_variables` lets records show.
    pub platform_environment: BTreeMap<String, String>,
    pub build: ProgramBuild,
    /// The folder whose git commit goes into the record; `None`: no commit is recorded.
    pub working_folder: Option<PathBuf>,
    /// Makes the report of a run directory, which a tracking server shows beside the run; `None`: it gets no report.
    pub report_page: Option<ReportRenderer>,
}

/// Makes the HTML page about the run in a folder.
pub type ReportRenderer = fn(&Path) -> Result<String, String>;

/// The build of the program that uses the engine, for the record. `None`: not known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProgramBuild {
    /// The target triple.
    pub target: Option<String>,
    /// Hash of the sources.
    pub source_hash: Option<String>,
}

impl Host {
    /// This machine with all its cores, runs in `runs` and prepared data in `cache`.
    pub fn new(runs: PathBuf, cache: PathBuf) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            runs,
            cache: Some(cache),
            threads,
            has_given_threads: false,
            bound_cores: Vec::new(),
            bound_nodes: None,
            peak_flops: None,
            environment: BTreeMap::new(),
            recorded_environment: BTreeMap::new(),
            platform_environment: BTreeMap::new(),
            build: ProgramBuild::default(),
            working_folder: None,
            report_page: None,
        }
    }

    /// The folder of prepared data.
    ///
    /// # Errors
    /// `Request` if there is none.
    pub(crate) fn cache(&self) -> Result<&Path, CommandError> {
        let missing =
            || CommandError::request("no home folder: set RUNNER_CACHE to a folder for prepared data".to_owned());
        self.cache.as_deref().ok_or_else(missing)
    }

    /// The commit of the working folder.
    pub(crate) fn git(&self) -> Option<Git> {
        self.working_folder.as_deref().and_then(Git::state_of)
    }

    /// This machine for one rank of `world`, which shares its threads with the other ranks on it.
    pub(crate) fn shared_with(&self, world: &World) -> Self {
        let threads = world.threads(self.threads, self.has_given_threads);
        let (own, all) = world.index_among_sharers();
        let RankThreads { count, cores } = self.rank_threads(threads, own, all);
        Self { threads: count, bound_cores: cores, ..self.clone() }
    }

    /// The threads of rank `rank` of the `ranks` that share this machine: `count`, or fewer if it is bound to fewer cores.
    pub(crate) fn rank_threads(&self, count: usize, rank: usize, ranks: usize) -> RankThreads {
        let Some(nodes) = &self.bound_nodes else { return count.into() };
        let cores = nodes.cores_of_rank(rank, ranks);
        let sharers = (0..ranks).filter(|other| nodes.cores_of_rank(*other, ranks) == cores).count();
        RankThreads { count: count.min(cores.len() / sharers.max(1)).max(1), cores }
    }

    /// A pool of `threads` threads, in which to prepare data and compute.
    ///
    /// # Errors
    /// If the system does not give that many threads.
    pub fn pool(&self) -> Result<rayon::ThreadPool, CommandError> {
        let threads = RankThreads { count: self.threads, cores: self.bound_cores.clone() };
        threads.pool().map_err(|error| CommandError::failure(error.to_string()))
    }
}

/// Runs `work` with a function that passes its progress on to `observer` from any thread; then says that the data is ready.
fn with_progress<T>(observer: &mut dyn RunObserver, work: impl FnOnce(&(dyn Fn(Progress) + Sync)) -> T) -> T {
    let shared = Mutex::new(&mut *observer);
    let result = work(&|progress| {
        shared.lock().unwrap_or_else(PoisonError::into_inner).observe(&RunEvent::Preparing(progress));
    });
    observer.observe(&RunEvent::Prepared);
    result
}

/// Prepares the data of `experiment` in `pool`, and checks that its prompts can be encoded: samples come hours into a run.
///
/// # Errors
/// If the data, or what it names of the hub, cannot be read, or a prompt cannot be encoded.
pub fn prepare_data(
    experiment: &Experiment,
    pool: &rayon::ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Prepared, CommandError> {
    prepare_data_of_run(experiment, None, pool, host, observer)
}

/// [`prepare_data`] with a `tokenizer` that a run recorded in place of the one that `experiment` names.
pub(crate) fn prepare_data_of_run(
    experiment: &Experiment,
    tokenizer: Option<&TextTokenizer>,
    pool: &rayon::ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Prepared, CommandError> {
    let cache = host.cache()?;
    let (test, choice) = (experiment.eval.test.as_ref(), experiment.eval.hellaswag.as_ref());
    let lowered = lower_hub_of_run(experiment, tokenizer, host, observer)?;
    let request = DataRequest {
        data: lowered.as_ref().map_or(&experiment.data, |lowered| &lowered.local),
        choice: lowered.as_ref().and_then(|l| l.choice.as_ref().map(|(local, _)| local)).or(choice),
        test: lowered.as_ref().and_then(|l| l.test.as_ref().map(|(local, _)| local)).or(test),
        cache_dir: cache,
        vocab_size: experiment.model.vocab_size,
        recorded_tokenizer: tokenizer,
    };
    let started = Instant::now();
    let prepared = with_progress(observer, |report| pool.install(|| runner_data::prepare(&request, report)));
    let prepared = prepared.map_err(|error| match &error {
        DataError::Io { path, .. } if path.starts_with(cache) => {
            let advice = "RUNNER_CACHE names the folder for prepared data: choose one that is writable";
            CommandError::from(error).hint(advice)
        }
        _ => error.into(),
    })?;
    for line in describe_data(&prepared.origins, started.elapsed()) {
        observer.observe(&RunEvent::Detail(&line));
    }
    check_prompts(experiment, &prepared.tokenizer)?;
    Ok(prepared)
}

/// Prepares the data of `request` in `pool`.
///
/// # Errors
/// Those of `runner_data::prepare_evaluation`.
pub fn prepare_evaluation(
    request: &EvaluationRequest<'_>,
    pool: &rayon::ThreadPool,
    observer: &mut dyn RunObserver,
) -> Result<EvaluationData, CommandError> {
    let data = with_progress(observer, |report| pool.install(|| runner_data::prepare_evaluation(request, report)))?;
    for warning in &data.warnings {
        observer.observe(&RunEvent::Warning(warning));
    }
    Ok(data)
}

/// Prepares the data of `experiment`, with the facts of the weights that it starts from.
///
/// # Errors
/// If the weights or the data cannot be read, or do not fit each other.
pub fn prepare_inputs(
    experiment: &Experiment,
    pool: &rayon::ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Prepared, CommandError> {
    prepare_rank_inputs(experiment, None, pool, host, observer)
}

/// Prepares the data of `experiment` for a run that begins, or that goes on with the checkpoint of a run, which recorded the
/// `recorded_inputs`. Then the weights that this run started from are not needed.
///
/// # Errors
/// If the weights or the data cannot be read, or do not fit each other.
pub(crate) fn prepare_rank_inputs(
    experiment: &Experiment,
    recorded_inputs: Option<&RecordedInputs>,
    pool: &rayon::ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Prepared, CommandError> {
    let recorded_weights = recorded_inputs.filter(|recorded| recorded.has_same_weights);
    // The weights are checked first, because that takes less time than preparing data.
    let weights = if recorded_weights.is_some() { None } else { initial_weights(experiment, host, observer)? };
    let tokenizer = recorded_inputs.and_then(|recorded| recorded.tokenizer.as_ref());
    let prepared = prepare_data_of_run(experiment, tokenizer, pool, host, observer);
    let mut prepared = prepared.map_err(|error| match (&weights, error.cause()) {
        (Some(weights), Some(DataError::TokenBeyondVocabulary { vocabulary, .. }))
            if *vocabulary == weights.described.spec.vocab_size =>
        {
            let rows = weights.described.spec.vocab_size;
            error.context(format!(
                "the weights of model.init.from have {rows} tokens: take the tokenizer that they were trained with, or a larger \
                 model.vocab_size, whose further rows are drawn"
            ))
        }
        _ => error,
    })?;
    if let Some(recorded) = recorded_weights {
        prepared.facts.weights.clone_from(&recorded.facts.weights);
    }
    for warning in &prepared.warnings {
        observer.observe(&RunEvent::Warning(warning));
    }
    warn_of_cut_text(experiment, &prepared, observer)?;
    if let Some(weights) = weights {
        if let Some(warning) = foreign_tokenizer(&weights, &prepared.tokenizer.text, "data.tokenizer") {
            observer.observe(&RunEvent::Warning(&warning));
        }
        let cache = host.cache()?;
        let hash = pool.install(|| content_hash(&weights.files, cache, &|_| {}))?;
        prepared.facts.weights = Some(WeightsFacts { hash, vocab_size: weights.vocab_size() });
    }
    Ok(prepared)
}

/// The weights that `experiment` starts from, opened and found to fit its model; `None` if it draws them.
///
/// # Errors
/// If they are gone, cannot be downloaded or read, or are of another model.
pub fn initial_weights(
    experiment: &Experiment,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Option<OpenedWeights>, CommandError> {
    let Some(WeightInit::From(source)) = &experiment.model.init else { return Ok(None) };
    let path = match source {
        WeightsSource::Path(path) => path.clone(),
        WeightsSource::Hub(model) => {
            let fetched = fetch_model_folder(model, host, observer).map_err(|error| error.context("model.init.from"));
            fetched?.path
        }
    };
    let weights = OpenedWeights::open(&path).map_err(|error| match error {
        WeightsError::Io { .. } if is_absent(&path) => {
            let path = path.display();
            WeightsError::Request(format!(
                "the weights of model.init.from are gone: there is no {path}; restore them there"
            ))
        }
        other => other,
    })?;
    weights.check_fits(&experiment.model)?;
    Ok(Some(weights))
}

/// The state at step 0 of a run of `program`: drawn, or read from the weights whose content hash is in `facts`.
///
/// # Errors
/// If the weights that `experiment` starts from cannot be read or have changed, or memory is short.
fn initial_state(
    experiment: &Experiment,
    program: &Program,
    facts: &DataFacts,
    host: &Host,
) -> Result<TrainState, ExecError> {
    // The plan needed the weights too, so that nothing is left to download.
    let weights = initial_weights(experiment, host, &mut IgnoreEvents)
        .map_err(|error| ExecError::InitialWeights(error.into()))?;
    let given = weights.as_ref().map(|weights| weights as &dyn InitialWeights);
    let state = runner_exec::initial_state(program, given)?;
    if let Some(weights) = &weights {
        let checked = host.cache().and_then(|cache| check_unchanged(weights, facts, cache));
        checked.map_err(|error| ExecError::InitialWeights(error.into()))?;
    }
    Ok(state)
}

/// The training state that the rank of `program` begins with, in the host's memory: that of `checkpoint`, or that of step 0.
///
/// # Errors
/// If the checkpoint or the initial weights cannot be read, or memory is short.
pub(crate) fn load_state(
    experiment: &Experiment,
    program: &Program,
    plan_hash: &str,
    facts: &DataFacts,
    host: &Host,
    checkpoint: Option<&Path>,
) -> Result<TrainState, LaunchError> {
    let Some(path) = checkpoint else { return Ok(initial_state(experiment, program, facts, host)?) };
    let layout = Arc::new(parameter_layout(program));
    Ok(runner_checkpoint::load_state(path, Some(plan_hash), &layout, program.moments(), state_dtype(program))?)
}

/// # Errors
/// If the files of `weights` are not those whose hash is in `facts`. They are read again only if their size or time is another.
fn check_unchanged(weights: &OpenedWeights, facts: &DataFacts, cache: &Path) -> Result<(), CommandError> {
    let hash = content_hash(&weights.files, cache, &|_| {})?;
    if facts.weights.as_ref().is_some_and(|hashed| hashed.hash == hash) {
        return Ok(());
    }
    let file = weights.described.file.display();
    Err(CommandError::request(format!("{file}: the weights of model.init.from changed after the run was planned")))
}

/// # Errors
/// If `tokenizer` does not encode a prompt of `experiment`.
pub fn check_prompts(experiment: &Experiment, tokenizer: &ModelTokenizer) -> Result<(), CommandError> {
    for prompt in experiment.eval.samples.iter().flat_map(|s| &s.prompts) {
        let encoded = tokenizer.encode_prompt(prompt);
        encoded.map_err(|error| CommandError::request(format!("eval.samples.prompts: {error}")))?;
    }
    Ok(())
}

/// This machine, with its measured speed where it was calibrated.
pub fn local_devices(host: &Host) -> ClusterFacts {
    let mut cluster = local_cluster(host.threads).with_peak_flops(host.peak_flops);
    if let Some(rates) = host.cache.as_ref().and_then(|cache| calibrate::known_rates(&cluster, cache)) {
        // Calibration measures the CPU alone: what is known of GPUs stays.
        cluster.rates.devices.extend(rates.devices);
        cluster.rates.links = rates.links;
    }
    cluster
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_that_changed_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/hf/gpt2"));
        for name in ["config.json", "model.safetensors"] {
            std::fs::write(dir.path().join(name), std::fs::read(fixture.join(name)).unwrap()).unwrap();
        }
        let (weights, cache) = (OpenedWeights::open(dir.path()).unwrap(), dir.path().join("cache"));
        let hash = content_hash(&weights.files, &cache, &|_| {}).unwrap();
        let mut facts = runner_plan::testing::data();
        facts.weights = Some(WeightsFacts { hash, vocab_size: weights.vocab_size() });
        check_unchanged(&weights, &facts, &cache).unwrap();
        // One number of the last tensor.
        let mut bytes = std::fs::read(&weights.files[0]).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&weights.files[0], bytes).unwrap();
        let error = check_unchanged(&weights, &facts, &cache).unwrap_err().to_string();
        assert!(error.contains("changed after the run was planned"), "{error}");
    }
}
