//! The steps that a run inherited from the checkpoints of other runs, and whether two runs inherited the same computation.

use super::planned_experiment::PlannedExperiment;
use super::run_record::{plan_again, read_experiment_and_plan};
use runner_record::manifest::{Manifest, RunOrigin};
use runner_record::run_dir;
use std::path::Path;

/// The largest number of ancestors that are followed.
const MAX_ANCESTORS: usize = 64;

/// The first steps of a run, which another run did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InheritedSteps {
    pub id: String,
    /// The last of the steps.
    pub step: u64,
    /// The hash of the plan made by this version, or the recorded one if the other run was deleted.
    pub plan_hash: String,
    /// The hash of the mathematics. For a deleted run it comes from the recorded plan, unless the run is known to have computed the same.
    pub(super) math_hash: String,
}

/// The runs from which the run in `path` inherited steps that its own plan does not compute, its parent first. `own` is the run's experiment.
#[must_use]
pub fn ancestors(path: &Path, manifest: &Manifest, own: &PlannedExperiment) -> Vec<InheritedSteps> {
    let root = path.parent().unwrap_or(Path::new("."));
    let mut out = Vec::new();
    let (mut manifest, mut math_hash) = (manifest.clone(), own.effective().math_hash.clone());
    let began_elsewhere =
        |manifest: &Manifest| manifest.continued_from.clone().filter(|from| !from.is_same_computation);
    while let Some(began) = began_elsewhere(&manifest).filter(|_| out.len() < MAX_ANCESTORS) {
        let parent = root.join(&began.id);
        let found = run_dir::read_manifest(&parent).ok().filter(|found| found.plan_hash == began.plan_hash);
        let planned = found.as_ref().and_then(|_| read_experiment_and_plan(&parent).ok());
        let planned = planned.and_then(|(experiment, plan)| plan_again(experiment, &plan).ok());
        // `apply --continue` requires the same mathematics; a fork does not.
        let plan_hash = planned.as_ref().map_or_else(|| began.plan_hash.clone(), |side| side.plan.hash.clone());
        math_hash = match (&planned, &manifest.origin) {
            (Some(side), _) => side.effective().math_hash.clone(),
            (None, None | Some(RunOrigin::Fork { step: None, .. })) => math_hash,
            (None, Some(_)) => format!("of plan {}", began.plan_hash),
        };
        out.push(InheritedSteps { id: began.id, step: began.step, plan_hash, math_hash: math_hash.clone() });
        match found {
            Some(found) => manifest = found,
            None => break,
        }
    }
    out
}

/// The result of comparing the inherited steps of two runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum InheritedStepsComparison {
    Same,
    /// Some steps had another plan of the same mathematics.
    Rounding,
    /// Some steps had different mathematics.
    Different,
}

/// Compares the inherited steps of `a` and `b`.
#[must_use]
pub fn compare_inherited_steps(
    a: (&PlannedExperiment, &[InheritedSteps]),
    b: (&PlannedExperiment, &[InheritedSteps]),
) -> InheritedStepsComparison {
    let [maths_a, maths_b] = [a, b].map(|(side, ancestors)| {
        inherited_hashes(&side.effective().math_hash, ancestors, |ancestor| &ancestor.math_hash)
    });
    let [plans_a, plans_b] =
        [a, b].map(|(side, ancestors)| inherited_hashes(&side.plan.hash, ancestors, |ancestor| &ancestor.plan_hash));
    if maths_a != maths_b {
        InheritedStepsComparison::Different
    } else if plans_a != plans_b {
        InheritedStepsComparison::Rounding
    } else {
        InheritedStepsComparison::Same
    }
}

/// The hashes of the inherited steps with the last step of each, newest first, until the first that differs from `own`.
fn inherited_hashes(
    own: &str,
    ancestors: &[InheritedSteps],
    hash: impl Fn(&InheritedSteps) -> &String,
) -> Vec<(String, u64)> {
    let mut out: Vec<(String, u64)> = Vec::new();
    for ancestor in ancestors {
        let last = out.last().map_or(own, |(hash, _)| hash.as_str());
        if last != hash(ancestor) {
            out.push((hash(ancestor).clone(), ancestor.step));
        }
    }
    out
}
