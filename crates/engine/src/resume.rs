//! `resume` continues a run from its own folder, whatever became of its file.

use std::path::Path;

use runner_compare::plan_facts::describe_changed_data;
use runner_compare::stored_plan::{self, resolved_experiment};
use runner_launch::World;
use runner_machine::stop::StopSwitch;
use runner_prepare::{Host, PreparedRun, RecordedInputs, RunObserver};
use runner_record::manifest::{DataHashes, Manifest, RunStatus};
use runner_record::run_dir::{self, CHECKPOINTS};
use runner_record::{catalog, checkpoint};
use runner_spec::data::{DataPart, TEXT_READING_RULE};
use runner_spec::error::{CommandError, Result};
use runner_spec::plan::Plan;

use crate::launched::{LaunchedRank, agree_on_training, check_memory, find_devices, follow, work_as_rank};
use crate::opened_run::check_description;
use crate::outcome::{RunOutcome, RunReport};
use crate::run_opening::{FoundRun, open_unless_done};
use crate::session::{RunSession, SessionOptions};

/// A request to `resume`.
#[derive(Debug, Clone)]
pub struct ResumeRequest {
    /// A folder, an id, or the unique prefix of an id.
    pub run: String,
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
        let path = catalog::resolve(&host.runs, &request.run)?;
        let manifest = run_dir::read_manifest(&path)?;
        check_description(&path, &manifest)?;
        // The rank that keeps the record takes the lock.
        let run = if world.is_none_or(World::is_leader) || manifest.status == RunStatus::Done {
            match open_unless_done(path.clone(), &manifest, observer)? {
                FoundRun::Unfinished(run) => Some(run),
                FoundRun::Done(report) => return Ok(report),
            }
        } else {
            None
        };
        let experiment = resolved_experiment(&path)?;
        let has_checkpoint = !checkpoint::saved_steps(&path.join(CHECKPOINTS))?.is_empty();
        let read_inputs = || RecordedInputs::new(stored_plan::data_facts(&path)?, &path, &experiment);
        let recorded_inputs = has_checkpoint.then(read_inputs).transpose()?;
        let inherited = manifest.inherited_steps();
        let ready = PreparedRun::new(
            &experiment,
            recorded_inputs.as_ref(),
            inherited,
            find_devices(&experiment, host, world)?,
            host,
            observer,
        )?;
        let options = &request.options;
        let agree = |world| agree_on_training(world, &experiment, &ready, host, stop);
        let launched = world.map(agree).transpose()?;
        let run = match (run, &launched) {
            (Some(run), _) => run,
            (None, Some(training)) => return follow(training, stop),
            (None, None) => return Ok(RunReport { outcome: RunOutcome::Done, run: None }),
        };
        check_same_plan(run.manifest(), &ready.plan, &path)?;
        check_memory(&ready.plan, world)?;
        let session =
            RunSession { options, host, experiment: &experiment, ready: &ready, stop, launched: launched.as_ref() };
        session.work(run, observer)
    })
}

/// Checks that the run in the folder `path` continues with the plan with which it started.
///
/// # Errors
/// If what would be computed is no longer what the run began with.
fn check_same_plan(manifest: &Manifest, plan: &Plan, path: &Path) -> Result<()> {
    if manifest.plan_hash == plan.hash {
        return Ok(());
    }
    let (id, version) = (&manifest.id, &manifest.version);
    let changed = manifest.data.differing_parts(&DataHashes::from(&plan.data));
    let rule = manifest.text_reading();
    let why = if rule != TEXT_READING_RULE && changed.iter().any(|part| *part != DataPart::Weights) {
        format!(
            "it was started by a version of runner that reads text by rule {rule}, but this version reads it by \
             rule {TEXT_READING_RULE}; or the files have changed ({})",
            changed.iter().map(|part| part.name()).collect::<Vec<_>>().join(", ")
        )
    } else {
        describe_changed_data(&changed).unwrap_or_else(|| {
            format!(
                "its resolved.yaml has changed, or it was started by a version of runner (version {version}) that plans differently"
            )
        })
    };
    Err(CommandError::request(format!(
        "cannot resume {id}: {why}; start a new run from it with `runner fork {} --from latest`, or `--from start` \
         if it has no checkpoint",
        path.display()
    )))
}
