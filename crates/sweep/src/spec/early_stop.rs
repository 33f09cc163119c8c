//! The settings of early stopping.

use runner_spec::format::count;
use serde::{Deserialize, Serialize};

/// Asynchronous successive halving: a point is judged at the first milestone, at `reduction` times as much, and so on, and the best of
/// `reduction` continues.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AshaSettings {
    #[serde(flatten)]
    pub first: Milestone,
    /// At least 2.
    pub reduction: u64,
}

/// How far every point is trained before it is first judged: a positive number of steps, of tokens with padding, or of FLOPs as counted for
/// MFU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Milestone {
    MinSteps(u64),
    MinTokens(u64),
    MinFlops(f64),
}

impl Milestone {
    /// Its key in the file.
    #[must_use]
    pub fn key(self) -> &'static str {
        match self {
            Self::MinSteps(_) => "min_steps",
            Self::MinTokens(_) => "min_tokens",
            Self::MinFlops(_) => "min_flops",
        }
    }

    /// What it counts.
    #[must_use]
    pub fn unit(self) -> &'static str {
        match self {
            Self::MinSteps(_) => "steps",
            Self::MinTokens(_) => "tokens",
            Self::MinFlops(_) => "FLOPs",
        }
    }

    /// `times` as much; `None` beyond the range of numbers.
    #[must_use]
    pub fn times(self, times: u64) -> Option<Self> {
        match self {
            Self::MinSteps(steps) => steps.max(1).checked_mul(times).map(Self::MinSteps),
            Self::MinTokens(tokens) => tokens.max(1).checked_mul(times).map(Self::MinTokens),
            Self::MinFlops(flops) => Some(Self::MinFlops(flops * times as f64)).filter(|_| flops.is_finite()),
        }
    }

    /// The fewest steps that reach it, in a run whose step has so many tokens and FLOPs.
    #[must_use]
    pub fn steps(self, tokens_per_step: u64, flops_per_step: f64) -> u64 {
        match self {
            Self::MinSteps(steps) => steps,
            Self::MinTokens(tokens) => tokens.div_ceil(tokens_per_step.max(1)),
            Self::MinFlops(flops) => {
                let steps = (flops / flops_per_step).ceil().max(1.0) as u64;
                // The quotient is rounded: it may be one step off.
                let reaches = |steps: u64| steps as f64 * flops_per_step >= flops;
                let enough = (steps.saturating_sub(1)..=steps).find(|steps| *steps > 0 && reaches(*steps));
                enough.unwrap_or(steps.saturating_add(1))
            }
        }
    }

    /// The number, as text.
    #[must_use]
    pub fn amount(self) -> String {
        match self {
            Self::MinSteps(number) | Self::MinTokens(number) => count(number),
            Self::MinFlops(flops) => format!("{flops:e}"),
        }
    }

    /// What a run of `steps` steps has of the unit.
    #[must_use]
    pub fn of_steps(self, steps: u64, tokens_per_step: u64, flops_per_step: f64) -> Self {
        match self {
            Self::MinSteps(_) => Self::MinSteps(steps),
            Self::MinTokens(_) => Self::MinTokens(steps.saturating_mul(tokens_per_step)),
            Self::MinFlops(_) => Self::MinFlops(steps as f64 * flops_per_step),
        }
    }
}

impl AshaSettings {
    /// The milestones, ascending.
    pub fn milestones(&self) -> impl Iterator<Item = Milestone> {
        let reduction = self.reduction.max(2);
        let times = std::iter::successors(Some(1_u64), move |times| times.checked_mul(reduction));
        times.map_while(|times| self.first.times(times))
    }
}

/// The key `early_stop.race`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RaceSettings {
    /// Above 0 and below 1.
    pub confidence: f64,
    /// The number of seeds before the first decision, at least 2.
    pub min_seeds: usize,
}
