//! Comparison of experiments and runs: which settings and facts differ, what that means for the numbers, and the curves of several
//! runs.

pub mod bit_facts;
pub mod classification;
pub mod comparability;
pub mod curves;
pub mod diff;
pub mod drift;
pub mod fact_pairs;
pub mod inherited_steps;
pub mod outcome_comparison;
pub mod plan_keys;
pub mod planned_experiment;
pub mod run_record;
pub mod setting_effect;
pub mod settings;
pub mod svg;
mod trace;
pub mod unread_data;
pub mod verdict;

#[cfg(test)]
mod tests;

pub use classification::{Classification, DifferenceClass, MathematicsPart, TrainingEquality};
pub use comparability::{MeasuredQuantity, MeasurementBasis};
pub use diff::{Diff, DiffInput};
pub use planned_experiment::PlannedExperiment;
pub use run_record::RunRecord;
pub use setting_effect::SettingEffect;
