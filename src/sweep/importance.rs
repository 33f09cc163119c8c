//! Which parameters mattered.

use serde::Serialize;
use serde_json::Value;

use super::point::Values;

/// How much of the objective's variance goes with a parameter.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Importance {
    /// `lr`; of parameters that go together, `d_model+heads`.
    pub name: String,
    /// From 0 to 1.
    pub share: f64,
    pub how: &'static str,
    /// The value with the best mean.
    pub best: Option<Value>,
}

/// Shares of `points` (values, objective).
#[must_use]
pub fn importance(points: &[(Values, Option<f64>)]) -> Vec<Importance> {
    let _ = points;
    Vec::new()
}
