//! The state that the threads of a rank's connections share: received frames, frames to send, and waiting for them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::abort::RunAbort;
use super::frame::{self, FrameTag, HEADER_BYTES};
use crate::error::{CommError, Operation, OperationKind};
use crate::local::{FOREGROUND, OPERATION_QUEUES, RankSnapshot, RankStatus};
use crate::lock::lock_or_recover;
use runner_spec::topology::{Channel, Lane, Topology};

/// An operation that takes longer fails; the same as for ranks on one machine.
const OPERATION_TIMEOUT: Duration = Duration::from_mins(30);

/// The longest sleep of a thread that waits.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The number of bytes that may be queued for one peer before senders wait. Heartbeats and control messages do not wait.
const MAX_QUEUED_BYTES_PER_PEER: usize = 64 << 20;

/// A member's frame of a collective.
#[derive(Debug)]
pub(super) struct CollectiveFrame {
    pub(super) operation: Operation,
    pub(super) bytes: Vec<u8>,
}

/// A message of a channel.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) element: u64,
    pub(super) bytes: Vec<u8>,
}

/// The peer, group and queue of collective frames, and whether they are sums. Frames of one key arrive in order.
type CollectiveKey = (usize, usize, usize, bool);

/// How a connection ended.
#[derive(Debug, Clone)]
enum Departure {
    /// The peer said goodbye.
    Left,
    /// The connection ended without a goodbye, for this reason.
    Lost(String),
}

#[derive(Debug)]
struct PeerConnection {
    departure: Option<Departure>,
    /// True if another rank has lost the peer.
    reported_lost: bool,
    /// Its status, as it last sent it.
    view: RankSnapshot,
    control: VecDeque<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(super) struct ConnectionState {
    parts: HashMap<CollectiveKey, VecDeque<CollectiveFrame>>,
    messages: HashMap<(usize, Lane), VecDeque<Message>>,
    /// Messages sent and not taken yet.
    sent: HashMap<(usize, Lane), usize>,
    peers: Vec<PeerConnection>,
    /// The first abort.
    ended: Option<RunAbort>,
    closing: bool,
    /// No operation goes on; control messages do.
    operations_closed: bool,
    /// The number of connections that are still read.
    readers: usize,
}

impl ConnectionState {
    pub(super) fn take_part(&mut self, key: CollectiveKey) -> Option<CollectiveFrame> {
        self.parts.get_mut(&key)?.pop_front()
    }

    pub(super) fn message(&self, from: usize, lane: Lane) -> Option<&Message> {
        self.messages.get(&(from, lane))?.front()
    }

    pub(super) fn take_message(&mut self, from: usize, lane: Lane) -> Option<Message> {
        self.messages.get_mut(&(from, lane))?.pop_front()
    }

    /// Takes a slot of the channel to `to`, if one is free.
    pub(super) fn take_slot(&mut self, to: usize, lane: Lane, slots: usize) -> Option<()> {
        let sent = self.sent.entry((to, lane)).or_default();
        if *sent >= slots {
            return None;
        }
        *sent += 1;
        Some(())
    }

    pub(super) fn take_control(&mut self, from: usize) -> Option<Vec<u8>> {
        self.peers.get_mut(from)?.control.pop_front()
    }
}

/// Frames on their way to one peer; a thread writes them.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: Mutex<SendQueue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SendQueue {
    frames: VecDeque<([u8; HEADER_BYTES], Vec<u8>)>,
    bytes: usize,
    closed: bool,
}

impl Outgoing {
    fn push(&self, tag: FrameTag, bytes: Vec<u8>) {
        let mut queue = lock_or_recover(&self.queue);
        if !queue.closed {
            queue.bytes += bytes.len();
            queue.frames.push_back((frame::header(tag, bytes.len()), bytes));
            self.changed.notify_all();
        }
    }

