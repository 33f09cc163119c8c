//! The settings of early stopping.

use runner_spec::format::count;
use serde::{Deserialize, Serialize};

/// Asynchronous successive halving: a point is judged at the first milestone, at `reduction` times as much, and so on, and the best of
/// `reduction` continues.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AshaSettings {
    /// What milestones count.
    pub unit: MilestoneUnit,
    /// How much of the unit every point is trained for before it is first judged; positive.
    pub first: f64,
    /// At least 2.
    pub reduction: u64,
}

runner_record::named_enum! {
    /// What the milestones of early stopping count.
    pub enum MilestoneUnit {
        Steps = "steps",
        /// Tokens with padding.
        Tokens = "tokens",
        /// FLOPs as counted for MFU.
        Flops = "FLOPs",
    }
}

impl MilestoneUnit {
    /// The key of the first milestone in the file.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::Steps => "min_steps",
            Self::Tokens => "min_tokens",
            Self::Flops => "min_flops",
        }
    }

    /// What a step with so many tokens and FLOPs counts.
    #[must_use]
    pub fn per_step(self, tokens: u64, flops: f64) -> f64 {
        match self {
            Self::Steps => 1.0,
            Self::Tokens => tokens as f64,
            Self::Flops => flops,
        }
    }

    /// `amount` of the unit, as text.
    #[must_use]
    pub fn text(self, amount: f64) -> String {
        if self == Self::Flops { format!("{amount:e}") } else { count(amount as u64) }
    }
}

impl AshaSettings {
    /// The milestones, ascending.
    pub fn milestones(&self) -> impl Iterator<Item = f64> {
        let reduction = self.reduction.max(2) as f64;
        std::iter::successors(Some(self.first), move |milestone| Some(milestone * reduction))
            .take_while(|m| m.is_finite())
    }

    /// The first `count` milestones, as text.
    #[must_use]
    pub fn first_milestones(&self, count: usize) -> String {
        self.milestones().take(count).map(|milestone| self.unit.text(milestone)).collect::<Vec<_>>().join(", ")
    }
}

/// The fewest steps that reach `milestone`, if a step counts `per_step` of its unit.
#[must_use]
pub(crate) fn steps_to(milestone: f64, per_step: f64) -> u64 {
    let steps = (milestone / per_step).ceil().max(1.0) as u64;
    // The quotient is rounded: it may be one step off.
    let reaches = |steps: &u64| *steps > 0 && *steps as f64 * per_step >= milestone;
    (steps.saturating_sub(1)..=steps).find(reaches).unwrap_or(steps.saturating_add(1))
}
