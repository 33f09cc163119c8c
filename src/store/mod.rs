//! The run directory: manifest, metrics, checkpoints. See `docs/runs.md`.

pub mod ancestry;
pub mod catalog;
pub mod checkpoint;
pub mod error;
mod files;
pub mod gc;
pub mod lines;
pub mod lock;
pub mod log;
pub mod machine;
pub mod manifest;
pub mod metrics;
pub mod recorder;
pub mod remove;
pub mod run_dir;
pub mod select;
pub mod stored_plan;
pub mod summary;
pub mod sweep_dir;
pub mod tags;
pub mod time;
pub mod timeline;
pub mod trace;
pub mod verdict;

#[cfg(test)]
pub(crate) mod testing;

pub use catalog::{Listed, Standing};
pub use checkpoint::{Checkpoints, Chosen, PartRecord, PartSpec, Resumed, StateHash, Which, load_weights, state_hash};
pub use error::StoreError;
pub(crate) use files::{temporary_dir, temporary_file, write_atomic};
pub use lock::RunLock;
pub use log::Log;
pub use machine::{Git, Machine};
pub use manifest::{ContinuedFrom, FromTemplate, Manifest, Place, RunOrigin, RunStatus, Session, SweepPoint};
pub use metrics::MetricLine;
pub use recorder::{Opened, OpenedRanks, Recorder};
pub use run_dir::{RunDir, RunFiles};
pub use summary::{Outcome, RankSummary, Summary};
pub use timeline::{MeasuredMemory, MeasuredSpan, MeasuredStep};
pub use verdict::{Judgement, Verdict};
