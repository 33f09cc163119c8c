//! `resume` continues a run from its own folder, whatever became of its file.

use std::path::Path;

use runner_compare::plan_facts::describe_changed_data;
use runner_compare::stored_plan;
use runner_config::LoadOptions;
use runner_inputs::{Host, MovedData, PreparedRun, RecordedInputs, RunObserver, check_same_data, explain_missing_data};
use runner_ranks::World;
use runner_record::checkpoint;
use runner_record::manifest::{DataHashes, Manifest, RunStatus};
use runner_record::run_dir::{self, CHECKPOINTS, RESOLVED, RunDir};
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::{Experiment, Parallel};
use runner_spec::format::shell_word;
use runner_spec::plan::Plan;
use runner_threads::stop::StopSwitch;

use crate::fork::checkpoint_problems;
use crate::launched::{LaunchedRank, agree_on_training, find_devices, follow, work_as_rank};
use crate::outcome::RunReport;
use crate::run_opening::find_done;
use crate::run_start::{Beginning, Claim, RecordedRun, RunStart};
use crate::session::{RunSession, SessionOptions};

/// A request to `resume`.
#[derive(Debug, Clone)]
pub struct ResumeRequest {
    /// A folder, an id, or the unique prefix of an id.
    pub run: String,
    /// The section `parallel` with which to continue, in YAML; `None`: the layout of the newest session.
    pub parallel: Option<String>,
    /// Where the data is now.
    pub data: MovedData,
    pub options: SessionOptions,
    /// The rank that a launcher made this process; `None` if this process starts the ranks itself.
    pub launched: Option<LaunchedRank>,
}

/// Continues the run that `request` names, or finds it done; `observer` receives its events, and `stop` requests an early stop.
///
/// # Errors
/// If there is no such run, it cannot be resumed here, or it failed (which its record then shows, too).
pub fn resume(
    request: &ResumeRequest,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
) -> Result<RunReport> {
    work_as_rank(request.launched.as_ref(), host, stop, observer, |world, host, observer| {
        let run = RecordedRun::find(&host.runs, &request.run)?;
        let (path, manifest, options) = (&run.path, &run.manifest, &request.options);
        let mut loaded = runner_config::load_resolved(&run_dir::resolved_file(path)?)?;
        // A mistake in the section shows also if there is nothing left to do.
        let under_section = |section: &String| with_layout(&loaded.experiment, section);
        let requested = request.parallel.as_ref().map(under_section).transpose()?;
        if manifest.status == RunStatus::Done {
            return find_done(path.clone(), &options.name_of(path, host), manifest, observer)
                .map(RunReport::up_to_date);
        }
        let is_leader = world.is_none_or(World::is_leader);
        if is_leader {
            // That another process works on the run shows before anything takes long.
            drop(RunDir::open(path)?);
        }
        let newest = manifest.sessions.last().and_then(|session| session.layout.as_ref());
        let moved = requested.or_else(|| newest.map(|layout| layout.apply(&loaded.experiment)));
        let moved = moved.filter(|moved| *moved != loaded.experiment);
        let claim = if moved.is_some() { Claim::SameNumbers } else { Claim::SamePlan };
        loaded.experiment = moved.unwrap_or(loaded.experiment);
        request.data.place(path, &mut loaded.experiment)?;
        let experiment = &loaded.experiment;
        let has_checkpoint = !checkpoint::saved_steps(&run.checkpoints())?.is_empty();
        let read_inputs = || RecordedInputs::new(stored_plan::data_facts(path)?, path, experiment);
        let recorded_inputs = has_checkpoint.then(read_inputs).transpose()?;
        let devices = find_devices(experiment, host, world)?;
        let inherited = manifest.inherited_steps();
        let ready = PreparedRun::new(experiment, recorded_inputs.as_ref(), inherited, devices, host, observer);
        let ready = ready.map_err(|error| explain_missing_data(error, path, experiment))?;
        if !request.data.is_empty() {
            let facts = stored_plan::data_facts(path)?;
            check_same_data(path, &facts, experiment, &ready.prepared, host, &[])?;
        }
        let agree = |world| agree_on_training(world, experiment, &ready, host, stop);
        let launched = world.map(agree).transpose()?;
        if let Some(training) = launched.as_ref().filter(|_| !is_leader) {
            return follow(training, stop);
        }
        let session = RunSession { options, host, experiment, ready: &ready, stop, launched: launched.as_ref() };
        let start = RunStart { beginning: Beginning::Resumed(&run), claim, ..RunStart::new(&loaded, &session) };
        start.train(world, &|_, _| Ok(()), observer)
    })
}

