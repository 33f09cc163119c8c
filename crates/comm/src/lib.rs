//! Communication between ranks: collectives over groups, point-to-point channels, and their errors.

mod alone;
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
mod tcp;
mod timeout;

#[cfg(test)]
mod tests;

pub use alone::Alone;
pub use communicator::{Communicator, Pending};
pub use error::{CommError, OperationKind};
pub use local::{LocalComm, RankPhase, RankSnapshot, RankStatus, Region, RegionError};
pub use tcp::{JoinConfig, JoinError, PeerIdentity, RunAbort, TcpComm, TcpMesh};
