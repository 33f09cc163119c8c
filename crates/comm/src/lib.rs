//! Communication between ranks: collectives over groups, point-to-point channels, and their errors.

mod background;
mod buffers;
mod collective;
mod communicator;
mod error;
mod group;
mod host_comm;
mod local;
#[cfg(feature = "nccl")]
pub mod nccl;
mod rank_status;
mod tcp;
mod waiting;

#[cfg(test)]
mod tests;

pub use communicator::{Communicator, GroupOperation, Pending, TensorOperation};
pub use error::{CommError, JoinError, OperationKind};
pub use local::{LocalComm, Region};
pub use rank_status::{RankPhase, RankSnapshot, RankStatus};
pub use tcp::{Connections, JoinConfig, LastSeen, PeerIdentity, RankToken, RunAbort, TcpComm, TcpMesh};
