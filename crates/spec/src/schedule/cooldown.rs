//! The length of the decay, and the points at which it ends.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::length::{LengthKeys, ScheduleLength};
use super::misplaced_step;
use crate::serde_defaults::or_steps;

/// The length of the decay, one of `steps`, `tokens` and `share`, and the points at which it ends. A number alone is `steps`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend("x-short" = "steps"), transform = or_steps)]
pub struct Cooldown {
    /// `None` if only points are given, which is a mistake.
    #[serde(flatten, with = "LengthKeys")]
    pub length: Option<ScheduleLength>,
    /// Points before the end of the run at which a decay of the same length ends, counted from the start of the run. After each, training
    /// continues at the peak learning rate (WSD-S, Wen et al. 2024).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if, length(max = 10_000))]
    pub at: Vec<ScheduleLength>,
}

impl From<ScheduleLength> for Cooldown {
    fn from(length: ScheduleLength) -> Self {
        Self { length: Some(length), at: Vec::new() }
    }
}

impl Cooldown {
    /// The steps at which decays of `length` steps start, in a run of `end` steps whose warmup ends at step `start`. Empty if the `steps` of a
    /// point are unknown.
    ///
    /// # Errors
    /// The key and the message of the first point whose decay does not fit between the warmup, the other decays and the end of the run.
    pub fn decay_starts(
        &self,
        length: u64,
        start: u64,
        end: u64,
        steps: impl Fn(ScheduleLength) -> Option<u64>,
    ) -> Result<Vec<u64>, (String, String)> {
        let last = end.saturating_sub(length);
        let Some(mut at) = self.at.iter().map(|point| steps(*point)).collect::<Option<Vec<u64>>>() else {
            return Ok(Vec::new());
        };
        // A decay always ends with the run, whether or not the points say so.
        at.pop_if(|point| *point == end);
        if let Some((index, message)) = misplaced_step(&at, start.saturating_add(length), last, length) {
            return Err((format!("schedule.cooldown.at.{index}"), message));
        }
        Ok(at.into_iter().map(|point| point - length).chain([last]).collect())
    }
}
