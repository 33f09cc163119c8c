//! A new run that continues the record and a checkpoint of another run: in a different layout, or with a different end.

use std::path::Path;

use runner_compare::plan_facts::differing_training_keys;
use runner_compare::stored_plan::{self, resolved_experiment};
use runner_record::manifest::SessionLayout;
use runner_record::run_dir::CHECKPOINTS;
use runner_record::{CheckpointChoice, catalog, checkpoint};
use runner_spec::format::shell_word;
use runner_spec::plan::Plan;

use crate::run_start::{Beginning, Claim, RecordedRun};
use runner_plan::Trajectory;
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
    run: RecordedRun,
    plan: Plan,
    which: CheckpointChoice,
}

impl ContinueRequest {
    fn which(&self) -> CheckpointChoice {
        self.step.map_or(CheckpointChoice::Latest, CheckpointChoice::Step)
    }

    /// The steps that the new run inherits; 0 if the run in `runs` has no such checkpoint, which [`Self::find`] reports.
    pub(crate) fn inherited_steps(&self, runs: &Path) -> u64 {
        let path = catalog::resolve(runs, &self.run).ok();
        path.and_then(|path| checkpoint::chosen_step(&path.join(CHECKPOINTS), self.which()).ok()).unwrap_or(0)
    }

    /// Finds the run, which a run of `plan` is to continue.
    ///
    /// # Errors
    /// If there is no such run in `runs`, or it has the same plan.
    pub(crate) fn find(&self, runs: &Path, plan: &Plan) -> Result<ContinueSource> {
        let run = RecordedRun::find(runs, &self.run)?;
        let theirs = stored_plan::read(&run.path)?;
        if theirs.hash == plan.hash {
            let (id, folder) = (&run.manifest.id, run.path.display().to_string());
            let message = format!("{id} has the plan of this file; use `runner resume {}`", shell_word(&folder));
            return Err(CommandError::request(message));
        }
        Ok(ContinueSource { run, plan: theirs, which: self.which() })
    }
}

impl ContinueSource {
    /// Where a new run of the plan `ours` begins, and what it claims. [`check_shared_steps`] checks the claim of the same plan.
    pub(crate) fn beginning(&self, ours: &Plan) -> (Beginning<'_>, Claim) {
        let claim = if self.plan.math_hash == ours.math_hash { Claim::SameNumbers } else { Claim::SamePlan };
        (Beginning::Checkpoint { run: &self.run, plan: &self.plan, which: self.which }, claim)
    }
}

/// Checks that a run of the plan `ours` computes the checkpoint `which` of `other`, of the plan `theirs`, to the same bits. Returns the
/// checkpoint by its step: the other run may be training.
///
/// # Errors
/// If there is no such checkpoint, or a run of `ours` computes something else before it.
pub(crate) fn check_shared_steps(
    other: &RecordedRun,
    theirs: &Plan,
    ours: &Plan,
    which: CheckpointChoice,
) -> Result<CheckpointChoice> {
    let RecordedRun { path, manifest } = other;
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
    let step = checkpoint::chosen_step(&other.checkpoints(), which)?;
    if step > shared {
        let usable = checkpoint::saved_steps(&other.checkpoints())?.into_iter().rfind(|saved| *saved <= shared);
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
    Ok(CheckpointChoice::Step(step))
}
