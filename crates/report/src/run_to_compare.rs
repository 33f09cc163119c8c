//! A run to compare with others.

use runner_compare::run_record::RunRecord;
use runner_plan::MeasurementBasis;
use runner_spec::experiment::Experiment;

/// A run to compare.
#[derive(Debug)]
pub struct RunToCompare {
    pub record: RunRecord,
    pub experiment: Experiment,
    pub basis: MeasurementBasis,
    /// What its setting computes: see [`mathematics_of_setting`](runner_compare::planned_experiment::mathematics_of_setting). `None` if it
    /// can no longer be planned.
    pub mathematics: Option<String>,
}
