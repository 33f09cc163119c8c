//! Experiment files: what they load to, and what is said about their mistakes.

pub(crate) mod diagnostics;
mod hostile;
mod load;
mod parallel;
mod sources;
mod templates;
