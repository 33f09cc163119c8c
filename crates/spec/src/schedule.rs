//! The learning-rate schedule: the section of the file, and the rate of each step.

mod cooldown;
mod cosine;
mod decay;
mod fall;
mod inverse_sqrt;
mod lr;
mod piecewise;
mod step;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::format::count;
use crate::serde_defaults::{is_default, or_steps};

pub use cooldown::Cooldown;
pub use cosine::CosineDecay;
pub use decay::{Decay, DecayLength, DecayTarget};
pub use fall::{CosineRepeat, Fall};
pub use inverse_sqrt::InverseSqrtDecay;
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

/// The length of a part of the schedule, greater than 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(from = "WrittenLength", into = "WrittenLength")]
#[strum(serialize_all = "lowercase")]
pub enum ScheduleLength {
    Steps(u64),
    Tokens(u64),
    Share(f64),
}

/// A length as files give it. A number alone is `steps`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(rename = "Length", extend("x-short" = "steps"), transform = or_steps)]
enum WrittenLength {
    /// Optimizer steps.
    Steps(#[schemars(range(min = 1, max = 1_000_000_000_000u64))] u64),
    /// Tokens, counted as in `train.tokens`. They are rounded to the nearest number of whole steps, at least 1.
    Tokens(#[schemars(range(min = 1, max = 1_000_000_000_000_000_000u64))] u64),
    /// The fraction of the run's steps, rounded to the nearest whole number, at least 1.
    Share(#[schemars(range(max = 1), extend("exclusiveMinimum" = 0))] f64),
    #[serde(untagged)]
    #[schemars(skip)]
    Number(u64),
}

impl From<WrittenLength> for ScheduleLength {
    fn from(written: WrittenLength) -> Self {
        match written {
            WrittenLength::Steps(steps) | WrittenLength::Number(steps) => Self::Steps(steps),
            WrittenLength::Tokens(tokens) => Self::Tokens(tokens),
            WrittenLength::Share(share) => Self::Share(share),
        }
    }
}

impl From<ScheduleLength> for WrittenLength {
    fn from(length: ScheduleLength) -> Self {
        match length {
            ScheduleLength::Steps(steps) => Self::Number(steps),
            ScheduleLength::Tokens(tokens) => Self::Tokens(tokens),
            ScheduleLength::Share(share) => Self::Share(share),
        }
    }
}

impl ScheduleLength {
    /// The length that is given by at most one of the keys `steps`, `tokens` and `share` of a section.
    pub(crate) fn given(steps: Option<u64>, tokens: Option<u64>, share: Option<f64>) -> Option<Self> {
        let tokens = tokens.map(Self::Tokens);
        steps.map(Self::Steps).or(tokens).or(share.map(Self::Share))
    }

    /// The number of steps, in a run of `run_steps` steps of `step_tokens` tokens each.
    #[must_use]
    pub fn steps(self, run_steps: u64, step_tokens: u64) -> u64 {
        match self {
            Self::Steps(steps) => steps,
            Self::Tokens(tokens) => (tokens.saturating_add(step_tokens / 2) / step_tokens.max(1)).max(1),
            Self::Share(share) => ((share * run_steps as f64).round() as u64).max(1),
        }
    }

    /// The number of steps, if it follows from the steps of the run, which are `None` if they are unknown.
    #[must_use]
    pub fn known_steps(self, run_steps: Option<u64>) -> Option<u64> {
        match self {
            Self::Steps(steps) => Some(steps),
            Self::Tokens(_) => None,
            Self::Share(_) => run_steps.map(|run_steps| self.steps(run_steps, 1)),
        }
    }

    /// Its key in a section of the schedule.
    #[must_use]
    pub fn key(self) -> &'static str {
        self.into()
    }
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
    let mut length = WrittenLength::json_schema(generator);
    // A schedule starts at step 0 by default.
    for bounds in ["/anyOf/0", "/anyOf/1/oneOf/0/properties/steps"] {
        if let Some(bounds) = length.pointer_mut(bounds) {
            bounds["minimum"] = 0.into();
        }
    }
    json_schema!({"anyOf": [{"type": "string", "enum": ["fork"]}, length]})
}

/// lr·(step+1)/steps; with `from`, linear from from·lr at step 0 to lr at step `steps`. Its length is one of `steps`, `tokens` and `share`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("x-exclusive" = ["steps", "tokens", "share"]))]
pub struct Warmup {
    /// Steps until the peak; 0 for no warmup. Default: 0, unless the length is given in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 0, max = 1_000_000_000_000u64))]
    pub steps: Option<u64>,
    /// Tokens until the peak, counted as in `train.tokens`. They are rounded to the nearest number of whole steps, at least 1 unless they
    /// are 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 0, max = 1_000_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
    /// The fraction of the run's steps until the peak, rounded to the nearest whole number, at least 1 unless it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 0, max = 1))]
    pub share: Option<f64>,
    /// Fraction of the peak learning rate to start from.
    #[schemars(range(min = 0, max = 1))]
    pub from: Option<f64>,
}

impl Warmup {
    /// A warmup of `steps` steps.
    #[must_use]
    pub fn of_steps(steps: u64) -> Self {
        Self { steps: Some(steps), ..Self::default() }
    }

    /// Its length; `None` for no warmup.
    #[must_use]
    pub fn length(self) -> Option<ScheduleLength> {
        let Self { steps, tokens, share, from: _ } = self;
        let is_positive = |count: &u64| *count > 0;
        ScheduleLength::given(steps.filter(is_positive), tokens.filter(is_positive), share.filter(|share| *share > 0.0))
    }
}
