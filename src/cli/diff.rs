//! `runner diff`: shows what differs between two runs or experiments, and what that means.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::Args;

use super::common::{RunsFolderArgs, TemplateArgs, ThreadArgs, default_load_options, host_without_runs};
use super::exit::{CommandError, Context as _, Exit, Result, refuse};
use super::output::print_result;
use super::screen_observer::PreparationObserver;
use runner_config::{LoadOptions, Loaded};
use runner_engine::prepare::prepare_inputs;
use runner_engine::session_facts::describe_session;
use runner_lab::compare::PlannedExperiment;
use runner_lab::compare::diff::{self, DiffInput, Invocation};
use runner_lab::compare::planned_experiment::{cluster_for, cluster_of};
use runner_lab::compare::run_record::{RunRecord, read_experiment_and_plan};
use runner_lab::compare::unread_data::{assume_data, sufficient_rows};
use runner_machine::host::Git;
use runner_record::manifest::Session;
use runner_record::{RecordError, catalog};
use runner_report::Screen;
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::Experiment;
use runner_spec::format::short_hash;
use runner_spec::plan::Plan;

/// Show what differs between two runs or experiment files, and what that means for the numbers.
///
/// The hashes of both plans decide the result: the same run; bookkeeping only (names, logs, checkpoints); the same mathematics
/// with other rounding (layout, micro-batches, device); or other mathematics, with the parts that differ. The data of experiment
/// files is prepared and cached first, unless it is missing.
#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// An experiment file or a run: a run directory, an id, or the beginning of an id.
    pub a: PathBuf,
    /// The other experiment file or run.
    pub b: PathBuf,
    /// Override a key of the experiment files among A and B, such as `train.steps=10`; may be given several times.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    pub set: Vec<String>,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Read no data and assume this many training rows. Data with the same name then counts as the same data.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: Option<u64>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Exit with code 3 unless both are the same run.
    #[arg(long)]
    pub exit_code: bool,
}

/// A or B: an experiment file or a run.
struct Side {
    experiment: Experiment,
    source: SideSource,
}

enum SideSource {
    File {
        path: PathBuf,
        /// The environment variables that had effect on the file.
        env_read: Vec<(String, String)>,
        /// The reason why its data cannot be read.
        missing: Option<String>,
    },
    Run {
        record: Box<RunRecord>,
        plan: Box<Plan>,
    },
}

/// # Errors
/// A side that is no file and no run, or that cannot be planned; data that cannot be prepared.
pub(crate) fn run(args: &DiffArgs) -> Result<Exit> {
    let named = !args.template.var.is_empty() || !args.template.vars.is_empty();
    if named && ![&args.a, &args.b].into_iter().any(|path| runner_template::is_template(path)) {
        refuse!("--var and --vars are for templates, files that end in .j2");
    }
    let (a, b) = (open_side(&args.a, args)?, open_side(&args.b, args)?);
    let mut notes = Vec::new();
    if let (Some(a), Some(b)) = (a.run_path(), b.run_path()) {
        if !args.set.is_empty() {
            refuse!("--set overrides keys of experiment files, and both A and B are runs");
        }
        if a == b {
            notes.push("A and B name the same run".to_owned());
        }
    }
    let data = data(args, [&a, &b], &mut notes)?;
    let read = data.is_some();
    let [x, y] = data.unwrap_or_else(|| {
        let rows = args.rows.or_else(|| [&a, &b].into_iter().find_map(Side::rows));
        let rows = rows.unwrap_or_else(|| sufficient_rows([&a.experiment, &b.experiment]));
        [assume_data(&a.experiment, rows), assume_data(&b.experiment, rows)]
    });
    let a = a.plan(&args.a, args, x, read, &mut notes)?;
    let b = b.plan(&args.b, args, y, read, &mut notes)?;
    // Two sides of one run, or of one missing file, give the same notes.
    let mut seen = HashSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    let differences = diff::diff(&a, &b, read, notes);
    print_result(args.json, &differences, || runner_report::diff::diff_text(&differences))?;
    Ok(if args.exit_code && !differences.is_same_run() { Exit::Differ } else { Exit::Done })
}

/// The experiment file called `wanted` if there is one, else the run.
fn open_side(wanted: &Path, args: &DiffArgs) -> Result<Side> {
    // A pipe is read like a file.
    if wanted.exists() && !wanted.is_dir() {
        let options = LoadOptions { sets: args.set.clone(), ..default_load_options() };
        // Only one of two files may be a template.
        let options = if runner_template::is_template(wanted) { args.template.add_to(options)? } else { options };
        return Ok(load(wanted, &options)?);
    }
    let name = wanted.to_str().ok_or_else(|| CommandError::request(format!("{} is not UTF-8", wanted.display())))?;
    let path = catalog::resolve(&args.root.root(), name).map_err(|error| match error {
        RecordError::NoSuchRun { .. } | RecordError::NotARun { .. } => {
            CommandError::request(format!("there is no experiment file {name}, and {error}"))
        }
        other => other.into(),
    })?;
    let record = RunRecord::read(&path)?;
    let (experiment, plan) = read_experiment_and_plan(&path)?;
    Ok(Side { experiment, source: SideSource::Run { record: Box::new(record), plan: Box::new(plan) } })
}

