//! `runner diff`: shows what differs between two runs or experiments, and what that means.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::common::{RunsFolderArgs, TemplateArgs, ThreadArgs, default_load_options, host_without_runs};
use crate::cli::machine::completions::settings_completer;
use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result, refuse};
use crate::cli::terminal::output::print_result;
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_compare::PlannedExperiment;
use runner_compare::diff::{self, DiffInput, Invocation};
use runner_compare::planned_experiment::{cluster_for, cluster_of};
use runner_compare::run_record::{RunRecord, read_experiment_and_plan};
use runner_compare::unread_data::{assume_data, sufficient_rows};
use runner_config::{ExperimentFile, LoadOptions, Loaded};
use runner_inputs::prepare_inputs;
use runner_plan::search::largest_micro_batch;
use runner_record::manifest::Session;
use runner_record::{RecordError, catalog};
use runner_report::Screen;
use runner_report::comparison::notes_on_figures;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::Experiment;
use runner_spec::format::short_hash;
use runner_spec::plan::Plan;
use runner_sweep::stopped_points;
use runner_workflows::session_facts::describe_session;

/// Show what differs between two runs or experiment files, and what that means for the numbers.
///
/// The hashes of both plans decide the result: the same run; bookkeeping only (names, logs, checkpoints); the same mathematics with
/// different rounding (layout, micro-batches, device); or different mathematics, with the parts that differ. The data of experiment files
/// is prepared and cached first, unless it is missing.
#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// An experiment file or a run: a run directory, an id, or a prefix of an id.
    pub a: PathBuf,
    /// The other experiment file or run.
    pub b: PathBuf,
    /// Override a key of the experiment files among A and B, such as `train.steps=10`; may be given several times.
    #[arg(long, value_name = "KEY.PATH=VALUE", add = settings_completer())]
    pub set: Vec<String>,
    #[command(flatten)]
    pub template: TemplateArgs,
    /// Assume this many training rows instead of reading the data. Data with the same name then counts as the same data.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rows: Option<u64>,
    #[command(flatten)]
    pub threads: ThreadArgs,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Exit with code 3 unless both are the same run, and their recorded losses agree.
    #[arg(long)]
    pub exit_code: bool,
}

/// A or B: an experiment file or a run.
struct Side {
    label: String,
    /// The path of the file as given, or the run directory.
    path: PathBuf,
    experiment: Experiment,
    /// As in [`Loaded`].
    has_auto_micro_batch: bool,
    run: Option<(RunRecord, Plan)>,
    /// The environment variables that had effect on the file.
    env_read: Vec<(String, String)>,
    /// The reason why the data of the file cannot be read.
    missing: Option<String>,
}

/// # Errors
/// A side that is neither a file nor a run, or that cannot be planned; data that cannot be prepared.
pub(crate) fn run(args: &DiffArgs) -> Result<Exit> {
    let named = !args.template.var.is_empty() || !args.template.vars.is_empty();
    if named && ![&args.a, &args.b].into_iter().any(|path| runner_template::is_template(path)) {
        refuse!("--var and --vars are for templates, files that end in .j2");
    }
    let mut notes = Vec::new();
    let (a, b) = (open_side(&args.a, args)?, open_side(&args.b, args)?);
    if a.run.is_some() && b.run.is_some() {
        if !args.set.is_empty() {
            refuse!("--set overrides keys of experiment files, but both A and B are runs");
        }
        if a.path.canonicalize().is_ok_and(|path| b.path.canonicalize().is_ok_and(|other| path == other)) {
            notes.push("A and B name the same run".to_owned());
        }
    }
    let data = data(args, [&a, &b], &mut notes)?;
    let read = data.is_some();
    let [x, y] = data.unwrap_or_else(|| {
        let rows =
            args.rows.or_else(|| [&a, &b].into_iter().find_map(|side| Some(side.run.as_ref()?.1.data.train.rows)));
        let rows = rows.unwrap_or_else(|| sufficient_rows(&[&a.experiment, &b.experiment]));
        [assume_data(&a.experiment, rows), assume_data(&b.experiment, rows)]
    });
    let local = runner_machine::local_cluster::local_cluster(args.threads.count());
    let cluster = cluster_for(&[&a.experiment, &b.experiment], local);
    let a = a.plan(args, x, read, &cluster, &mut notes)?;
    let b = b.plan(args, y, read, &cluster, &mut notes)?;
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
    let record = RunRecord::read(&path, stopped_points::describe(&path).status)?;
    let (experiment, plan) = read_experiment_and_plan(&path)?;
    let label = record.manifest.id.clone();
    let run = Some((record, plan));
    Ok(Side { label, path, experiment, has_auto_micro_batch: false, run, env_read: Vec::new(), missing: None })
}

