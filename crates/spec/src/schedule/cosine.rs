//! Half a cosine, which may repeat.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

use super::decay::Fall;
use crate::diagnostic::KeyMistake;
use crate::format::{choice_name, count};
use crate::serde_defaults::{is_default, is_one};

/// A decay along half a cosine, which may repeat.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CosineDecay {
    /// Fraction of the peak learning rate that is reached.
    #[serde(rename = "final")]
    #[schemars(range(min = 0, max = 1))]
    pub share: f64,
    /// Steps from the end of the warmup. Default: the rest of the run.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub steps: Option<u64>,
    /// What follows: the last rate to the end (never); a rise along the same curve, a fall, and so on (mirror, as PyTorch's
    /// CosineAnnealingLR); or a jump to the peak and the next fall (restart).
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if)]
    pub repeat: CosineRepeat,
    /// With `repeat: restart`, each period is this many times as long as the previous.
    #[serde(skip_serializing_if = "is_one")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000))]
    pub period_factor: u64,
}

impl Default for CosineDecay {
    fn default() -> Self {
        Self { share: 0.1, steps: None, repeat: CosineRepeat::Never, period_factor: 1 }
    }
}

impl CosineDecay {
    pub(super) fn fall(self) -> Fall {
        let Self { share, steps, repeat, period_factor } = self;
        Fall {
            name: "cosine",
            left: |progress| 0.5 * (1.0 + (PI * progress).cos()),
            share,
            steps,
            repeat,
            period_factor,
        }
    }

    pub(super) fn mistakes(&self) -> Vec<KeyMistake> {
        let Self { steps, repeat, period_factor, .. } = self;
        let (name, mut mistakes) = (choice_name(repeat), Vec::new());
        if *repeat != CosineRepeat::Never && steps.is_none() {
            mistakes.push(KeyMistake::new(
                ["schedule.decay.cosine.repeat"],
                format!("`repeat: {name}` needs `schedule.decay.cosine.steps`, the length of a period"),
                "set `steps`, or delete `repeat`",
            ));
        }
        if *repeat != CosineRepeat::Restart && *period_factor != 1 {
            mistakes.push(KeyMistake::new(
                ["schedule.decay.cosine.period_factor", "schedule.decay.cosine.repeat"],
                format!("`period_factor: {period_factor}` needs `repeat: restart`, got `repeat: {name}`"),
                "set `repeat: restart`, or delete `period_factor`",
            ));
        }
        mistakes
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
            Self::Never => "constant after".to_owned(),
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
