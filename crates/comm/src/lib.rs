//! How ranks talk: groups for collectives, channels from point to point, and what can go wrong.

pub mod alone;
mod background;
pub mod communicator;
pub mod error;
pub mod local;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod tcp;

#[cfg(test)]
mod tests;

pub use alone::Alone;
pub use communicator::{Communicator, Pending};
pub use error::{CommError, Element, Kind, Operation};
pub use local::{BoardView, LocalComm, Phase, Region, RegionError, Seat};
pub use tcp::{JoinError, Meeting, Mesh, TcpComm};
