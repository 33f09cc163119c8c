//! The rendezvous of ranks: rank 0 listens at an address that all ranks know. Every other rank sends it the address at which it listens
//! itself, and receives those of the others. Then each rank connects to those before it.
//!
//! A rank that connects first sends the run's token in a handshake. The token keeps the ranks of two runs apart, and
//! strangers out; it is no defence against someone who reads the network's traffic.

use std::fmt::Display;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::frame::{read_message, write_message};
use super::handshake::{Handshake, MAGIC, PeerIdentity, VERSION};
use super::handshake_listener::{HANDSHAKE_TIMEOUT, HandshakeListener};
use crate::error::JoinError;

/// The time between two attempts to reach a rank that does not listen yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The size of the longest answer, for a world of thousands of ranks.
const MAX_ANSWER_BYTES: u32 = 4 << 20;

/// The error of starting the threads of connections.
pub(super) fn thread_error(error: &io::Error) -> JoinError {
    JoinError::Failed(format!("threads for the connections: {error}"))
}

/// The settings of a rank for its rendezvous.
#[derive(Debug, Clone)]
pub struct JoinConfig {
    pub rank: usize,
    pub world_size: usize,
    pub identity: PeerIdentity,
    /// The host of rank 0.
    pub leader_host: String,
    /// Rank 0 listens at the first of these that is free; one is usual.
    pub ports: Vec<u16>,
    /// The hash of a text that only the ranks of this run know.
    pub token: [u8; 32],
    pub timeout: Duration,
    /// Receives from time to time what this rank waits for.
    pub report_wait: fn(&str),
}

/// The time after which a rank reports what it waits for; later reports come at three times this interval.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Reports what a rank waits for, not too often.
struct WaitReporter {
    report_wait: fn(&str),
    next: Instant,
}

impl WaitReporter {
    fn new(config: &JoinConfig) -> Self {
        Self { report_wait: config.report_wait, next: Instant::now() + REPORT_INTERVAL.min(config.timeout / 2) }
    }

    fn report(&mut self, what: impl FnOnce() -> String) {
        if Instant::now() >= self.next {
            self.next = Instant::now() + 3 * REPORT_INTERVAL;
            (self.report_wait)(&what());
        }
    }
}

/// The answer of rank 0 when all ranks have joined.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// The problem, if there is one. Then the rest is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    /// Identifies this rendezvous: a rank shows it when it connects to another one.
    #[serde(default)]
    session: [u8; 32],
    #[serde(default)]
    ranks: Vec<ListedRank>,
}

