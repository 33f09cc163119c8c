//! What must be known of a sweep's best point before it is believed: it may be the luckiest of its seeds, and the best value may lie outside
//! of the values that were tried.

use serde::Serialize;
use serde_json::Value;

use super::point::PointValues;
use super::record::SweepRecord;
use super::results::{ResultsRow, SweepResults};

/// The number of different values from which on the lowest and the highest of them are edges of a range.
const MIN_RANGE_VALUES: usize = 3;

/// A reason not to believe that the best point has the best settings.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BestPointCaveat {
    /// Other points differ from the best one in their seed alone.
    LuckiestSeed {
        point: usize,
        /// All points with these settings, the best one among them.
        seeds: usize,
        /// The points of `seeds` that have a result after all their steps.
        measured: usize,
        /// The points of `seeds` that diverged.
        diverged: usize,
        /// The mean of the results of `measured`.
        mean: f64,
        /// The worst of the results of `measured`.
        worst: f64,
    },
    /// The best point has the lowest or the highest of the values that a parameter has in the sweep.
    EdgeOfRange {
        point: usize,
        name: String,
        value: Value,
        is_highest: bool,
        /// The number of different values.
        values: usize,
    },
}

/// The caveats of the best point of `results`; none if there is no best point.
pub(super) fn find_caveats(record: &SweepRecord, results: &SweepResults) -> Vec<BestPointCaveat> {
    let Some(best) = results.best() else { return Vec::new() };
    let seeds = record.seed_names();
    let is_setting = |name: &str| !seeds.contains(&name);
    let edges = best.values.iter().filter(|(name, _)| is_setting(name));
    let edges = edges.filter_map(|(name, value)| find_edge(record, best.point, name, value));
    find_luckiest_seed(results, best, &is_setting).into_iter().chain(edges).collect()
}

fn find_luckiest_seed(
    results: &SweepResults,
    best: &ResultsRow,
    is_setting: &dyn Fn(&str) -> bool,
) -> Option<BestPointCaveat> {
    fn settings<'v>(values: &'v PointValues, is_setting: &dyn Fn(&str) -> bool) -> Vec<&'v (String, Value)> {
        values.iter().filter(|(name, _)| is_setting(name)).collect()
    }
    let own = settings(&best.values, is_setting);
    // Points with the same values have been reported as duplicates.
    let group: Vec<&ResultsRow> = results
        .rows
        .iter()
        .filter(|row| row.point == best.point || row.values != best.values)
        .filter(|row| settings(&row.values, is_setting) == own)
        .collect();
    if group.len() < 2 {
        return None;
    }
    let measured: Vec<f64> =
        group.iter().filter(|row| row.status == best.status).filter_map(|row| row.objective).collect();
    let mean = measured.iter().sum::<f64>() / measured.len() as f64;
    Some(BestPointCaveat::LuckiestSeed {
        point: best.point,
        seeds: group.len(),
        measured: measured.len(),
        diverged: group.iter().filter(|row| row.diverged).count(),
        mean,
        worst: measured.into_iter().max_by(|a, b| results.objective.goal.order(*a, *b))?,
    })
}

