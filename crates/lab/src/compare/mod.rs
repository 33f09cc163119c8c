//! What two experiments or runs have in common, what differs, and what that means; tables and curves of several.

pub mod assumed;
pub mod beginning;
pub mod class;
pub mod curves;
pub mod diff;
pub mod effect;
pub mod facts;
pub mod keys;
pub mod outcome;
pub mod record;
pub mod side;
pub mod svg;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_pairs;

pub use class::{Classification, DifferenceClass, MathematicsPart, TrainingEquality};
pub use diff::{Diff, DiffInput};
pub use effect::SettingEffect;
pub use record::RunRecord;
pub use side::PlannedExperiment;
