//! `runner diff`: shows what differs between two runs or experiments, and what that means.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::common::{RunsFolderArgs, TemplateArgs, ThreadArgs, default_load_options, host_without_runs};
use crate::cli::runs::run_groups::{find_sweep, read_run, runs_of_sweep};
use crate::cli::terminal::exit::{CommandError, Context as _, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, table_width};
use crate::cli::terminal::screen_observer::PreparationObserver;
use runner_compare::PlannedExperiment;
use runner_compare::diff::{self, Diff, DiffInput, Invocation};
use runner_compare::planned_experiment::{cluster_for, cluster_of};
use runner_compare::run_record::{RunRecord, read_experiment_and_plan};
use runner_compare::unread_data::{assume_data, sufficient_rows};
use runner_config::{ExperimentFile, LoadOptions, Loaded};
use runner_inputs::prepare_inputs;
use runner_plan::search::largest_micro_batch;
use runner_record::manifest::Session;
use runner_record::{RecordError, catalog};
use runner_report::Screen;
use runner_report::comparison::{Comparison, compare, find_picked, notes_on_figures};
use runner_report::run_groups::RunGroups;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::diagnostic::ConfigError;
use runner_spec::experiment::{AutoOr, DeviceChoice, Experiment};
use runner_spec::format::short_hash;
use runner_spec::plan::Plan;
use runner_spec::program::Device;
use runner_sweep::{PickedFrom, stopped_points};
use runner_workflows::session_facts::describe_session;

/// Show what differs between two runs or experiment files, and what that means for the numbers.
///
/// The hashes of both plans decide the result: the same run; bookkeeping only (names, logs, checkpoints); the same mathematics with
/// different rounding (layout, micro-batches, device); or different mathematics, with the parts that differ. The data of experiment files
/// is prepared and cached first, unless it is missing.
#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// An experiment file or a run: a run directory, an id, or a prefix of an id. Or a sweep whose runs differ in their seed alone.
    pub a: PathBuf,
    /// The other experiment file, run or group.
    pub b: PathBuf,
    /// Override a key of the experiment files among A and B, such as `train.steps=10`; may be given several times.
    #[arg(long, value_name = "KEY.PATH=VALUE")]
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

/// The differences, and the comparison of the groups if a side is one.
#[derive(Serialize)]
struct GroupedDiff<'d> {
    #[serde(flatten)]
    differences: &'d Diff,
    /// The sweeps that trained some of the runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    picked_from: Vec<PickedFrom>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<RunGroups>,
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
    let [group_a, group_b] = [members(&args.a, args)?, members(&args.b, args)?];
    let mut notes = Vec::new();
    let compared = compare_groups(args, [&group_a, &group_b])?;
    let (groups, picked_from) = match compared {
        Some(Comparison { groups, picked_from, notes: own, .. }) => {
            notes.extend(own);
            (groups, picked_from)
        }
        None => (None, Vec::new()),
    };
    let (first_a, first_b) = paired_members(&group_a, &group_b, args)?;
    let (a, b) = (open_side(&first_a, args)?, open_side(&first_b, args)?);
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
    let cluster = cluster_for(&[&a.experiment, &b.experiment], local.clone());
    let a = a.plan(args, x, read, &cluster, &mut notes)?;
    let b = b.plan(args, y, read, &cluster, &mut notes)?;
    for side in [&a, &b] {
        notes.extend(describe_absent_gpu(side, &local));
    }
    // Two sides of one run, or of one missing file, give the same notes.
    let mut seen = HashSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    let differences = diff::diff(&a, &b, read, notes);
    let shown = GroupedDiff { differences: &differences, picked_from, groups };
    print_result(args.json, &shown, || {
        let of_groups = |groups: &RunGroups| format!("\n{}", groups.text(table_width()));
        runner_report::diff::diff_text(&differences) + &shown.groups.as_ref().map(of_groups).unwrap_or_default()
    })?;
    Ok(if args.exit_code && !differences.is_same_run() { Exit::Differ } else { Exit::Done })
}

