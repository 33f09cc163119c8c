//! The connections of a rank to all others: threads that read and write them, heartbeats, and their end.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::abort::RunAbort;
use super::connections::Connections;
use super::frame::{self, FrameTag, HEADER_BYTES};
use super::handshake::PeerIdentity;
use super::rendezvous::{self, JoinConfig, JoinError};
use crate::error::CommError;
use crate::local::{RankSnapshot, RankStatus};
use runner_spec::topology::Topology;

/// The time between two heartbeats.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A peer without a heartbeat for this long is lost.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(30);
/// If a heartbeat comes this late, this process, or its machine, was suspended.
const SUSPENSION_THRESHOLD: Duration = Duration::from_secs(5);
/// How long a rank that leaves waits until the others have received all its frames.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A rank that is connected to all others. When it is dropped, it sends a goodbye, and waits for seconds at most.
#[derive(Debug)]
pub struct Mesh {
    pub(super) shared: Arc<Connections>,
    peers: Vec<PeerIdentity>,
    streams: Vec<TcpStream>,
    threads: Vec<JoinHandle<()>>,
}

impl Mesh {
    /// Meets the other ranks, and connects to each of them.
    ///
    /// # Errors
    /// If they do not all come in time, or are not of one run.
    pub fn join(config: &JoinConfig) -> Result<Self, JoinError> {
        let (links, peers) = rendezvous::join(config)?;
        Self::over(config.rank, links, peers).map_err(JoinError::Threads)
    }

    /// `links` has a connection to each rank but this one.
    fn over(rank: usize, links: Vec<Option<TcpStream>>, peers: Vec<PeerIdentity>) -> io::Result<Self> {
        let shared = Arc::new(Connections::new(rank, links.len()));
        let last_received: Arc<Vec<AtomicU64>> = Arc::new(links.iter().map(|_| AtomicU64::new(0)).collect());
        let mut mesh = Self { shared: Arc::clone(&shared), peers, streams: Vec::new(), threads: Vec::new() };
        let started = Instant::now();
        let mut watched = Vec::new();
        for (peer, link) in links.into_iter().enumerate() {
            let Some(link) = link else { continue };
            link.set_nodelay(true)?;
            link.set_read_timeout(None)?;
            link.set_write_timeout(None)?;
            mesh.streams.push(link.try_clone()?);
            watched.push((peer, link.try_clone()?));
            let (reading, writing) = (link.try_clone()?, link);
            let (to_read, to_write, times) = (Arc::clone(&shared), Arc::clone(&shared), Arc::clone(&last_received));
            let read = move || {
                let mut from = TimedReader { stream: reading, at: &times[peer], started };
                if let Err(why) = read(&to_read, peer, &mut from) {
                    to_read.mark_lost(peer, &why);
                }
                to_read.reader_ends();
            };
            let write = move || {
                let mut stream = writing;
                while let Some((header, bytes)) = to_write.outgoing[peer].next() {
                    if let Err(error) = frame::write(&mut stream, &header, &bytes) {
                        to_write.mark_lost(peer, &broken(&error));
                        return;
                    }
                }
                let _ = stream.shutdown(Shutdown::Write);
            };
            mesh.spawn(&format!("from rank {peer}"), read)?;
            mesh.spawn(&format!("to rank {peer}"), write)?;
        }
        let beats = Arc::clone(&shared);
        mesh.spawn("beat", move || monitor_heartbeats(&beats, &watched, &last_received, started))?;
        Ok(mesh)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(thread::Builder::new().name(name.to_owned()).spawn(work)?);
        Ok(())
    }

    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    pub fn world_size(&self) -> usize {
        self.shared.world_size
    }

    /// The identity of each rank, this one included.
    pub fn ranks(&self) -> &[PeerIdentity] {
        &self.peers
    }

    /// This rank's status, which the others see.
    pub fn status(&self) -> &RankStatus {
        &self.shared.status
    }

    /// What `rank` was doing when it last said so.
    pub fn snapshot(&self, rank: usize) -> RankSnapshot {
        self.shared.snapshot(rank)
    }

    /// Sends this rank's status to the others now, before its next heartbeat.
    pub fn publish_status(&self) {
        self.shared.send_heartbeats();
    }

    /// How long an operation may wait for a rank before it is a `Timeout`; 30 minutes at first.
    pub fn set_operation_timeout(&self, limit: Duration) {
        self.shared.set_operation_timeout(limit);
    }

    /// Sends bytes to `to`, beside the operations.
    pub fn send_control(&self, to: usize, bytes: &[u8]) {
        self.shared.post(to, FrameTag::Control, bytes.to_vec());
    }

    /// Receives the next bytes that `from` sent.
    ///
    /// # Errors
    /// If it left, the run ended, or it takes too long.
    pub fn receive_control(&self, from: usize) -> Result<Vec<u8>, CommError> {
        self.shared.receive_control(from)
    }

    /// Ends the run: every wait of every rank returns an error that names `by`, the cause. The first cause stays.
    pub fn abort(&self, by: usize, code: u8, reason: &str) {
        self.shared.abort(RunAbort { by, code, reason: reason.to_owned(), lost: false });
    }

