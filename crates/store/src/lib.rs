//! The run directory: manifest, metrics, checkpoints. See `docs/runs.md`.

pub mod ancestry;
pub mod catalog;
pub mod checkpoint;
pub mod error;
pub mod files;
pub mod lines;
pub mod lock;
pub mod log;
pub mod manifest;
pub mod metrics;
pub mod recorder;
pub mod run_dir;
pub mod select;
pub mod summary;
pub mod tags;
pub mod time;
pub mod timeline;
pub mod trace;
pub mod verdict;

pub use catalog::{Listed, Standing};
pub use checkpoint::{Checkpoints, Chosen, PartRecord, PartSpec, Resumed, StateHash, Which, load_weights, state_hash};
pub use error::StoreError;
pub use files::write_atomic;
pub use lock::RunLock;
pub use log::Log;
pub use manifest::{ContinuedFrom, FromTemplate, Manifest, Place, RunOrigin, RunStatus, Session, SweepPoint};
pub use metrics::MetricLine;
pub use recorder::{Opened, OpenedRanks, Recorder};
pub use run_dir::{RunDir, RunFiles};
pub use summary::{Outcome, RankSummary, Summary};
pub use timeline::MeasuredStep;
pub use verdict::{Judgement, Verdict};
