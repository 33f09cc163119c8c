//! The connections of a rank to all others: threads that read and write them, heartbeats, and their end.

use std::io::{self, Read};
use std::net::{Shutdown, TcpStream};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::connection_state::RunAbort;
use super::connections::{CLOSE_TIMEOUT, Connections};
use super::frame::{FrameError, FrameReader, FrameTag, FrameWriter};
use super::handshake::PeerIdentity;
use super::rendezvous::{self, JoinConfig};
use crate::error::JoinError;
use runner_spec::format::json_bytes;
use runner_spec::topology::Topology;
use runner_threads::threads;

/// The time between two heartbeats, unless the timeout for them is only a few times as long.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The number of heartbeats that a rank sends at least within the timeout for them.
const HEARTBEATS_IN_TIMEOUT: u32 = 4;
/// If a heartbeat comes this late, this process, or its machine, was suspended.
const SUSPENSION_THRESHOLD: Duration = Duration::from_secs(5);

/// A rank that is connected to all others: an owner of its connections. When it is dropped, it sends a goodbye, and waits for
/// seconds at most.
#[derive(Debug)]
pub struct TcpMesh {
    connections: Arc<Connections>,
    peers: Vec<PeerIdentity>,
    streams: Vec<Arc<TcpStream>>,
    threads: Vec<JoinHandle<()>>,
}

impl Deref for TcpMesh {
    type Target = Connections;

    fn deref(&self) -> &Connections {
        &self.connections
    }
}

impl TcpMesh {
    /// Meets the other ranks, and connects to each of them.
    ///
    /// # Errors
    /// If they do not all come in time, or are not of one run.
    pub fn join(config: &JoinConfig) -> Result<Self, JoinError> {
        let (links, peers) = rendezvous::join(config)?;
        Ok(Self::start(config, links, peers)?)
    }

    /// Starts the threads of the connections. `links` has a connection to each rank but this one.
    fn start(config: &JoinConfig, links: Vec<Option<TcpStream>>, peers: Vec<PeerIdentity>) -> io::Result<Self> {
        let connections = Arc::new(Connections::new(config.rank, links.len()));
        let last_received: Arc<Vec<AtomicU64>> = Arc::new(links.iter().map(|_| AtomicU64::new(0)).collect());
        let mut mesh = Self { connections: Arc::clone(&connections), peers, streams: Vec::new(), threads: Vec::new() };
        let started = Instant::now();
        let mut watched = Vec::new();
        for (peer, link) in links.into_iter().enumerate() {
            let Some(link) = link else { continue };
            link.set_nodelay(true)?;
            link.set_read_timeout(None)?;
            link.set_write_timeout(None)?;
            // All share one file descriptor, of which a process may have few.
            let link = Arc::new(link);
            mesh.streams.push(Arc::clone(&link));
            watched.push((peer, Arc::clone(&link)));
            let (stream, reading, times) = (Arc::clone(&link), Arc::clone(&connections), Arc::clone(&last_received));
            let read = move || {
                // Only verified bytes are a sign of life: after lost bytes, the bytes that follow are misread.
                let record = || times[peer].store(milliseconds(started), Ordering::Relaxed);
                if let Err(error) = read(&reading, peer, &mut FrameReader::new(&*stream, record)) {
                    let damaged = format!("its connection with rank {} is damaged: {error}", reading.rank());
                    let is_damage = matches!(error, FrameError::Damaged { .. });
                    reading.mark_lost(peer, &if is_damage { damaged } else { error.to_string() });
                }
                reading.remove_reader();
            };
            let writing = Arc::clone(&connections);
            let write = move || {
                let mut link = FrameWriter::new(&*link);
                while let Some(frame) = writing.send_queues[peer].next() {
                    if let Err(error) = link.write(&frame) {
                        writing.mark_lost(peer, &error.to_string());
                        writing.send_queues[peer].give_up();
                        return;
                    }
                }
                let _ = link.connection().shutdown(Shutdown::Write);
            };
            mesh.spawn(&format!("from rank {peer}"), read)?;
            mesh.spawn(&format!("to rank {peer}"), write)?;
        }
        let timeout = config.heartbeat_timeout;
        mesh.spawn("heartbeat", move || monitor_heartbeats(&connections, timeout, &watched, &last_received, started))?;
        Ok(mesh)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.threads.push(threads::spawn(name, work)?);
        Ok(())
    }

