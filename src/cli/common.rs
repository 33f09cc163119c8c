//! What several commands share: experiment and environment, folders, threads, prepared data and initial weights.

use std::env;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context;

use super::exit::RequestError;
use runner_compute::state::TrainState;
use runner_config::{LoadOptions, Loaded};
use runner_data::hub;
use runner_data::hub::{Downloading, Lowered};
use runner_data::{DataError, DataRequest, Prepared, Progress, TextTokenizer, content_hash, prepare};
use runner_engine::launch::World;
use runner_exec::ExecError;
use runner_report::Screen;
use runner_report::data_progress::show_data_progress;
use runner_spec::data::{DataFacts, WeightsFacts};
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::Experiment;
use runner_spec::experiment::{Data, Layout, Source, Tokenizer, WeightInit};
use runner_spec::model::InitialWeights;
use runner_spec::program::Program;
use runner_template::Variables;
use runner_weights::{Opened, WeightsError};

/// Where runs are, unless `--runs` says.
pub(crate) const RUNS: &str = "RUNNER_RUNS";
/// Where prepared data is cached.
pub(crate) const CACHE: &str = "RUNNER_CACHE";
/// What ranks of a run that a launcher started know, and others do not.
pub(crate) const TOKEN: &str = "RUNNER_TOKEN";
/// The program's own variables, which are no keys of the experiment.
const OWN: [&str; 5] = [RUNS, CACHE, TOKEN, super::plan::PEAK_FLOPS, runner_machine::doctor::LIBRARY_FOLDERS];

/// An experiment on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ExperimentArgs {
    /// The experiment file.
    pub file: PathBuf,
    /// Override a key of the file, such as `train.steps=10`; may be given several times. Paths in values are relative to
    /// the file.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub template: TemplateArgs,
}

/// Variables of a template on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TemplateArgs {
    /// Give a variable of a template (a file that ends in .j2) a value, read as YAML; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub var: Vec<String>,
    /// Take variables of a template from this YAML file; later files win over earlier ones, --var over all.
    #[arg(long, value_name = "FILE")]
    pub vars: Vec<PathBuf>,
}

impl TemplateArgs {
    /// The variables, over `options`.
    ///
    /// # Errors
    /// Flags and files that give no variables.
    pub(crate) fn over(&self, options: LoadOptions) -> Result<LoadOptions, ConfigError> {
        let Variables { values, named } = runner_template::variables(&self.var, &self.vars)?;
        let all =
            env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Ok(LoadOptions { vars: values, named_vars: named, template_env: all.collect(), ..options })
    }
}

impl ExperimentArgs {
    /// `--set` flags, `RUNNER_…` variables, and the variables of a template.
    ///
    /// # Errors
    /// Flags and files that give no variables.
    pub(crate) fn options(&self) -> Result<LoadOptions, ConfigError> {
        let options = LoadOptions { sets: self.set.clone(), env: experiment_environment(), ..LoadOptions::default() };
        self.template.over(options)
    }

    /// The experiment under its layers.
    ///
    /// # Errors
    /// `ConfigError`.
    pub(crate) fn load(&self) -> anyhow::Result<Loaded> {
        Ok(runner_config::load(&self.file, &self.options()?)?)
    }
}

/// Where runs are, on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RootArgs {
    /// The folder of run directories [default: $RUNNER_RUNS, or runs/].
    #[arg(long, value_name = "DIR")]
    pub runs: Option<PathBuf>,
}

impl RootArgs {
    /// The folder: the flag, else `RUNNER_RUNS`, else `runs`.
    #[must_use]
    pub(crate) fn root(&self) -> PathBuf {
        let variable = || env::var_os(RUNS).filter(|value| !value.is_empty()).map(PathBuf::from);
        self.runs.clone().or_else(variable).unwrap_or_else(|| PathBuf::from("runs"))
    }
}

/// Threads on the command line.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct ThreadArgs {
    /// Threads to compute with [default: all cores]. The results do not depend on it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub threads: Option<u16>,
}

impl ThreadArgs {
    /// The flag, else the cores that this process may use.
    #[must_use]
    pub(crate) fn count(self) -> usize {
        self.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from)
    }

    /// Those of one rank of `world`, whose machine is shared with others of them.
    #[must_use]
    pub(crate) fn among(self, world: Option<&World>) -> Self {
        let Some(world) = world else { return self };
        let share = world.threads(self.count(), self.threads.is_some());
        Self { threads: Some(u16::try_from(share).unwrap_or(u16::MAX)) }
    }

    /// A pool of that many threads, in which to prepare data and compute.
    ///
    /// # Errors
    /// If the system does not give that many threads.
    pub(crate) fn pool(self) -> anyhow::Result<rayon::ThreadPool> {
        let threads = self.count();
        let builder = rayon::ThreadPoolBuilder::new().num_threads(threads).stack_size(8 << 20);
        builder.build().with_context(|| format!("starting {threads} threads"))
    }
}

