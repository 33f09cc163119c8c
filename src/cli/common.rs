//! Arguments that several commands share: the experiment and its overrides, folders, threads, and the environment.

use std::env;
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::thread;

use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use runner_compute::kernels::cpu::product::Bf16Products;
use runner_config::{ExperimentFile, LayerFile, LoadOptions, Loaded, ModelFetchError};
use runner_files::read_regular_text;
use runner_inputs::{Host, MAX_THREADS_PER_CORE, fetch_model_folder, model_fetch_error};
use runner_machine::cluster_description::{cluster_from_yaml, named_cluster};
use runner_ranks::launcher_environment::RESTARTS;
use runner_record::run_dir::MANIFEST;
use runner_report::Screen;
use runner_spec::cluster::ClusterFacts;
use runner_spec::diagnostic::{ConfigError, nearest};
use runner_spec::experiment::{HubModel, ModelFolder};
use runner_template::Inputs;
use serde::de::DeserializeOwned;

use crate::cli::machine::completions::{experiments_completer, settings_completer};
use crate::cli::terminal::exit::{CommandError, Context as _, Result, refuse};
use crate::cli::terminal::output::print_to_stderr;
use crate::cli::terminal::screen_observer::PreparationObserver;

/// The variable with the folder of runs, which `--runs` overrides.
pub(crate) const RUNS: &str = "RUNNER_RUNS";
/// The variable with the folder of prepared data.
pub(crate) const CACHE: &str = "RUNNER_CACHE";
/// The variable with the secret that ranks of a launcher share.
pub(crate) const TOKEN: &str = "RUNNER_TOKEN";
/// The variable with the name of the method with which a CPU multiplies bf16 matrices.
pub(crate) const BF16_PRODUCTS: &str = "RUNNER_BF16_PRODUCTS";

/// Applies the variables that concern the whole process.
///
/// # Errors
/// If a variable has a wrong value, or a name that is almost that of one of the program's own variables.
pub(crate) fn apply_process_variables() -> Result<()> {
    for (name, _) in utf8_environment() {
        if let Some(meant) = own_variable_meant(&name) {
            refuse!("unknown environment variable `{name}`; did you mean `{meant}`?");
        }
    }
    if let Some(name) = env::var_os(BF16_PRODUCTS).filter(|name| !name.is_empty()) {
        match Bf16Products::parse_name(&name.to_string_lossy()) {
            Ok(method) => method.choose(),
            Err(message) => refuse!("{BF16_PRODUCTS}: {message}"),
        }
    }
    Ok(())
}

/// The program's own variables, which do not set keys of the experiment.
pub(crate) const OWN_VARIABLES: [&str; 7] =
    [RUNS, CACHE, TOKEN, RESTARTS, BF16_PRODUCTS, PEAK_FLOPS, runner_machine::doctor::LIBRARY_FOLDERS];

/// The program's own variable whose name is nearest to the misspelled `name`.
fn own_variable_meant(name: &str) -> Option<&'static str> {
    const PREFIX: &str = "RUNNER_";
    let rest = name.strip_prefix(PREFIX).filter(|_| !OWN_VARIABLES.contains(&name))?;
    let meant = nearest(rest, OWN_VARIABLES.iter().filter_map(|own| own.strip_prefix(PREFIX)))?;
    OWN_VARIABLES.into_iter().find(|own| own.strip_prefix(PREFIX) == Some(meant))
}

/// An experiment on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ExperimentArgs {
    /// The experiment file.
    #[arg(add = experiments_completer())]
    pub file: PathBuf,
    /// Files over it, whose settings replace those of the files before them.
    #[arg(value_name = "FILE", value_parser = overlay_parser(), add = experiments_completer())]
    pub overlays: Vec<PathBuf>,
    /// Override a key of the file, such as `train.steps=10`; may be given several times. Paths in values are relative to
    /// the file.
    #[arg(long, value_name = "KEY.PATH=VALUE", add = settings_completer())]
    pub set: Vec<String>,
    #[command(flatten)]
    pub set_file: SetFileArgs,
    #[command(flatten)]
    pub template: TemplateArgs,
}

