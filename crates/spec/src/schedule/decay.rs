//! The shapes of the decay: their keys in files, their form in plans, their rates, and their sentences.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cosine::CosineDecay;
use super::fall::{CosineRepeat, Fall};
use super::inverse_sqrt::InverseSqrtDecay;
use super::length::{LengthKeys, ScheduleLength};
use super::misplaced_step;
use super::piecewise::{self, SchedulePoint};
use super::step::{RowDecay, StepDecay};
use crate::diagnostic::KeyMistake;

/// The shape of the decay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schemars(extend("x-has-default" = true))]
pub enum Decay {
    /// Half a cosine. By default constant afterwards.
    Cosine(CosineDecay),
    /// A straight line, then constant.
    Linear(DecayTarget),
    /// 1 minus the square root of the part of the decay that is over, then constant (Hägele et al. 2024).
    Sqrt(DecayTarget),
    /// √(steps / step) of the peak learning rate, without an end (Vaswani et al. 2017). Steps count from the start of the warmup.
    InverseSqrt(InverseSqrtDecay),
    /// Multiplied by `gamma` every `every` steps, or every `epochs` epochs.
    Step(StepDecay),
    /// The learning rate at points of the run, in their order, and the curves between them. It is constant after the last point.
    Piecewise(#[schemars(length(min = 1, max = 10_000))] Vec<SchedulePoint>),
    /// The peak learning rate to the end.
    Constant {},
    /// In plans only, where every length is known: `step` with `epochs`.
    #[serde(skip_deserializing)]
    #[schemars(skip)]
    Rows(RowDecay),
}

impl Default for Decay {
    fn default() -> Self {
        Self::Constant {}
    }
}

/// The end of a continuous decay. `steps`, `tokens` or `share` is its length from the end of the warmup. Default: the rest of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(deny_unknown_fields)]
pub struct DecayTarget {
    /// Fraction of the peak learning rate that is reached.
    #[serde(rename = "final")]
    #[schemars(range(min = 0, max = 1))]
    pub last: f64,
    #[serde(flatten, with = "LengthKeys")]
    pub length: Option<ScheduleLength>,
}

impl Default for DecayTarget {
    fn default() -> Self {
        Self { last: 0.1, length: None }
    }
}

impl DecayTarget {
    /// A decay that reaches it along the curve `left`.
    fn fall(self, name: &'static str, left: fn(f64) -> f64) -> Fall {
        let Self { last, length } = self;
        Fall { name, left, settings: CosineDecay { last, length, ..CosineDecay::default() } }
    }
}

/// A length that a file gives for a decay, or for a part of it.
#[derive(Debug, Clone, PartialEq)]
pub struct DecayLength {
    pub key: String,
    pub length: ScheduleLength,
    /// What to do if the run is shorter.
    pub advice: &'static str,
}

/// Steps count from the start of the decay.
impl Decay {
    /// The curve, if the decay has an end.
    pub fn fall(&self) -> Option<Fall> {
        match *self {
            Self::Cosine(cosine) => Some(cosine.fall()),
            Self::Linear(target) => Some(target.fall("linear", |progress| 1.0 - progress)),
            Self::Sqrt(target) => Some(target.fall("sqrt", |progress| 1.0 - progress.sqrt())),
            Self::InverseSqrt(_) | Self::Step(_) | Self::Rows(_) | Self::Piecewise(_) | Self::Constant {} => None,
        }
    }

    /// The steps until the decay ends, if it has an end.
    pub fn steps(&self) -> Option<u64> {
        self.fall()?.steps()
    }

    /// The steps of a plan's decay at which its curve ends or continues as another curve.
    pub(super) fn corners(&self) -> Vec<u64> {
        match self {
            Self::Piecewise(points) => points.iter().map(|point| point.at.steps(0, 1)).collect(),
            _ => self.steps().into_iter().collect(),
        }
    }

