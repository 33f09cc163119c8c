//! What training the settings of a verdict cost, where it is not the same.

use runner_stats::Sample;
use serde::Serialize;

use super::{Background, SettingResult, SweepVerdict};
use crate::results::{ResultsRow, SweepResults};
use crate::spec::{BudgetKind, CONFIDENCE};

/// Costs are unequal if they differ by more than this factor.
const EQUAL_COST: f64 = 1.05;

/// What training a setting cost, where settings of one verdict differ in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct UnequalCost {
    /// What is unequal: the budget's unit, or tokens.
    pub unit: BudgetKind,
    /// True if the sweep has a budget in this unit.
    pub is_budget: bool,
    /// The mean of the leader, and the lowest and the highest mean of any setting that was compared.
    pub leader: f64,
    pub lowest: f64,
    pub highest: f64,
}

/// The costs of the settings that were compared, if they differ: in the unit of the budget, or else in tokens.
pub(super) fn find_unequal_cost(
    verdict: &SweepVerdict,
    results: &SweepResults,
    background: &Background,
) -> Option<UnequalCost> {
    verdict.leader()?;
    let unit = background.budget.unwrap_or(BudgetKind::Tokens);
    let cost = |row: &ResultsRow| match unit {
        BudgetKind::Flops => row.flops,
        BudgetKind::Tokens => row.tokens.map(|tokens| tokens as f64),
        BudgetKind::Time => row.seconds,
    };
    let mean = |setting: &SettingResult| {
        let rows = results.rows.iter().filter(|row| setting.points.contains(&row.point));
        let costs: Vec<f64> = rows.filter(|row| row.objective.is_some()).map(cost).collect::<Option<_>>()?;
        Sample::new(&costs, CONFIDENCE).map(|sample| sample.mean)
    };
    let means: Vec<f64> =
        verdict.settings.iter().filter(|setting| setting.may_win()).map(mean).collect::<Option<_>>()?;
    let (lowest, highest) = means.iter().fold((f64::INFINITY, 0.0), |(low, high), &x| (x.min(low), x.max(high)));
    let leader = *means.first()?;
    let is_budget = background.budget.is_some();
    (highest > EQUAL_COST * lowest).then_some(UnequalCost { unit, is_budget, leader, lowest, highest })
}