/// Files that give keys their values, on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SetFileArgs {
    /// Take the value of a key from a YAML file, such as `model=small.yaml`; may be given several times. Settings of --set win. Paths in the
    /// YAML file are relative to its folder.
    #[arg(long = "set-file", value_name = "KEY.PATH=FILE", value_parser = parse_layer_file)]
    pub files: Vec<LayerFile>,
}

/// Parses the path of a file over the experiment. `train.steps=5` is none.
fn overlay_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        if path.to_string_lossy().contains('=') && !path.exists() {
            return Err("a key of the experiment is set with `--set KEY=VALUE`");
        }
        Ok(path)
    })
}

/// Parses `KEY.PATH=FILE`.
fn parse_layer_file(text: &str) -> Result<LayerFile, String> {
    let Some((key, path)) = text.split_once('=').filter(|(key, path)| !key.is_empty() && !path.is_empty()) else {
        return Err("must be a key and a file, such as model=small.yaml".to_owned());
    };
    runner_config::check::check_key_path(key).map_err(|mistake| format!("{}; {}", mistake.message, mistake.help))?;
    Ok(LayerFile { key: key.to_owned(), path: path.into() })
}

/// Where the data of a run is now, on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct MovedDataArgs {
    /// Read data of the run that has moved: NEW replaces the path OLD, or the beginning of paths. May be given several times.
    #[arg(long, value_name = "OLD=NEW")]
    pub data: Vec<String>,
}

/// Variables of a template on the command line.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TemplateArgs {
    /// Give a variable of a template (a file that ends in .j2) a value, read as YAML; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub var: Vec<String>,
    /// Read variables of a template from this YAML file; later files override earlier ones, and --var overrides all.
    #[arg(long, value_name = "FILE")]
    pub vars: Vec<PathBuf>,
}

impl TemplateArgs {
    /// Adds the variables to `options`.
    ///
    /// # Errors
    /// If a flag or a file does not give variables.
    pub(crate) fn add_to<'a>(&self, options: LoadOptions<'a>) -> Result<LoadOptions<'a>, ConfigError> {
        let environment = utf8_environment().collect();
        let template = Inputs { environment, ..runner_template::variables(&self.var, &self.vars)? };
        Ok(LoadOptions { template, ..options })
    }
}

impl ExperimentArgs {
    /// `--set` flags, `RUNNER_…` variables, and the variables of a template.
    ///
    /// # Errors
    /// If a flag or a file does not give variables.
    pub(crate) fn options(&self) -> Result<LoadOptions<'static>, ConfigError> {
        let options = LoadOptions { files: self.files_above(), sets: self.set.clone(), ..default_load_options() };
        self.template.add_to(options)
    }

    /// The files over the experiment file, the lowest first.
    pub(crate) fn files_above(&self) -> Vec<LayerFile> {
        let overlays = self.overlays.iter().map(|path| LayerFile { key: String::new(), path: path.clone() });
        overlays.chain(self.set_file.files.iter().cloned()).collect()
    }

    /// The experiment under the layers of `options`.
    ///
    /// # Errors
    /// Every mistake of the file, the flags and the variables.
    pub(crate) fn load_with(&self, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
        Self::load_file(&ExperimentFile::read(&self.file)?, options)
    }

    /// The experiment of `file`, which was read, under the layers of `options`.
    ///
    /// # Errors
    /// Every mistake of the file, the flags and the variables.
    pub(crate) fn load_file(file: &ExperimentFile, options: &LoadOptions<'_>) -> Result<Loaded, ConfigError> {
        let loaded = file.load(options)?;
        for overridden in &loaded.overridden {
            print_to_stderr(&format!("warning: {overridden}"));
        }
        if let Some(assumptions) = &loaded.assumptions {
            print_to_stderr(&format!("warning: {assumptions}"));
        }
        Ok(loaded)
    }
}

