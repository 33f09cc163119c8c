//! Ranks on GPUs: tensors go through NCCL, on separate streams, and everything else goes through another communicator (over one
//! machine's memory, or sockets), which also reports ranks that ended.
//!
//! The host never waits for a transfer: the stream that a rank computes on and those of NCCL wait for each other by events.

mod channels;
mod endpoint;
mod groups;
mod library;
mod link;
mod waits;
mod watch;

pub use endpoint::NcclComm;
