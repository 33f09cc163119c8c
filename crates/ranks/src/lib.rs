//! The ranks of a plan: they run as threads of this process, as processes that it starts, or as processes of a launcher.

mod backend;
mod child_process;
pub mod cuda_environment;
mod device_communicator;
mod error;
mod failure;
mod faults;
mod hang_detector;
mod launched_training;
pub mod launcher_environment;
mod parent;
mod part_writer;
mod protocol;
mod rank_inputs;
mod rank_observer;
mod rank_process;
mod rank_reports;
mod rank_token;
mod rank_training;
pub mod saved_state;
mod supervisor;
pub mod threads;
mod world;

pub use backend::{RankBackend, TrainingEnd};
pub use error::LaunchError;
pub use failure::{FailureCause, RankError, RankFailure};
pub use launched_training::LaunchedTraining;
pub use protocol::{FailureKind, RankStart, ReportedFailure, TrainingStart};
pub use rank_inputs::{LoadState, RankInputs, TrainingAttempt};
pub use rank_process::{PreparedRank, RankProcess};
pub use rank_reports::RunRecorder;
pub use rank_token::rank_token;
pub use world::World;
