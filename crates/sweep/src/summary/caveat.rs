//! Reasons other than noise to doubt a sweep's leading setting: the best value may lie outside of the values that were tried, runs may differ
//! in more than their settings, and the text that judges them may have been trained on.

use std::collections::BTreeSet;

use runner_compare::session_facts::{LAYOUT, fact_changes};
use runner_plan::MeasurementBasis;
use runner_record::manifest::Session;
use runner_record::run_dir;
use serde::Serialize;
use serde_json::Value;

use crate::progress::SweepProgress;
use crate::results::SweepResults;
use crate::verdict::SettingResult;

/// The number of different values from which on the lowest and the highest of them are edges of a range.
const MIN_RANGE_VALUES: usize = 3;

/// A reason not to believe that the leading setting has the best values.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BestPointCaveat {
    /// The setting has the lowest or the highest of the values that a parameter has in the sweep.
    EdgeOfRange {
        /// The first point of the setting.
        point: usize,
        name: String,
        value: Value,
        is_highest: bool,
        /// The number of different values.
        values: usize,
    },
    /// The runs of the points were not all computed alike: the facts about their sessions that differ, and may change bits.
    DifferentFacts { facts: Vec<&'static str> },
    /// Text on which points are measured was trained on, or chose a checkpoint.
    SharedText { warning: String },
}

/// The facts that differ because a point's setting, its layout, does.
const OF_LAYOUT: [&str; 3] = [LAYOUT, "GPUs", "NCCL"];

/// The caveat that the runs of `progress` were not all computed alike. Runs that cannot be read are left out.
pub(crate) fn find_different_facts(progress: &SweepProgress) -> Option<BestPointCaveat> {
    let runs = progress.points.iter().flatten().filter_map(|run| run_dir::read_manifest(&run.path).ok());
    let sessions: Vec<Session> = runs.flat_map(|manifest| manifest.described_sessions()).collect();
    let (first, others) = sessions.split_first()?;
    let changed = others.iter().flat_map(|session| {
        let names = fact_changes(first, session).into_iter().map(|change| change.name);
        names.filter(|name| session.layout == first.layout || !OF_LAYOUT.contains(name))
    });
    let facts: BTreeSet<&str> = changed.collect();
    (!facts.is_empty()).then(|| BestPointCaveat::DifferentFacts { facts: facts.into_iter().collect() })
}

/// The caveats about evaluated text of the runs of `progress`, a different one each.
pub(crate) fn find_shared_text(progress: &SweepProgress) -> impl Iterator<Item = BestPointCaveat> {
    let bases = progress.points.iter().flatten().filter_map(|run| run.basis.as_ref());
    let warnings: BTreeSet<String> = bases.flat_map(MeasurementBasis::overlap_warnings).collect();
    warnings.into_iter().map(|warning| BestPointCaveat::SharedText { warning })
}

/// The caveats of `leader`, which leads `results`.
pub(crate) fn find_caveats(results: &SweepResults, leader: Option<&SettingResult>) -> Vec<BestPointCaveat> {
    let Some(leader) = leader else { return Vec::new() };
    let Some(&point) = leader.points.first() else { return Vec::new() };
    leader.values.iter().filter_map(|(name, value)| find_edge(results, point, name, value)).collect()
}

fn find_edge(results: &SweepResults, point: usize, name: &str, value: &Value) -> Option<BestPointCaveat> {
    let own = value.as_f64()?;
    // A value without a result bounds nothing yet.
    let tried = results.rows.iter().filter(|row| row.objective.is_some() || row.diverged);
    let all = tried.flat_map(|row| &row.values).filter(|(other, _)| other == name);
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

    use super::*;
    use crate::testing::finished;
    use crate::verdict::SweepVerdict;

    #[test]
    fn the_best_value_may_be_at_the_edge_of_its_range() {
        let edge = |points: &[(Value, f64)]| {
            let points: Vec<_> = points.iter().map(|(lr, y)| (lr.clone(), 7, *y)).collect();
            let (record, results) = finished(&points);
            let verdict = SweepVerdict::new(&record, &results, &[], true);
            match &find_caveats(&results, verdict.leader())[..] {
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
