//! What the points of a sweep are compared by.

use runner_spec::measure::{Better, Measure, Quantity};
use runner_spec::program::Program;
use serde::{Deserialize, Serialize};

/// The probability of the intervals; 1 − it is the largest adjusted p that shows a difference.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// The objective that points are compared by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub metric: Measure,
    pub at: MeasurementChoice,
    /// Settings whose values differ by less count as equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smallest_difference: Option<f64>,
}

impl Objective {
    /// Points compared by `metric`, where every difference matters.
    #[must_use]
    pub fn new(metric: Measure, at: MeasurementChoice) -> Self {
        Self { metric, at, smallest_difference: None }
    }

    /// Whether lower or higher values of the metric are better.
    #[must_use]
    pub fn goal(&self) -> Goal {
        Goal::of(&self.metric)
    }

    /// The metric as results show it: by its name, and with the choice of the best evaluation if that is not the last one.
    #[must_use]
    pub fn label(&self) -> String {
        match self.at {
            MeasurementChoice::Best => format!("{} (at: best)", self.metric.key()),
            MeasurementChoice::Last => self.metric.key().into_owned(),
        }
    }
}

/// The steps between measurements of `measure` in a run of `program`.
#[must_use]
pub(crate) fn measurement_interval(measure: &Measure, program: &Program) -> Option<u64> {
    match measure.quantity() {
        Quantity::Task(name) => program.task_every(&name),
        _ if measure.is_evaluated() => program.loss_every(),
        _ => Some(1),
    }
}

runner_record::named_enum! {
    pub enum Goal {
        Minimize = "minimize",
        Maximize = "maximize",
    }
}

impl Goal {
    /// The goal of `measure`.
    #[must_use]
    pub fn of(measure: &Measure) -> Self {
        if measure.better() == Better::Higher { Self::Maximize } else { Self::Minimize }
    }

    /// Orders the better value first. NaN is worse than any number, and equal to itself.
    #[must_use]
    pub fn order(self, a: f64, b: f64) -> std::cmp::Ordering {
        match (a.is_nan(), b.is_nan()) {
            (true, true) => std::cmp::Ordering::Equal,
            (true, false) => std::cmp::Ordering::Greater,
            (false, true) => std::cmp::Ordering::Less,
            (false, false) => {
                let order = a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal);
                if self == Self::Minimize { order } else { order.reverse() }
            }
        }
    }
}

runner_record::named_enum! {
    /// The measurement of a run that counts.
    pub enum MeasurementChoice {
        /// The measurement after the last step.
        Last = "last",
        /// The best measurement.
        Best = "best",
    }
}
