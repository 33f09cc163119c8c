//! The learning-rate schedule: the section of the file, and the rate of each step.

mod cooldown;
mod cosine;
mod decay;
mod fall;
mod inverse_sqrt;
mod length;
mod lr;
mod piecewise;
mod step;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::format::count;
use crate::serde_defaults::{is_default, or_steps};
use length::LengthKeys;

pub use cooldown::Cooldown;
pub use cosine::CosineDecay;
pub use decay::{Decay, DecayLength, DecayTarget};
pub use fall::{CosineRepeat, Fall};
pub use inverse_sqrt::InverseSqrtDecay;
pub use length::ScheduleLength;
pub use lr::LrSchedule;
pub use piecewise::{PointShape, SchedulePoint};
pub use step::{RowDecay, StepDecay};

/// A warmup, then a decay.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Schedule {
    /// The point of the run after which the warmup starts; steps before it have the peak learning rate. `fork`: the step at which
    /// `runner fork` starts.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if, schema_with = "schedule_start_schema")]
    pub start: ScheduleStart,
    /// The rise to the peak learning rate.
    pub warmup: Warmup,
    /// The learning rate after the warmup. Default: constant.
    pub decay: Decay,
    /// The length of the decay, which ends with the run; until it starts, the learning rate stays at the peak (warmup, stable, decay).
    /// Default: from the warmup on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub cooldown: Option<Cooldown>,
}

/// The index and the mistake of the first of the steps `at` that is not `gap` steps after the one before it, or above `end`. The first must
/// be at least `least`.
pub fn misplaced_step(at: &[u64], mut least: u64, end: u64, gap: u64) -> Option<(usize, String)> {
    at.iter().enumerate().find_map(|(index, step)| {
        let bound = std::mem::replace(&mut least, step.saturating_add(gap));
        let rule = match step {
            _ if *step < bound => format!("at least step {}", count(bound)),
            _ if *step > end => format!("at most step {}", count(end)),
            _ => return None,
        };
        Some((index, format!("must be {rule}, got step {}", count(*step))))
    })
}

impl Schedule {
    /// The step at which the schedule starts, in a run of `steps` steps with `warmup` steps of warmup; `None` if `in_steps` does not know it.
    /// `steps` is `None` for a run of unknown length.
    ///
    /// # Errors
    /// What is wrong and what to do, if it starts at a fork and the run is not one, or the run ends before the warmup does.
    pub fn start_step(
        &self,
        steps: Option<u64>,
        warmup: u64,
        in_steps: impl Fn(ScheduleLength) -> Option<u64>,
    ) -> Result<Option<u64>, (String, String)> {
        let ScheduleStart::At(start) = self.start else {
            return Err((
                "`schedule.start: fork` stands for the step at which a fork starts, but this run is not a fork"
                    .to_owned(),
                "use the number of a step, or set it with `runner fork RUN --from STEP --set schedule.start=fork`"
                    .to_owned(),
            ));
        };
        let Some(start) = in_steps(start) else { return Ok(None) };
        let decay_start = start.saturating_add(warmup);
        match steps.filter(|steps| start > 0 && decay_start > *steps) {
            Some(steps) => Err((
                format!(
                    "the schedule starts at step {start} with {warmup} steps of warmup, but the run has {steps} steps"
                ),
                format!("make the run at least {decay_start} steps long, or start earlier"),
            )),
            None => Ok(Some(start)),
        }
    }
}

/// The point of the run after which a schedule begins, or the word `fork`, which becomes a step when the fork's settings are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleStart {
    Fork,
    #[serde(untagged)]
    At(ScheduleLength),
}

impl Default for ScheduleStart {
    fn default() -> Self {
        Self::At(ScheduleLength::Steps(0))
    }
}

fn schedule_start_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut length = ScheduleLength::json_schema(generator);
    // A schedule starts at step 0 by default.
    for bounds in ["/anyOf/0", "/anyOf/1/oneOf/0/properties/steps"] {
        if let Some(bounds) = length.pointer_mut(bounds) {
            bounds["minimum"] = 0.into();
        }
    }
    json_schema!({"anyOf": [{"type": "string", "enum": ["fork"]}, length]})
}

/// A linear rise to the peak learning rate: its n-th step has n/steps of the peak. With `from`, its first step has this fraction, and the step
/// after it the peak. `steps`, `tokens` or `share` is its length, a number alone is
/// `steps`, and 0 means that there is no warmup. Default: 0 steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields, extend("x-short" = "steps"), transform = length::allow_zero, transform = or_steps)]
pub struct Warmup {
    #[serde(flatten, with = "LengthKeys")]
    pub length: Option<ScheduleLength>,
    /// Fraction of the peak learning rate to start from.
    #[schemars(range(min = 0, max = 1))]
    pub from: Option<f64>,
}

impl Warmup {
    /// Its length; 0 steps for no warmup.
    #[must_use]
    pub fn length(self) -> ScheduleLength {
        self.length.filter(|length| !length.is_zero()).unwrap_or(ScheduleLength::Steps(0))
    }
}

impl From<ScheduleLength> for Warmup {
    fn from(length: ScheduleLength) -> Self {
        Self { length: Some(length), from: None }
    }
}