/// Warns of the files that `loaded` names and that are missing.
pub(crate) fn warn_of_absent_files(loaded: &Loaded) {
    let absent = ConfigError::new(loaded.absent_files.clone());
    if !absent.diagnostics.is_empty() {
        print_to_stderr(absent.render_warnings(console::colors_enabled_stderr()).trim_end());
        print_to_stderr("");
    }
}

/// Parses a word of an experiment file, one of `words`, which `--help` lists.
pub(crate) fn word_parser<T: DeserializeOwned + Clone + Send + Sync + 'static>(
    words: impl Into<PossibleValuesParser>,
) -> impl TypedValueParser<Value = T> {
    words.into().try_map(|word| serde_json::from_value(word.into()))
}

/// Parses a number from 0 on.
pub(crate) fn parse_non_negative(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "must be a number, at least 0, such as 2.5 or 1e-4".to_owned())
}

/// Parses a range of steps, both ends included: `400..440`.
pub(crate) fn parse_steps(text: &str) -> Result<RangeInclusive<u64>, String> {
    let ends = text.split_once("..").and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?)));
    let steps = ends.map(|(from, to): (u64, u64)| from..=to).filter(|steps| *steps.start() > 0 && !steps.is_empty());
    steps.ok_or_else(|| "give the first and the last step, such as 400..440".to_owned())
}

/// The folder of runs on the command line.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RunsFolderArgs {
    /// The folder of run directories [default: $RUNNER_RUNS, or runs/].
    #[arg(long, value_name = "DIR", value_parser = folder_parser())]
    pub runs: Option<PathBuf>,
}

/// Parses the path of a folder, which need not exist.
fn folder_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| {
        if path.is_file() {
            Err("this is a file; name a folder".to_owned())
        } else if path.join(MANIFEST).is_file() {
            Err("this is a run; name the folder that contains it".to_owned())
        } else {
            Ok(path)
        }
    })
}

impl RunsFolderArgs {
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
    #[arg(long, value_name = "N", value_parser = parse_threads, allow_negative_numbers = true)]
    pub threads: Option<u16>,
}

/// Parses a number of threads. With many more threads than cores a step takes minutes, and a signal waits for its end.
fn parse_threads(text: &str) -> Result<u16, String> {
    let threads = parse_job_threads(text)?;
    check_threads(threads).map(|()| threads)
}

/// Parses a number of threads on any machine.
fn parse_job_threads(text: &str) -> Result<u16, String> {
    match text.parse::<u64>() {
        Ok(0) | Err(_) => Err("must be a whole number, at least 1".to_owned()),
        Ok(threads) => u16::try_from(threads).map_err(|_| format!("must be at most {}", u16::MAX)),
    }
}

/// Checks that this machine has cores for so many threads.
fn check_threads(threads: u16) -> Result<(), String> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let limit = cores * MAX_THREADS_PER_CORE;
    if usize::from(threads) <= limit {
        return Ok(());
    }
    Err(format!(
        "must be at most {limit}, which is {MAX_THREADS_PER_CORE} for each of {cores} cores; more threads would only wait"
    ))
}

/// Threads of jobs, which may run on larger machines than this one.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct JobThreadArgs {
    /// Threads to compute with on this machine, or with a scheduler on each machine of a job [default: all cores of this machine]. The
    /// results do not depend on it.
    #[arg(long, value_name = "N", value_parser = parse_job_threads, allow_negative_numbers = true)]
    pub threads: Option<u16>,
}

impl JobThreadArgs {
    /// For jobs of a scheduler.
    pub(crate) fn of_jobs(self) -> ThreadArgs {
        ThreadArgs { threads: self.threads }
    }

    /// For this machine.
    ///
    /// # Errors
    /// If it has too few cores.
    pub(crate) fn here(self) -> Result<ThreadArgs> {
        if let Some(Err(problem)) = self.threads.map(check_threads) {
            refuse!("--threads {problem}");
        }
        Ok(self.of_jobs())
    }
}

