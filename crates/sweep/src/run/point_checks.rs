//! What the points of a sweep must have in common, and must measure, so that they can be judged.

use std::collections::BTreeMap;

use crate::record::PlannedPoint;
use crate::{AshaSettings, Objective, ObjectiveMetric, PointValues, SweepSpec};
use runner_compare::comparability::{MeasurementBasis, find_incomparable};
use runner_prepare::{RunEvent, RunObserver};
use runner_spec::data::DataFacts;
use runner_spec::error::{CommandError, Result};
use runner_spec::format::json_bytes;
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

/// Points that differ only in rounding do not compete. The results count them as one setting, so `observer` receives a
/// warning. `seeds` are the names of seeds.
///
/// # Errors
/// If early stopping would compare such points.
pub(super) fn check_rounding(
    points: &[PlannedPoint],
    objective: Objective,
    stops_early: bool,
    seeds: &[String],
    observer: &mut dyn RunObserver,
) -> Result<()> {
    if objective.metric == ObjectiveMetric::TokensPerSecond {
        return Ok(());
    }
    let seed = |point: &PlannedPoint| -> PointValues {
        point.values.iter().filter(|(name, _)| seeds.contains(name)).cloned().collect()
    };
    let distinct = || points.iter().filter(|point| point.same_as.is_none() && point.mathematics.is_some());
    let mut first_of: BTreeMap<(Option<&str>, Vec<u8>), &PlannedPoint> = BTreeMap::new();
    let mut pairs: Vec<(&PlannedPoint, &PlannedPoint)> = Vec::new();
    for point in distinct() {
        let first = *first_of.entry((point.mathematics.as_deref(), json_bytes(&seed(point)))).or_insert(point);
        if first.index != point.index {
            pairs.push((first, point));
        }
    }
    let Some((first, other)) = pairs.first() else { return Ok(()) };
    let what = format!("{} and {} differ only in rounding", first.describe(), other.describe());
    if stops_early {
        return Err(CommandError::request(format!(
            "early_stop compares settings, but {what}: give all points one value, or remove early_stop"
        )));
    }
    let more = if pairs.len() > 1 { format!(", and so do {} more points", pairs.len() - 1) } else { String::new() };
    observer.observe(&RunEvent::Warning(&format!("{what}{more}: the results count them as one setting")));
    Ok(())
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
        let none = EvalSpec::default();
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

    #[derive(Default)]
    struct Warnings(Vec<String>);

    impl RunObserver for Warnings {
        fn observe(&mut self, event: &RunEvent<'_>) {
            if let RunEvent::Warning(text) = event {
                self.0.push((*text).to_owned());
            }
        }
    }

    #[test]
    fn points_that_differ_only_in_rounding_are_named() {
        let (mut points, objective) = (crate::testing::sweep().points, crate::testing::sweep().objective);
        let check = |points: &[PlannedPoint], objective, stops_early| {
            let mut warnings = Warnings::default();
            let checked = check_rounding(points, objective, stops_early, &[], &mut warnings);
            (checked.err().map(|error| error.to_string()), warnings.0)
        };
        assert_eq!(check(&points, objective, true), (None, Vec::new()), "nothing is known of their mathematics");
        // The third point is a duplicate of the first, the same run.
        points.iter_mut().for_each(|point| point.mathematics = Some("same".to_owned()));
        let expected = "point 1 (lr=0.001 layers=2) and point 2 (lr=0.01 layers=2) differ only in rounding";
        let (mistake, warnings) = check(&points, objective, false);
        assert_eq!((mistake, warnings), (None, vec![format!("{expected}: the results count them as one setting")]));
        let (mistake, _) = check(&points, objective, true);
        assert!(mistake.as_ref().is_some_and(|text| text.contains(expected)), "{mistake:?}");
        let speed = Objective { metric: ObjectiveMetric::TokensPerSecond, ..objective };
        assert_eq!(check(&points, speed, true), (None, Vec::new()));
    }
}
