//! The rendezvous of ranks: rank 0 listens at an address that all ranks know. Every other rank sends it the address at which it listens
//! itself, and receives those of the others. Then each rank connects to those before it.
//!
//! Ranks that connect prove to each other that they know the run's token: see `handshake`. Other connections are closed, and the ranks
//! continue to wait for each other.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::handshake::{
    Handshake, HandshakeError, Introduction, MAX_INTRODUCTION_BYTES, PeerIdentity, RankToken, random_bytes,
};
use super::handshake_listener::HandshakeListener;
use crate::error::JoinError;

/// The time between two attempts to reach a rank that does not listen yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The time that a message of a handshake may take, unless the timeout for heartbeats is shorter.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The size of the longest answer, for a world of thousands of ranks.
const MAX_ANSWER_BYTES: u32 = 4 << 20;

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
    pub token: RankToken,
    /// The time that the ranks have to reach rank 0.
    pub timeout: Duration,
    /// A connected rank without a heartbeat for this long is lost.
    pub heartbeat_timeout: Duration,
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
        let next = Instant::now() + REPORT_INTERVAL.min(config.timeout / 2);
        Self { report_wait: config.report_wait, next }
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
enum Answer {
    Refused(String),
    Joined(JoinedWorld),
}

#[derive(Debug, Serialize, Deserialize)]
struct JoinedWorld {
    /// Random bytes, from which the token of the connections between the other ranks follows.
    session: [u8; 32],
    ranks: Vec<ListedRank>,
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
    fn introduction(&self, port: u16) -> Introduction {
        Introduction { world_size: self.world_size, rank: self.rank, port, peer: self.identity.clone() }
    }