/// `RUNNER_…` variables that may set keys of an experiment. What is not UTF-8 cannot.
#[must_use]
pub(crate) fn experiment_environment() -> Vec<(String, String)> {
    let all = env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    all.filter(|(name, _)| name.starts_with("RUNNER_") && !OWN.contains(&name.as_str())).collect()
}

/// Whether a variable is the program's own, and no key of an experiment.
#[must_use]
pub(crate) fn is_own(name: &str) -> bool {
    OWN.contains(&name)
}

/// The program's own variables that are set, but for what is secret.
#[must_use]
pub(crate) fn own_environment() -> Vec<(String, String)> {
    OWN.iter()
        .filter(|name| **name != TOKEN)
        .filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?)))
        .collect()
}

/// The folder of prepared data: `RUNNER_CACHE`, else `runner` in the user's cache folder.
///
/// # Errors
/// If neither is known.
pub(crate) fn cache_dir() -> anyhow::Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable(CACHE)
        .or_else(|| variable("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("runner")))
        .or_else(|| variable("HOME").map(|path| path.join(".cache/runner")))
        .ok_or_else(|| RequestError(format!("no home folder: set {CACHE} to a folder for prepared data")).into())
}

/// The data of `experiment` with files of this machine where it names the hub, and with the commits that those are of. `None` if it
/// names nothing there.
///
/// # Errors
/// `HubError`, or no cache folder.
pub(crate) fn from_hub(experiment: &Experiment, screen: &mut Screen) -> anyhow::Result<Option<Lowered>> {
    lower(&experiment.data, experiment.eval.test.as_ref(), screen)
}

/// As `from_hub`, of data and what a model is tested on.
///
/// # Errors
/// As `from_hub`.
pub(crate) fn lower(data: &Data, test: Option<&Source>, screen: &mut Screen) -> anyhow::Result<Option<Lowered>> {
    if !hub::is_needed(data, test) {
        return Ok(None);
    }
    let settings = hub::Settings::new(&|name| env::var(name).ok())?;
    screen.spinner();
    let show = |part: Downloading| show_data_progress(screen, Progress::Downloading(part));
    let lowered = hub::lower(data, test, &settings, &cache_dir()?.join("hub"), &show);
    screen.clear();
    Ok(Some(lowered?))
}

/// `tokenizer` as files of this machine.
///
/// # Errors
/// As `from_hub`.
pub(crate) fn local_tokenizer(tokenizer: Tokenizer, screen: &mut Screen) -> anyhow::Result<Tokenizer> {
    let train = Source::Tokens { files: Vec::new() };
    let layout = Layout::Packed { length: 1 };
    let data = Data { tokenizer, train, validation: None, layout, shuffle: false, drop_last: false };
    let lowered = lower(&data, None, screen)?;
    Ok(lowered.map_or(data, |lowered| lowered.local).tokenizer)
}

/// What the experiment names of the hub, it names by commits from here on.
///
/// # Errors
/// As `from_hub`.
pub(crate) fn pin(experiment: &mut Experiment, screen: &mut Screen) -> anyhow::Result<()> {
    if let Some(lowered) = from_hub(experiment, screen)? {
        experiment.data = lowered.pinned;
        if let Some((_, pinned)) = lowered.test {
            experiment.eval.test = Some(pinned);
        }
    }
    Ok(())
}

/// Prepares the data of `experiment` in `pool`, with progress on `screen`.
///
/// # Errors
/// `DataError`, `HubError`, or no cache folder.
pub(crate) fn prepare_data(
    experiment: &Experiment,
    pool: &rayon::ThreadPool,
    screen: &mut Screen,
) -> anyhow::Result<Prepared> {
    let cache_dir = cache_dir()?;
    let lowered = from_hub(experiment, screen)?;
    let request = DataRequest {
        data: lowered.as_ref().map_or(&experiment.data, |lowered| &lowered.local),
        choice: experiment.eval.hellaswag.as_ref(),
        test: lowered.as_ref().and_then(|l| l.test.as_ref().map(|(local, _)| local)).or(experiment.eval.test.as_ref()),
        seed: experiment.seed,
        cache_dir: &cache_dir,
        vocab_size: experiment.model.vocab_size,
    };
    screen.spinner();
    let prepared = pool.install(|| prepare(&request, &|progress| show_data_progress(screen, progress)));
    screen.clear();
    let prepared = prepared?;
    check_prompts(experiment, &prepared.tokenizer)?;
    Ok(prepared)
}

/// As `prepare_data`, with the facts of the weights that `experiment` starts from.
///
/// # Errors
/// As `prepare_data` and `initial_weights`.
pub(crate) fn prepare_inputs(
    experiment: &Experiment,
    pool: &rayon::ThreadPool,
    screen: &mut Screen,
) -> anyhow::Result<Prepared> {
    // First, as it takes less time to find out what is wrong with them.
    let weights = initial_weights(experiment)?;
    let mut prepared = prepare_data(experiment, pool, screen).map_err(|error| match &weights {
        Some(weights)
            if matches!(error.downcast_ref(), Some(DataError::TokenBeyondVocabulary { vocabulary, .. })
                if *vocabulary == weights.described.spec.vocab_size) =>
        {
            let rows = weights.described.spec.vocab_size;
            error.context(format!(
                "the weights of model.init.from have {rows} tokens: take the tokenizer that they were trained with, or a larger \
                 model.vocab_size, whose further rows are drawn"
            ))
        }
        _ => error,
    })?;
    if let Some(weights) = weights {
        let hash =
            pool.install(|| content_hash(&weights.files, &cache_dir()?, &|_| {}).map_err(anyhow::Error::from))?;
        prepared.facts.weights = Some(WeightsFacts { hash, vocab_size: weights.vocab_size() });
    }
    Ok(prepared)
}

/// The weights that `experiment` starts from, opened and found to fit its model; `None` if it draws them.
///
/// # Errors
/// `WeightsError`.
pub(crate) fn initial_weights(experiment: &Experiment) -> anyhow::Result<Option<Opened>> {
    let Some(WeightInit::From(path)) = &experiment.model.init else { return Ok(None) };
    let weights = Opened::open(path).map_err(|error| match error {
        WeightsError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound && !path.exists() => {
            WeightsError::Request(format!("the weights of model.init.from are gone: there is no {}", path.display()))
        }
        other => other,
    })?;
    weights.check_fits(&experiment.model)?;
    Ok(Some(weights))
}

/// The state at step 0 of a run of `program`, drawn or read: of the weights with the content that is in `facts`.
///
/// # Errors
/// If the weights that `experiment` starts from cannot be read or have changed, or memory is short.
pub(crate) fn initial_state(
    experiment: &Experiment,
    program: &Program,
    facts: &DataFacts,
) -> Result<TrainState, ExecError> {
    let weights = initial_weights(experiment).map_err(|error| ExecError::InitialWeights(error.into()))?;
    let state =
        runner_exec::initial_state_from(program, weights.as_ref().map(|weights| weights as &dyn InitialWeights))?;
    if let Some(weights) = &weights {
        let checked = cache_dir().and_then(|cache| check_unchanged(weights, facts, &cache));
        checked.map_err(|error| ExecError::InitialWeights(error.into()))?;
    }
    Ok(state)
}

/// # Errors
/// If the files of `weights` are not those whose hash is in `facts`. They are read again only if their size or time is another.
fn check_unchanged(weights: &Opened, facts: &DataFacts, cache: &Path) -> anyhow::Result<()> {
    let hash = content_hash(&weights.files, cache, &|_| {})?;
    if facts.weights.as_ref().is_some_and(|hashed| hashed.hash == hash) {
        return Ok(());
    }
    let file = weights.described.file.display();
    Err(RequestError(format!("{file}: the weights of model.init.from changed after the run was planned")).into())
}

/// Samples come hours into a run: what cannot be encoded then cannot be encoded now.
///
/// # Errors
/// A prompt that the tokenizer does not encode.
pub(crate) fn check_prompts(experiment: &Experiment, tokenizer: &TextTokenizer) -> anyhow::Result<()> {
    for prompt in experiment.eval.samples.iter().flat_map(|s| &s.prompts) {
        let encoded = tokenizer.encode(prompt);
        encoded.map_err(|error| RequestError(format!("eval.samples.prompts: {prompt:?}: {error}")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_says_where_runs_are() {
        let args = RootArgs { runs: Some(PathBuf::from("/elsewhere")) };
        assert_eq!(args.root(), Path::new("/elsewhere"));
    }

    #[test]
    fn weights_that_changed_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/hf/gpt2");
        for name in ["config.json", "model.safetensors"] {
            std::fs::write(dir.path().join(name), std::fs::read(fixture.join(name)).unwrap()).unwrap();
        }
        let (weights, cache) = (Opened::open(dir.path()).unwrap(), dir.path().join("cache"));
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

    #[test]
    fn a_pool_has_the_threads_asked_for() {
        assert_eq!(ThreadArgs { threads: Some(3) }.pool().unwrap().current_num_threads(), 3);
        assert!(ThreadArgs { threads: None }.count() >= 1);
    }
}
