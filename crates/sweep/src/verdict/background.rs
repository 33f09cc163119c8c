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
    /// finds differences that are not there, so only new seeds count; likewise if an earlier sweep chose these settings among more. If an
    /// earlier sweep judged the very seeds, it is that verdict.
    pub(super) fn seeds_to_leave_out(&self, measured: &[&[(&PointValues, f64)]]) -> Vec<SeenSeeds> {
        let seeds = || measured.iter().flat_map(|values| values.iter().map(|(seed, _)| *seed));
        let is_new = |seed: &PointValues| !self.seen.iter().any(|seen| seen.contains(seed));
        let is_same = |seen: &SeenSeeds| seen.seed_count == seen.seeds.len() && seeds().all(|seed| seen.contains(seed));
        if self.seen.iter().any(is_same) {
            return Vec::new();
        }
        // One seed of all settings chose nothing, unless no other seed is there.
        let has_new_seeds = seeds().any(is_new);
        let counts = |seen: &&SeenSeeds| seen.seeds.len() > 1 || seen.other_settings > 0 || !has_new_seeds;
        self.seen.iter().filter(counts).cloned().collect()
    }

    /// The number of settings from which `settings` were picked by the results that are judged; `None` if these are all. `has_left_out`: the
    /// results that chose the settings are left out.
    pub(super) fn picked_from(&self, settings: usize, has_left_out: bool) -> Option<usize> {
        let seen: usize = self.seen.iter().map(|seen| seen.other_settings).filter(|_| !has_left_out).sum();
        Some(seen + self.left_out).filter(|others| *others > 0).map(|others| settings + others)
    }
}