    /// The next frame; `None` when there will be none.
    pub(super) fn next(&self) -> Option<([u8; HEADER_BYTES], Vec<u8>)> {
        let mut queue = lock_or_recover(&self.queue);
        loop {
            if let Some(frame) = queue.frames.pop_front() {
                queue.bytes -= frame.1.len();
                self.changed.notify_all();
                return Some(frame);
            }
            if queue.closed {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing more is sent but what waits already.
    pub(super) fn close(&self) {
        lock_or_recover(&self.queue).closed = true;
        self.changed.notify_all();
    }

    /// Nothing more is sent but these frames.
    fn close_with(&self, last: impl IntoIterator<Item = (FrameTag, Vec<u8>)>) {
        let mut queue = lock_or_recover(&self.queue);
        queue.frames = last.into_iter().map(|(tag, bytes)| (frame::header(tag, bytes.len()), bytes)).collect();
        queue.bytes = queue.frames.iter().map(|(_, bytes)| bytes.len()).sum();
        queue.closed = true;
        self.changed.notify_all();
    }

    fn is_empty(&self) -> bool {
        lock_or_recover(&self.queue).frames.is_empty()
    }

    /// Waits a moment for space in the queue, and returns true if there is some.
    fn wait_for_space(&self) -> bool {
        let queue = lock_or_recover(&self.queue);
        let full = |queue: &mut SendQueue| queue.bytes > MAX_QUEUED_BYTES_PER_PEER && !queue.closed;
        let (queue, _) =
            self.changed.wait_timeout_while(queue, MAX_SLEEP, full).unwrap_or_else(PoisonError::into_inner);
        queue.bytes <= MAX_QUEUED_BYTES_PER_PEER || queue.closed
    }
}

/// The state that a rank's threads share.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// This rank's own status, which heartbeats carry to the others.
    pub(super) status: RankStatus,
    /// Set once the ranks agree on a plan.
    pub(super) topology: OnceLock<Topology>,
    /// The send queue of each rank of the world. This rank's own is not used.
    pub(super) outgoing: Vec<Outgoing>,
    state: Mutex<ConnectionState>,
    changed: Condvar,
    limit: AtomicU64,
    pub(super) over: AtomicBool,
}

impl Connections {
    pub(super) fn new(rank: usize, world_size: usize) -> Self {
        let peer = |_| PeerConnection {
            departure: None,
            reported_lost: false,
            view: RankSnapshot::default(),
            control: VecDeque::new(),
        };
        let peers = (0..world_size).map(peer).collect();
        Self {
            rank,
            world_size,
            status: RankStatus::default(),
            topology: OnceLock::new(),
            outgoing: (0..world_size).map(|_| Outgoing::default()).collect(),
            state: Mutex::new(ConnectionState { peers, readers: world_size - 1, ..ConnectionState::default() }),
            changed: Condvar::new(),
            limit: AtomicU64::new(OPERATION_TIMEOUT.as_millis() as u64),
            over: AtomicBool::new(false),
        }
    }

    pub(super) fn set_operation_timeout(&self, limit: Duration) {
        self.limit.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sends a frame. Blocks while the peer's send queue is full.
    pub(super) fn send(
        &self,
        operation: OperationKind,
        to: usize,
        tag: FrameTag,
        bytes: Vec<u8>,
    ) -> Result<(), CommError> {
        let started = Instant::now();
        while !self.outgoing[to].wait_for_space() {
            self.check(&lock_or_recover(&self.state), operation, to, true)?;
            self.ensure_in_time(operation, to, started)?;
        }
        self.outgoing[to].push(tag, bytes);
        Ok(())
    }

    /// Queues a frame without waiting for space.
    pub(super) fn post(&self, to: usize, tag: FrameTag, bytes: Vec<u8>) {
        self.outgoing[to].push(tag, bytes);
    }

    /// Sends a heartbeat to each peer whose send queue is empty.
    pub(super) fn send_heartbeats(&self) {
        let view = frame::encode_snapshot(&self.status.snapshot());
        for peer in self.peers().filter(|peer| self.outgoing[*peer].is_empty()) {
            self.post(peer, FrameTag::Heartbeat, view.clone());
        }
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world_size).filter(move |peer| *peer != rank)
    }

    pub(super) fn snapshot(&self, peer: usize) -> RankSnapshot {
        if peer == self.rank {
            return self.status.snapshot();
        }
        lock_or_recover(&self.state).peers.get(peer).map(|peer| peer.view).unwrap_or_default()
    }

    pub(super) fn abort_cause(&self) -> Option<RunAbort> {
        lock_or_recover(&self.state).ended.clone()
    }

    /// True if `peer` is connected as far as this rank knows.
    pub(super) fn is_connected(&self, peer: usize) -> bool {
        peer == self.rank || lock_or_recover(&self.state).peers.get(peer).is_some_and(|peer| peer.departure.is_none())
    }

    /// True if `peer` was lost, as this rank saw or another one reported.
    pub(super) fn is_lost(&self, peer: usize) -> bool {
        lock_or_recover(&self.state).peers.get(peer).is_some_and(|peer| match &peer.departure {
            Some(departure) => matches!(departure, Departure::Lost(_)),
            None => peer.reported_lost,
        })
    }

    /// Aborts the run, and sends the abort to the other ranks. Only the first abort counts.
    pub(super) fn abort(&self, ended: RunAbort) {
        let mut state = lock_or_recover(&self.state);
        if state.ended.is_none() {
            // The state stays locked: a thread that sees the abort and leaves, leaves after these frames.
            self.announce(&ended);
            state.ended = Some(ended);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Sends an abort to all peers, so that ranks that wait for this one receive the reason before it leaves.
    fn announce(&self, ended: &RunAbort) {
        let (tag, text) = ended.frame();
        for peer in self.peers() {
            self.post(peer, tag, text.clone());
        }
    }

    /// Ends all waits of this rank.
    pub(super) fn close(&self) {
        lock_or_recover(&self.state).closing = true;
        self.over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Ends all operations of this rank.
    pub(super) fn close_operations(&self) {
        lock_or_recover(&self.state).operations_closed = true;
        self.changed.notify_all();
    }

    /// # Errors
    /// If operations may not go on.
    pub(super) fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        ensure_running(&lock_or_recover(&self.state), operation, true)
    }

    fn check(
        &self,
        state: &ConnectionState,
        operation: OperationKind,
        peer: usize,
        inside: bool,
    ) -> Result<(), CommError> {
        let (rank, p) = (self.rank, &state.peers[peer]);
        if let Some(Departure::Lost(why)) = &p.departure {
            let doing = format!("{why}; it was last seen {}", p.view);
            return Err(CommError::Left { operation, rank, peer, doing });
        }
        ensure_running(state, operation, inside)?;
        if p.departure.is_some() {
            return Err(CommError::Left { operation, rank, peer, doing: p.view.to_string() });
        }
        Ok(())
    }

    fn ensure_in_time(&self, operation: OperationKind, peer: usize, started: Instant) -> Result<(), CommError> {
        let limit = Duration::from_millis(self.limit.load(Ordering::Relaxed));
        let waited = started.elapsed();
        if waited < limit {
            return Ok(());
        }
        let doing = self.snapshot(peer).to_string();
        Err(CommError::Timeout { operation, rank: self.rank, peer, waited, doing })
    }

    /// Waits until `take` returns a value, which `peer` sends.
    pub(super) fn wait_for<T>(
        &self,
        operation: OperationKind,
        queue: usize,
        peer: usize,
        take: impl FnMut(&mut ConnectionState) -> Option<T>,
    ) -> Result<T, CommError> {
        self.wait(operation, true, queue, peer, take)
    }

    /// Waits for a frame of an operation if `inside` is true, else for a control message.
    fn wait<T>(
        &self,
        operation: OperationKind,
        inside: bool,
        queue: usize,
        peer: usize,
        mut take: impl FnMut(&mut ConnectionState) -> Option<T>,
    ) -> Result<T, CommError> {
        let mut state = lock_or_recover(&self.state);
        if let Some(taken) = take(&mut state) {
            drop(state);
            self.status.record_progress();
            return Ok(taken);
        }
        self.status.set_waiting(queue, Some(peer));
        let started = Instant::now();
        let result = loop {
            // A frame that the peer sent before it left counts.
            if let Some(taken) = take(&mut state) {
                break Ok(taken);
            }
            if let Err(error) = self.check(&state, operation, peer, inside) {
                break Err(error);
            }
            drop(state);
            if let Err(error) = self.ensure_in_time(operation, peer, started) {
                state = lock_or_recover(&self.state);
                break Err(error);
            }
            state = lock_or_recover(&self.state);
            if let Some(taken) = take(&mut state) {
                break Ok(taken);
            }
            (state, _) = self.changed.wait_timeout(state, MAX_SLEEP).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        self.status.record_progress();
        self.status.set_waiting(queue, None);
        result
    }

    /// Waits until no connection is read any more, for at most `limit`.
    pub(super) fn await_readers(&self, limit: Duration) {
        let state = lock_or_recover(&self.state);
        let _ = self.changed.wait_timeout_while(state, limit, |state| state.readers > 0);
    }

    pub(super) fn reader_ends(&self) {
        lock_or_recover(&self.state).readers -= 1;
        self.changed.notify_all();
    }

    /// Marks `peer` as lost, unless it has left before.
    pub(super) fn mark_lost(&self, peer: usize, why: &str) {
        let mut state = lock_or_recover(&self.state);
        if state.peers[peer].departure.is_some() {
            return;
        }
        state.peers[peer].departure = Some(Departure::Lost(why.to_owned()));
        if state.closing {
            self.outgoing[peer].close_with([]);
        } else {
            let lost = RunAbort { by: peer, code: 1, reason: why.to_owned(), lost: true };
            let first = state.ended.get_or_insert_with(|| lost.clone());
            // If the peer still reads, it receives the reason, and that it counts as lost, so that it does not report others as lost.
            self.outgoing[peer].close_with([first.frame(), lost.frame()]);
            // Every loss is announced, whatever aborted the run: the losses decide which rank reports the failure.
            self.announce(&lost);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Stores a frame from `peer` for the thread that waits for it.
    ///
    /// # Errors
    /// If the peer may not send this frame now.
    pub(super) fn deliver(&self, peer: usize, tag: FrameTag, bytes: Vec<u8>) -> Result<(), &'static str> {
        let mut state = lock_or_recover(&self.state);
        match tag {
            FrameTag::CollectiveFrame { group, queue, sum, operation } => {
                state
                    .parts
                    .entry((peer, group, queue, sum))
                    .or_default()
                    .push_back(CollectiveFrame { operation, bytes });
            }
            FrameTag::Message { lane, element } => {
                let slots = self.channel(peer, self.rank, lane).map_or(0, |c| c.slots);
                let queue = state.messages.entry((peer, lane)).or_default();
                if queue.len() >= slots {
                    return Err("it sent more messages than its channel has slots");
                }
                queue.push_back(Message { element, bytes });
            }
            FrameTag::SlotFreed { lane } => {
                let sent = state.sent.entry((peer, lane)).or_default();
                *sent = sent.checked_sub(1).ok_or("it took a message that was not sent")?;
            }
            FrameTag::Control => state.peers[peer].control.push_back(bytes),
            FrameTag::Heartbeat => {
                state.peers[peer].view = frame::decode_snapshot(&bytes).ok_or("its sign of life is none")?;
            }
            FrameTag::Abort { by, code, lost } => {
                let reason = String::from_utf8_lossy(&bytes).into_owned();
                state.ended.get_or_insert(RunAbort { by, code, reason, lost });
                if lost && by == self.rank {
                    // The last frame that the peer sends to a rank that it lost. The peer itself is not lost.
                    state.peers[peer].departure.get_or_insert(Departure::Left);
                    self.outgoing[peer].close();
                } else if lost {
                    state.peers[by].reported_lost = true;
                }
            }
            FrameTag::Goodbye => {
                state.peers[peer].view = frame::decode_snapshot(&bytes).ok_or("its goodbye is none")?;
                state.peers[peer].departure.get_or_insert(Departure::Left);
                // This shows the peer that all its frames were read.
                self.outgoing[peer].close();
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Most bytes that may follow such a header from `peer`; `None` if it may not send it.
    pub(super) fn max_frame_bytes(&self, peer: usize, tag: FrameTag) -> Option<u64> {
        match tag {
            FrameTag::CollectiveFrame { group, queue, .. } => {
                let members = self.topology.get()?.groups.get(group)?;
                let both = members.contains(&peer) && members.contains(&self.rank);
                (both && queue < OPERATION_QUEUES).then_some(frame::PIECE_BYTES as u64)
            }
            FrameTag::Message { lane, .. } => Some(self.channel(peer, self.rank, lane)?.slot_bytes as u64),
            FrameTag::SlotFreed { .. } => Some(0),
            FrameTag::Control => Some(frame::MAX_CONTROL_BYTES),
            FrameTag::Heartbeat | FrameTag::Goodbye => Some(64),
            FrameTag::Abort { by, .. } => (by < self.world_size).then_some(64 << 10),
        }
    }

    pub(super) fn channel(&self, from: usize, to: usize, lane: Lane) -> Option<Channel> {
        let channels = &self.topology.get()?.channels;
        channels.iter().copied().find(|c| (c.from, c.to, c.lane) == (from, to, lane))
    }

    pub(super) fn receive_control(&self, from: usize) -> Result<Vec<u8>, CommError> {
        self.wait(OperationKind::Receive, false, FOREGROUND, from, |state| state.take_control(from))
    }
}

fn ensure_running(state: &ConnectionState, operation: OperationKind, inside: bool) -> Result<(), CommError> {
    if let Some(ended) = &state.ended {
        return Err(CommError::Aborted { by: ended.by });
    }
    if state.closing || (inside && state.operations_closed) {
        return Err(CommError::Closed { operation });
    }
    Ok(())
}