impl Answer {
    fn refusal(problem: &str) -> Self {
        Self { refused: Some(problem.to_owned()), session: [0; 32], ranks: Vec::new() }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ListedRank {
    /// `None`: the rank is on the machine of rank 0.
    ip: Option<IpAddr>,
    port: u16,
    peer: PeerIdentity,
}

/// A connection to each other rank, and the identities of all ranks.
pub(super) type JoinedRanks = (Vec<Option<TcpStream>>, Vec<PeerIdentity>);

impl JoinConfig {
    fn handshake(&self, token: [u8; 32], port: u16) -> Handshake {
        let Self { rank, world_size, ref identity, .. } = *self;
        Handshake { version: VERSION, world_size, rank, token, port, peer: identity.clone() }
    }
}

/// Meets the other ranks.
pub(super) fn join(config: &JoinConfig) -> Result<JoinedRanks, JoinError> {
    let deadline = Instant::now() + config.timeout;
    if config.world_size == 1 {
        return Ok((vec![None], vec![config.identity.clone()]));
    }
    if config.rank == 0 { accept_ranks(config, deadline) } else { join_leader(config, deadline) }
}

/// `host:port`, or with the last of several ports.
fn describe_address(config: &JoinConfig) -> String {
    let port = |port: Option<&u16>| port.map_or_else(String::new, ToString::to_string);
    let (first, last) = (port(config.ports.first()), port(config.ports.last()));
    let host = &config.leader_host;
    if first == last { format!("{host}:{first}") } else { format!("{host}, ports {first} to {last}") }
}

fn resolve_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    if addresses.is_empty() { Err(ErrorKind::NotFound.into()) } else { Ok(addresses) }
}

/// The address at which rank 0 listens: loopback if the host's name resolves to loopback alone, else all interfaces.
fn listening_ip(addresses: &[SocketAddr]) -> IpAddr {
    if let Some(own) = addresses.first().filter(|_| addresses.iter().all(|a| a.ip().is_loopback())) {
        return own.ip();
    }
    let v4 = addresses.iter().any(SocketAddr::is_ipv4);
    if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn accept_ranks(config: &JoinConfig, deadline: Instant) -> Result<JoinedRanks, JoinError> {
    let (world_size, at) = (config.world_size, describe_address(config));
    let mut listener = Err(ErrorKind::InvalidInput.into());
    for &port in &config.ports {
        let addresses = resolve_host(&config.leader_host, port).map_err(|error| {
            JoinError::Failed(format!("the address {:?} of rank 0 cannot be resolved: {error}", config.leader_host))
        })?;
        listener = TcpListener::bind((listening_ip(&addresses), port));
        if listener.is_ok() {
            break;
        }
    }
    let listener = listener.map_err(|error| JoinError::Failed(format!("rank 0 cannot listen at {at}: {error}")))?;
    let handshakes = HandshakeListener::open(listener, config.token, world_size);
    let handshakes = handshakes.map_err(|error| thread_error(&error))?;
    let mut arrived: Vec<Option<(Handshake, TcpStream)>> = (0..world_size).map(|_| None).collect();
    let mut reporter = WaitReporter::new(config);
    let problem = loop {
        let missing: Vec<usize> = (1..world_size).filter(|rank| arrived[*rank].is_none()).collect();
        if missing.is_empty() {
            break None;
        }
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        let count = world_size - missing.len();
        match handshakes.arrived.recv_timeout(left.min(reporter.next.saturating_duration_since(now))) {
            Ok((handshake, stream)) => {
                if let Some(problem) = handshake_problem(&handshake, config, &arrived) {
                    // The rank is not among those that have arrived, whatever rank it says it is.
                    let _ = write_message(&mut &stream, &Answer::refusal(&problem));
                    break Some(problem);
                }
                let rank = handshake.rank;
                arrived[rank] = Some((handshake, stream));
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => reporter.report(|| {
                format!("{count} of {world_size} ranks have come to {at}; {} did not yet", list_ranks(&missing))
            }),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                let (seconds, missing) = (config.timeout.as_secs_f64().round(), list_ranks(&missing));
                break Some(format!(
                    "only {count} of {world_size} ranks came to {at} within {seconds} s; {missing} did not"
                ));
            }
        }
    };
    if let Some(problem) = problem {
        for (_, stream) in arrived.iter().flatten() {
            let _ = write_message(&mut &*stream, &Answer::refusal(&problem));
        }
        return Err(JoinError::Failed(problem));
    }
    let mut ranks = vec![ListedRank { ip: None, port: 0, peer: config.identity.clone() }];
    for (handshake, stream) in arrived.iter().flatten() {
        let ip = stream.peer_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback());
        ranks.push(ListedRank { ip, port: handshake.port, peer: handshake.peer.clone() });
    }
    let answer = Answer { refused: None, session: session(), ranks };
    let mut links = Vec::with_capacity(world_size);
    for (rank, entry) in arrived.into_iter().enumerate() {
        let stream = entry.map(|(_, stream)| stream);
        if let Some(mut stream) = stream.as_ref() {
            write_message(&mut stream, &answer)
                .map_err(|error| unreachable_rank(0, rank, "its own connection", &error))?;
        }
        links.push(stream);
    }
    Ok((links, answer.ranks.into_iter().map(|listed| listed.peer).collect()))
}

fn unreachable_rank(rank: usize, peer: usize, at: impl Display, error: &io::Error) -> JoinError {
    JoinError::Failed(format!("rank {rank} cannot reach rank {peer} at {at}: {error}"))
}

/// `ranks 1, 2`.
fn list_ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().take(16).map(ToString::to_string).collect();
    let more = if ranks.len() > 16 { ", …" } else { "" };
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}{more}", list.join(", "))
}

