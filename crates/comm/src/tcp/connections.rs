//! The state that the threads of a rank's connections share: received frames, and the waits for them.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::connection_state::{
    CollectiveFrame, ConnectionState, Departure, LastSeen, PeerConnection, RunAbort, ensure_running,
};
use super::frame::{self, FrameError, FrameTag};
use super::send_queue::SendQueue;
use crate::collective::PIECE_BYTES;
use crate::error::{CommError, OperationKind};
use crate::group::{FOREGROUND, OPERATION_QUEUES};
use crate::rank_status::RankStatus;
use crate::waiting::{MAX_SLEEP, OperationTimeout};
use runner_spec::format::json_bytes;
use runner_spec::topology::{Channel, Lane, Topology};

/// The time that a rank that leaves waits until the others have received all its frames.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// The connections of a rank to all others, and the messages that pass over them beside the operations.
#[derive(Debug)]
pub struct Connections {
    rank: usize,
    world_size: usize,
    /// This rank's own status, which heartbeats carry to the others.
    status: RankStatus,
    /// Set once the ranks agree on a plan.
    pub(super) topology: OnceLock<Topology>,
    /// The send queue of each rank of the world. This rank's own is not used.
    pub(super) send_queues: Vec<SendQueue>,
    state: Mutex<ConnectionState>,
    changed: Condvar,
    timeout: OperationTimeout,
}

