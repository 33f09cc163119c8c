//! Ranks on any machines, over TCP: each is connected to each. Tensors pass through host memory. With the feature `mpi`, MPI can carry
//! the bytes of operations; `data_queues` hold them.
//!
//! `rendezvous` brings the ranks together: by a `handshake`, for which `handshake_listener` waits, they prove to each other that they
//! belong to one run. `mesh` runs the threads of the connections, which carry each `frame` with checksums; `connections`,
//! with their `connection_state`, and `send_queue` hold what the threads share, and `endpoint` is the communicator over a mesh whose ranks agree on a plan. Everything
//! that a connection delivers may be damaged or come from a stranger, so it is checked before it is used.

mod collective;
mod connection_state;
mod connections;
#[cfg(feature = "mpi")]
mod data_queues;
mod endpoint;
mod frame;
mod handshake;
mod handshake_listener;
mod mesh;
mod rendezvous;
mod send_queue;
#[cfg(test)]
pub(super) mod tests;

pub use connection_state::{LastSeen, RunAbort};
pub use connections::Connections;
#[cfg(feature = "mpi")]
pub(crate) use data_queues::DataQueues;
pub use endpoint::TcpComm;
#[cfg(feature = "mpi")]
pub(crate) use frame::{Frame, FrameError};
pub use handshake::{PeerIdentity, RankToken};
pub use mesh::TcpMesh;
pub use rendezvous::JoinConfig;
