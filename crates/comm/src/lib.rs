//! Communication between ranks: collectives over groups, point-to-point channels, and their errors.

mod background;
mod buffers;
mod channel;
mod coded_enum;
mod collective;
mod communicator;
mod error;
mod group;
mod host_comm;
mod local;
mod lock;
#[cfg(feature = "nccl")]
pub mod nccl;
mod rank_status;
mod tcp;
mod timeout;
mod wake_signal;

#[cfg(test)]
mod tests;

pub use communicator::{Communicator, Pending};
pub use error::{CommError, JoinError, OperationKind};
pub use local::{LocalComm, Region};
pub use rank_status::{RankPhase, RankSnapshot, RankStatus};
pub use tcp::{JoinConfig, PeerIdentity, RankToken, RunAbort, TcpComm, TcpMesh};
