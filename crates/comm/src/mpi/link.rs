//! A thread that makes all calls of MPI: it sends the frames that operations queue, and delivers those that arrive.
//!
//! A message is a frame. Messages of two ranks keep their order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::library::{Library, Mpi, MpiError, Transfer};
use crate::error::JoinError;
use crate::tcp::{Connections, DataQueues, Frame, FrameError, TcpMesh};
use runner_threads::threads;

/// The messages to one rank that MPI has at a time. The others wait in their queue, whose length is limited.
const MAX_SENDS_PER_PEER: usize = 16;

/// The thread looks for messages without a pause for this long after the last one, since operations come in bursts.
const BUSY_TIME: Duration = Duration::from_micros(200);

/// The longest pause between two looks for messages, while this rank waits for others and while it computes.
const MAX_PAUSE_WAITING: Duration = Duration::from_micros(50);
const MAX_PAUSE: Duration = Duration::from_millis(1);

/// How often a rank reports that it waits for the meeting.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// The bytes of a broadcast meeting.
const MEETING_BYTES: usize = 1 << 10;

/// What rank 0 sends the other ranks before they connect to it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Meeting {
    /// The name of rank 0's machine.
    pub host: String,
    /// Rank 0 listens at the first of these that is free.
    pub ports: Vec<u16>,
    /// A secret that only these ranks know.
    pub secret: String,
}

/// Started MPI, before it carries the frames of a mesh. If it is dropped first, the process must end.
#[derive(Debug)]
pub struct MpiLink {
    meeting: Meeting,
    thread: JoinHandle<()>,
    mesh: SyncSender<Arc<Connections>>,
}

impl MpiLink {
    /// Starts MPI, which must agree that this is `rank` of `world_size`. Rank 0 proposes ports and a secret for the meeting. `report_wait`
    /// receives what the rank waits for.
    ///
    /// # Errors
    /// If there is no library, or it does not belong to the launcher.
    pub fn start(
        (rank, world_size): (usize, usize),
        ports: Vec<u16>,
        secret: String,
        report_wait: fn(&str),
    ) -> Result<Self, JoinError> {
        let (started, meeting) = sync_channel(1);
        let (mesh, connections) = sync_channel(1);
        let proposed = Meeting { host: String::new(), ports, secret };
        let work = move || match Library::load() {
            Ok(Library::Numbers(mpi)) => run(&mpi, (rank, world_size), proposed, &started, &connections),
            Ok(Library::Pointers(mpi)) => run(&mpi, (rank, world_size), proposed, &started, &connections),
            Err(why) => drop(started.send(Err(why))),
        };
        let thread = threads::spawn("mpi", work)?;
        let meeting = loop {
            match meeting.recv_timeout(REPORT_INTERVAL) {
                Ok(meeting) => break meeting,
                Err(RecvTimeoutError::Disconnected) => break Err("its thread panicked".to_owned()),
                // MPI itself has no limit: it waits for ranks that never call it.
                Err(RecvTimeoutError::Timeout) => report_wait(&format!(
                    "rank {rank} waits in MPI for the other ranks; each must be of a build with the feature `mpi` (`runner --version` lists \
                     features), under the same MPI"
                )),
            }
        };
        let meeting = meeting.map_err(|why| JoinError::Failed(format!("rank {rank} cannot use MPI: {why}")))?;
        Ok(Self { meeting, thread, mesh })
    }

    /// What all ranks know of their meeting.
    pub fn meeting(&self) -> &Meeting {
        &self.meeting
    }

    /// Carries the frames of the operations of `mesh` from now on. The mesh ends MPI when it is dropped.
    pub fn carry(self, mesh: &mut TcpMesh) {
        mesh.carry_data(self.thread);
        let connections = mesh.connections();
        // If the thread has ended, the first operation waits for it in vain, so the run must not begin.
        if self.mesh.send(Arc::clone(&connections)).is_err() {
            connections.abort(connections.rank(), 1, "the thread that calls MPI has ended");
        }
    }
}

/// The work of the thread.
fn run<H: Copy + Default>(
    mpi: &Mpi<H>,
    place: (usize, usize),
    proposed: Meeting,
    started: &SyncSender<Result<Meeting, String>>,
    mesh: &Receiver<Arc<Connections>>,
) {
    let meeting = meet(mpi, place, proposed);
    let has_met = meeting.is_ok();
    if started.send(meeting).is_err() || !has_met {
        return;
    }
    let Ok(connections) = mesh.recv() else { return };
    let Some(queues) = connections.data_queues() else { return };
    if let Err(error) = Link::new(mpi, &connections, queues).carry() {
        connections.abort(connections.rank(), 1, &format!("rank {}: {error}", connections.rank()));
    }
    // MPI ends for all ranks together or not at all: it would wait for a rank that has failed.
    if connections.await_common_end() {
        let _ = mpi.finalize();
    }
}

