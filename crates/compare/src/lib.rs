//! Comparison of experiments and runs: which facts and settings differ, what that means for the numbers, and the curves of several runs.
//! `facts`, with the lists in `plan_facts` and `session_facts`, is what the commands compare; `diff`, `drift`, `plan_files` and
//! `verdict` select and phrase. `stored_plan` reads the plan of a run of any version.

#![forbid(unsafe_code)]

pub mod classification;
pub mod diff;
pub mod drift;
pub mod facts;
pub mod inherited_steps;
pub mod outcome_comparison;
pub mod plan_facts;
pub mod plan_files;
pub mod planned_experiment;
pub mod run_names;
pub mod run_record;
pub mod session_facts;
pub mod setting_effect;
pub mod settings;
pub mod stored_plan;
mod trace;
pub mod unread_data;
pub mod verdict;

#[cfg(test)]
mod tests;

pub use classification::{Classification, DifferenceClass, TrainingEquality};
pub use diff::{Diff, DiffInput};
pub use facts::MathematicsPart;
pub use planned_experiment::PlannedExperiment;
pub use run_record::RunRecord;
pub use setting_effect::SettingEffect;
