//! What came over the connections of a rank and waits to be taken, what is to be sent, and waiting for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::mesh::Ended;
use super::wire::{self, HEADER, Tag};
use crate::error::{CommError, Kind, Operation};
use crate::local::{BoardView, FOREGROUND, LINES, Seat};
use runner_spec::topology::{Channel, Lane, Topology};

/// As between ranks of one machine.
const LIMIT: Duration = Duration::from_mins(30);

/// Longest sleep of who waits.
const NAP: Duration = Duration::from_millis(100);

/// Bytes on their way to one peer before senders of more wait. Beats and the like do not.
const QUEUED: usize = 64 << 20;

/// A member's frame of a collective.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) operation: Operation,
    pub(super) bytes: Vec<u8>,
}

/// A message of a channel.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) element: u64,
    pub(super) bytes: Vec<u8>,
}

/// Of which peer, group, line, and whether they are sums: frames of one kind come in order.
type PartKey = (usize, usize, usize, bool);

/// How a connection came to its end.
#[derive(Debug, Clone)]
enum Gone {
    /// The peer said goodbye.
    Left,
    /// It did not; why it is given up.
    Lost(String),
}

#[derive(Debug)]
struct PeerState {
    gone: Option<Gone>,
    /// Another rank has lost it.
    told_lost: bool,
    /// Its line of the board, as it last sent it.
    view: BoardView,
    control: VecDeque<Vec<u8>>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    parts: HashMap<PartKey, VecDeque<Part>>,
    messages: HashMap<(usize, Lane), VecDeque<Message>>,
    /// Messages sent and not taken yet.
    sent: HashMap<(usize, Lane), usize>,
    peers: Vec<PeerState>,
    /// The first end counts.
    ended: Option<Ended>,
    closing: bool,
    /// No operation goes on; what ranks tell each other beside them does.
    operations_over: bool,
    /// Connections that are still read.
    readers: usize,
}

impl State {
    pub(super) fn part(&mut self, key: PartKey) -> Option<Part> {
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

    pub(super) fn control(&mut self, from: usize) -> Option<Vec<u8>> {
        self.peers.get_mut(from)?.control.pop_front()
    }
}

/// Frames on their way to one peer; a thread writes them.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<([u8; HEADER], Vec<u8>)>,
    bytes: usize,
    closed: bool,
}

impl Outgoing {
    fn push(&self, tag: Tag, bytes: Vec<u8>) {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.bytes += bytes.len();
            queue.frames.push_back((wire::header(tag, bytes.len()), bytes));
            self.changed.notify_all();
        }
    }

    /// The next frame; `None` when there will be none.
    pub(super) fn next(&self) -> Option<([u8; HEADER], Vec<u8>)> {
        let mut queue = lock(&self.queue);
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
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    /// Nothing more is sent but these frames.
    fn cut(&self, last: impl IntoIterator<Item = (Tag, Vec<u8>)>) {
        let mut queue = lock(&self.queue);
        queue.frames = last.into_iter().map(|(tag, bytes)| (wire::header(tag, bytes.len()), bytes)).collect();
        queue.bytes = queue.frames.iter().map(|(_, bytes)| bytes.len()).sum();
        queue.closed = true;
        self.changed.notify_all();
    }

    fn is_empty(&self) -> bool {
        lock(&self.queue).frames.is_empty()
    }

    /// Waits, for a while, for room; whether there is some.
    fn room(&self) -> bool {
        let queue = lock(&self.queue);
        let full = |queue: &mut Queue| queue.bytes > QUEUED && !queue.closed;
        let (queue, _) = self.changed.wait_timeout_while(queue, NAP, full).unwrap_or_else(PoisonError::into_inner);
        queue.bytes <= QUEUED || queue.closed
    }
}

/// What a rank's threads share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    /// This rank's own line of the board, which beats carry to the others.
    pub(super) seat: Seat,
    /// Once the ranks agree.
    pub(super) topology: OnceLock<Topology>,
    /// Per rank of the world; this one's own is not used.
    pub(super) outgoing: Vec<Outgoing>,
    state: Mutex<State>,
    changed: Condvar,
    limit: AtomicU64,
    pub(super) over: AtomicBool,
}

impl Shared {
    pub(super) fn new(rank: usize, world_size: usize) -> Self {
        let peer = |_| PeerState { gone: None, told_lost: false, view: BoardView::default(), control: VecDeque::new() };
        let peers = (0..world_size).map(peer).collect();
        Self {
            rank,
            world_size,
            seat: Seat::default(),
            topology: OnceLock::new(),
            outgoing: (0..world_size).map(|_| Outgoing::default()).collect(),
            state: Mutex::new(State { peers, readers: world_size - 1, ..State::default() }),
            changed: Condvar::new(),
            limit: AtomicU64::new(LIMIT.as_millis() as u64),
            over: AtomicBool::new(false),
        }
    }

