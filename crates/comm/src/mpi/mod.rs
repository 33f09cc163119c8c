//! MPI between ranks: it carries the bytes of collectives and channels in place of the TCP connections of a mesh. The mesh keeps its
//! connections for the rest: they show at once that a process has died, which MPI does not. A goodbye may overtake the frames of
//! operations, so ranks exchange control messages after their last operation, before they leave.

mod library;
mod link;
#[cfg(test)]
mod tests;

pub use link::{Meeting, MpiLink};
