//! The inverse square root of the step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::length::{LengthKeys, ScheduleLength};
use crate::format::{count, counted};

/// The inverse square root of the step. `steps`, `tokens` or `share` is the length from the start of the warmup until the rate starts to
/// fall. It must not be shorter than the warmup. Default: the length of the warmup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct InverseSqrtDecay {
    #[serde(flatten, with = "LengthKeys")]
    pub length: Option<ScheduleLength>,
}

impl InverseSqrtDecay {
    /// The message and the help of a mistake that depends on the steps of the warmup.
    pub fn mistake(
        self,
        warmup_steps: u64,
        in_steps: impl Fn(ScheduleLength) -> Option<u64>,
    ) -> Option<(String, String)> {
        let Some(length) = self.length else {
            return (warmup_steps == 0).then(|| {
                (
                    "`schedule.decay.inverse_sqrt` needs a warmup, or `steps`".to_owned(),
                    "write `warmup: {steps: 4000}` under `schedule`, or `inverse_sqrt: {steps: 10000}`".to_owned(),
                )
            });
        };
        match in_steps(length) {
            Some(steps) if steps < warmup_steps => Some((
                format!(
                    "`schedule.decay.inverse_sqrt.{}` must be at least the {} steps of the warmup, got {}",
                    length.key(),
                    count(warmup_steps),
                    counted(steps, "step")
                ),
                "delete it, which means the steps of the warmup".to_owned(),
            )),
            _ => None,
        }
    }

    /// The steps until the rate starts to fall, in a plan.
    pub(super) fn steps(self) -> Option<u64> {
        self.length?.known_steps(None)
    }

    /// The learning rate `since` steps after it started to fall.
    pub(super) fn rate(self, peak: f64, since: u64) -> f64 {
        let Some(steps) = self.steps() else { return peak };
        peak * (steps as f64 / steps.saturating_add(since) as f64).sqrt()
    }

    /// `start` is the step, from 0, at which the rate starts to fall. The text counts steps from 1.
    pub(super) fn describe(self, start: u64) -> String {
        let steps = self.steps().unwrap_or(start);
        format!("inverse_sqrt lr·√({steps}/(step-{}))", start.saturating_sub(steps) + 1)
    }
}
