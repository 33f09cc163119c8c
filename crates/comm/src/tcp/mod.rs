//! Ranks on any machines, over TCP: each is connected to each. Tensors pass through host memory.
//!
//! `rendezvous` brings the ranks together: each sends a `handshake`, which `handshake_listener` checks. `mesh` runs the threads of
//! the connections, `connections` and `send_queue` hold what they share, and `endpoint` is the communicator over a mesh whose ranks
//! agree on a plan. Everything that a connection delivers is checked before it is used: it may be a stranger's.

mod collective;
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

pub use connections::RunAbort;
pub use endpoint::TcpComm;
pub use handshake::PeerIdentity;
pub use mesh::TcpMesh;
pub use rendezvous::JoinConfig;
