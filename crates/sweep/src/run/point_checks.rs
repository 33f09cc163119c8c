//! What the points of a sweep must have in common, and must measure, so that they can be judged.

use crate::record::PlannedPoint;
use crate::{AshaSettings, MilestoneUnit, Objective, RunLength, SweepSpec};
use runner_inputs::{RunEvent, RunObserver};
use runner_plan::comparability::{MeasurementBasis, find_incomparable};
use runner_spec::data::DataFacts;
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::task_key;
use runner_spec::measure::Measure;
use runner_spec::program::EvalSpec;

/// Early stopping compares results at the same milestones only.
///
/// # Errors
/// If two points are judged at different milestones before their end.
pub(super) fn check_same_rungs(points: &[PlannedPoint], asha: Option<AshaSettings>) -> Result<()> {
    let (Some(asha), Some(first)) = (asha, points.first()) else { return Ok(()) };
    let (unit, key) = (asha.unit.name(), asha.unit.key());
    let below = |p: &PlannedPoint| p.rungs.split_last().map_or(Vec::new(), |(_, below)| below.to_vec());
    let differs = |p: &&PlannedPoint| match asha.unit {
        MilestoneUnit::Steps => below(p) != below(first),
        MilestoneUnit::Tokens | MilestoneUnit::Flops => p.rungs.len() != first.rungs.len(),
    };
    let Some(other) = points.iter().find(differs) else { return Ok(()) };
    let describe = |p: &PlannedPoint| {
        let amount = |steps: u64| asha.unit.text(asha.unit.amount(&p.pace, steps));
        let judged: Vec<String> = below(p).into_iter().map(amount).collect();
        format!("{} after {} of {} {unit}", p.describe(), judged.join(", "), amount(p.steps))
    };
    Err(CommandError::request(format!(
        "early_stop compares points at the same milestones, but {} is judged and {}: give all points as many {unit}, for example by \
         `budget`, and the same eval.every, use a different {key}, or remove early_stop",
        describe(first),
        describe(other)
    )))
}

/// The objective of the file. If the file names no metric, points with different tokenizers are compared by bits per byte, because
/// losses per token of different tokens do not compare.
pub(super) fn choose_objective<'a>(spec: &SweepSpec, mut facts: impl Iterator<Item = &'a DataFacts>) -> Objective {
    let first = facts.next().map(|facts| &facts.tokenizer_hash);
    let has_one_tokenizer = facts.all(|facts| Some(&facts.tokenizer_hash) == first);
    let metric =
        if spec.names_metric || has_one_tokenizer { spec.objective.metric.clone() } else { Measure::BITS_PER_BYTE };
    Objective { metric, ..spec.objective.clone() }
}

/// Checks that the objectives of the points can be compared. If they cannot, `observer` receives a warning.
///
/// # Errors
/// If early stopping would compare them.
pub(super) fn check_comparable(
    bases: &[(String, MeasurementBasis)],
    objective: &Objective,
    stops_early: bool,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    let bases = bases.iter().map(|(name, basis)| (name.clone(), basis));
    let Some(reason) = find_incomparable(bases, &objective.metric.quantity()) else { return Ok(()) };
    let metric = objective.metric.key();
    if stops_early {
        let message = format!("early_stop would compare points whose {metric} is not comparable: {reason}");
        return Err(CommandError::request(message));
    }
    let text = format!("{metric} is not comparable between all points, so none will be the best: {reason}");
    observer.observe(&RunEvent::Warning(&text));
    Ok(())
}

/// Why a run never measures the objective, if it does not.
pub(super) fn explain_unmeasured(metric: &Measure, eval: &EvalSpec) -> Option<String> {
    let (is_measured, needed) = match metric.task() {
        Some(name) => (eval.tasks().iter().any(|task| task.name == name), task_key(name)),
        None => (!metric.is_evaluated() || eval.loss.is_some(), "data.validation and eval.loss".into()),
    };
    let metric = metric.key();
    (!is_measured)
        .then(|| format!("objective.metric is {metric}, which the experiment does not measure: it needs {needed}"))
}

