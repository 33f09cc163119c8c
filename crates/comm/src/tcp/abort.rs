//! The abort of a run, as ranks send it to each other.

use super::frame::FrameTag;

/// The number of characters of the reason that are sent to other ranks.
const MAX_ABORT_REASON_CHARS: usize = 8 << 10;

/// The abort of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAbort {
    /// The rank that caused it.
    pub by: usize,
    /// The exit code of its process.
    pub code: u8,
    pub reason: String,
    /// True if the rank did not announce its end: its connection broke.
    pub lost: bool,
}

impl RunAbort {
    /// The frame that announces the abort to other ranks.
    pub(super) fn frame(&self) -> (FrameTag, Vec<u8>) {
        let reason: String = self.reason.chars().take(MAX_ABORT_REASON_CHARS).collect();
        (FrameTag::Abort { by: self.by, code: self.code, lost: self.lost }, reason.into_bytes())
    }
}
