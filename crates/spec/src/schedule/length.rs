//! A length in a schedule, in steps, tokens or as a share of the run.

use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::serde_defaults::or_steps;

/// A length of a schedule, or a point of the run as its distance from the start.
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
    /// The number of steps in a run of `run_steps` steps of `step_tokens` tokens each, at least 1 for a length in tokens or a share.
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

    pub(super) fn is_zero(self) -> bool {
        matches!(self, Self::Steps(0) | Self::Tokens(0) | Self::Share(0.0))
    }

    /// Its key in a section of the schedule.
    #[must_use]
    pub fn key(self) -> &'static str {
        self.into()
    }
}

/// A length as three of the keys of a section, of which a file gives at most one.
#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-exclusive" = ["steps", "tokens", "share"]))]
pub(super) struct LengthKeys {
    /// Optimizer steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000u64))]
    steps: Option<u64>,
    /// Tokens, counted as in `train.tokens`. They are rounded to the nearest number of whole steps, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000_000_000u64))]
    tokens: Option<u64>,
    /// The fraction of the run's steps, rounded to the nearest whole number, at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(max = 1), extend("exclusiveMinimum" = 0))]
    share: Option<f64>,
}

impl LengthKeys {
    #[expect(clippy::ref_option, reason = "serde calls it with a reference to the field")]
    pub(super) fn serialize<S: Serializer>(length: &Option<ScheduleLength>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut keys = Self::default();
        match *length {
            Some(ScheduleLength::Steps(steps)) => keys.steps = Some(steps),
            Some(ScheduleLength::Tokens(tokens)) => keys.tokens = Some(tokens),
            Some(ScheduleLength::Share(share)) => keys.share = Some(share),
            None => {}
        }
        Serialize::serialize(&keys, serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ScheduleLength>, D::Error> {
        let Self { steps, tokens, share } = Deserialize::deserialize(deserializer)?;
        let tokens = tokens.map(ScheduleLength::Tokens);
        Ok(steps.map(ScheduleLength::Steps).or(tokens).or(share.map(ScheduleLength::Share)))
    }
}

/// Makes a section with `LengthKeys` accept 0.
pub(super) fn allow_zero(section: &mut Schema) {
    for key in ["steps", "tokens", "share"] {
        if let Some(bounds) =
            section.pointer_mut(&format!("/properties/{key}")).and_then(|bounds| bounds.as_object_mut())
        {
            bounds.remove("exclusiveMinimum");
            bounds.insert("minimum".to_owned(), 0.into());
        }
    }
}
