//! Compares the plan that a run recorded with the plan that its `resolved.yaml` makes now.

use std::path::Path;

use serde_json::Value;

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
    /// The hashes are equal, but these values of `plan.json` were edited.
    Edited(Vec<String>),
    /// These keys of the file differ, and these values of the first rank's program.
    Other {
        keys: Vec<&'static str>,
        values: Vec<String>,
    },
}

/// Plans the `resolved.yaml` of the run directory `path` again, and compares the result with the record.
///
/// # Errors
/// If the plan cannot be read or made again.
pub fn rebuild_plan(path: &Path, manifest: &Manifest) -> Result<RebuiltPlan, RecordError> {
    let (plan, written) = (stored_plan::compiled(path)?, stored_plan::read(path)?);
    let difference = if manifest.plan_hash == plan.hash {
        // Equal hashes do not show that `plan.json` is still the plan that they were made of.
        match edited_values(&written, &plan) {
            edited if edited.is_empty() => PlanDifference::None,
            edited => PlanDifference::Edited(edited),
        }
    } else {
        PlanDifference::Other { keys: differing_keys(&written, &plan), values: changed_values(&written, &plan) }
    };
    Ok(RebuiltPlan { plan, difference })
}

/// The program of the first rank as JSON, without what depends on the machine's memory.
fn program_json(plan: &Plan) -> Option<Value> {
    first_program(plan).map(|program| json_value(&Program { copies_saved_state: false, ..program.clone() }))
}

/// The first few values of the first rank's program that differ, by their place in it.
fn changed_values(a: &Plan, b: &Plan) -> Vec<String> {
    let (Some(a), Some(b)) = (program_json(a), program_json(b)) else { return Vec::new() };
    let mut out = Vec::new();
    collect_differences("", &a, &b, &mut out);
    shortened(out)
}

/// The values of the plan `written` that were edited, as `rebuilt`, of the same hash, shows.
fn edited_values(written: &Plan, rebuilt: &Plan) -> Vec<String> {
    let mut edited = changed_values(written, rebuilt);
    let (was, is) = (written.totals.steps, rebuilt.totals.steps);
    if was != is {
        edited.push(format!("totals.steps {is}, was {was}"));
    }
    edited
}

fn shortened(mut out: Vec<String>) -> Vec<String> {
    const SHOWN: usize = 4;
    if out.len() > SHOWN {
        let more = out.len() - SHOWN;
        out.truncate(SHOWN);
        out.push(format!("{more} more"));
    }
    out
}

/// Adds to `out` the values that differ between `a` and `b`, by their path below `path`. Objects with different keys are two variants
/// of one setting, and differ as a whole.
fn collect_differences(path: &str, a: &Value, b: &Value, out: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(p), Value::Object(q)) if p.keys().eq(q.keys()) => {
            for (key, value) in p {
                let dot = if path.is_empty() { "" } else { "." };
                collect_differences(&format!("{path}{dot}{key}"), value, &q[key], out);
            }
        }
        // Lists of instructions and costs follow from the other values, and lists are long.
        (Value::Array(_), Value::Array(_)) => {}
        _ if path.starts_with("flops") || path.starts_with("peak_flops") || a == b => {}
        _ => out.push(format!("{path} {b}, was {a}")),
    }
}
