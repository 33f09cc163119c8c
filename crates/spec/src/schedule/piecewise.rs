//! A learning rate that is given at points of the run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

use super::ScheduleLength;
use crate::format::{count, scientific};

/// A learning rate at a point of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SchedulePoint {
    /// The point, counted from the start of the run. In plans: steps from the start of the decay.
    pub at: ScheduleLength,
    /// Fraction of the peak learning rate from this point on.
    #[schemars(range(min = 0, max = 1))]
    pub factor: f64,
    /// The curve that leads to the point from the one before it. The first curve starts at the peak, after the warmup.
    #[serde(default)]
    pub shape: PointShape,
}

/// A curve between two points: a straight line, half a cosine, a square root, or the earlier rate until the later point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PointShape {
    #[default]
    Linear,
    Cosine,
    Sqrt,
    Hold,
}

impl PointShape {
    /// The part of the way that is left when a part of the steps is over.
    pub(super) fn left(self, progress: f64) -> f64 {
        match self {
            Self::Linear => 1.0 - progress,
            Self::Cosine => 0.5 * (1.0 + (PI * progress).cos()),
            Self::Sqrt => 1.0 - progress.sqrt(),
            Self::Hold => 1.0,
        }
    }
}

/// The learning rate `since` steps after the start of the decay.
pub(super) fn rate(points: &[SchedulePoint], peak: f64, since: u64) -> f64 {
    let (mut start, mut before) = (0, 1.0);
    for SchedulePoint { at, factor, shape } in points {
        let end = at.steps(0, 1);
        if since < end {
            let progress = (since - start) as f64 / (end - start) as f64;
            return peak * (factor + shape.left(progress) * (before - factor));
        }
        (start, before) = (end, *factor);
    }
    peak * before
}

/// `start` is the step at which the decay starts.
pub(super) fn describe(points: &[SchedulePoint], peak: f64, start: u64) -> String {
    let mut before = 1.0;
    let phases: Vec<String> = points
        .iter()
        .map(|SchedulePoint { at, factor, shape }| {
            let (rate, step) = (scientific(factor * peak), count(start.saturating_add(at.steps(0, 1))));
            let is_flat = std::mem::replace(&mut before, *factor) == *factor;
            match shape {
                _ if is_flat => format!("constant to step {step}"),
                PointShape::Linear => format!("linear to {rate} after step {step}"),
                PointShape::Cosine => format!("cosine to {rate} after step {step}"),
                PointShape::Sqrt => format!("sqrt to {rate} after step {step}"),
                PointShape::Hold => format!("constant to step {step}, then {rate}"),
            }
        })
        .collect();
    format!("{}, then constant", phases.join("; "))
}

/// True if the rate rises between two points.
pub(super) fn rises(points: &[SchedulePoint]) -> bool {
    points.windows(2).any(|pair| pair[1].factor > pair[0].factor)
}
