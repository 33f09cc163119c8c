//! A new run that continues the record and a checkpoint of another run in a different layout.

use std::path::{Path, PathBuf};

use runner_compare::plan_facts::differing_training_keys;
use runner_compare::stored_plan;
use runner_record::manifest::Manifest;
use runner_record::record_check::find_damage_of_metrics;
use runner_record::run_dir::{BeginningCheckpoint, CHECKPOINTS};
use runner_record::{CheckpointChoice, catalog, checkpoint, run_dir};
use runner_spec::plan::Plan;

use crate::opened_run::check_description;
use runner_prepare::{RunEvent, RunObserver};
use runner_spec::error::{CommandError, Result};

/// The requested run that a new run continues.
#[derive(Debug, Clone)]
pub struct ContinueRequest {
    /// A folder, an id, or the unique prefix of an id.
    pub run: String,
    /// The step of its checkpoint; `None`: the newest.
    pub step: Option<u64>,
}

/// The run that a new run continues, found and checked.
#[derive(Debug)]
pub(crate) struct ContinueSource {
    pub(crate) path: PathBuf,
    which: CheckpointChoice,
    plan: Plan,
    pub(crate) manifest: Manifest,
}

impl ContinueRequest {
    /// The steps that the new run inherits; 0 if the run in `runs` has no such checkpoint, which [`Self::find`] reports.
    pub(crate) fn inherited_steps(&self, runs: &Path) -> u64 {
        let which = self.step.map_or(CheckpointChoice::Latest, CheckpointChoice::Step);
        let path = catalog::resolve(runs, &self.run).ok();
        path.and_then(|path| checkpoint::chosen_step(&path.join(CHECKPOINTS), which).ok()).unwrap_or(0)
    }

    /// Finds the run, and checks that a run of `plan` can continue it.
    ///
    /// # Errors
    /// If there is no such run in `runs`, or it computes something else.
    pub(crate) fn find(&self, runs: &Path, plan: &Plan) -> Result<ContinueSource> {
        let path = catalog::resolve(runs, &self.run)?;
        let manifest = run_dir::read_manifest(&path)?;
        check_description(&path, &manifest)?;
        let theirs = stored_plan::read(&path)?;
        if theirs.hash == plan.hash {
            let message = format!("{id} has the plan of this file; use `runner resume {id}`", id = manifest.id);
            return Err(CommandError::request(message));
        }
        if theirs.math_hash != plan.math_hash {
            let keys = differing_training_keys(&theirs, plan);
            let keys = if keys.is_empty() { String::new() } else { format!(": {}", keys.join(", ")) };
            return Err(CommandError::request(format!(
                "{id} cannot be continued by this file, which computes something else{keys}; only layout, device, micro-batches and \
                 evaluation may differ; `runner fork {id} --from latest --set KEY=VALUE` changes other settings, such as the schedule",
                id = manifest.id
            )));
        }
        let which = self.step.map_or(CheckpointChoice::Latest, CheckpointChoice::Step);
        Ok(ContinueSource { path, which, plan: theirs, manifest })
    }
}

impl ContinueSource {
    /// The checkpoint that the new run begins with.
    pub(crate) fn checkpoint(&self) -> BeginningCheckpoint<'_> {
        BeginningCheckpoint { path: &self.path, plan: &self.plan, which: self.which }
    }

    /// Checks that `run`, which exists already, began with this run's checkpoint.
    ///
    /// # Errors
    /// If it began otherwise.
    pub(crate) fn check_beginning(&self, run: &Manifest) -> Result<()> {
        let wanted = match self.which {
            CheckpointChoice::Step(step) => Some(step),
            CheckpointChoice::Latest | CheckpointChoice::Best => None,
        };
        let began = run.continued_from.as_ref();
        let same = began.is_some_and(|c| {
            (&c.id, &c.plan_hash) == (&self.manifest.id, &self.manifest.plan_hash)
                && wanted.is_none_or(|step| step == c.step)
        });
        if same {
            return Ok(());
        }
        let how = began.map_or_else(
            || "from scratch".to_owned(),
            |c| format!("from the checkpoint of {} after step {}", c.id, c.step),
        );
        Err(CommandError::request(format!(
            "{} is a run of this file that started {how}; omit `--continue` to resume it, or use `--new` to start a \
             new run",
            run.id
        )))
    }
}

/// Warns that the record of the run in `path`, which a new run inherits, fails its check.
///
/// # Errors
/// If the record cannot be read.
pub(crate) fn warn_of_inherited_damage(path: &Path, manifest: &Manifest, observer: &mut dyn RunObserver) -> Result<()> {
    // A summary that cannot be read counts as missing.
    let summary = run_dir::read_summary(path).ok().flatten();
    if let Some(damage) = find_damage_of_metrics(path, manifest, summary.as_ref())? {
        observer.observe(&RunEvent::Warning(&format!("{damage}; the new run inherits these metrics as they are")));
    }
    Ok(())
}
