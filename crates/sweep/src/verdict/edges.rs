//! Parameters whose best values are the lowest or the highest that were tried.

use serde::Serialize;
use serde_json::Value;

use super::{Conclusion, SweepVerdict};
use crate::results::SweepResults;

/// The number of different values from which on the lowest and the highest of them are edges of a range.
const MIN_RANGE_VALUES: usize = 3;

/// The lowest or the highest value that a parameter has in the sweep, shared by all settings that may be the best.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EdgeOfRange {
    pub name: String,
    pub value: Value,
    pub is_highest: bool,
    /// The number of different values.
    pub values: usize,
}

/// The edges at which all settings of `verdict` are that may be the best. The parameters `drawn` have values that were drawn, whose lowest and
/// highest say nothing of a range. One seed shows no setting that may be the best.
pub(super) fn find_edges(results: &SweepResults, verdict: &SweepVerdict, drawn: &[String]) -> Vec<EdgeOfRange> {
    if verdict.leader().is_none() || verdict.conclusion == Conclusion::OneSeed {
        return Vec::new();
    }
    let best: Vec<usize> = verdict.may_be_best();
    let edge = |(name, value): &(String, Value)| {
        let own = value.as_f64()?;
        // A value without a result bounds nothing yet.
        let tried = results.rows.iter().filter(|row| row.objective.is_some() || row.diverged);
        let all = tried.flat_map(|row| &row.values).filter(|(other, _)| other == name);
        let mut numbers: Vec<f64> = all.map(|(_, value)| value.as_f64()).collect::<Option<_>>()?;
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        let (lowest, highest) = (*numbers.first()?, *numbers.last()?);
        let is_shared = best.iter().all(|&i| verdict.settings[i].values.contains(&(name.clone(), value.clone())));
        let is_edge = numbers.len() >= MIN_RANGE_VALUES && (own <= lowest || own >= highest);
        let is_drawn = drawn.contains(name);
        let (name, value, is_highest) = (name.clone(), value.clone(), own >= highest);
        (is_edge && is_shared && !is_drawn).then_some(EdgeOfRange { name, value, is_highest, values: numbers.len() })
    };
    verdict.settings.first().map_or_else(Vec::new, |leader| leader.values.iter().filter_map(edge).collect())
}