impl Connections {
    pub(super) fn new(rank: usize, world_size: usize) -> Self {
        let peers = (0..world_size).map(|_| PeerConnection::default()).collect();
        Self {
            rank,
            world_size,
            status: RankStatus::default(),
            topology: OnceLock::new(),
            send_queues: (0..world_size).map(|_| SendQueue::default()).collect(),
            state: Mutex::new(ConnectionState { peers, readers: world_size - 1, ..ConnectionState::default() }),
            changed: Condvar::new(),
            timeout: OperationTimeout::default(),
        }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// This rank's status, which the others see.
    pub fn status(&self) -> &RankStatus {
        &self.status
    }

    /// Sets how long an operation may wait for a rank before it fails with `Timeout`; 30 minutes at first.
    pub fn set_operation_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// The status of the other rank `rank`, as it last sent it; `None` if it has sent none.
    pub fn last_seen(&self, rank: usize) -> Option<LastSeen> {
        self.state.lock().peers.get(rank)?.last_seen()
    }

    /// Sends this rank's status to each peer whose send queue is empty, before its next heartbeat.
    pub fn publish_status(&self) {
        let status = json_bytes(&self.status.snapshot());
        for peer in self.peers().filter(|peer| self.send_queues[*peer].is_empty()) {
            self.send_queues[peer].push(FrameTag::Heartbeat, status.clone());
        }
    }

    /// Sends bytes to `to`, beside the operations.
    pub fn send_control(&self, to: usize, bytes: &[u8]) {
        self.send_queues[to].push(FrameTag::Control, bytes.to_vec());
    }

    /// Receives the next bytes that `from` sent beside the operations.
    ///
    /// # Errors
    /// If `from` left, the run was aborted, or the wait takes too long.
    pub fn receive_control(&self, from: usize) -> Result<Vec<u8>, CommError> {
        let take = |state: &mut ConnectionState| state.peers[from].control_messages.pop_front();
        self.wait(OperationKind::Receive, true, FOREGROUND, from, take)
    }

    /// The next bytes that `from` sent beside the operations, if they have arrived.
    pub fn receive_arrived_control(&self, from: usize) -> Option<Vec<u8>> {
        self.state.lock().peers.get_mut(from)?.control_messages.pop_front()
    }

    /// Ends the run: every wait of every rank returns an error that names `by`, the cause. The first cause stays.
    pub fn abort(&self, by: usize, code: u8, reason: &str) {
        self.abort_run(RunAbort { by, code, reason: reason.to_owned(), is_loss: false });
    }

    pub(super) fn abort_run(&self, abort: RunAbort) {
        let mut state = self.state.lock();
        if state.abort.is_none() {
            // The state stays locked: a thread that sees the abort and leaves, leaves after these frames.
            self.send_abort(&abort);
            state.abort = Some(abort);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the frames in all queues are written to their connections, at most for `timeout`.
    pub fn wait_until_sent(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        self.peers().for_each(|peer| self.send_queues[peer].wait_until_written(deadline));
    }

    /// The abort of the run, if it was aborted.
    pub fn abort_cause(&self) -> Option<RunAbort> {
        self.state.lock().abort.clone()
    }

    /// True if `rank` is connected as far as this rank knows.
    pub fn is_connected(&self, rank: usize) -> bool {
        rank == self.rank || self.state.lock().peers.get(rank).is_some_and(|peer| peer.departure.is_none())
    }

    /// True if `rank` was lost, as this rank or a different rank saw: its connection ended without a goodbye.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.state.lock().peers.get(rank).is_some_and(|peer| match &peer.departure {
            Some(departure) => matches!(departure, Departure::Lost(_)),
            None => peer.is_reported_lost,
        })
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world_size).filter(move |peer| *peer != rank)
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
        while !self.send_queues[to].wait_for_space() {
            self.check(&self.state.lock(), operation, false, to, started)?;
        }
        self.send_queues[to].push(tag, bytes);
        Ok(())
    }

    /// Sends an abort to all peers, so that ranks that wait for this one receive the reason before it leaves.
    fn send_abort(&self, abort: &RunAbort) {
        let (tag, text) = abort.frame();
        for peer in self.peers() {
            self.send_queues[peer].push(tag, text.clone());
        }
    }

    /// Ends all waits of this rank.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Ends all operations of this rank.
    pub(super) fn close_operations(&self) {
        self.state.lock().are_operations_closed = true;
        self.changed.notify_all();
    }

    /// # Errors
    /// If operations must not continue.
    pub(super) fn ensure_running(&self, operation: OperationKind) -> Result<(), CommError> {
        ensure_running(&self.state.lock(), operation, false)
    }

    /// # Errors
    /// If it makes no sense to wait for `peer` any longer, since `started`.
    fn check(
        &self,
        state: &ConnectionState,
        operation: OperationKind,
        is_control: bool,
        peer: usize,
        started: Instant,
    ) -> Result<(), CommError> {
        let (rank, PeerConnection { departure, status, .. }) = (self.rank, &state.peers[peer]);
        if let Some(Departure::Lost(why)) = departure {
            let last_seen = format!("{why}; it was last seen {status}");
            return Err(CommError::Left { operation, rank, peer, last_seen });
        }
        ensure_running(state, operation, is_control)?;
        if departure.is_some() {
            return Err(CommError::Left { operation, rank, peer, last_seen: status.to_string() });
        }
        self.timeout.time_left(operation, rank, peer, started, status).map(drop)
    }

    /// Waits until `take` returns a value, which `peer` sends.
    pub(super) fn wait_for<T>(
        &self,
        operation: OperationKind,
        queue: usize,
        peer: usize,
        take: impl FnMut(&mut ConnectionState) -> Option<T>,
    ) -> Result<T, CommError> {
        self.wait(operation, false, queue, peer, take)
    }

    /// Waits for a control message if `is_control` is true, else for a frame of an operation.
    fn wait<T>(
        &self,
        operation: OperationKind,
        is_control: bool,
        queue: usize,
        peer: usize,
        mut take: impl FnMut(&mut ConnectionState) -> Option<T>,
    ) -> Result<T, CommError> {
        let mut state = self.state.lock();
        if let Some(taken) = take(&mut state) {
            drop(state);
            self.status.record_progress();
            return Ok(taken);
        }
        self.status.wait_for_rank(queue, peer, || {
            let started = Instant::now();
            loop {
                // A frame that the peer sent before it left counts.
                if let Some(taken) = take(&mut state) {
                    return Ok(taken);
                }
                self.check(&state, operation, is_control, peer, started)?;
                self.changed.wait_for(&mut state, MAX_SLEEP);
            }
        })
    }

    /// Waits until reading has ended on all connections, for at most `timeout`.
    pub(super) fn await_readers(&self, timeout: Duration) {
        self.changed.wait_while_for(&mut self.state.lock(), |state| state.readers > 0, timeout);
    }

    pub(super) fn remove_reader(&self) {
        self.state.lock().readers -= 1;
        self.changed.notify_all();
    }

    /// Marks `peer` as lost, unless it has left before.
    pub(super) fn mark_lost(&self, peer: usize, why: &str) {
        let mut state = self.state.lock();
        if state.peers[peer].departure.is_some() {
            return;
        }
        state.peers[peer].departure = Some(Departure::Lost(why.to_owned()));
        state.peers[peer].lost.get_or_insert_with(Instant::now);
        if state.is_closed {
            self.send_queues[peer].close_with([]);
        } else {
            let lost = RunAbort { by: peer, code: 1, reason: why.to_owned(), is_loss: true };
            let first = state.abort.get_or_insert_with(|| lost.clone());
            // If the peer still reads, it receives the reason, and that it counts as lost, so that it does not report others as lost.
            self.send_queues[peer].close_with([first.frame(), lost.frame()]);
            // Every loss is sent, whatever aborted the run: the losses decide which rank reports the failure.
            self.send_abort(&lost);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Stores a frame from `peer` for the thread that waits for it.
    ///
    /// # Errors
    /// If the peer may not send this frame now.
    pub(crate) fn deliver(&self, peer: usize, tag: FrameTag, bytes: Vec<u8>) -> Result<(), FrameError> {
        let mut state = self.state.lock();
        match tag {
            FrameTag::Collective { group, queue, is_sum, operation } => {
                let frames = state.collective_frames.entry((peer, group, queue, is_sum)).or_default();
                frames.push_back(CollectiveFrame { operation, bytes });
            }
            FrameTag::Message { lane, element } => {
                let slots = self.channel_from(peer, lane).map_or(0, |c| c.slots);
                let queue = state.messages.entry((peer, lane)).or_default();
                if queue.len() >= slots {
                    return Err(FrameError::Refused("it sent more messages than its channel has slots"));
                }
                queue.push_back((element, bytes));
            }
            FrameTag::SlotFreed { lane } => {
                let sent = state.sent.entry((peer, lane)).or_default();
                let unsent = FrameError::Refused("it freed the slot of a message that was not sent");
                *sent = sent.checked_sub(1).ok_or(unsent)?;
            }
            FrameTag::Control => state.peers[peer].control_messages.push_back(bytes),
            FrameTag::Heartbeat => {
                let invalid = |_| FrameError::Refused("its heartbeat is invalid");
                state.peers[peer].record_status(&bytes).map_err(invalid)?;
            }
            FrameTag::Abort { by, code, is_loss } => {
                let reason = String::from_utf8_lossy(&bytes).into_owned();
                state.abort.get_or_insert(RunAbort { by, code, reason, is_loss });
                if is_loss && by == self.rank {
                    // The last frame that the peer sends to a rank that it lost. The peer itself is not lost.
                    state.peers[peer].departure.get_or_insert(Departure::Left);
                    self.send_queues[peer].close();
                } else if is_loss {
                    state.peers[by].is_reported_lost = true;
                    state.peers[by].lost.get_or_insert_with(Instant::now);
                }
            }
            FrameTag::Goodbye => {
                let invalid = |_| FrameError::Refused("its last frame is invalid");
                state.peers[peer].record_status(&bytes).map_err(invalid)?;
                state.peers[peer].departure.get_or_insert(Departure::Left);
                // This shows the peer that all its frames were read.
                self.send_queues[peer].close();
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// The most bytes that may follow such a header from `peer`; `None` if `peer` may not send it.
    pub(crate) fn max_frame_bytes(&self, peer: usize, tag: FrameTag) -> Option<u64> {
        match tag {
            FrameTag::Collective { group, queue, .. } => {
                let members = self.topology.get()?.groups.get(group)?;
                let both = members.contains(&peer) && members.contains(&self.rank);
                (both && queue < OPERATION_QUEUES).then_some(PIECE_BYTES as u64)
            }
            FrameTag::Message { lane, .. } => Some(self.channel_from(peer, lane)?.slot_bytes as u64),
            FrameTag::SlotFreed { .. } => Some(0),
            FrameTag::Control => Some(frame::MAX_CONTROL_BYTES),
            FrameTag::Heartbeat | FrameTag::Goodbye => Some(1 << 10),
            FrameTag::Abort { by, .. } => (by < self.world_size).then_some(64 << 10),
        }
    }

    /// The channel from `peer` to this rank.
    fn channel_from(&self, peer: usize, lane: Lane) -> Option<&Channel> {
        let channels = &self.topology.get()?.channels;
        channels.iter().find(|c| (c.from, c.to, c.lane) == (peer, self.rank, lane))
    }
}
