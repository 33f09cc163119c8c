//! Where a run began: with the checkpoints of which runs, and whether those computed the same.

use super::planned_experiment::PlannedExperiment;
use super::run_record::{side, stored};
use runner_store::manifest::{Manifest, RunOrigin};
use runner_store::run_dir;
use std::path::Path;

/// More than this many runs that began with one another are not followed.
const MOST: usize = 64;

/// The first steps of a run, which another one did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InheritedSteps {
    pub id: String,
    /// The last of them.
    pub step: u64,
    /// As planned by this version, or as recorded if the run is gone.
    pub plan_hash: String,
    /// Of its mathematics; of a run that is gone its plan's, unless it is known to have computed the same.
    math_hash: String,
}

/// The runs with whose checkpoints the run in `path`, whose side is `own`, began: its parent first.
#[must_use]
pub fn ancestors(path: &Path, manifest: &Manifest, own: &PlannedExperiment) -> Vec<InheritedSteps> {
    let root = path.parent().unwrap_or(Path::new("."));
    let mut out = Vec::new();
    let (mut manifest, mut math_hash) = (manifest.clone(), own.effective().math_hash.clone());
    while let Some(began) = manifest.continued_from.clone().filter(|_| out.len() < MOST) {
        let parent = root.join(&began.id);
        let found = run_dir::read_manifest(&parent).ok().filter(|found| found.plan_hash == began.plan_hash);
        let planned = found.as_ref().and_then(|_| stored(&parent).ok());
        let planned = planned.and_then(|(experiment, plan)| side(experiment, &plan).ok());
        // `apply --continue` goes on with what computes the same; a fork may go on with anything.
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

/// How two beginnings compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BeginningComparison {
    Alike,
    /// Under another plan of the same mathematics.
    Rounding,
    /// Some steps computed something else.
    Otherwise,
}

/// Compares how the runs of the sides `a` and `b` began.
#[must_use]
pub fn began(
    a: (&PlannedExperiment, &[InheritedSteps]),
    b: (&PlannedExperiment, &[InheritedSteps]),
) -> BeginningComparison {
    let maths = |(side, ancestors): (&PlannedExperiment, &[InheritedSteps])| {
        before(&side.effective().math_hash, ancestors, |ancestor| &ancestor.math_hash)
    };
    let plans = |(side, ancestors): (&PlannedExperiment, &[InheritedSteps])| {
        before(&side.plan.hash, ancestors, |ancestor| &ancestor.plan_hash)
    };
    if maths(a) != maths(b) {
        BeginningComparison::Otherwise
    } else if plans(a) != plans(b) {
        BeginningComparison::Rounding
    } else {
        BeginningComparison::Alike
    }
}

/// What was computed up to which step before that of the hash `own`, newest first.
fn before(own: &str, ancestors: &[InheritedSteps], hash: impl Fn(&InheritedSteps) -> &String) -> Vec<(String, u64)> {
    let mut out: Vec<(String, u64)> = Vec::new();
    for ancestor in ancestors {
        let last = out.last().map_or(own, |(hash, _)| hash.as_str());
        if last != hash(ancestor) {
            out.push((hash(ancestor).clone(), ancestor.step));
        }
    }
    out
}
