//! Drops of the learning rate.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::ScheduleLength;
use crate::diagnostic::KeyMistake;
use crate::format::count;

/// Drops of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-exclusive" = ["every", "epochs"]))]
pub struct StepDecay {
    /// The length between two drops. Or `epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub every: Option<ScheduleLength>,
    /// Epochs between two drops, counted in rows. Or `every`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub epochs: Option<f64>,
    /// Factor of one drop.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub gamma: f64,
}

/// Drops at the first step that begins `rows` rows, or a multiple of them, after the warmup; a step has `sequences` rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowDecay {
    pub rows: u64,
    pub sequences: u64,
    /// Factor of one drop.
    pub gamma: f64,
}

impl StepDecay {
    /// The steps between two drops, in a plan.
    fn every_steps(&self) -> u64 {
        self.every.and_then(|every| every.known_steps(None)).unwrap_or(u64::MAX)
    }

    pub(super) fn rate(&self, peak: f64, since: u64) -> f64 {
        after_drops(peak, self.gamma, since.checked_div(self.every_steps()).unwrap_or(0))
    }

    pub(super) fn describe(&self) -> String {
        format!("times {} every {} steps", self.gamma, count(self.every_steps()))
    }

    pub(super) fn mistakes(&self) -> Vec<KeyMistake> {
        let message = "`schedule.decay.step` needs `every` or `epochs`";
        let help = "set `every` to a number of steps, or write `epochs: 1`";
        let is_open = self.every.is_none() && self.epochs.is_none();
        is_open.then(|| KeyMistake::new(["schedule.decay.step"], message, help)).into_iter().collect()
    }
}

impl RowDecay {
    pub(super) fn rate(&self, peak: f64, since: u64) -> f64 {
        let seen = u128::from(since) * u128::from(self.sequences);
        let times = seen.checked_div(u128::from(self.rows)).map_or(0, |n| n.min(u128::from(u64::MAX)) as u64);
        after_drops(peak, self.gamma, times)
    }

    pub(super) fn describe(&self) -> String {
        let steps = self.rows as f64 / self.sequences.max(1) as f64;
        format!("times {} every {} rows ({steps:.1} steps)", self.gamma, count(self.rows))
    }
}

/// `peak` after `times` drops. A power of a gamma below 1 is 0 in f64 long before the exponent saturates.
fn after_drops(peak: f64, gamma: f64, times: u64) -> f64 {
    peak * gamma.powi(i32::try_from(times).unwrap_or(i32::MAX))
}
