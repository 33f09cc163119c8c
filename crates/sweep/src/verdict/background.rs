//! What is known of settings apart from their results: earlier looks at their seeds, and the settings from which they were picked.

use crate::points::PointValues;
use crate::record::{SeenSeeds, SweepRecord};
use crate::spec::BudgetKind;

/// What is known of settings apart from their results.
#[derive(Debug, Clone, Default)]
pub struct Background {
    /// The ladders of which the settings are rungs.
    pub ladders: Vec<String>,
    /// What each point was allowed to cost, if there is a budget.
    pub budget: Option<BudgetKind>,
    /// The parameters whose values were drawn.
    pub drawn: Vec<String>,
    /// Sweeps that have judged some of the seeds before.
    pub seen: Vec<SeenSeeds>,
    /// The number of settings that the sweeps of these settings compared and that are not among them.
    pub left_out: usize,
}

impl Background {
    pub(crate) fn of_sweep(record: &SweepRecord) -> Self {
        Self {
            ladders: record.is_ladder.then(|| record.id.clone()).into_iter().collect(),
            budget: record.budget.map(|budget| budget.kind),
            drawn: record.drawn.clone(),
            seen: record.seen.clone(),
            left_out: 0,
        }
    }

    /// The seeds that a verdict on the settings with the results `measured` leaves out. Whoever trains more seeds until a difference is shown
    /// finds differences that are not there, so only new seeds count; likewise if an earlier sweep chose these settings among more. Without new
    /// seeds it is the earlier verdict.
    pub(super) fn seeds_to_leave_out(&self, measured: &[&[(&PointValues, f64)]]) -> Vec<SeenSeeds> {
        let is_new = |seed: &PointValues| !self.seen.iter().any(|seen| seen.seeds.contains(seed));
        let has_new_seeds = measured.iter().any(|values| values.iter().any(|(seed, _)| is_new(seed)));
        let counts = |seen: &&SeenSeeds| seen.seeds.len() > 1 || seen.settings > measured.len();
        if has_new_seeds { self.seen.iter().filter(counts).cloned().collect() } else { Vec::new() }
    }

    /// The number of settings from which `shown` ones were picked by the results that are judged; `None` if they are all.
    pub(super) fn picked_from(&self, shown: usize, has_only_new_seeds: bool) -> Option<usize> {
        let seen = self.seen.iter().map(|seen| seen.settings).filter(|_| !has_only_new_seeds).max().unwrap_or(0);
        let known = if self.left_out > 0 { shown + self.left_out } else { 0 };
        Some(seen.max(known)).filter(|all| *all > shown)
    }
}