/// The experiment at `path`, even where files that it names are missing.
fn load(path: &Path, options: &LoadOptions<'_>) -> Result<Side, ConfigError> {
    let file = ExperimentFile::read(path)?;
    let (loaded, missing) = match file.load(options) {
        Ok(loaded) => (loaded, None),
        Err(mistakes) => {
            let without = LoadOptions { allows_absent_files: true, fetch_model: None, ..options.clone() };
            let why = mistakes.diagnostics.first().map_or_else(String::new, |first| format!(": {}", first.message));
            let missing = format!("{}: cannot read the files that the experiment names{why}", path.display());
            (file.load(&without).map_err(|_| mistakes)?, Some(missing))
        }
    };
    let Loaded { experiment, has_auto_micro_batch, path: loaded_path, env_read, .. } = loaded;
    let label = loaded_path.display().to_string();
    Ok(Side { label, path: path.to_owned(), experiment, has_auto_micro_batch, run: None, env_read, missing })
}

/// The facts of both sides' data; `None` if data is compared by its names.
fn data(args: &DiffArgs, sides: [&Side; 2], notes: &mut Vec<String>) -> Result<Option<[DataFacts; 2]>> {
    const UNREAD_DATA_NOTE: &str = "data was not read; data with the same name counts as the same data";
    if args.rows.is_some() {
        notes.push(UNREAD_DATA_NOTE.to_owned());
        return Ok(None);
    }
    if let Some(missing) = sides.into_iter().find_map(|side| side.missing.as_ref()) {
        notes.push(format!("{UNREAD_DATA_NOTE} ({missing})"));
        return Ok(None);
    }
    let pool = args.threads.pool()?;
    let (host, mut screen) = (host_without_runs(args.threads)?, Screen::on_standard_error());
    let mut facts = |side: &Side| {
        if let Some((_, plan)) = &side.run {
            return Ok(plan.data.clone());
        }
        let prepared = prepare_inputs(&side.experiment, &pool, &host, &mut PreparationObserver::new(&mut screen));
        prepared.map(|p| p.facts).context(side.label.clone())
    };
    Ok(Some([facts(sides[0])?, facts(sides[1])?]))
}

impl Side {
    /// The side planned for `data`, and for `here` if it is a file.
    fn plan(
        self,
        args: &DiffArgs,
        data: DataFacts,
        read: bool,
        here: &ClusterFacts,
        notes: &mut Vec<String>,
    ) -> Result<DiffInput> {
        let Self { label, path, mut experiment, has_auto_micro_batch, run, env_read, .. } = self;
        let cluster = match &run {
            Some((_, plan)) => cluster_of(plan),
            None => here.clone(),
        };
        if has_auto_micro_batch {
            experiment.batch.micro_batch =
                largest_micro_batch(&experiment, &data, &cluster).context(label.clone())?.rows;
        }
        let side = PlannedExperiment::new(experiment, data, cluster).context(label.clone())?;
        let Some((record, plan)) = run else {
            let mut host = host_without_runs(args.threads)?;
            host.recorded_environment.extend(env_read);
            let session =
                Session { overrides: args.set.clone(), ..describe_session(&host, &side.experiment, &side.plan) };
            let invocation = Invocation { git: host.git(), vars: None, session, changes: Vec::new() };
            return Ok(DiffInput { label, path, side, record: None, invocation });
        };
        notes.extend_from_slice(&record.problems);
        notes.extend(notes_on_figures(&record));
        notes.extend(plan.data.overlap_warnings());
        if read && side.plan.hash != plan.hash {
            notes.push(format!(
                "{label}: the recorded plan has the hash {}, but this version of runner plans resolved.yaml with \
                 the hash {}: a different version planned the run, or the file was edited; this version's plan is \
                 compared",
                short_hash(&plan.hash),
                short_hash(&side.plan.hash)
            ));
        }
        let invocation = Invocation::from(&record.manifest);
        Ok(DiffInput { label, path, side, record: Some(record), invocation })
    }
}