    fn handshake_timeout(&self) -> Duration {
        HANDSHAKE_TIMEOUT.min(self.heartbeat_timeout)
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
    let (listener, addresses) = listen(config, &at)?;
    let elsewhere = describe_elsewhere(config, &addresses);
    let own = config.introduction(0);
    let handshakes = HandshakeListener::open(listener, config.token, own, config.handshake_timeout())?;
    let mut arrived: Vec<Option<(Introduction, Handshake)>> = (0..world_size).map(|_| None).collect();
    let mut reporter = WaitReporter::new(config);
    // The end of a message about missing ranks: the last connection that was refused.
    let mut refused = String::new();
    let problem = loop {
        let mut missing = missing_ranks(&arrived);
        if missing.is_empty() {
            // A rank whose connection broke while it waited may connect again.
            for entry in &mut arrived {
                entry.take_if(|(_, handshake)| handshake.is_closed());
            }
            missing = missing_ranks(&arrived);
        }
        if missing.is_empty() {
            break None;
        }
        let (count, now) = (world_size - missing.len(), Instant::now());
        if now >= deadline {
            let (seconds, missing) = (config.timeout.as_secs_f64().round(), list_ranks(&missing));
            break Some(format!(
                "only {count} of {world_size} ranks connected to {at} within {seconds} s; {missing} did not{refused}{elsewhere}"
            ));
        }
        match handshakes.arrived.recv_timeout(deadline.min(reporter.next).saturating_duration_since(now)) {
            Ok(Ok((_, handshake))) if handshake.is_closed() => {}
            Ok(Ok((introduction, mut handshake))) => match arrival_problem(&introduction, config, &arrived) {
                None => {
                    let rank = introduction.rank;
                    arrived[rank] = Some((introduction, handshake));
                }
                Some(problem) => {
                    // The rank is not among those that have arrived, whatever rank it claims to be.
                    let _ = handshake.send(&Answer::Refused(problem.clone()));
                    if config.token.is_secret() {
                        break Some(problem);
                    }
                    // Without a secret, any process may have sent it.
                    refused = format!("; a connection was refused because {problem}");
                }
            },
            Ok(Err(connection)) => refused = format!("; a connection was refused, {connection}"),
            Err(RecvTimeoutError::Timeout) => reporter.report(|| {
                format!(
                    "{count} of {world_size} ranks have connected to {at}; {} did not yet{refused}{elsewhere}",
                    list_ranks(&missing)
                )
            }),
            Err(RecvTimeoutError::Disconnected) => break Some(format!("rank 0 stopped listening at {at}")),
        }
    };
    if let Some(problem) = problem {
        for (_, handshake) in arrived.iter_mut().flatten() {
            let _ = handshake.send(&Answer::Refused(problem.clone()));
        }
        return Err(JoinError::Failed(problem));
    }
    answer_ranks(config, arrived)
}

/// Listens as rank 0 at the first port that is free. Also returns the addresses of its host.
fn listen(config: &JoinConfig, at: &str) -> Result<(TcpListener, Vec<SocketAddr>), JoinError> {
    let (mut listener, mut addresses) = (Err(ErrorKind::InvalidInput.into()), Vec::new());
    for &port in &config.ports {
        addresses = resolve_host(&config.leader_host, port).map_err(|error| {
            JoinError::Failed(format!("the address {:?} of rank 0 cannot be resolved: {error}", config.leader_host))
        })?;
        listener = TcpListener::bind((listening_ip(&addresses), port));
        if listener.is_ok() {
            break;
        }
    }
    let listener = listener.map_err(|error| {
        let is_used = error.kind() == ErrorKind::AddrInUse;
        let advice = if is_used { "; set `MASTER_PORT` to a port that no other run uses, for all ranks" } else { "" };
        JoinError::Failed(format!("rank 0 cannot listen at {at}: {error}{advice}"))
    })?;
    Ok((listener, addresses))
}

/// Sends the list of ranks to all that have `arrived`, every rank but this one.
fn answer_ranks(
    config: &JoinConfig,
    arrived: Vec<Option<(Introduction, Handshake)>>,
) -> Result<JoinedRanks, JoinError> {
    let mut ranks = vec![ListedRank { ip: None, port: 0, peer: config.identity.clone() }];
    for (introduction, handshake) in arrived.iter().flatten() {
        let ip = handshake.stream().peer_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback());
        ranks.push(ListedRank { ip, port: introduction.port, peer: introduction.peer.clone() });
    }
    let peers = ranks.iter().map(|listed| listed.peer.clone()).collect();
    let answer = Answer::Joined(JoinedWorld { session: random_bytes()?, ranks });
    let mut links = Vec::with_capacity(config.world_size);
    for (rank, entry) in arrived.into_iter().enumerate() {
        let Some((_, mut handshake)) = entry else {
            links.push(None);
            continue;
        };
        handshake.send(&answer).map_err(|error| unreachable_rank(0, rank, "its own connection", &error))?;
        links.push(Some(handshake.into_stream()));
    }
    Ok((links, peers))
}

/// The end of a message about missing ranks if none of rank 0's `addresses` is one of this machine.
fn describe_elsewhere(config: &JoinConfig, addresses: &[SocketAddr]) -> String {
    let is_own = |at: &SocketAddr| match UdpSocket::bind((at.ip(), 0)) {
        Ok(_) => true,
        Err(error) => error.kind() != ErrorKind::AddrNotAvailable,
    };
    if addresses.iter().any(is_own) {
        return String::new();
    }
    let (host, machine) = (&config.leader_host, config.identity.machine_name());
    format!("; rank 0 was started on {machine}, but {host} is not an address of that machine: check `MASTER_ADDR`")
}

/// The ranks other than 0 that have not arrived.
fn missing_ranks(arrived: &[Option<(Introduction, Handshake)>]) -> Vec<usize> {
    (1..arrived.len()).filter(|rank| arrived[*rank].is_none()).collect()
}

fn unreachable_rank(rank: usize, peer: usize, at: impl Display, error: &dyn Display) -> JoinError {
    JoinError::Failed(format!("rank {rank} cannot reach rank {peer} at {at}: {error}"))
}

/// `ranks 1, 2`.
fn list_ranks(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().take(16).map(ToString::to_string).collect();
    let more = if ranks.len() > 16 { ", …" } else { "" };
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}{more}", list.join(", "))
}

