//! The executor: it interprets a Program and emits events. It reads no configuration, prints nothing and writes no files.

#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "cuda"),
    allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        clippy::needless_pass_by_value,
        reason = "one signature with and without the feature"
    )
)]

mod data_cursor;
mod device;
mod error;
pub mod eval;
mod gradient_norm;
mod gradient_reduction;
mod interpreter;
mod layout_evaluation;
mod layout_sampling;
mod memory_shortage;
mod non_finite;
mod observer;
mod passes;
mod phase_clock;
mod rank_context;
mod rehearsal;
mod replica_check;
mod step_exchange;
mod step_watch;
mod trace;
mod trainer;
mod weight_exchange;

pub use data_cursor::Resources;
pub use error::ExecError;
pub use interpreter::{RunControls, StopRequest, TrainedRank, run};
pub use memory_shortage::{DriverMemory, MemoryShortage};
pub use observer::{IgnoreEvents, Observer};
pub use rank_context::{InstructionList, ProgressMonitor};
pub use trainer::{Trainer, initial_state, state_dtype, tied_copy_entry};
