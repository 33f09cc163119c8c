//! The inverse square root of the step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::format::count;

/// The inverse square root of the step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct InverseSqrtDecay {
    /// Steps from the start of the warmup until the rate starts to fall, at least those of the warmup. Default: the warmup's.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub steps: Option<u64>,
}

impl InverseSqrtDecay {
    /// The message and the help of a mistake that depends on the steps of the warmup.
    pub fn mistake(self, warmup_steps: u64) -> Option<(String, String)> {
        match self.steps {
            None if warmup_steps == 0 => Some((
                "`schedule.decay.inverse_sqrt` needs a warmup, or `steps`".to_owned(),
                "write `warmup: {steps: 4000}` under `schedule`, or `inverse_sqrt: {steps: 10000}`".to_owned(),
            )),
            Some(steps) if steps < warmup_steps => Some((
                format!(
                    "`schedule.decay.inverse_sqrt.steps` must be at least the {} steps of the warmup, got {}",
                    count(warmup_steps),
                    count(steps)
                ),
                "delete it for the steps of the warmup".to_owned(),
            )),
            _ => None,
        }
    }

    /// The learning rate `since` steps after it started to fall.
    pub(super) fn rate(self, peak: f64, since: u64) -> f64 {
        let Some(steps) = self.steps else { return peak };
        peak * (steps as f64 / steps.saturating_add(since) as f64).sqrt()
    }

    /// `start` is the step at which the rate starts to fall.
    pub(super) fn describe(self, start: u64) -> String {
        let steps = self.steps.unwrap_or(start);
        match start.saturating_sub(steps) {
            0 => format!("inverse_sqrt lr·√({steps}/step)"),
            offset => format!("inverse_sqrt lr·√({steps}/(step-{offset}))"),
        }
    }
}