/// Why early stopping cannot judge a run with these `rungs`: it never does before its end, or two milestones are one measurement.
pub(super) fn explain_unjudged(asha: &AshaSettings, rungs: &[u64], run: RunLength<'_>) -> Option<String> {
    let RunLength { steps, pace, every } = run;
    let (key, unit) = (asha.unit.key(), asha.unit.name());
    if let Some(at) = rungs.windows(2).position(|pair| pair[0] == pair[1]) {
        let both: Vec<String> = asha.milestones().skip(at).take(2).map(|milestone| asha.unit.text(milestone)).collect();
        return Some(format!(
            "early_stop.asha: the milestones of {} {unit} are both reached at step {}, because the run evaluates every {every} steps; use a \
             smaller eval.every, or a larger {key} or reduction",
            both.join(" and "),
            rungs[at]
        ));
    }
    (rungs.len() < 2).then(|| {
        let all = asha.unit.text(asha.unit.amount(pace, steps));
        format!(
            "early_stop.asha.{key} is {}, but the run has {all} {unit} and evaluates every {every} steps, so it is never judged before its \
             end; use a smaller {key} or eval.every, or remove early_stop",
            asha.unit.text(asha.first)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rungs;
    use runner_spec::experiment::EvalLoss;
    use runner_spec::plan::Pace;

    #[test]
    fn an_objective_must_be_measured() {
        let none = EvalSpec::default();
        let loss = EvalSpec { loss: Some(EvalLoss::Rows(1)), ..none.clone() };
        let explain = explain_unmeasured;
        assert!(explain(&Measure::VAL_LOSS, &none).unwrap().contains("data.validation"));
        assert!(explain(&Measure::VAL_PERPLEXITY, &loss).is_none());
        assert!(explain(&Measure::of_key("hellaswag_acc").unwrap(), &loss).unwrap().contains("eval.hellaswag"));
        assert!(explain(&Measure::TRAIN_LOSS, &none).is_none());
    }

    #[test]
    fn early_stopping_compares_after_the_same_steps() {
        let mut points = crate::testing::sweep().points;
        let asha = crate::testing::sweep().early_stop;
        points[1].rungs = vec![10, 20, 60];
        assert!(check_same_rungs(&points, asha).is_ok(), "nothing compares the ends");
        points[1].rungs = vec![10, 30, 40];
        let error = check_same_rungs(&points, asha).unwrap_err().to_string();
        for part in ["point 1 (lr=0.001 layers=2) after 10, 20 of 40", "point 2 (lr=0.01 layers=2) after 10, 30 of 40"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn points_of_other_steps_are_compared_at_the_same_tokens() {
        let mut points = crate::testing::sweep().points;
        let asha = Some(AshaSettings { unit: MilestoneUnit::Tokens, first: 1000.0, reduction: 2 });
        points[1].rungs = vec![5, 10, 20];
        assert!(check_same_rungs(&points, asha).is_ok());
        (points[1].rungs, points[1].steps, points[1].pace.tokens_per_step) = (vec![5, 20], 20, 95);
        let error = check_same_rungs(&points, asha).unwrap_err().to_string();
        assert!(error.contains("after 475 of 1,900 tokens: give all points as many tokens"), "{error}");
    }

    #[test]
    fn early_stopping_must_judge() {
        let pace = Pace { tokens_per_step: 10, flops_per_step: 1e3, ..Pace::default() };
        let run = |steps, every| RunLength { steps, pace: &pace, every };
        let explain = |unit, first, run: RunLength<'_>| {
            let asha = AshaSettings { unit, first, reduction: 3 };
            explain_unjudged(&asha, &rungs(&asha, run), run)
        };
        let text = explain(MilestoneUnit::Steps, 100.0, run(120, 80)).unwrap();
        assert!(text.contains("120 steps") && text.contains("every 80"), "{text}");
        assert!(explain(MilestoneUnit::Steps, 100.0, run(400, 100)).is_none());
        let text = explain(MilestoneUnit::Tokens, 1000.0, run(100, 80)).unwrap();
        assert!(text.contains("min_tokens is 1,000") && text.contains("the run has 1,000 tokens"), "{text}");
        let text = explain(MilestoneUnit::Flops, 1e5, run(1000, 400)).unwrap();
        assert!(text.contains("milestones of 1e5 and 3e5 FLOPs are both reached at step 400"), "{text}");
    }
}