/// The problem with the handshake of a rank that knows the token.
fn handshake_problem(
    handshake: &Handshake,
    config: &JoinConfig,
    arrived: &[Option<(Handshake, TcpStream)>],
) -> Option<String> {
    let Handshake { version, world_size, rank, .. } = handshake;
    if *version != VERSION {
        return Some(format!("rank {rank} speaks version {version} of the protocol, and rank 0 speaks {VERSION}"));
    }
    if *world_size != config.world_size {
        let ours = config.world_size;
        return Some(format!("rank {rank} was started as one of {world_size} ranks, and rank 0 as one of {ours}"));
    }
    if rank >= world_size {
        return Some(format!("a process was started as rank {rank} of {world_size}: ranks count from 0"));
    }
    if *rank == 0 || arrived.get(*rank).is_none_or(Option::is_some) {
        return Some(format!("two processes were started as rank {rank} of {world_size}"));
    }
    None
}

fn join_leader(config: &JoinConfig, deadline: Instant) -> Result<JoinedRanks, JoinError> {
    let (rank, at) = (config.rank, describe_address(config));
    let mut reporter = WaitReporter::new(config);
    let mut why = "nobody listens there".to_owned();
    loop {
        for &port in &config.ports {
            // A name service may come up later.
            let addresses = resolve_host(&config.leader_host, port).unwrap_or_else(|error| {
                why = error.to_string();
                Vec::new()
            });
            for address in addresses {
                match TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT.min(config.timeout)) {
                    Ok(stream) => match greet_leader(config, &stream, deadline) {
                        Ok((Answer { refused: Some(why), .. }, _)) => return Err(JoinError::Failed(why)),
                        Ok((answer, listener)) => return connect(config, stream, answer, listener, deadline),
                        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                            "it does not answer".clone_into(&mut why);
                        }
                        Err(error) => why = format!("the listener there is not rank 0 of this run ({error})"),
                    },
                    Err(error) => why = error.to_string(),
                }
            }
        }
        if Instant::now() >= deadline {
            let seconds = config.timeout.as_secs_f64().round();
            return Err(JoinError::Failed(format!("rank {rank} found no rank 0 at {at} within {seconds} s: {why}")));
        }
        reporter.report(|| format!("rank {rank} finds no rank 0 at {at} yet: {why}"));
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Sends a handshake to a process that may be rank 0, and waits for its answer, which comes when all ranks have joined. Also returns
/// the listener for other ranks.
fn greet_leader(config: &JoinConfig, mut stream: &TcpStream, deadline: Instant) -> io::Result<(Answer, TcpListener)> {
    // On the address by which rank 0 is reached: others reach this rank by it, too.
    let own = stream.local_addr()?.ip();
    let any: IpAddr = if own.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let listener = TcpListener::bind((if own.is_loopback() { own } else { any }, 0))?;
    // A rank 0 that knows the token answers at once.
    greet(stream, &config.handshake(config.token, listener.local_addr()?.port()), HANDSHAKE_TIMEOUT)?;
    let left = deadline.saturating_duration_since(Instant::now()) + HANDSHAKE_TIMEOUT;
    stream.set_read_timeout(Some(left))?;
    let answer = read_message(&mut stream, MAX_ANSWER_BYTES)?;
    Ok((answer.ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "an invalid answer"))?, listener))
}

