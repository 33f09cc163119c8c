//! What a rank knows of the others: the frames that it received and nobody has taken yet, and how each of them is.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::frame::FrameTag;
use crate::error::{CommError, ElementType, Operation, OperationKind};
use crate::rank_status::RankSnapshot;
use runner_spec::topology::Lane;

/// A member's frame of a collective.
#[derive(Debug)]
pub(super) struct CollectiveFrame {
    pub(super) operation: Operation,
    pub(super) bytes: Vec<u8>,
}

/// The peer, group and queue of collective frames, and whether they are sums. Frames of one key arrive in order.
type CollectiveKey = (usize, usize, usize, bool);

/// The bytes of messages in the order in which they were sent, with their element types.
type MessageQueue = VecDeque<(ElementType, Vec<u8>)>;

/// The end of a connection.
#[derive(Debug, Clone)]
pub(super) enum Departure {
    /// The peer announced the end of the connection.
    Left,
    /// The connection ended without a goodbye, for this reason.
    Lost(String),
}

/// The number of characters of the reason for an abort that are sent to other ranks.
const MAX_ABORT_REASON_CHARS: usize = 8 << 10;

/// The abort of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunAbort {
    /// The rank that caused it.
    pub by: usize,
    /// The exit code of its process.
    pub code: u8,
    pub reason: String,
    /// True if the rank died: its connection broke, or it panicked.
    pub is_loss: bool,
}

impl RunAbort {
    /// The frame that announces the abort to other ranks.
    pub(super) fn frame(&self) -> (FrameTag, Vec<u8>) {
        let reason: String = self.reason.chars().take(MAX_ABORT_REASON_CHARS).collect();
        (FrameTag::Abort { by: self.by, code: self.code, is_loss: self.is_loss }, reason.into_bytes())
    }
}

#[derive(Debug, Default)]
pub(super) struct PeerConnection {
    pub(super) departure: Option<Departure>,
    /// True if another rank has lost the peer.
    pub(super) is_reported_lost: bool,
    /// Its status, as it last sent it.
    pub(super) status: RankSnapshot,
    /// When that status arrived.
    pub(super) seen: Option<Instant>,
    /// When this rank learned that the peer was lost.
    pub(super) lost: Option<Instant>,
    pub(super) control_messages: VecDeque<Vec<u8>>,
}

impl PeerConnection {
    /// What the peer last sent of itself; `None` if it has sent nothing.
    pub(super) fn last_seen(&self) -> Option<LastSeen> {
        let until = self.lost.unwrap_or_else(Instant::now);
        Some(LastSeen { status: self.status, age: until.saturating_duration_since(self.seen?) })
    }

    /// Takes note of the status that the peer has sent in `frame`.
    pub(super) fn record_status(&mut self, frame: &[u8]) -> Result<(), serde_json::Error> {
        self.status = serde_json::from_slice(frame)?;
        self.seen = Some(Instant::now());
        Ok(())
    }
}

/// What another rank last sent of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastSeen {
    pub status: RankSnapshot,
    /// The time from then until the rank was lost, or until now. It may have got further meanwhile.
    pub age: Duration,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    pub(super) collective_frames: HashMap<CollectiveKey, VecDeque<CollectiveFrame>>,
    /// The messages of each channel to this rank.
    pub(super) messages: HashMap<(usize, Lane), MessageQueue>,
    /// The number of messages that were sent and not taken yet.
    pub(super) sent: HashMap<(usize, Lane), usize>,
    pub(super) peers: Vec<PeerConnection>,
    /// The first abort.
    pub(super) abort: Option<RunAbort>,
    pub(super) is_closed: bool,
    /// True if no operation continues. Control messages do.
    pub(super) are_operations_closed: bool,
    /// The number of connections that are still read.
    pub(super) readers: usize,
}

impl ConnectionState {
    /// Takes a slot of the channel to `to`, if one is free.
    pub(super) fn take_slot(&mut self, to: usize, lane: Lane, slots: usize) -> Option<()> {
        let sent = self.sent.entry((to, lane)).or_default();
        if *sent >= slots {
            return None;
        }
        *sent += 1;
        Some(())
    }
}

/// # Errors
/// If nothing is to wait any longer: the run was aborted, or this rank ends.
pub(super) fn ensure_running(
    state: &ConnectionState,
    operation: OperationKind,
    is_control: bool,
) -> Result<(), CommError> {
    if let Some(abort) = &state.abort {
        return Err(CommError::Aborted { by: abort.by });
    }
    if state.is_closed || (!is_control && state.are_operations_closed) {
        return Err(CommError::Closed { operation });
    }
    Ok(())
}
