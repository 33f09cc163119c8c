//! What the points of a sweep must have in common, and must measure, so that they can be judged.

use crate::record::PlannedPoint;
use crate::{AshaSettings, Objective, ObjectiveMetric, SweepSpec};
use runner_compare::comparability::{MeasurementBasis, find_incomparable};
use runner_prepare::{RunEvent, RunObserver};
use runner_spec::data::DataFacts;
use runner_spec::error::{CommandError, Result};
use runner_spec::program::EvalSpec;

/// Early stopping compares results after the same steps only.
///
/// # Errors
/// If two points are judged after different steps before their end.
pub(super) fn check_same_rungs(points: &[PlannedPoint]) -> Result<()> {
    let below = |p: &PlannedPoint| p.rungs.split_last().map_or(Vec::new(), |(_, below)| below.to_vec());
    let Some(first) = points.first() else { return Ok(()) };
    let Some(other) = points.iter().find(|p| below(p) != below(first)) else { return Ok(()) };
    let describe = |p: &PlannedPoint| {
        let steps: Vec<String> = below(p).iter().map(u64::to_string).collect();
        format!("{} after {} of {} steps", p.describe(), steps.join(", "), p.steps)
    };
    Err(CommandError::request(format!(
        "early_stop compares points after the same numbers of steps, but {} is judged and {}: use the same \
         train.steps and eval.every for all points, or remove early_stop",
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
        if spec.names_metric || has_one_tokenizer { spec.objective.metric } else { ObjectiveMetric::ValBitsPerByte };
    Objective { metric, ..spec.objective }
}

/// Checks that the objectives of the points can be compared. If they cannot, `observer` receives a warning.
///
/// # Errors
/// If early stopping would compare them.
pub(super) fn check_comparable(
    bases: &[(String, MeasurementBasis)],
    objective: Objective,
    stops_early: bool,
    observer: &mut dyn RunObserver,
) -> Result<()> {
    let Some(quantity) = objective.metric.quantity() else { return Ok(()) };
    let bases = bases.iter().map(|(name, basis)| (name.clone(), basis));
    let Some(reason) = find_incomparable(bases, quantity) else { return Ok(()) };
    let metric = objective.metric.name();
    if stops_early {
        let message = format!("early_stop would compare points whose {metric} is not comparable: {reason}");
        return Err(CommandError::request(message));
    }
    let text = format!("{metric} is not comparable between all points, so none will be the best: {reason}");
    observer.observe(&RunEvent::Warning(&text));
    Ok(())
}

/// Why a run never measures the objective, if it does not.
pub(super) fn explain_unmeasured(metric: ObjectiveMetric, eval: &EvalSpec) -> Option<String> {
    let (is_measured, needed) = match metric {
        ObjectiveMetric::HellaswagAcc | ObjectiveMetric::HellaswagAccNorm | ObjectiveMetric::HellaswagAccNormChars => {
            (eval.choice_items.is_some(), "eval.hellaswag")
        }
        _ => (!metric.is_evaluated() || eval.loss.is_some(), "data.validation and eval.loss"),
    };
    let metric = metric.name();
    (!is_measured)
        .then(|| format!("objective.metric is {metric}, which the experiment does not measure: it needs {needed}"))
}

/// Why early stopping never judges a run before its end, if it does not.
pub(super) fn explain_unjudged(asha: &AshaSettings, rungs: &[u64], steps: u64, every: u64) -> Option<String> {
    (rungs.len() < 2).then(|| {
        format!(
            "early_stop.asha.min_steps is {}, but the run has {steps} steps and evaluates every {every}, so it is \
             never judged before its end; use a smaller min_steps or eval.every, or remove early_stop",
            asha.min_steps
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rungs;
    use runner_spec::experiment::EvalLoss;

    #[test]
    fn an_objective_must_be_measured() {
        let none = EvalSpec { loss: None, choice_items: None, samples: None, test_rows: None };
        let loss = EvalSpec { loss: Some(EvalLoss::Rows(1)), ..none.clone() };
        let explain = explain_unmeasured;
        assert!(explain(ObjectiveMetric::ValLoss, &none).unwrap().contains("data.validation"));
        assert!(explain(ObjectiveMetric::ValPerplexity, &loss).is_none());
        assert!(explain(ObjectiveMetric::HellaswagAcc, &loss).unwrap().contains("eval.hellaswag"));
        assert!(explain(ObjectiveMetric::TrainLoss, &none).is_none());
    }

    #[test]
    fn early_stopping_compares_after_the_same_steps() {
        let mut points = crate::testing::sweep().points;
        points[1].rungs = vec![10, 20, 60];
        assert!(check_same_rungs(&points).is_ok(), "nothing compares the ends");
        points[1].rungs = vec![10, 30, 40];
        let error = check_same_rungs(&points).unwrap_err().to_string();
        for part in ["point 1 (lr=0.001 layers=2) after 10, 20 of 40", "point 2 (lr=0.01 layers=2) after 10, 30 of 40"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn early_stopping_must_judge() {
        let asha = AshaSettings { min_steps: 100, reduction: 3 };
        let text = explain_unjudged(&asha, &rungs(&asha, 120, 80), 120, 80).unwrap();
        assert!(text.contains("120 steps") && text.contains("every 80"), "{text}");
        assert!(explain_unjudged(&asha, &[100, 300], 300, 100).is_none());
    }
}