    /// The key under `schedule.decay`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::InverseSqrt(_) => "inverse_sqrt",
            Self::Step(_) | Self::Rows(_) => "step",
            Self::Piecewise(_) => "piecewise",
            _ => self.fall().map_or("constant", |fall| fall.name),
        }
    }

    /// The learning rate of step `since`. A decay without a length never ends.
    pub fn rate(&self, peak: f64, since: u64) -> f64 {
        match self {
            Self::InverseSqrt(decay) => decay.rate(peak, since),
            Self::Step(drops) => drops.rate(peak, since),
            Self::Rows(drops) => drops.rate(peak, since),
            Self::Piecewise(points) => piecewise::rate(points, peak, since),
            _ => self.fall().map_or(peak, |fall| fall.rate(peak, since)),
        }
    }

    /// True if the rate rises again.
    pub fn repeats(&self) -> bool {
        match self {
            Self::Piecewise(points) => piecewise::rises(points),
            _ => self.fall().is_some_and(|fall| fall.settings.repeat != CosineRepeat::Never),
        }
    }

    /// The decay of a plan in words; it starts at step `start` of the run.
    pub fn describe(&self, peak: f64, start: u64) -> String {
        match self {
            Self::InverseSqrt(decay) => decay.describe(start),
            Self::Step(drops) => drops.describe(),
            Self::Rows(drops) => drops.describe(),
            Self::Piecewise(points) => piecewise::describe(points, peak, start),
            _ => self.fall().map_or_else(|| "constant".to_owned(), |fall| fall.describe(peak, start)),
        }
    }

    /// The length that a file gives: of an inverse square root from the start of the warmup, of others from its end.
    pub fn length(&self) -> Option<DecayLength> {
        let (length, advice) = match self {
            Self::Step(drops) => (drops.every?, "use `constant: {}` for no decay"),
            Self::InverseSqrt(decay) => (decay.length?, "delete it, which means the steps of the warmup"),
            _ if self.repeats() => (self.fall()?.settings.length?, "delete `repeat`, which has no effect"),
            _ => (self.fall()?.settings.length?, "delete it, which means the rest of the run"),
        };
        let key = if matches!(self, Self::Step(_)) { "every" } else { length.key() };
        Some(DecayLength { key: format!("schedule.decay.{}.{key}", self.name()), length, advice })
    }

    /// Steps at the peak between a warmup of `warmup_steps` steps and the decay of a plan.
    pub fn hold_steps(&self, warmup_steps: u64) -> u64 {
        match self {
            Self::InverseSqrt(decay) => decay.steps().unwrap_or(0).saturating_sub(warmup_steps),
            _ => 0,
        }
    }

    /// The decay with its lengths in steps: `length`, if the file gives one, else `rest`, the steps of the run that follow its start. The warmup
    /// has `warmup_steps` steps, an epoch `epoch_rows` rows, and a step `sequences`.
    #[must_use]
    pub fn planned(self, length: Option<u64>, rest: u64, warmup_steps: u64, epoch_rows: u64, sequences: u64) -> Self {
        let steps = |length| Some(ScheduleLength::Steps(length));
        let to_end = steps(length.unwrap_or(rest));
        let target = |target| DecayTarget { length: to_end, ..target };
        match self {
            Self::Cosine(cosine) => Self::Cosine(CosineDecay { length: to_end, ..cosine }),
            Self::Linear(linear) => Self::Linear(target(linear)),
            Self::Sqrt(sqrt) => Self::Sqrt(target(sqrt)),
            Self::Step(StepDecay { every: None, epochs, gamma }) => {
                // An epoch need not be whole steps: it is counted in rows, so that nothing adds up.
                let rows = (epochs.unwrap_or(1.0) * epoch_rows as f64).round().max(1.0) as u64;
                Self::Rows(RowDecay { rows, sequences, gamma })
            }
            Self::Step(drops) => Self::Step(StepDecay { every: length.and_then(steps), epochs: None, ..drops }),
            Self::InverseSqrt(_) => {
                Self::InverseSqrt(InverseSqrtDecay { length: steps(length.unwrap_or(warmup_steps)) })
            }
            decay @ (Self::Piecewise(_) | Self::Constant {} | Self::Rows(_)) => decay,
        }
    }

    /// The decay with the points of a piecewise one as steps from step `start`, where the decay starts. If the `steps` of a point are unknown, all
    /// stay as they are.
    ///
    /// # Errors
    /// The key and the message of the first point that is not after the one before it, or not between `start` and `end`, the end of the run.
    pub fn placed(
        mut self,
        start: u64,
        end: u64,
        steps: impl Fn(ScheduleLength) -> Option<u64>,
    ) -> Result<Self, (String, String)> {
        let Self::Piecewise(points) = &mut self else { return Ok(self) };
        let Some(at) = points.iter().map(|point| steps(point.at)).collect::<Option<Vec<u64>>>() else {
            return Ok(self);
        };
        if let Some((index, message)) = misplaced_step(&at, start, end, 1) {
            return Err((format!("schedule.decay.piecewise.{index}.at"), message));
        }
        for (point, at) in points.iter_mut().zip(at) {
            point.at = ScheduleLength::Steps(at - start);
        }
        Ok(self)
    }

    /// Mistakes that the schema does not find.
    pub fn mistakes(&self) -> Vec<KeyMistake> {
        match self {
            Self::Cosine(cosine) => cosine.mistakes(),
            Self::Step(drops) => drops.mistakes(),
            _ => Vec::new(),
        }
    }
}