impl ThreadArgs {
    /// The flag, else the cores that this process may use.
    #[must_use]
    pub(crate) fn count(self) -> usize {
        self.threads.map_or_else(|| thread::available_parallelism().map_or(1, usize::from), usize::from)
    }

    /// A pool of that many threads, in which to prepare data and compute.
    ///
    /// # Errors
    /// If the system does not give that many threads.
    pub(crate) fn pool(self) -> Result<rayon::ThreadPool> {
        Ok(runner_threads::threads::thread_pool(self.count())?)
    }
}

/// `RUNNER_…` variables that may set keys of an experiment, without those that are not UTF-8.
#[must_use]
pub(crate) fn experiment_environment() -> Vec<(String, String)> {
    utf8_environment()
        .filter(|(name, _)| name.starts_with("RUNNER_") && !OWN_VARIABLES.contains(&name.as_str()))
        .collect()
}

/// The options that most commands load experiments with. `RUNNER_…` variables are layers; downloads of models of the hub are shown on
/// standard error.
#[must_use]
pub(crate) fn default_load_options() -> LoadOptions<'static> {
    LoadOptions { env: experiment_environment(), fetch_model: Some(&fetch_model), ..LoadOptions::default() }
}

/// A `runner_config::ModelFetcher` for commands that have no observer yet.
fn fetch_model(model: &HubModel) -> Result<ModelFolder, ModelFetchError> {
    let host = host_without_runs(ThreadArgs { threads: None })
        .map_err(|error| ModelFetchError { message: error.to_string(), is_refused: false })?;
    let mut screen = Screen::on_standard_error();
    let mut observer = PreparationObserver::new(&mut screen);
    fetch_model_folder(model, &host, &mut observer).map_err(|error| model_fetch_error(&error))
}

/// The program's own variables that are set, except the secret token, and the number of restarts, which the record has itself.
#[must_use]
pub(crate) fn own_environment() -> Vec<(String, String)> {
    OWN_VARIABLES
        .iter()
        .filter(|name| ![TOKEN, RESTARTS].contains(name))
        .filter_map(|name| Some(((*name).to_owned(), env::var(name).ok()?)))
        .collect()
}

/// The folder of prepared data: `RUNNER_CACHE`, else `runner` in the user's cache folder.
///
/// # Errors
/// If neither is known.
pub(crate) fn cache_dir() -> Result<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    variable(CACHE)
        .or_else(|| variable("XDG_CACHE_HOME").filter(|path| path.is_absolute()).map(|path| path.join("runner")))
        .or_else(|| variable("HOME").map(|path| path.join(".cache/runner")))
        .ok_or_else(|| CommandError::request(format!("no home folder; set `{CACHE}` to a folder for prepared data")))
}

/// This machine, for commands that record no run.
///
/// # Errors
/// If `RUNNER_PEAK_FLOPS` is not a number.
pub(crate) fn host_without_runs(threads: ThreadArgs) -> Result<Host> {
    host(PathBuf::new(), threads)
}

/// This machine, as commands hand it to the engine: folders, threads, and the environment variables that it may know.
///
/// # Errors
/// If `RUNNER_PEAK_FLOPS` is not a number.
pub(crate) fn host(runs: PathBuf, threads: ThreadArgs) -> Result<Host> {
    Ok(Host {
        runs,
        // Commands that do not read it work without one.
        cache: cache_dir().ok(),
        threads: threads.count(),
        has_given_threads: threads.threads.is_some(),
        peak_flops: parse_peak_flops(env::var_os(PEAK_FLOPS))?,
        environment: utf8_environment().collect(),
        recorded_environment: own_environment().into_iter().collect(),
        platform_environment: runner_machine::doctor::shown_variables(utf8_environment()),
        build: crate::cli::machine::version::program_build(),
        kernels: runner_compute::kernel_workspace(),
        working_folder: env::current_dir().ok(),
    })
}