/// The experiment at `path`, even where files that it names are missing.
fn load(path: &Path, options: &LoadOptions<'_>) -> Result<Side, ConfigError> {
    let (loaded, missing) = match runner_config::load(path, options) {
        Ok(loaded) => (loaded, None),
        Err(mistakes) => {
            let without = LoadOptions { allows_absent_files: true, fetch_model: None, ..options.clone() };
            let why = mistakes.diagnostics.first().map_or_else(String::new, |first| format!(": {}", first.message));
            let missing = format!("{}: what the experiment names cannot be read{why}", path.display());
            (runner_config::load(path, &without).map_err(|_| mistakes)?, Some(missing))
        }
    };
    let Loaded { experiment, path, env_read, .. } = loaded;
    Ok(Side { experiment, source: SideSource::File { path, env_read, missing } })
}

/// The facts of both sides' data; `None` if data is compared by its names.
fn data(args: &DiffArgs, sides: [&Side; 2], notes: &mut Vec<String>) -> Result<Option<[DataFacts; 2]>> {
    const UNREAD_DATA_NOTE: &str = "data was not read; data with the same name counts as the same";
    if args.rows.is_some() {
        notes.push(UNREAD_DATA_NOTE.to_owned());
        return Ok(None);
    }
    if let Some(missing) = sides.into_iter().find_map(Side::missing) {
        notes.push(format!("{UNREAD_DATA_NOTE} ({missing})"));
        return Ok(None);
    }
    let pool = args.threads.pool()?;
    let (host, mut screen) = (host_without_runs(args.threads)?, Screen::on_standard_error());
    let mut facts = |side: &Side| match &side.source {
        SideSource::Run { plan, .. } => Ok(plan.data.clone()),
        SideSource::File { path, .. } => {
            let prepared = prepare_inputs(&side.experiment, &pool, &host, &mut PreparationObserver::new(&mut screen));
            prepared.map(|p| p.facts).context(path.display().to_string())
        }
    };
    Ok(Some([facts(sides[0])?, facts(sides[1])?]))
}

impl Side {
    /// The real path of the run directory; `None` for an experiment file.
    fn run_path(&self) -> Option<PathBuf> {
        match &self.source {
            SideSource::File { .. } => None,
            SideSource::Run { record, .. } => record.path.canonicalize().ok(),
        }
    }

    fn missing(&self) -> Option<&str> {
        match &self.source {
            SideSource::File { missing, .. } => missing.as_deref(),
            SideSource::Run { .. } => None,
        }
    }

    /// Training rows, where they are known without reading data.
    fn rows(&self) -> Option<u64> {
        match &self.source {
            SideSource::File { .. } => None,
            SideSource::Run { plan, .. } => Some(plan.data.train.rows),
        }
    }

    /// The side planned for `data`.
    fn plan(
        self,
        wanted: &Path,
        args: &DiffArgs,
        data: DataFacts,
        read: bool,
        notes: &mut Vec<String>,
    ) -> Result<DiffInput> {
        let experiment = self.experiment;
        match self.source {
            SideSource::File { path, env_read, .. } => {
                let threads = args.threads.count();
                let cluster = cluster_for(&experiment, runner_machine::local_cluster::local_cluster(threads));
                let label = path.display().to_string();
                let side = PlannedExperiment::new(experiment, data, cluster).context(label.clone())?;
                let mut host = host_without_runs(args.threads)?;
                host.recorded_environment.extend(env_read);
                let session = Session { overrides: args.set.clone(), ..describe_session(&host, &side.plan) };
                let git = std::env::current_dir().ok().and_then(|folder| Git::state_of(&folder));
                let invocation = Invocation { git, vars: None, session, changes: Vec::new() };
                Ok(DiffInput { label, path: wanted.to_owned(), side, record: None, invocation })
            }
            SideSource::Run { record, plan } => {
                notes.extend_from_slice(&record.problems);
                let label = record.manifest.id.clone();
                let side = PlannedExperiment::new(experiment, data, cluster_of(&plan)).context(label.clone())?;
                if read && side.plan.hash != plan.hash {
                    notes.push(format!(
                        "{label}: its recorded plan has the hash {}, and this version plans its resolved.yaml with the hash {}: \
                         another version planned the run, or the file was edited; the plan of this version is compared",
                        short_hash(&plan.hash),
                        short_hash(&side.plan.hash)
                    ));
                }
                let invocation = Invocation::from(&record.manifest);
                Ok(DiffInput { label, path: record.path.clone(), side, record: Some(*record), invocation })
            }
        }
    }
}
