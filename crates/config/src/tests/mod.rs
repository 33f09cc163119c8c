//! Experiment files: the experiments that they load to, and the reports of their mistakes.

pub(crate) mod diagnostics;
mod files;
mod hostile;
mod hub_weights;
mod load;
mod log;
mod parallel;
mod recorded_keys;
mod sources;
mod templates;
