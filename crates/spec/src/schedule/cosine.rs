//! Half a cosine, which may repeat.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

use super::fall::{CosineRepeat, Fall};
use super::length::{LengthKeys, ScheduleLength};
use crate::diagnostic::KeyMistake;
use crate::format::choice_name;
use crate::serde_defaults::{is_default, is_one};

/// A decay along half a cosine, which may repeat. `steps`, `tokens` or `share` is its length from the end of the warmup. Default: the rest of the
/// run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct CosineDecay {
    /// Fraction of the peak learning rate that is reached.
    #[serde(rename = "final")]
    #[schemars(range(min = 0, max = 1))]
    pub last: f64,
    #[serde(flatten, with = "LengthKeys")]
    pub length: Option<ScheduleLength>,
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
        Self { last: 0.1, length: None, repeat: CosineRepeat::Never, period_factor: 1 }
    }
}

impl CosineDecay {
    pub(super) fn fall(self) -> Fall {
        Fall { name: "cosine", left: |progress| 0.5 * (1.0 + (PI * progress).cos()), settings: self }
    }

    pub(super) fn mistakes(&self) -> Vec<KeyMistake> {
        let Self { repeat, period_factor, .. } = self;
        let (name, mut mistakes) = (choice_name(repeat), Vec::new());
        if *repeat != CosineRepeat::Never && self.length.is_none() {
            mistakes.push(KeyMistake::new(
                ["schedule.decay.cosine.repeat"],
                format!(
                    "`repeat: {name}` needs the length of a period, in `steps`, in `tokens` or as a `share` of the run"
                ),
                "set `schedule.decay.cosine.steps`, or delete `repeat`",
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