    /// A handle that does not delay the goodbye which dropping the mesh sends.
    pub fn connections(&self) -> Arc<Connections> {
        Arc::clone(&self.connections)
    }

    /// The identity of each rank, this one included.
    pub fn ranks(&self) -> &[PeerIdentity] {
        &self.peers
    }

    #[cfg(test)]
    pub(super) fn streams(&self) -> &[Arc<TcpStream>] {
        &self.streams
    }

    /// Compares `plan` with those of the other ranks. Then operations of `topology` may begin.
    ///
    /// # Errors
    /// If the plans differ, with the same text on all ranks; those of `receive_control`.
    pub fn agree_on_plan(&self, plan: &str, topology: &Topology) -> Result<(), JoinError> {
        topology.check()?;
        // Before the plan is sent: from then on others may send frames of operations.
        if self.topology.set(topology.clone()).is_err() {
            return Err(JoinError::Failed("the ranks have agreed already".to_owned()));
        }
        for peer in self.peers() {
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
                Err(JoinError::Failed(format!(
                    "rank {rank} has the plan {plan}, but rank 0 has {first}; start all ranks with the same file, \
                     flags and data, and two runs with different values of `MASTER_PORT`"
                )))
            }
            None => Ok(()),
        }
    }
}

/// The beginning of a hash, in characters that do no harm.
fn printable_prefix(plan: &str) -> String {
    plan.chars().filter(char::is_ascii_graphic).take(16).collect()
}

impl Drop for TcpMesh {
    fn drop(&mut self) {
        if thread::panicking() {
            // The others treat this rank like one that was killed. They report where it was.
            self.publish_status();
            self.abort_run(RunAbort { by: self.rank(), code: 1, reason: "it panicked".to_owned(), is_loss: true });
        }
        self.close();
        let status = json_bytes(&self.status().snapshot());
        for peer in self.connections.peers() {
            self.send_queues[peer].push(FrameTag::Goodbye, status.clone());
            self.send_queues[peer].close();
        }
        self.await_readers(CLOSE_TIMEOUT);
        for stream in &self.streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
        for thread in self.threads.drain(..) {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn milliseconds(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

/// Reads frames of `peer` to the end of its connection, which the peer must announce.
fn read(
    connections: &Connections,
    peer: usize,
    from: &mut FrameReader<impl Read, impl Fn()>,
) -> Result<(), FrameError> {
    let mut has_left = false;
    loop {
        let (tag, length) = match from.read_header() {
            Err(FrameError::Connection(_)) if has_left => return Ok(()),
            header => header?,
        };
        let is_allowed = connections.max_frame_bytes(peer, tag).is_some_and(|max_bytes| length <= max_bytes);
        let bytes = if is_allowed { from.read_bytes(length) } else { Err(FrameError::Invalid) };
        connections.deliver(peer, tag, bytes?)?;
        has_left |= !connections.is_connected(peer);
    }
}

/// Sends heartbeats, and marks peers without heartbeats as lost.
fn monitor_heartbeats(
    connections: &Connections,
    timeout: Duration,
    watched: &[(usize, Arc<TcpStream>)],
    last_received: &[AtomicU64],
    started: Instant,
) {
    let mut last = Instant::now();
    // The time from which on missing heartbeats count.
    let mut counted_from = milliseconds(started);
    while !connections.is_closed() {
        connections.publish_status();
        thread::park_timeout(HEARTBEAT_INTERVAL.min(timeout / HEARTBEATS_IN_TIMEOUT));
        if last.elapsed() > SUSPENSION_THRESHOLD {
            counted_from = milliseconds(started);
        }
        last = Instant::now();
        for (peer, stream) in watched {
            let seen = last_received[*peer].load(Ordering::Relaxed).max(counted_from);
            let silence = Duration::from_millis(milliseconds(started).saturating_sub(seen));
            if connections.is_connected(*peer) && silence > timeout {
                connections.mark_lost(*peer, &format!("it sent no heartbeat for {} s", timeout.as_secs_f64()));
                // The writer still has to send the peer the reason.
                let _ = stream.shutdown(Shutdown::Read);
            }
        }
    }
}
