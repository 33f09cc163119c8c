//! The record of runs: the run directory with its manifest, metrics and summary, and with checkpoints. See `docs/record.md`.

#![forbid(unsafe_code)]

pub mod ancestry;
pub mod catalog;
pub mod data_files;
pub mod foreign_content;
pub mod inherited_evaluations;
pub mod lines;
pub mod lock;
pub mod log;
pub mod manifest;
pub mod metrics;
mod metrics_tail;
mod named_enum;
mod names;
pub mod own_files;
pub mod record_check;
pub mod recorder;
pub mod rows;
pub mod run_dir;
mod step_coverage;
pub mod summary;
pub mod tags;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod time;
pub mod timed_metrics;
pub mod timeline;

pub use checkpoint::{CheckpointChoice, PartRecord, PartSpec, RecordError};
pub use files::write_atomic;
pub use lock::RunLock;
pub use log::Log;
pub use metrics::MetricLine;
pub use recorder::{OpenedRecorder, Recorder};
pub use runner_checkpoint as checkpoint;
pub use runner_checkpoint::{error, files};
