//! From an experiment to the inputs of its run: data, tokenizer, and the facts of its initial weights.

use std::path::Path;

use runner_compare::stored_plan;
use runner_config::Loaded;
use runner_data::{
    DataError, DataRequest, EvaluationData, EvaluationRequest, ModelTokenizer, Prepared, TextTokenizer, content_hash,
};
use runner_files::{is_absent, is_lock_service_gone};
use runner_record::run_dir::TOKENIZER;
use runner_spec::data::{DataFacts, WeightsFacts};
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::{Experiment, WeightInit, WeightsSource};
use runner_weights::{OpenedWeights, WeightsError};

use crate::host::Host;
use crate::hub_names::{fetch_model_folder, lower_hub_of_run};
use crate::input_notes::{foreign_tokenizer, warn_of_cut_text};
use crate::observer::{RunEvent, RunObserver, with_progress};

/// Prepares the data of `experiment` in `pool`, and checks that its prompts can be encoded: samples come hours into a run. A `tokenizer` that a
/// run recorded replaces the one that `experiment` names.
///
/// # Errors
/// If the data, or what it names of the hub, cannot be read, or a prompt cannot be encoded.
pub fn prepare_data(
    experiment: &Experiment,
    tokenizer: Option<&TextTokenizer>,
    pool: &rayon::ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Prepared> {
    let cache = host.cache()?;
    let local = lower_hub_of_run(experiment, tokenizer, host, observer)?.local;
    let request = DataRequest {
        data: &local.data,
        tasks: &local.tasks,
        test: local.test.as_ref(),
        cache_dir: cache,
        vocab_size: experiment.model.vocab_size,
        recorded_tokenizer: tokenizer,
    };
    let prepared = with_progress(observer, |report| pool.install(|| runner_data::prepare(&request, report)));
    let prepared = prepared.map_err(|error| match &error {
        DataError::Io { path, source } if path.starts_with(cache) => {
            let is_lock = is_lock_service_gone(source);
            let place = if is_lock { "a folder of a different file system" } else { "a writable folder" };
            let advice = format!("set RUNNER_CACHE to {place} for prepared data");
            CommandError::from(error).hint(advice)
        }
        _ => error.into(),
    })?;
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
) -> Result<EvaluationData> {
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
) -> Result<Prepared> {
    prepare_rank_inputs(experiment, None, pool, host, observer)
}

/// Prepares the data of `experiment` for a run that starts, or that continues from the checkpoint of a run, which recorded the
/// `recorded_inputs`. Then the weights that this run started from are not needed.
///
/// # Errors
/// If the weights or the data cannot be read, or do not fit each other.
pub fn prepare_rank_inputs(
    experiment: &Experiment,
    recorded_inputs: Option<&RecordedInputs>,
    pool: &rayon::ThreadPool,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Prepared> {
    let recorded_weights = recorded_inputs.filter(|recorded| recorded.has_same_weights);
    // The weights are checked first, because that takes less time than preparing data.
    let weights = if recorded_weights.is_some() { None } else { initial_weights(experiment, host, observer)? };
    let tokenizer = recorded_inputs.and_then(|recorded| recorded.tokenizer.as_ref());
    let prepared = prepare_data(experiment, tokenizer, pool, host, observer);
    let mut prepared = prepared.map_err(|error| match (&weights, error.cause()) {
        (Some(weights), Some(DataError::TokenBeyondVocabulary { vocabulary, .. }))
            if *vocabulary == weights.described.spec.vocab_size =>
        {
            let rows = weights.described.spec.vocab_size;
            error.context(format!(
                "the weights of model.init.from have {rows} vocabulary rows; use the tokenizer that they were trained with, or set a larger \
                 model.vocab_size, whose extra rows are initialized at random"
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
        if weights.lacks_head() && !experiment.model.tie_embeddings {
            observer.observe(&RunEvent::Warning(
                "the weights of model.init.from have no head, so it is initialized at random; set `model.tie_embeddings: true` to use the embedding",
            ));
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
/// If they are gone, cannot be downloaded or read, or belong to a different model.
pub fn initial_weights(
    experiment: &Experiment,
    host: &Host,
    observer: &mut dyn RunObserver,
) -> Result<Option<OpenedWeights>> {
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
            WeightsError::Request(format!("{path}, the weights of model.init.from, is missing; restore it"))
        }
        other => other,
    })?;
    weights.check_fits(&experiment.model)?;
    Ok(Some(weights))
}

/// # Errors
/// If `tokenizer` does not encode a prompt of `experiment`.
pub fn check_prompts(experiment: &Experiment, tokenizer: &ModelTokenizer) -> Result<()> {
    for prompt in experiment.eval.samples.iter().flat_map(|s| &s.prompts) {
        let encoded = tokenizer.encode_prompt(prompt);
        encoded.map_err(|error| CommandError::request(format!("eval.samples.prompts: {error}")))?;
    }
    Ok(())
}

/// True if only their owner may read the texts of `loaded`: they hold values of `env()`, or come from a file that is private.
pub fn has_private_text(loaded: &Loaded) -> bool {
    loaded.template.as_ref().is_some_and(|template| !template.env_read.is_empty())
        || runner_files::is_private_file(&loaded.path)
        || loaded.other_files.iter().any(|other| runner_files::is_private_file(&other.file.path))
}

/// The inputs that a run with a checkpoint recorded. With them, training resumes without the weights that the run started from, and
/// without the files of its tokenizer.
#[derive(Debug, Clone)]
pub struct RecordedInputs {
    pub facts: DataFacts,
    /// `None` if the tokenizer that the experiment names is read: its files are there, it differs from the run's, or the run kept no copy.
    pub tokenizer: Option<TextTokenizer>,
    /// True if the experiment names the weights that the run started from, which a checkpoint replaces.
    pub has_same_weights: bool,
}

impl RecordedInputs {
    /// Reads the inputs that the run in `path` recorded. `theirs` is that run's experiment; `experiment` begins with the run's checkpoint.
    ///
    /// # Errors
    /// If the run's plan is missing or damaged, or its tokenizer is needed and damaged.
    pub fn read(path: &Path, theirs: &Experiment, experiment: &Experiment) -> Result<Self> {
        let facts = stored_plan::data_facts(path)?;
        let has_same_tokenizer = theirs.data.tokenizer == experiment.data.tokenizer;
        let tokenizer = if has_same_tokenizer { recorded_tokenizer(experiment, &facts, path)? } else { None };
        Ok(Self { facts, tokenizer, has_same_weights: theirs.model.init == experiment.model.init })
    }

    /// The inputs of the run in `path`, whose experiment is `experiment` and whose data has the `facts`.
    ///
    /// # Errors
    /// If its tokenizer is needed and damaged.
    pub fn new(facts: DataFacts, path: &Path, experiment: &Experiment) -> Result<Self> {
        Ok(Self { tokenizer: recorded_tokenizer(experiment, &facts, path)?, facts, has_same_weights: true })
    }
}

/// The tokenizer that the run in `path`, with the data `facts`, keeps; `None` if the one that `experiment` names can be read in its place.
///
/// # Errors
/// If it is needed and damaged.
pub fn recorded_tokenizer(experiment: &Experiment, facts: &DataFacts, path: &Path) -> Result<Option<TextTokenizer>> {
    let (named, hash) = (&experiment.data.tokenizer, &facts.tokenizer_hash);
    Ok(TextTokenizer::read_recorded_for(named, &path.join(TOKENIZER), hash)?)
}