/// Sends a handshake, and waits for the sign that the receiver knows its token.
fn greet(mut stream: &TcpStream, handshake: &Handshake, timeout: Duration) -> io::Result<()> {
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_read_timeout(Some(timeout))?;
    write_message(&mut stream, handshake)?;
    let mut known = [0; MAGIC.len()];
    stream.read_exact(&mut known)?;
    if known == MAGIC { Ok(()) } else { Err(io::Error::new(ErrorKind::InvalidData, "another handshake")) }
}

/// Connects to the ranks before this one, and waits for those after it.
fn connect(
    config: &JoinConfig,
    leader: TcpStream,
    answer: Answer,
    listener: TcpListener,
    deadline: Instant,
) -> Result<JoinedRanks, JoinError> {
    let Answer { session, ranks, .. } = answer;
    let (rank, world_size) = (config.rank, config.world_size);
    if ranks.len() != world_size {
        let listed = ranks.len();
        return Err(JoinError::Failed(format!("rank 0 listed {listed} ranks instead of {world_size}")));
    }
    let leader_ip = leader.peer_addr().map_err(|error| unreachable_rank(rank, 0, "its address", &error))?.ip();
    let handshakes = HandshakeListener::open(listener, session, world_size);
    let handshakes = handshakes.map_err(|error| thread_error(&error))?;
    let mut links: Vec<Option<TcpStream>> = (0..world_size).map(|_| None).collect();
    links[0] = Some(leader);
    let time_left = || deadline.saturating_duration_since(Instant::now()).max(HANDSHAKE_TIMEOUT);
    for (peer, listed) in ranks.iter().enumerate().take(rank).skip(1) {
        let address = SocketAddr::new(listed.ip.unwrap_or(leader_ip), listed.port);
        let stream = TcpStream::connect_timeout(&address, time_left()).and_then(|stream| {
            greet(&stream, &config.handshake(session, 0), time_left())?;
            Ok(stream)
        });
        links[peer] = Some(stream.map_err(|error| unreachable_rank(rank, peer, address, &error))?);
    }
    while let Some(peer) = (rank + 1..world_size).find(|peer| links[*peer].is_none()) {
        let Ok((handshake, stream)) = handshakes.arrived.recv_timeout(time_left()) else {
            let seconds = config.timeout.as_secs_f64().round();
            return Err(JoinError::Failed(format!("rank {rank} waited {seconds} s for rank {peer} to connect to it")));
        };
        let from = handshake.rank;
        if from > rank && from < world_size && links[from].is_none() {
            links[from] = Some(stream);
        }
    }
    Ok((links, ranks.into_iter().map(|listed| listed.peer).collect()))
}

/// An identifier of this rendezvous. It need not be secret, only new.
fn session() -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    hasher.update(&now.as_nanos().to_le_bytes()).update(&std::process::id().to_le_bytes());
    hasher.update(&std::ptr::from_ref(&hasher).addr().to_le_bytes());
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> JoinConfig {
        JoinConfig {
            rank: 3,
            world_size: 8,
            identity: PeerIdentity::new(1, "here", "0-3"),
            leader_host: "localhost".to_owned(),
            ports: vec![1, 2],
            token: [7; 32],
            timeout: Duration::from_secs(1),
            report_wait: |_| (),
        }
    }

    #[test]
    fn only_a_name_of_the_network_opens_a_door_to_it() {
        let at = |text: &str| -> SocketAddr { text.parse().unwrap() };
        assert_eq!(listening_ip(&[at("127.0.0.1:1"), at("[::1]:1")]).to_string(), "127.0.0.1");
        assert_eq!(listening_ip(&[at("127.0.1.1:1"), at("10.0.0.5:1")]).to_string(), "0.0.0.0");
        assert_eq!(listening_ip(&[at("[fe80::1]:1")]).to_string(), "::");
    }

    #[test]
    fn addresses_are_shown_as_they_were_given() {
        assert_eq!(describe_address(&config()), "localhost, ports 1 to 2");
        assert_eq!(describe_address(&JoinConfig { ports: vec![29500], ..config() }), "localhost:29500");
    }
}