/// The cluster that a name or a file describes, with the kernels of this program.
///
/// # Errors
/// If the name or the content of the file is wrong, or the file cannot be read.
pub(crate) fn read_cluster(text: &str) -> Result<ClusterFacts> {
    let with_kernels = |cluster| ClusterFacts { kernels: runner_compute::kernel_workspace(), ..cluster };
    let path = Path::new(text);
    let is_file = path.extension().is_some_and(|e| e == "yaml" || e == "yml") || path.is_file();
    if !is_file {
        return Ok(with_kernels(named_cluster(text)?));
    }
    let content = read_regular_text(path).map_err(|e| CommandError::request(format!("{text}: {e}")))?;
    cluster_from_yaml(&content).map(with_kernels).context(text)
}

/// The environment variables whose names and values are UTF-8.
pub(crate) fn utf8_environment() -> impl Iterator<Item = (String, String)> {
    env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The environment variable with the device's peak FLOP/s, from which MFU is computed.
const PEAK_FLOPS: &str = "RUNNER_PEAK_FLOPS";

/// Parses the value of `RUNNER_PEAK_FLOPS`.
///
/// # Errors
/// If it is not a positive number.
fn parse_peak_flops(value: Option<OsString>) -> Result<Option<f64>> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(None) };
    let number = value.to_str().and_then(|text| text.trim().replace('_', "").parse::<f64>().ok());
    match number {
        Some(peak) if peak.is_finite() && peak > 0.0 => Ok(Some(peak)),
        _ => refuse!("`{PEAK_FLOPS}` must be a positive number of FLOP/s, such as 400e9, got {}", value.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_a_positive_number() {
        for absent in [None, Some("".into())] {
            assert_eq!(parse_peak_flops(absent).unwrap(), None);
        }
        assert_eq!(parse_peak_flops(Some("4_00e9".into())).unwrap(), Some(4e11));
        for bad in ["fast", "-1", "0", "inf"] {
            assert!(parse_peak_flops(Some(bad.into())).is_err(), "{bad:?} is not a peak");
        }
    }

    #[test]
    fn the_flag_says_where_runs_are() {
        let args = RunsFolderArgs { runs: Some(PathBuf::from("/elsewhere")) };
        assert_eq!(args.root(), Path::new("/elsewhere"));
    }

    #[test]
    fn a_number_of_threads_fits_the_machine() {
        assert_eq!(parse_threads("2"), Ok(2));
        for text in ["0", "-1", "x"] {
            assert!(parse_threads(text).unwrap_err().starts_with("must be a whole number"), "{text}");
        }
        for text in ["65535", "70000"] {
            assert!(parse_threads(text).unwrap_err().starts_with("must be at most"), "{text}");
        }
    }

    #[test]
    fn a_misspelled_variable_is_refused() {
        for (name, meant) in [("BF16_PRODUCT", BF16_PRODUCTS), ("RUN", RUNS), ("CACHES", CACHE), ("TOKENS", TOKEN)] {
            assert_eq!(own_variable_meant(&format!("RUNNER_{name}")), Some(meant));
        }
        // Variables of the program, keys of experiments, and variables of GitHub Actions.
        let others = "OS ARCH NAME TEMP TOOL_CACHE DEBUG ENVIRONMENT WORKSPACE TRAIN DATA SEED LOG EVAL TRAIN__STEPS";
        let own = OWN_VARIABLES.map(|name| name.trim_start_matches("RUNNER_"));
        for name in others.split(' ').chain(own) {
            assert_eq!(own_variable_meant(&format!("RUNNER_{name}")), None, "{name}");
        }
        assert_eq!(own_variable_meant("OTHER_RUN"), None);
    }

    #[test]
    fn there_is_always_a_thread() {
        assert!(ThreadArgs { threads: None }.count() >= 1);
    }
}