    pub(super) fn set_limit(&self, limit: Duration) {
        self.limit.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Sends a frame; who would fill memory with frames waits for the peer first.
    pub(super) fn send(&self, operation: Kind, to: usize, tag: Tag, bytes: Vec<u8>) -> Result<(), CommError> {
        let started = Instant::now();
        while !self.outgoing[to].room() {
            self.check(&lock(&self.state), operation, to, true)?;
            self.in_time(operation, to, started)?;
        }
        self.outgoing[to].push(tag, bytes);
        Ok(())
    }

    /// As `send`, without waiting.
    pub(super) fn post(&self, to: usize, tag: Tag, bytes: Vec<u8>) {
        self.outgoing[to].push(tag, bytes);
    }

    /// A sign of life, to who gets nothing else.
    pub(super) fn beat(&self) {
        let view = wire::view_bytes(&self.seat.view());
        for peer in self.peers().filter(|peer| self.outgoing[*peer].is_empty()) {
            self.post(peer, Tag::Beat, view.clone());
        }
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.world_size).filter(move |peer| *peer != rank)
    }

    pub(super) fn view(&self, peer: usize) -> BoardView {
        if peer == self.rank {
            return self.seat.view();
        }
        lock(&self.state).peers.get(peer).map(|peer| peer.view).unwrap_or_default()
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        lock(&self.state).ended.clone()
    }

    /// Whether `peer` is there as far as this rank knows.
    pub(super) fn is_here(&self, peer: usize) -> bool {
        peer == self.rank || lock(&self.state).peers.get(peer).is_some_and(|peer| peer.gone.is_none())
    }

    /// Whether `peer` went without a word, as this rank saw or was told.
    pub(super) fn is_lost(&self, peer: usize) -> bool {
        lock(&self.state).peers.get(peer).is_some_and(|peer| match &peer.gone {
            Some(gone) => matches!(gone, Gone::Lost(_)),
            None => peer.told_lost,
        })
    }