    /// Why the run is over, if it is over before its time.
    #[must_use]
    pub fn abort_cause(&self) -> Option<RunAbort> {
        self.shared.abort_cause()
    }

    /// True if `rank` is still connected.
    #[must_use]
    pub fn is_connected(&self, rank: usize) -> bool {
        self.shared.is_connected(rank)
    }

    #[cfg(test)]
    pub(super) fn streams(&self) -> &[TcpStream] {
        &self.streams
    }

    /// True if `rank` was lost: its connection ended without a goodbye.
    #[must_use]
    pub fn is_lost(&self, rank: usize) -> bool {
        self.shared.is_lost(rank)
    }

    /// Compares `plan` with those of the other ranks. Then operations of `topology` may begin.
    ///
    /// # Errors
    /// `OtherPlan`, the same on all ranks; those of `receive_control`.
    pub fn agree_on_plan(&self, plan: &str, topology: &Topology) -> Result<(), JoinError> {
        topology.check()?;
        // Before the plan is sent: from then on others may send frames of operations.
        if self.shared.topology.set(topology.clone()).is_err() {
            return Err(JoinError::Twice);
        }
        for peer in self.shared.peers() {
            self.send_control(peer, plan.as_bytes());
        }
        let mut plans = Vec::with_capacity(self.world_size());
        for rank in 0..self.world_size() {
            let theirs = if rank == self.rank() { plan.as_bytes().to_vec() } else { self.receive_control(rank)? };
            plans.push(String::from_utf8_lossy(&theirs).into_owned());
        }
        match plans.iter().position(|theirs| *theirs != plans[0]) {
            Some(rank) => {
                let [first, plan] = [0, rank].map(|rank| printable_prefix(&plans[rank]));
                Err(JoinError::OtherPlan { rank, plan, first })
            }
            None => Ok(()),
        }
    }
}

/// The beginning of a hash, of characters that do no harm.
fn printable_prefix(plan: &str) -> String {
    plan.chars().filter(char::is_ascii_graphic).take(16).collect()
}

impl Drop for Mesh {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort(self.rank(), 1, &format!("rank {} panicked: {}", self.rank(), self.status().snapshot()));
        }
        self.shared.close();
        let view = frame::encode_snapshot(&self.shared.status.snapshot());
        for peer in self.shared.peers() {
            self.shared.post(peer, FrameTag::Goodbye, view.clone());
            self.shared.outgoing[peer].close();
        }
        self.shared.await_readers(CLOSE_TIMEOUT);
        for stream in &self.streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// A connection that records when it last received something.
struct TimedReader<'a> {
    stream: TcpStream,
    at: &'a AtomicU64,
    started: Instant,
}

impl Read for TimedReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.at.store(milliseconds(self.started), Ordering::Relaxed);
        Ok(count)
    }
}

fn milliseconds(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

/// Reads frames of `peer` to the end of its connection; an error if that was not said before.
fn read(shared: &Connections, peer: usize, from: &mut impl Read) -> Result<(), String> {
    let mut left = false;
    loop {
        let mut header = [0; HEADER_BYTES];
        match from.read_exact(&mut header) {
            Ok(()) => {}
            Err(_) if left => return Ok(()),
            Err(error) => return Err(broken(&error)),
        }
        let garbled = || "it sent what is no frame".to_owned();
        let (tag, length) = frame::parse(&header).ok_or_else(garbled)?;
        shared.max_frame_bytes(peer, tag).filter(|max_frame_bytes| length <= *max_frame_bytes).ok_or_else(garbled)?;
        let bytes = frame::read_bytes(from, length).map_err(|error| broken(&error))?;
        shared.deliver(peer, tag, bytes)?;
        left |= !shared.is_connected(peer);
    }
}

/// Why a connection that was not to end did.
fn broken(error: &io::Error) -> String {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
            "its connection was closed without a word".to_owned()
        }
        _ => format!("its connection broke ({error})"),
    }
}

/// Sends heartbeats, and marks peers without heartbeats as lost.
fn monitor_heartbeats(
    shared: &Connections,
    watched: &[(usize, TcpStream)],
    last_received: &[AtomicU64],
    started: Instant,
) {
    let mut last = Instant::now();
    // The time from which on missing heartbeats count.
    let mut counts = milliseconds(started);
    while !shared.over.load(Ordering::SeqCst) {
        shared.send_heartbeats();
        thread::park_timeout(HEARTBEAT_INTERVAL);
        if last.elapsed() > SUSPENSION_THRESHOLD {
            counts = milliseconds(started);
        }
        last = Instant::now();
        for (peer, stream) in watched {
            let seen = last_received[*peer].load(Ordering::Relaxed).max(counts);
            if shared.is_connected(*peer)
                && milliseconds(started).saturating_sub(seen) > HEARTBEAT_TIMEOUT.as_millis() as u64
            {
                shared.mark_lost(*peer, &format!("it gave no sign of life for {} s", HEARTBEAT_TIMEOUT.as_secs()));
                // Its writer still has to tell it why.
                let _ = stream.shutdown(Shutdown::Read);
            }
        }
    }
}