/// The problem with a rank that has proved that it knows the token.
fn arrival_problem(
    introduction: &Introduction,
    config: &JoinConfig,
    arrived: &[Option<(Introduction, Handshake)>],
) -> Option<String> {
    let Introduction { world_size, rank, .. } = introduction;
    let [theirs, ours] = [&introduction.peer, &config.identity].map(|peer| &peer.program);
    if theirs != ours {
        return Some(format!("rank {rank} is {theirs}, but rank 0 is {ours}; start the same program for all ranks"));
    }
    if *world_size != config.world_size {
        let ours = config.world_size;
        return Some(format!("rank {rank} was started as one of {world_size} ranks, but rank 0 as one of {ours}"));
    }
    if rank >= world_size {
        return Some(format!("a process was started as rank {rank} of {world_size}: ranks count from 0"));
    }
    let is_taken = |entry: &Option<(_, Handshake)>| entry.as_ref().is_some_and(|(_, earlier)| !earlier.is_closed());
    if *rank == 0 || arrived.get(*rank).is_none_or(is_taken) {
        return Some(format!("two processes were started as rank {rank} of {world_size}"));
    }
    None
}

fn join_leader(config: &JoinConfig, mut deadline: Instant) -> Result<JoinedRanks, JoinError> {
    let (rank, at) = (config.rank, describe_address(config));
    let started = Instant::now();
    // The damaged answer of rank 0, which has accepted this rank and may have stopped listening.
    let mut damage = None;
    let mut reporter = WaitReporter::new(config);
    let mut why = "no process listens there".to_owned();
    loop {
        for &port in &config.ports {
            // A name service may come up later.
            let addresses = resolve_host(&config.leader_host, port).unwrap_or_else(|error| {
                why = error.to_string();
                Vec::new()
            });
            for address in addresses {
                match TcpStream::connect_timeout(&address, HANDSHAKE_TIMEOUT.min(config.timeout)) {
                    Ok(stream) => match greet_leader(config, stream) {
                        Ok((leader, listener)) => return await_answer(config, leader, listener, deadline),
                        Err(error) if error.is_timeout() => "it does not answer".clone_into(&mut why),
                        Err(error) if error.is_damage() => {
                            why = format!("its answer was damaged: {error}");
                            deadline = deadline.min(Instant::now() + config.heartbeat_timeout);
                            damage.get_or_insert_with(|| why.clone());
                        }
                        Err(error) => {
                            why = format!(
                                "the listener there is not rank 0 of this run, or has a different token: {error}; set `MASTER_PORT` to a \
                                 port that no other program uses, and `RUNNER_TOKEN`, if it is set, to the same text, for all ranks"
                            );
                        }
                    },
                    Err(error) => why = error.to_string(),
                }
            }
        }
        if Instant::now() >= deadline {
            let seconds = started.elapsed().as_secs_f64().round();
            let text = match damage {
                Some(damage) => format!("rank {rank} reached rank 0 at {at}, but {damage}; {seconds} s later: {why}"),
                None => format!("rank {rank} did not find rank 0 at {at} within {seconds} s: {why}"),
            };
            return Err(JoinError::Failed(text));
        }
        reporter.report(|| format!("rank {rank} has not found rank 0 at {at} yet: {why}"));
        thread::sleep(RETRY_INTERVAL);
    }
}

/// Introduces this rank to a process that may be rank 0. Also returns the listener for other ranks.
fn greet_leader(config: &JoinConfig, stream: TcpStream) -> Result<(Handshake, TcpListener), HandshakeError> {
    // On the address by which rank 0 is reached: others reach this rank by it, too.
    let own = stream.local_addr()?.ip();
    let any: IpAddr = if own.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let listener = TcpListener::bind((if own.is_loopback() { own } else { any }, 0))?;
    let introduction = config.introduction(listener.local_addr()?.port());
    Ok((greet(stream, config.token, &introduction, 0, config.handshake_timeout())?, listener))
}

