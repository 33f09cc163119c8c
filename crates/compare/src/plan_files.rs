//! Compares the plan that a run recorded with the plan that its `resolved.yaml` makes now.

use std::path::Path;

use super::plan_facts::{differing_keys, first_program};
use crate::stored_plan;
use runner_record::RecordError;
use runner_record::manifest::Manifest;
use runner_spec::format::json_value;
use runner_spec::plan::Plan;
use runner_spec::program::Program;

/// The plan that the `resolved.yaml` of a run makes now, for the recorded data and devices.
#[derive(Debug)]
pub struct RebuiltPlan {
    pub plan: Plan,
    /// What differs from it in the record.
    pub difference: PlanDifference,
}

/// What differs between the recorded plan of a run and the rebuilt one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanDifference {
    None,
    /// The hashes are equal, but `plan.json` was edited.
    Edited,
    /// These keys of the file differ.
    Other(Vec<&'static str>),
}

/// Plans the `resolved.yaml` of the run directory `path` again, and compares the result with the record.
///
/// # Errors
/// If the plan cannot be read or made again.
pub fn rebuild_plan(path: &Path, manifest: &Manifest) -> Result<RebuiltPlan, RecordError> {
    let (plan, written) = (stored_plan::compiled(path)?, stored_plan::read(path)?);
    let difference = if manifest.plan_hash == plan.hash {
        // Equal hashes do not show that `plan.json` is still the plan that they were made of.
        if is_edited(&written, &plan) { PlanDifference::Edited } else { PlanDifference::None }
    } else {
        PlanDifference::Other(differing_keys(&written, &plan))
    };
    Ok(RebuiltPlan { plan, difference })
}

/// True if the plan of a run is not the one that its hash was made of, although both have the same hash. What depends on the machine, its
/// memory and its peak, does not count.
fn is_edited(written: &Plan, rebuilt: &Plan) -> bool {
    let program = |plan: &Plan| {
        let mut known = first_program(plan)?.clone();
        known.earlier.iter_mut().for_each(|stage| stage.flops_per_step = 0.0);
        Some(json_value(&Program { copies_saved_state: false, flops_per_step: 0.0, peak_flops: None, ..known }))
    };
    program(written) != program(rebuilt) || written.totals.steps != rebuilt.totals.steps
}