/// Starts MPI, and exchanges the meeting.
fn meet<H: Copy + Default>(mpi: &Mpi<H>, place: (usize, usize), proposed: Meeting) -> Result<Meeting, String> {
    let (rank, world_size) = mpi.start().map_err(|error| error.to_string())?;
    if (rank, world_size) != place {
        return Err(format!(
            "the launcher started rank {} of {}, but the library found rank {rank} of {world_size}; use the launcher of the \
             library (`mpirun.openmpi` or `mpirun.mpich`, or srun with the right `--mpi`)",
            place.0, place.1
        ));
    }
    let host = mpi.processor_name().map_err(|error| error.to_string())?;
    let mut bytes = serde_json::to_vec(&Meeting { host, ..proposed }).map_err(|error| error.to_string())?;
    // JSON may end in spaces.
    bytes.resize(MEETING_BYTES, b' ');
    mpi.broadcast(&mut bytes).map_err(|error| error.to_string())?;
    serde_json::from_slice(&bytes).map_err(|error| format!("rank 0 sent an invalid meeting: {error}"))
}

#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error(transparent)]
    Mpi(#[from] MpiError),
    #[error("rank {0}: {1}")]
    Frame(usize, FrameError),
}

/// The transfers under way.
struct Link<'a, H> {
    mpi: &'a Mpi<H>,
    connections: &'a Connections,
    queues: &'a DataQueues,
    /// For each rank, in the order in which they were started.
    sends: Vec<VecDeque<Transfer<H>>>,
    receives: Vec<VecDeque<Transfer<H>>>,
}

impl<'a, H: Copy + Default> Link<'a, H> {
    fn new(mpi: &'a Mpi<H>, connections: &'a Connections, queues: &'a DataQueues) -> Self {
        let none = || (0..connections.world_size()).map(|_| VecDeque::new()).collect();
        Self { mpi, connections, queues, sends: none(), receives: none() }
    }

    /// Sends and delivers frames until the connections are closed.
    fn carry(&mut self) -> Result<(), LinkError> {
        let mut last_active = Instant::now();
        let mut pause = Duration::ZERO;
        while !self.connections.is_closed() {
            if self.advance()? {
                last_active = Instant::now();
                pause = Duration::ZERO;
            } else if last_active.elapsed() < BUSY_TIME {
                thread::yield_now();
            } else {
                let max = if self.is_waited_for() { MAX_PAUSE_WAITING } else { MAX_PAUSE };
                // A queued frame ends the pause; an arriving one does not.
                pause = (pause * 2).clamp(MAX_PAUSE_WAITING, max);
                thread::park_timeout(pause);
            }
        }
        Ok(())
    }

    /// True if an operation waits for a message, or a transfer is under way.
    fn is_waited_for(&self) -> bool {
        let own = self.connections.status().snapshot();
        let is_busy = |transfers: &[VecDeque<Transfer<H>>]| transfers.iter().any(|queue| !queue.is_empty());
        own.is_waiting() || own.waiting_in_background.is_some() || is_busy(&self.sends) || is_busy(&self.receives)
    }

    /// Advances all transfers. Returns false if there was nothing to do.
    fn advance(&mut self) -> Result<bool, LinkError> {
        let mut is_active = false;
        while let Some((from, transfer)) = self.mpi.receive()? {
            self.receives[from].push_back(transfer);
            is_active = true;
        }
        for peer in self.connections.peers() {
            while let Some(transfer) = next_ended(self.mpi, &mut self.receives[peer])? {
                self.deliver(peer, transfer.into_bytes()).map_err(|error| LinkError::Frame(peer, error))?;
                is_active = true;
            }
            while next_ended(self.mpi, &mut self.sends[peer])?.map(Transfer::into_bytes).is_some() {
                is_active = true;
            }
            while self.sends[peer].len() < MAX_SENDS_PER_PEER
                && let Some(frame) = self.queues.take(peer)
            {
                self.sends[peer].push_back(self.mpi.send(peer, frame.into_message())?);
                is_active = true;
            }
        }
        Ok(is_active)
    }

    /// Delivers a message of `peer`.
    fn deliver(&self, peer: usize, message: Vec<u8>) -> Result<(), FrameError> {
        let (tag, bytes) = Frame::parse_message(message)?;
        match self.connections.max_frame_bytes(peer, tag) {
            Some(max_bytes) if bytes.len() as u64 <= max_bytes => self.connections.deliver(peer, tag, bytes),
            _ => Err(FrameError::Invalid),
        }
    }
}

/// The first of `transfers`, if it has ended.
fn next_ended<H: Copy + Default>(
    mpi: &Mpi<H>,
    transfers: &mut VecDeque<Transfer<H>>,
) -> Result<Option<Transfer<H>>, MpiError> {
    let Some(first) = transfers.front_mut() else { return Ok(None) };
    Ok(if mpi.has_ended(first)? { transfers.pop_front() } else { None })
}