/// Serde's functions for a decay in a plan. Plans and their hashes name a final share `last`, and write `"constant"`.
pub(super) mod in_plan {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};
    use serde_json::{Map, Value, json};

    use super::Decay;
    use crate::format::json_value;

    pub(in super::super) fn serialize<S: Serializer>(decay: &Decay, serializer: S) -> Result<S::Ok, S::Error> {
        let value = match decay {
            Decay::Constant {} => json!("constant"),
            other => renamed(json_value(other), ["final", "last"]),
        };
        value.serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Decay, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value == "constant" {
            return Ok(Decay::Constant {});
        }
        let decay = match value.get("rows") {
            Some(rows) => serde_json::from_value(rows.clone()).map(Decay::Rows),
            None => serde_json::from_value(renamed(value, ["last", "final"])),
        };
        decay.map_err(D::Error::custom)
    }

    /// `{SHAPE: SETTINGS}` with another name for the setting `from`.
    fn renamed(mut decay: Value, [from, to]: [&str; 2]) -> Value {
        for settings in decay.as_object_mut().into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut) {
            if let Some(value) = settings.remove(from) {
                settings.insert(to.to_owned(), value);
            }
        }
        decay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::LrSchedule;

    /// Stored plans and their hashes contain these texts.
    #[test]
    fn decays_keep_their_form_in_plans() {
        let schedule = |decay| LrSchedule {
            peak: 1.0,
            start: 0,
            warmup_steps: 0,
            warmup_from: None,
            hold_steps: 0,
            later_decays: Vec::new(),
            decay,
        };
        let every = |steps: u64| Some(ScheduleLength::Steps(steps));
        let step = |every, epochs| Decay::Step(StepDecay { every, epochs, gamma: 0.5 });
        let target = |steps: Option<u64>| DecayTarget { last: 0.0, length: steps.map(ScheduleLength::Steps) };
        let restarts = CosineDecay { repeat: CosineRepeat::Restart, period_factor: 2, ..CosineDecay::default() };
        for (decay, stored) in [
            (Decay::Cosine(CosineDecay::default()), r#"{"cosine":{"last":0.1,"steps":9}}"#),
            (Decay::Cosine(restarts), r#"{"cosine":{"last":0.1,"period_factor":2,"repeat":"restart","steps":9}}"#),
            (Decay::Linear(target(Some(4))), r#"{"linear":{"last":0.0,"steps":4}}"#),
            (Decay::Sqrt(target(None)), r#"{"sqrt":{"last":0.0,"steps":9}}"#),
            (step(every(5), None), r#"{"step":{"every":5,"gamma":0.5}}"#),
            (step(None, Some(1.5)), r#"{"rows":{"gamma":0.5,"rows":21,"sequences":8}}"#),
            (Decay::InverseSqrt(InverseSqrtDecay::default()), r#"{"inverse_sqrt":{"steps":3}}"#),
            (Decay::Constant {}, r#""constant""#),
        ] {
            let length = decay.length().and_then(|decay| decay.length.known_steps(None));
            let planned = schedule(decay.planned(length, 9, 3, 14, 8));
            let value = crate::format::json_value(&planned);
            assert_eq!(value["decay"].to_string(), stored);
            assert_eq!(serde_json::from_value::<LrSchedule>(value).unwrap(), planned);
        }
    }
}
