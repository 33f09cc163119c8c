//! Sealed runs: a folder with the record, the weights and a training state of a run, whose manifest has the hash of every byte. Anyone can
//! check the bytes, and train steps again from it.

mod claims;
mod contents;
mod create;
mod manifest;
mod readme;
mod verify;

pub use create::{SealRequest, SealedRun, seal};
pub use manifest::{ChangedFile, FileChange};
pub use verify::{SealVerdict, SealedWeightsComparison, Verification, VerificationEnd, VerifyRequest, verify};