/// The runs of the group that `wanted` names; none if it names a file or a run.
///
/// # Errors
/// If the group's sweep cannot be read, or no run of it has started.
fn members(wanted: &Path, args: &DiffArgs) -> Result<Vec<PathBuf>> {
    let Some(name) = wanted.to_str().filter(|_| !wanted.is_file()) else { return Ok(Vec::new()) };
    let Some(folder) = find_sweep(&args.root.root(), name)? else { return Ok(Vec::new()) };
    let runs = runs_of_sweep(&folder)?;
    if runs.is_empty() {
        refuse!("no run of {name} has started yet");
    }
    Ok(runs)
}

/// The runs of both sides compared; `None` if a side is a file. Groups are compared over their seeds, and two single runs have none.
///
/// # Errors
/// If a run cannot be read; if a side has runs that differ in more than their seed.
fn compare_groups(args: &DiffArgs, [a, b]: [&[PathBuf]; 2]) -> Result<Option<Comparison>> {
    let is_file = |group: &[PathBuf], wanted: &Path| group.is_empty() && wanted.exists() && !wanted.is_dir();
    if is_file(a, &args.a) || is_file(b, &args.b) {
        return Ok(None);
    }
    let are_single = a.is_empty() && b.is_empty();
    let of_side = |group: &[PathBuf], wanted: &Path| match group {
        [] => Ok(vec![catalog::resolve(&args.root.root(), &wanted.to_string_lossy())?]),
        group => Ok::<_, CommandError>(group.to_vec()),
    };
    let (Ok(of_a), Ok(of_b)) = (of_side(a, &args.a), of_side(b, &args.b)) else {
        // Opening the sides gives the reason.
        return Ok(None);
    };
    let runs = [of_a, of_b].concat().iter().map(|path| read_run(path)).collect::<Result<Vec<_>>>()?;
    let mut compared = compare(&runs);
    if are_single {
        // Two runs are compared step by step; one seed shows nothing of their settings.
        let picked = find_picked(&runs);
        (compared.groups, compared.notes) = (None, picked.notes());
    }
    if compared.groups.as_ref().is_some_and(|groups| groups.verdict.settings.len() > 2) {
        refuse!(
            "`diff` compares two groups whose runs differ in their seed alone; use `runner compare` for sweeps of more \
             settings"
        );
    }
    Ok(Some(compared))
}

/// The run of each side that stands for it: those with the same seed if there are such, else the first ones.
fn paired_members(a: &[PathBuf], b: &[PathBuf], args: &DiffArgs) -> Result<(PathBuf, PathBuf)> {
    let seed = |path: &PathBuf| Ok(read_experiment_and_plan(path)?.0.seed);
    let seeds_of_b = b.iter().map(seed).collect::<Result<Vec<_>>>()?;
    let mut first = (a.first().unwrap_or(&args.a).clone(), b.first().unwrap_or(&args.b).clone());
    for path in a {
        let own = seed(path)?;
        if let Some(position) = seeds_of_b.iter().position(|other| *other == own) {
            first = (path.clone(), b[position].clone());
            break;
        }
    }
    Ok(first)
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

/// States that the `device: auto` of the file `side` stands for a GPU which the machine `local` lacks; `None` if it does not.
fn describe_absent_gpu(side: &DiffInput, local: &ClusterFacts) -> Option<String> {
    let is_gpu = |device: &Device| *device != Device::Cpu;
    let experiment = &side.side.experiment;
    let is_auto = experiment.device == DeviceChoice::Auto && experiment.parallel.devices == AutoOr::Auto;
    let is_auto = is_auto && side.record.is_none();
    let on_gpus = side.side.plan.ranks.iter().any(|rank| is_gpu(&rank.device));
    let is_absent = is_auto && on_gpus && !local.devices.iter().any(|facts| is_gpu(&facts.device));
    is_absent.then(|| {
        let label = &side.label;
        format!(
            "`device: auto` of {label} is planned for a GPU, which the other side names; on this machine it is the CPU"
        )
    })
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
