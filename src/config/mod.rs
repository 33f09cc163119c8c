//! From files, environment and flags to a validated `Experiment`.

pub mod experiment;

pub use experiment::Experiment;