    /// Notes why the run is over, and tells the others: the first end counts.
    pub(super) fn end(&self, ended: Ended) {
        let mut state = lock(&self.state);
        if state.ended.is_none() {
            // With the state locked: who sees the end and leaves, leaves after these words.
            self.announce(&ended);
            state.ended = Some(ended);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Before this rank leaves, as it soon will: who waits for it learns why.
    fn announce(&self, ended: &Ended) {
        let (tag, text) = ended.frame();
        for peer in self.peers() {
            self.post(peer, tag, text.clone());
        }
    }

    /// Ends all waits of this rank.
    pub(super) fn close(&self) {
        lock(&self.state).closing = true;
        self.over.store(true, Ordering::SeqCst);
        self.changed.notify_all();
    }

    /// Ends all operations of this rank.
    pub(super) fn close_operations(&self) {
        lock(&self.state).operations_over = true;
        self.changed.notify_all();
    }

    /// Whether operations may go on.
    pub(super) fn alive(&self, operation: Kind) -> Result<(), CommError> {
        alive(&lock(&self.state), operation, true)
    }

    fn check(&self, state: &State, operation: Kind, peer: usize, inside: bool) -> Result<(), CommError> {
        let (rank, p) = (self.rank, &state.peers[peer]);
        if let Some(Gone::Lost(why)) = &p.gone {
            let doing = format!("{why}; it was last seen {}", p.view);
            return Err(CommError::Left { operation, rank, peer, doing });
        }
        alive(state, operation, inside)?;
        if p.gone.is_some() {
            return Err(CommError::Left { operation, rank, peer, doing: p.view.to_string() });
        }
        Ok(())
    }

    fn in_time(&self, operation: Kind, peer: usize, started: Instant) -> Result<(), CommError> {
        let limit = Duration::from_millis(self.limit.load(Ordering::Relaxed));
        let waited = started.elapsed();
        if waited < limit {
            return Ok(());
        }
        let doing = self.view(peer).to_string();
        Err(CommError::Timeout { operation, rank: self.rank, peer, waited, doing })
    }

    /// What `take` gives, once `peer` has sent it.
    pub(super) fn wait_for<T>(
        &self,
        operation: Kind,
        line: usize,
        peer: usize,
        take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, CommError> {
        self.wait(operation, true, line, peer, take)
    }

    /// `inside` an operation, or beside them.
    fn wait<T>(
        &self,
        operation: Kind,
        inside: bool,
        line: usize,
        peer: usize,
        mut take: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T, CommError> {
        let mut state = lock(&self.state);
        if let Some(taken) = take(&mut state) {
            drop(state);
            self.seat.progress();
            return Ok(taken);
        }
        self.seat.set_waiting(line, Some(peer));
        let started = Instant::now();
        let result = loop {
            // What it sent before it left counts.
            if let Some(taken) = take(&mut state) {
                break Ok(taken);
            }
            if let Err(error) = self.check(&state, operation, peer, inside) {
                break Err(error);
            }
            drop(state);
            if let Err(error) = self.in_time(operation, peer, started) {
                state = lock(&self.state);
                break Err(error);
            }
            state = lock(&self.state);
            if let Some(taken) = take(&mut state) {
                break Ok(taken);
            }
            (state, _) = self.changed.wait_timeout(state, NAP).unwrap_or_else(PoisonError::into_inner);
        };
        drop(state);
        self.seat.progress();
        self.seat.set_waiting(line, None);
        result
    }

    /// Waits until no connection is read any more, for at most `limit`.
    pub(super) fn await_readers(&self, limit: Duration) {
        let state = lock(&self.state);
        let _ = self.changed.wait_timeout_while(state, limit, |state| state.readers > 0);
    }

    pub(super) fn reader_ends(&self) {
        lock(&self.state).readers -= 1;
        self.changed.notify_all();
    }

    /// `peer` is given up, unless it left before.
    pub(super) fn lose(&self, peer: usize, why: &str) {
        let mut state = lock(&self.state);
        if state.peers[peer].gone.is_some() {
            return;
        }
        state.peers[peer].gone = Some(Gone::Lost(why.to_owned()));
        if state.closing {
            self.outgoing[peer].cut([]);
        } else {
            let lost = Ended { by: peer, code: 1, text: why.to_owned(), lost: true };
            let first = state.ended.get_or_insert_with(|| lost.clone());
            // If it still reads, it learns why the run is over, and that it was given up: it misses nobody then.
            self.outgoing[peer].cut([first.frame(), lost.frame()]);
            // Each loss is told, whatever ended the run: who speaks for all goes by it.
            self.announce(&lost);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Puts what came from `peer` where it is waited for.
    ///
    /// # Errors
    /// If it is nothing that this peer may send now.
    pub(super) fn deliver(&self, peer: usize, tag: Tag, bytes: Vec<u8>) -> Result<(), &'static str> {
        let mut state = lock(&self.state);
        match tag {
            Tag::Part { group, line, sum, operation } => {
                state.parts.entry((peer, group, line, sum)).or_default().push_back(Part { operation, bytes });
            }
            Tag::Message { lane, element } => {
                let slots = self.channel(peer, self.rank, lane).map_or(0, |c| c.slots);
                let queue = state.messages.entry((peer, lane)).or_default();
                if queue.len() >= slots {
                    return Err("it sent more messages than its channel has slots");
                }
                queue.push_back(Message { element, bytes });
            }
            Tag::Taken { lane } => {
                let sent = state.sent.entry((peer, lane)).or_default();
                *sent = sent.checked_sub(1).ok_or("it took a message that was not sent")?;
            }
            Tag::Control => state.peers[peer].control.push_back(bytes),
            Tag::Beat => state.peers[peer].view = wire::view_of(&bytes).ok_or("its sign of life is none")?,
            Tag::Abort { by, code, lost } => {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                state.ended.get_or_insert(Ended { by, code, text, lost });
                if lost && by == self.rank {
                    // The last that it sends to a rank that it gave up, which has not lost it for that.
                    state.peers[peer].gone.get_or_insert(Gone::Left);
                    self.outgoing[peer].close();
                } else if lost {
                    state.peers[by].told_lost = true;
                }
            }
            Tag::Goodbye => {
                state.peers[peer].view = wire::view_of(&bytes).ok_or("its goodbye is none")?;
                state.peers[peer].gone.get_or_insert(Gone::Left);
                // So that it sees that all it sent was read.
                self.outgoing[peer].close();
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Most bytes that may follow such a header from `peer`; `None` if it may not send it.
    pub(super) fn longest(&self, peer: usize, tag: Tag) -> Option<u64> {
        match tag {
            Tag::Part { group, line, .. } => {
                let members = self.topology.get()?.groups.get(group)?;
                let both = members.contains(&peer) && members.contains(&self.rank);
                (both && line < LINES).then_some(wire::PIECE as u64)
            }
            Tag::Message { lane, .. } => Some(self.channel(peer, self.rank, lane)?.slot_bytes as u64),
            Tag::Taken { .. } => Some(0),
            Tag::Control => Some(wire::CONTROL),
            Tag::Beat | Tag::Goodbye => Some(64),
            Tag::Abort { by, .. } => (by < self.world_size).then_some(64 << 10),
        }
    }

    pub(super) fn channel(&self, from: usize, to: usize, lane: Lane) -> Option<Channel> {
        let channels = &self.topology.get()?.channels;
        channels.iter().copied().find(|c| (c.from, c.to, c.lane) == (from, to, lane))
    }

    pub(super) fn hear(&self, from: usize) -> Result<Vec<u8>, CommError> {
        self.wait(Kind::Receive, false, FOREGROUND, from, |state| state.control(from))
    }
}

fn alive(state: &State, operation: Kind, inside: bool) -> Result<(), CommError> {
    if let Some(ended) = &state.ended {
        return Err(CommError::Aborted { by: ended.by });
    }
    if state.closing || (inside && state.operations_over) {
        return Err(CommError::Closed { operation });
    }
    Ok(())
}

/// Our locks guard states that are right at any moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