/// `recorded` with the section `parallel` that is `section` in YAML, evaluated on the same rows. Its micro-batches are not larger than the
/// recorded ones, unless `section` asks for it.
///
/// # Errors
/// Mistakes in `section`; a layout that does not divide the batch or the model.
fn with_layout(recorded: &Experiment, section: &str) -> Result<Experiment> {
    let micro_batch = recorded.batch.micro_batch;
    let mut experiment = divide(recorded, section)?;
    experiment.eval.loss = match recorded.eval.loss {
        Some(loss) if experiment.batch.micro_batch != micro_batch => Some(loss.in_rows(micro_batch)),
        same => same,
    };
    Ok(experiment)
}

/// `recorded` with the section `parallel` that is `section` in YAML, and micro-batches that go with it.
fn divide(recorded: &Experiment, section: &str) -> Result<Experiment> {
    let max_restarts = recorded.parallel.max_restarts;
    let mut base = Experiment { parallel: Parallel { max_restarts, ..Parallel::single() }, ..recorded.clone() };
    // The micro-batches of stages follow from the last one's, because a replica may have fewer sequences.
    base.train.stages.iter_mut().for_each(|stage| stage.micro_batch = None);
    let text = runner_config::to_yaml(&base);
    let load = |micro_batch: &str| {
        let options = LoadOptions {
            sets: vec![format!("batch.micro_batch={micro_batch}")],
            parallel: Some(section.to_owned()),
            allows_absent_files: true,
            allows_absent_initial_inputs: true,
            ..LoadOptions::default()
        };
        runner_config::from_str(&text, Path::new(RESOLVED), &options)
    };
    let divided = load("null")?.experiment;
    let limit = recorded.batch.micro_batch;
    // A pipeline divides its rows by the number of its stages.
    if divided.parallel.pipeline.is_some() && divided.batch.micro_batch <= limit {
        return Ok(divided);
    }
    let rows = divided.batch.sequences / divided.parallel.replicas;
    let largest = (1..=limit.min(rows)).rev().find(|size| rows.is_multiple_of(*size));
    // The section itself may give the number of micro-batches.
    let fitted = largest.and_then(|size| load(&size.to_string()).ok());
    Ok(fitted.map_or(divided, |fitted| fitted.experiment))
}

/// Checks that the run in the folder `path` continues with the plan with which it started; under the claim of the same numbers, with a plan
/// that computes the same on other ranks.
///
/// # Errors
/// If what would be computed is no longer what the run began with.
pub(crate) fn check_same_plan(manifest: &Manifest, plan: &Plan, path: &Path, claim: Claim) -> Result<()> {
    if manifest.plan_hash == plan.hash {
        return Ok(());
    }
    let (id, version) = (&manifest.id, &manifest.version);
    let changed = manifest.data.differing_parts(&DataHashes::from(&plan.data));
    let computes_the_same = || {
        stored_plan::read(path).is_ok_and(|old| (&old.hash, &old.math_hash) == (&manifest.plan_hash, &plan.math_hash))
    };
    if claim == Claim::SameNumbers && changed.is_empty() && computes_the_same() {
        return Ok(());
    }
    let version = format!("a version of runner (version {version}) that plans differently");
    let why = describe_changed_data(&changed);
    let why = why.unwrap_or_else(|| format!("its resolved.yaml has changed, or it was started by {version}"));
    Err(CommandError::request(format!("cannot resume {id}: {why}; {}", describe_fork(path, plan))))
}

/// The advice to fork the run in `path`, which `plan` no longer continues: from its newest checkpoint, if a run of `plan` can start from it.
fn describe_fork(path: &Path, plan: &Plan) -> String {
    let shown = path.display().to_string();
    let run = shell_word(&shown);
    let latest = checkpoint::newest_step(&path.join(CHECKPOINTS)).filter(|latest| *latest < plan.totals.steps);
    let theirs = latest.and_then(|_| stored_plan::read(path).ok());
    if theirs.is_some_and(|theirs| checkpoint_problems(&theirs, plan).is_empty()) {
        return format!("start a new run from its newest checkpoint: `runner fork {run} --from latest`");
    }
    format!("start a new run with its settings: `runner fork {run} --from start`")
}
