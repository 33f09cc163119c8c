//! Ranks on any machines, over TCP: each is connected to each. Tensors pass through host memory.
//!
//! `rendezvous` brings the ranks together: by a `handshake`, for which `handshake_listener` waits, they prove to each other that they
//! belong to one run. `mesh` runs the threads of the connections, which carry each `frame` with checksums; `connections`,
//! with their `connection_state`, and `send_queue` hold what the threads share, and `endpoint` is the communicator over a mesh whose ranks agree on a plan. Everything
//! that a connection delivers may be damaged or come from a stranger, so it is checked before it is used.

mod collective;
mod connection_state;
mod connections;
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
pub use endpoint::TcpComm;
pub use handshake::{PeerIdentity, RankToken};
pub use mesh::TcpMesh;
pub use rendezvous::JoinConfig;
