//! The steps of points under a budget, and the values of rules that depend on a point's plan.

use runner_plan::compile;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::error::{CommandError, ErrorKind, PlainError};
use runner_spec::experiment::{Experiment, Schedule};
use runner_spec::plan::Plan;

use crate::points::rules::FIGURES;
use crate::spec::{Budget, BudgetKind};

/// Plans `experiment` without its schedule, which may not fit a length that is not final.
fn plan_without_schedule(
    mut experiment: Experiment,
    facts: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<Plan, PlainError> {
    experiment.schedule = Schedule::default();
    compile(&experiment, facts, cluster).map_err(|error| CommandError::from(error).into_plain())
}

/// Gives `experiment` the steps that `budget` pays for, rounded down.
///
/// # Errors
/// If it does not pay for one step; if the time of a step is unknown.
pub(super) fn apply_budget(
    experiment: &mut Experiment,
    budget: Budget,
    facts: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<(), PlainError> {
    if budget.kind == BudgetKind::Time && !experiment.earlier_stages().0.is_empty() {
        return Err(PlainError::request(format!(
            "budget.{kind} cannot be used with train.stages or batch.warmup, whose steps take different times; use budget.tokens or \
             budget.flops",
            kind = budget.kind.name()
        )));
    }
    let mut probe = experiment.clone();
    probe.train.set_steps(1);
    match budget.kind {
        BudgetKind::Flops => (probe.train.steps, probe.train.flops) = (None, Some(budget.amount)),
        BudgetKind::Tokens => (probe.train.steps, probe.train.tokens) = (None, Some(budget.amount as u64)),
        BudgetKind::Time => {}
    }
    let kind = budget.kind.name();
    let plan = plan_without_schedule(probe, facts, cluster).map_err(|error| PlainError {
        text: error.text.replace(&format!("train.{kind}"), &format!("budget.{kind}")),
        ..error
    })?;
    let steps = match budget.kind {
        BudgetKind::Flops | BudgetKind::Tokens => plan.totals.steps,
        BudgetKind::Time => {
            let Some(forecast) = &plan.forecast else {
                return Err(PlainError::request(format!(
                    "budget.{kind} needs the predicted time of a step, which is unknown on this machine; run `runner calibrate`, \
                     or use budget.flops"
                )));
            };
            let steps = budget.amount / forecast.step_seconds;
            if steps < 1.0 {
                return Err(PlainError::request(format!(
                    "budget.{kind} pays for {} s, but a step is predicted to take {} s; use a larger budget",
                    four_digits(budget.amount),
                    four_digits(forecast.step_seconds)
                )));
            }
            steps as u64
        }
    };
    experiment.train.set_steps(steps);
    Ok(())
}

fn four_digits(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}

/// The figures of the plan of `experiment` that rules may use, those of [`FIGURES`].
///
/// # Errors
/// The mistakes of the plan.
pub(super) fn plan_figures(
    experiment: &Experiment,
    facts: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<[f64; FIGURES.len()], PlainError> {
    let totals = plan_without_schedule(experiment.clone(), facts, cluster)?.totals;
    let steps = totals.steps as f64;
    Ok([totals.parameters as f64, totals.tokens as f64, totals.pace.flops_after(totals.steps), steps])
}

/// The mistake in a `--set` flag that a budget replaces, if there is one.
pub(super) fn overridden_flag(budget: Budget, sets: &[String]) -> Option<PlainError> {
    let is_length = |set: &&String| {
        let key = set.split('=').next().unwrap_or(set).trim();
        key == "train" || runner_spec::experiment::Train::LENGTH_KEYS.contains(&key)
    };
    let set = sets.iter().find(is_length)?;
    let kind = budget.kind.name();
    let text =
        format!("--set {set} would have no effect: budget.{kind} determines the steps of each point; leave it out");
    Some(PlainError { kind: ErrorKind::Request, text })
}
