//! A fall of the learning rate along a curve, and what follows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cosine::CosineDecay;
use crate::format::{count, scientific};

/// A decay along a curve, with an end.
#[derive(Debug, Clone, Copy)]
pub struct Fall {
    pub(super) name: &'static str,
    /// The part of the fall that is left when a part of the steps is over.
    pub(super) left: fn(f64) -> f64,
    /// The share of the peak that is reached, the length, and what follows.
    pub(super) settings: CosineDecay,
}

impl Fall {
    /// Its steps, in a plan.
    pub(super) fn steps(&self) -> Option<u64> {
        self.settings.length?.known_steps(None)
    }

    pub(super) fn rate(&self, peak: f64, since: u64) -> f64 {
        let CosineDecay { last, repeat, period_factor, .. } = self.settings;
        let (since, steps) = repeat.phase(since, self.steps().unwrap_or(u64::MAX), period_factor);
        let end = last * peak;
        if since < steps { end + (self.left)(since as f64 / steps as f64) * (peak - end) } else { end }
    }

    pub(super) fn describe(&self, peak: f64, start: u64) -> String {
        let CosineDecay { last, repeat, period_factor, .. } = self.settings;
        let (name, end) = (self.name, scientific(last * peak));
        let steps = self.steps().unwrap_or(u64::MAX);
        let after = repeat.describe(steps, period_factor);
        format!("{name} to {end} after step {}, {after}", count(start.saturating_add(steps)))
    }
}

/// What follows half a cosine: the last rate to the end of the run; a rise along the same curve, then a fall, and so on, as in PyTorch's
/// CosineAnnealingLR; or the peak and another fall, again and again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CosineRepeat {
    #[default]
    Never,
    Mirror,
    Restart,
}

impl CosineRepeat {
    /// The step within its fall, and the steps of this fall, of step `since`. The first fall has `steps` steps. With restarts, each has
    /// `factor` times as many as the one before.
    pub(super) fn phase(self, since: u64, steps: u64, factor: u64) -> (u64, u64) {
        match self {
            Self::Never => (since, steps),
            Self::Mirror => (mirrored(since, steps), steps),
            Self::Restart => restarted(since, steps, factor),
        }
    }

    pub(super) fn describe(self, steps: u64, factor: u64) -> String {
        match self {
            Self::Never => "then constant".to_owned(),
            Self::Mirror => format!("then it rises and falls, {} steps each", count(steps)),
            Self::Restart if factor == 1 => format!("restarts every {} steps", count(steps)),
            Self::Restart => format!("restarts, each period {factor} times as long as the one before"),
        }
    }
}

/// The step of a decay over `steps` steps that has the rate of step `since` of one that rises and falls again.
fn mirrored(since: u64, steps: u64) -> u64 {
    let phase = since.checked_rem(steps.saturating_mul(2)).unwrap_or(since);
    phase.min(steps.saturating_mul(2) - phase.min(steps.saturating_mul(2)))
}

/// The step within its period, and the steps of this period, of step `since`; the first period has `steps` steps, and each one `factor` times
/// as many as the one before.
fn restarted(since: u64, steps: u64, factor: u64) -> (u64, u64) {
    if factor <= 1 {
        return (since.checked_rem(steps).unwrap_or(since), steps);
    }
    let (mut since, mut period) = (since, steps.max(1));
    while since >= period {
        since -= period;
        period = period.saturating_mul(factor);
    }
    (since, period)
}
