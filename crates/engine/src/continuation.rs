//! A new run that continues the record and a checkpoint of another run: in a different layout, or with a different end.

use std::path::{Path, PathBuf};

use runner_compare::plan_facts::differing_training_keys;
use runner_compare::stored_plan::{self, resolved_experiment};
use runner_record::manifest::{Manifest, SessionLayout};
use runner_record::record_check::find_damage_of_metrics;
use runner_record::run_dir::{BeginningCheckpoint, CHECKPOINTS};
use runner_record::{CheckpointChoice, catalog, checkpoint, run_dir};
use runner_spec::format::shell_word;
use runner_spec::plan::Plan;

use crate::opened_run::check_description;
use runner_plan::Trajectory;
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

/// The run that a new run continues.
#[derive(Debug)]
pub(crate) struct ContinueSource {
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
    plan: Plan,
    /// The requested step of the checkpoint; `None`: the newest.
    step: Option<u64>,
}

impl ContinueRequest {
    /// The steps that the new run inherits; 0 if the run in `runs` has no such checkpoint, which [`Self::find`] reports.
    pub(crate) fn inherited_steps(&self, runs: &Path) -> u64 {
        let which = self.step.map_or(CheckpointChoice::Latest, CheckpointChoice::Step);
        let path = catalog::resolve(runs, &self.run).ok();
        path.and_then(|path| checkpoint::chosen_step(&path.join(CHECKPOINTS), which).ok()).unwrap_or(0)
    }

    /// Finds the run, which a run of `plan` is to continue.
    ///
    /// # Errors
    /// If there is no such run in `runs`, or it has the same plan.
    pub(crate) fn find(&self, runs: &Path, plan: &Plan) -> Result<ContinueSource> {
        let path = catalog::resolve(runs, &self.run)?;
        let manifest = run_dir::read_manifest(&path)?;
        check_description(&path, &manifest)?;
        let theirs = stored_plan::read(&path)?;
        if theirs.hash == plan.hash {
            let (id, run) = (&manifest.id, path.display().to_string());
            let message = format!("{id} has the plan of this file; use `runner resume {}`", shell_word(&run));
            return Err(CommandError::request(message));
        }
        Ok(ContinueSource { path, manifest, plan: theirs, step: self.step })
    }
}

impl ContinueSource {
    /// The checkpoint that a new run of the plan `ours` begins with.
    ///
    /// # Errors
    /// If there is no such checkpoint, or a run of `ours` computes something else before or after it.
    pub(crate) fn beginning(&self, ours: &Plan) -> Result<BeginningCheckpoint<'_>> {
        let Self { path, manifest, plan: theirs, step } = self;
        let which = step.map_or(CheckpointChoice::Latest, CheckpointChoice::Step);
        let beginning = BeginningCheckpoint { path, plan: theirs, which, is_same_computation: false };
        if theirs.math_hash == ours.math_hash {
            return Ok(beginning);
        }
        let (id, folder) = (&manifest.id, path.display().to_string());
        let run = shell_word(&folder);
        let shared = Trajectory::of(theirs).shared_steps(&Trajectory::of(ours));
        if shared == 0 {
            let keys = differing_training_keys(theirs, ours);
            let keys = if keys.is_empty() { String::new() } else { format!(": {}", keys.join(", ")) };
            return Err(CommandError::request(format!(
                "{id} cannot be continued by this file, which computes something else{keys}; either layout, device, micro-batches and \
                 evaluation may differ, or the number of steps and the learning rates of later steps, not both; `runner fork {run} --from \
                 latest --set KEY=VALUE` changes other settings, such as the schedule"
            )));
        }
        // The other run may be training: from here on it is this checkpoint.
        let step = checkpoint::chosen_step(&path.join(CHECKPOINTS), which)?;
        if step > shared {
            let usable = checkpoint::saved_steps(&path.join(CHECKPOINTS))?.into_iter().rfind(|saved| *saved <= shared);
            let usable = usable.map_or_else(
                || format!("{id} has no checkpoint up to there; "),
                |usable| format!("use `--continue-step {usable}`, or "),
            );
            return Err(CommandError::request(format!(
                "{id} and this file compute the same up to step {shared}, and the checkpoint is of step {step}; {usable}`runner fork \
                 {run} --from {step} --set KEY=VALUE` changes settings from there on"
            )));
        }
        let layout = SessionLayout::of(&resolved_experiment(path)?);
        let moved = manifest.sessions.iter().any(|session| session.layout.as_ref().is_some_and(|own| *own != layout));
        if moved || manifest.foreign_steps() > 0 {
            return Err(CommandError::request(format!(
                "{id} has computed steps under another layout than that of its file, so this file alone would not compute its checkpoint of \
                 step {step} to the bit; use `runner fork {run} --from {step} --set KEY=VALUE` for a run that records where it comes from"
            )));
        }
        Ok(BeginningCheckpoint { which: CheckpointChoice::Step(step), is_same_computation: true, ..beginning })
    }

    /// Checks that `run`, which exists already, began with this run's checkpoint.
    ///
    /// # Errors
    /// If it began otherwise.
    pub(crate) fn check_beginning(&self, run: &Manifest) -> Result<()> {
        let began = run.continued_from.as_ref();
        let same = began.is_some_and(|c| {
            (&c.id, &c.plan_hash) == (&self.manifest.id, &self.manifest.plan_hash)
                && self.step.is_none_or(|step| step == c.step)
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