fn find_edge(record: &SweepRecord, point: usize, name: &str, value: &Value) -> Option<BestPointCaveat> {
    let own = value.as_f64()?;
    let all = record.points.iter().flat_map(|point| &point.values).filter(|(other, _)| other == name);
    let mut numbers: Vec<f64> = all.map(|(_, value)| value.as_f64()).collect::<Option<_>>()?;
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let (lowest, highest) = (*numbers.first()?, *numbers.last()?);
    let is_edge = numbers.len() >= MIN_RANGE_VALUES && (own <= lowest || own >= highest);
    is_edge.then(|| BestPointCaveat::EdgeOfRange {
        point,
        name: name.to_owned(),
        value: value.clone(),
        is_highest: own >= highest,
        values: numbers.len(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::results::PointStatus;
    use super::*;
    use crate::record::PlannedPoint;
    use crate::testing::sweep;

    /// A finished sweep: the points have these rates, seeds and results, and NaN stands for divergence.
    fn finished(points: &[(Value, u64, f64)]) -> (SweepRecord, SweepResults) {
        let mut record = sweep();
        let template = record.points[0].clone();
        let values =
            |(lr, seed, _): &(Value, u64, f64)| vec![("lr".to_owned(), lr.clone()), ("seed".to_owned(), json!(seed))];
        let numbered = || points.iter().enumerate().map(|(i, point)| (i + 1, point));
        record.points = numbered()
            .map(|(index, point)| PlannedPoint { index, values: values(point), same_as: None, ..template.clone() })
            .collect();
        let rows = numbered().map(|(index, point)| {
            let diverged = point.2.is_nan();
            ResultsRow {
                point: index,
                values: values(point),
                status: if diverged { PointStatus::Failed } else { PointStatus::Done },
                steps: 40,
                objective: (!diverged).then_some(point.2),
                diverged,
                run: Some(index.to_string()),
                seconds: None,
                val_bits_per_byte: None,
                tokens_per_second: None,
                mfu: None,
            }
        });
        let results = SweepResults::new(record.objective, rows.collect(), None);
        (record, results)
    }

    #[test]
    fn the_best_of_several_seeds_is_the_luckiest() {
        let points = [
            (json!(0.1), 1, 2.0),
            (json!(0.1), 2, 3.0),
            (json!(0.1), 3, f64::NAN),
            (json!(0.1), 4, 4.0),
            (json!(0.2), 1, 2.5),
        ];
        let (record, results) = finished(&points);
        let luckiest =
            BestPointCaveat::LuckiestSeed { point: 1, seeds: 4, measured: 3, diverged: 1, mean: 3.0, worst: 4.0 };
        assert_eq!(find_caveats(&record, &results), [luckiest]);
        // Each setting has one seed.
        let (record, results) = finished(&[(json!(0.1), 1, 2.0), (json!(0.2), 2, 3.0)]);
        assert_eq!(find_caveats(&record, &results), []);
        // The record says which names are seeds.
        let (mut record, results) = finished(&points);
        record.seeds = Some(vec!["lr".to_owned()]);
        let found = find_caveats(&record, &results);
        assert!(matches!(found[..], [BestPointCaveat::LuckiestSeed { seeds: 2, mean: 2.25, .. }, _]), "{found:?}");
    }

    #[test]
    fn the_best_value_may_be_at_the_edge_of_its_range() {
        let edge = |points: &[(Value, f64)]| {
            let points: Vec<_> = points.iter().map(|(lr, y)| (lr.clone(), 7, *y)).collect();
            let (record, results) = finished(&points);
            match &find_caveats(&record, &results)[..] {
                [BestPointCaveat::EdgeOfRange { point, name, is_highest, values, .. }] => {
                    Some((*point, name.clone(), *is_highest, *values))
                }
                [] => None,
                other => panic!("{other:?}"),
            }
        };
        let lr = |point, is_highest, values| Some((point, "lr".to_owned(), is_highest, values));
        assert_eq!(edge(&[(json!(0.1), 1.0), (json!(10_000), f64::NAN), (json!(0.5), 2.0)]), lr(1, false, 3));
        assert_eq!(edge(&[(json!(1), 3.0), (json!(2.5), 2.0), (json!(4), 1.0), (json!(4), 1.5)]), lr(3, true, 3));
        assert_eq!(edge(&[(json!(1), 3.0), (json!(2), 1.0), (json!(4), 2.0)]), None, "inside");
        assert_eq!(edge(&[(json!(1), 1.0), (json!(2), 2.0), (json!(2), 2.0)]), None, "two values have no inside");
        assert_eq!(edge(&[(json!(1), 1.0), (json!(2), 2.0), (json!(null), 2.0)]), None, "null is beyond every number");
    }
}