/// Introduces this rank to rank `peer`, which must introduce itself.
fn greet(
    stream: TcpStream,
    token: RankToken,
    own: &Introduction,
    peer: usize,
    timeout: Duration,
) -> Result<Handshake, HandshakeError> {
    let mut handshake = Handshake::connect(stream, token, timeout)?;
    handshake.send(own)?;
    // A rank that has greeted this one answers at once, or closes the connection.
    let silent = |error: HandshakeError| if error.is_timeout() { HandshakeError::Message } else { error };
    let theirs: Introduction = handshake.receive(MAX_INTRODUCTION_BYTES, timeout).map_err(silent)?;
    if theirs.rank == peer { Ok(handshake) } else { Err(HandshakeError::Message) }
}

/// Waits for the answer of rank 0, which comes when all ranks have joined; then connects to the other ranks.
fn await_answer(
    config: &JoinConfig,
    mut leader: Handshake,
    listener: TcpListener,
    deadline: Instant,
) -> Result<JoinedRanks, JoinError> {
    let left = deadline.saturating_duration_since(Instant::now()) + HANDSHAKE_TIMEOUT;
    let answer: Answer = leader.receive(MAX_ANSWER_BYTES, left).map_err(|error| {
        let rank = config.rank;
        JoinError::Failed(format!("rank {rank} connected to rank 0, but received no answer: {error}"))
    })?;
    match answer {
        Answer::Refused(why) => Err(JoinError::Failed(why)),
        Answer::Joined(world) => connect(config, leader.into_stream(), world, listener),
    }
}

/// Connects to the ranks before this one, and waits for those after it. All of them have reached rank 0.
fn connect(
    config: &JoinConfig,
    leader: TcpStream,
    world: JoinedWorld,
    listener: TcpListener,
) -> Result<JoinedRanks, JoinError> {
    let (rank, world_size, timeout) = (config.rank, config.world_size, config.heartbeat_timeout);
    let JoinedWorld { ref session, ranks } = world;
    if ranks.len() != world_size {
        let listed = ranks.len();
        return Err(JoinError::Failed(format!("rank 0 listed {listed} ranks instead of {world_size}")));
    }
    let (token, own) = (config.token.of_session(session), config.introduction(0));
    let leader_ip = leader.peer_addr().map_err(|error| unreachable_rank(rank, 0, "its address", &error))?.ip();
    let handshakes = HandshakeListener::open(listener, token, own.clone(), config.handshake_timeout())?;
    let mut links: Vec<Option<TcpStream>> = (0..world_size).map(|_| None).collect();
    links[0] = Some(leader);
    // Ranks that are connected already treat a rank without heartbeats as lost after this time.
    let deadline = Instant::now() + timeout;
    let time_left = || deadline.saturating_duration_since(Instant::now());
    for (peer, listed) in ranks.iter().enumerate().take(rank).skip(1) {
        let address = SocketAddr::new(listed.ip.unwrap_or(leader_ip), listed.port);
        let left = time_left().max(RETRY_INTERVAL);
        let stream = TcpStream::connect_timeout(&address, left).map_err(HandshakeError::from);
        let greeted = stream.and_then(|stream| greet(stream, token, &own, peer, left));
        links[peer] = Some(greeted.map_err(|error| unreachable_rank(rank, peer, address, &error))?.into_stream());
    }
    while let Some(peer) = (rank + 1..world_size).find(|peer| links[*peer].is_none()) {
        let left = time_left();
        let arrival = handshakes.arrived.recv_timeout(left).ok().filter(|_| !left.is_zero());
        let Some(arrival) = arrival else {
            let seconds = timeout.as_secs_f64().round();
            return Err(JoinError::Failed(format!("rank {rank} waited {seconds} s for rank {peer} to connect to it")));
        };
        if let Ok((Introduction { rank: from, .. }, handshake)) = arrival
            && from > rank
            && from < world_size
            && links[from].is_none()
        {
            links[from] = Some(handshake.into_stream());
        }
    }
    Ok((links, ranks.into_iter().map(|listed| listed.peer).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> JoinConfig {
        JoinConfig {
            rank: 3,
            world_size: 8,
            identity: PeerIdentity::new(1, "here", "0-3", "runner"),
            leader_host: "localhost".to_owned(),
            ports: vec![1, 2],
            token: RankToken::new("job", Some("secret")),
            timeout: Duration::from_secs(1),
            heartbeat_timeout: Duration::from_secs(1),
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
