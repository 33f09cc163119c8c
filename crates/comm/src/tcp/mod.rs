//! Ranks on any machines, over TCP: each is connected to each. Tensors pass through host memory.
//!
//! `rendezvous` brings the ranks together (`greeting` is what each says first, `door` lets in who says it right), `mesh` keeps
//! the connections, with what came over them (`state`), and `endpoint` is the communicator over a mesh whose ranks agree on a
//! plan. What comes from a connection is checked before it is used: it may be a stranger's.

mod channel;
mod collective;
mod door;
mod endpoint;
mod greeting;
mod mesh;
mod rendezvous;
mod state;
mod wire;

#[cfg(test)]
pub(super) mod tests;

pub use endpoint::TcpComm;
pub use greeting::Peer;
pub use mesh::{Ended, Mesh};
pub use rendezvous::{JoinError, Meeting};
