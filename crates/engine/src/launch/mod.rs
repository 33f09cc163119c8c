//! The ranks of a plan: they run as threads of this process, as processes that it starts, or as processes of a launcher.

mod child_process;
pub(crate) mod cuda_environment;
mod device_communicator;
mod failure;
mod faults;
mod hang_detector;
pub(crate) mod launched_training;
pub mod launcher_environment;
mod parent;
mod protocol;
mod rank_observer;
pub mod rank_process;
mod rank_reports;
mod rank_token;
mod rank_training;
pub(crate) mod restart;
pub(crate) mod supervisor;
pub(crate) mod system;
pub mod threads;
mod world;

pub(crate) use failure::read_log_end;
pub use failure::{FailureCause, RankError, RankFailure};
pub use faults::Faults;
pub(crate) use protocol::TrainingStart;
pub use protocol::{FailureKind, ReportedFailure};
pub(crate) use rank_reports::RecordRun;
pub(crate) use rank_token::rank_token;
pub(crate) use world::NOT_FINITE;
pub use world::World;
