//! The settings of early stopping.

use runner_spec::format::count;
use runner_spec::plan::{Pace, first_step};
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

    /// What the first `steps` steps of a run with the pace `pace` count.
    #[must_use]
    pub fn amount(self, pace: &Pace, steps: u64) -> f64 {
        match self {
            Self::Steps => steps as f64,
            Self::Tokens => pace.tokens_after(steps),
            Self::Flops => pace.flops_after(steps),
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

/// The fewest of the first `most` steps of a run with the pace `pace` that reach `milestone` of `unit`; `None` if even all of them fall short.
#[must_use]
pub(crate) fn steps_to(milestone: f64, unit: MilestoneUnit, pace: &Pace, most: u64) -> Option<u64> {
    let reaches = |steps: u64| unit.amount(pace, steps) >= milestone;
    reaches(most).then(|| first_step(most, reaches))
}
