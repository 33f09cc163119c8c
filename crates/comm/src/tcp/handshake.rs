//! The handshake of two ranks that connect. Each side sends a greeting with a random challenge. Then it proves that it knows the
//! token of the ranks: every further message ends with a keyed hash of the message and of both challenges.
//!
//! Nobody learns the token from a handshake, and no proof is valid in a different handshake. The messages are not encrypted.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use runner_spec::format::json_bytes;

/// The first bytes of a greeting, with the version of the protocol between ranks: every change of a message raises it.
const MAGIC: [u8; 8] = *b"rnrtcp\r7";

const CHALLENGE_BYTES: usize = 32;

/// A greeting is the magic and the challenge.
const GREETING_BYTES: usize = MAGIC.len() + CHALLENGE_BYTES;

/// The most bytes of an introduction. A longer one is not read.
pub(super) const MAX_INTRODUCTION_BYTES: u32 = 4 << 10;

/// The time that the rest of a message may take once its first byte has arrived. Damage to its length must not make a rank wait for bytes
/// that nobody sends.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The most characters of each text of an identity.
const MAX_IDENTITY_CHARS: usize = 192;

/// The token by which the ranks of a run recognize each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RankToken {
    key: [u8; blake3::KEY_LEN],
    is_secret: bool,
}

impl RankToken {
    /// The token of the ranks of `job`, which keeps the ranks of two jobs apart. It is a secret if only they know `secret`.
    pub fn new(job: &str, secret: Option<&str>) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("runner: token of the ranks of a job");
        hasher.update(&(job.len() as u64).to_le_bytes()).update(job.as_bytes());
        hasher.update(secret.unwrap_or_default().as_bytes());
        Self { key: *hasher.finalize().as_bytes(), is_secret: secret.is_some() }
    }

    /// A secret for a new token, in hexadecimal digits.
    ///
    /// # Errors
    /// If the system has no random bytes.
    pub fn random_secret() -> io::Result<String> {
        Ok(blake3::Hash::from_bytes(random_bytes()?).to_hex().to_string())
    }

    /// False if others can derive the token from what they know of the job.
    pub fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// The token of one rendezvous of these ranks. `session` are random bytes that rank 0 sends to the others.
    pub(super) fn of_session(&self, session: &[u8; 32]) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("runner: token of a rendezvous");
        Self { key: *hasher.update(&self.key).update(session).finalize().as_bytes(), ..*self }
    }
}

impl fmt::Debug for RankToken {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankToken").field("is_secret", &self.is_secret).finish_non_exhaustive()
    }
}

/// 32 random bytes of the system.
pub(super) fn random_bytes() -> io::Result<[u8; CHALLENGE_BYTES]> {
    let mut bytes = [0; CHALLENGE_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(format!("no random bytes: {error}")))?;
    Ok(bytes)
}

/// A rank as the other ranks know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerIdentity {
    pub local_rank: usize,
    pub machine: String,
    /// The cores that the rank may use.
    pub cores: String,
    /// The version and sources of its program.
    #[serde(default)]
    pub program: String,
    /// The number of its process.
    #[serde(default)]
    pub process: u32,
}

impl PeerIdentity {
    /// The identity of this process. The texts are shortened, and lose their control characters.
    pub fn new(local_rank: usize, machine: &str, cores: &str, program: &str) -> Self {
        let [machine, cores, program] = [machine, cores, program]
            .map(|text| text.chars().filter(|c| !c.is_control()).take(MAX_IDENTITY_CHARS).collect());
        Self { local_rank, machine, cores, program, process: std::process::id() }
    }

    /// The name of its machine, without the time of its start.
    pub fn machine_name(&self) -> &str {
        self.machine.split(' ').next().unwrap_or_default()
    }
}

/// The first message of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Introduction {
    pub(super) world_size: usize,
    pub(super) rank: usize,
    /// The port at which the rank listens; 0 if the receiver knows it.
    pub(super) port: u16,
    pub(super) peer: PeerIdentity,
}

/// The reason why a handshake failed. `it` in the texts is the other side.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{}", describe_io_error(.0))]
    Connection(#[from] io::Error),
    #[error("it did not send the greeting of a rank of this version")]
    Greeting,
    #[error(
        "it did not prove that it knows the token (all ranks need the same RUNNER_TOKEN, or, without one, the same cache)"
    )]
    Proof,
    #[error("its message was invalid, incomplete or missing")]
    Message,
}

impl HandshakeError {
    /// True if a message of the other side did not arrive intact. A rank sends one only to a rank that has proved itself.
    pub(super) fn is_damage(&self) -> bool {
        matches!(self, Self::Proof | Self::Message)
    }

    pub(super) fn is_timeout(&self) -> bool {
        matches!(self, Self::Connection(error) if is_timeout(error.kind()))
    }
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

fn describe_io_error(error: &io::Error) -> String {
    match error.kind() {
        kind if is_timeout(kind) => "it did not answer in time".to_owned(),
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "it closed the connection".to_owned()
        }
        _ => error.to_string(),
    }
}

/// A connection whose sides have greeted each other.
#[derive(Debug)]
pub(super) struct Handshake {
    stream: TcpStream,
    token: RankToken,
    /// The greeting of the side that connected, and that of the side that listened.
    greetings: [[u8; GREETING_BYTES]; 2],
    /// The index of this side's greeting.
    side: u8,
    /// The number of messages that each side has sent.
    messages: [u64; 2],
}

impl Handshake {
    /// Greets the listener at the other end of `stream`.
    pub(super) fn connect(stream: TcpStream, token: RankToken, timeout: Duration) -> Result<Self, HandshakeError> {
        let own = greeting()?;
        stream.set_write_timeout(Some(timeout))?;
        (&stream).write_all(&own)?;
        let theirs = read_greeting(&stream, timeout)?;
        Ok(Self { stream, token, greetings: [own, theirs], side: 0, messages: [0; 2] })
    }

    /// Answers the greeting of the process that opened `stream`. A process that is not a rank gets no answer.
    pub(super) fn accept(stream: TcpStream, token: RankToken, timeout: Duration) -> Result<Self, HandshakeError> {
        stream.set_write_timeout(Some(timeout))?;
        let theirs = read_greeting(&stream, timeout)?;
        let own = greeting()?;
        (&stream).write_all(&own)?;
        Ok(Self { stream, token, greetings: [theirs, own], side: 1, messages: [0; 2] })
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// True if the other side has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        let is_open = |result: io::Result<usize>| match result {
            Ok(count) => count > 0,
            Err(error) => is_timeout(error.kind()),
        };
        let peeked = self.stream.set_nonblocking(true).and_then(|()| self.stream.peek(&mut [0]));
        let restored = self.stream.set_nonblocking(false);
        restored.is_err() || !is_open(peeked)
    }

    pub(super) fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// The proof at the end of the next message of `side`.
    fn next_proof(&mut self, side: u8, message: &[u8]) -> blake3::Hash {
        let number = &mut self.messages[usize::from(side)];
        let mut hasher = blake3::Hasher::new_keyed(&self.token.key);
        hasher.update(&[side]).update(&number.to_le_bytes()).update(self.greetings.as_flattened()).update(message);
        *number += 1;
        hasher.finalize()
    }

    pub(super) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let json = json_bytes(message);
        let proof = self.next_proof(self.side, &json);
        let bytes = [&(json.len() as u32).to_le_bytes(), json.as_slice(), proof.as_bytes()].concat();
        (&self.stream).write_all(&bytes)
    }

    /// Receives the next message, whose proof must be right. Its first byte arrives within `timeout`, and the rest within
    /// [`MESSAGE_TIMEOUT`].
    pub(super) fn receive<T: DeserializeOwned>(
        &mut self,
        max_bytes: u32,
        timeout: Duration,
    ) -> Result<T, HandshakeError> {
        let mut from = DeadlineReader { stream: &self.stream, deadline: Instant::now() + timeout };
        let mut length = [0; size_of::<u32>()];
        let (first, rest) = length.split_at_mut(1);
        from.read_exact(first)?;
        from.deadline = from.deadline.min(Instant::now() + MESSAGE_TIMEOUT);
        let incomplete = |_| HandshakeError::Message;
        from.read_exact(rest).map_err(incomplete)?;
        let length = u32::from_le_bytes(length);
        if length > max_bytes {
            return Err(HandshakeError::Proof);
        }
        // Memory grows with the bytes that arrive.
        let mut json = Vec::new();
        from.by_ref().take(length.into()).read_to_end(&mut json).map_err(incomplete)?;
        let mut proof = [0; blake3::OUT_LEN];
        from.read_exact(&mut proof).map_err(incomplete)?;
        // Hashes are compared in constant time.
        if self.next_proof(1 - self.side, &json) != proof {
            return Err(HandshakeError::Proof);
        }
        serde_json::from_slice(&json).map_err(|_| HandshakeError::Message)
    }
}

fn greeting() -> io::Result<[u8; GREETING_BYTES]> {
    let mut greeting = [0; GREETING_BYTES];
    let (magic, challenge) = greeting.split_at_mut(MAGIC.len());
    magic.copy_from_slice(&MAGIC);
    challenge.copy_from_slice(&random_bytes()?);
    Ok(greeting)
}

fn read_greeting(stream: &TcpStream, timeout: Duration) -> Result<[u8; GREETING_BYTES], HandshakeError> {
    let mut greeting = [0; GREETING_BYTES];
    let mut from = DeadlineReader { stream, deadline: Instant::now() + timeout };
    let (magic, rest) = greeting.split_at_mut(MAGIC.len());
    from.read_exact(magic)?;
    if *magic != MAGIC {
        return Err(HandshakeError::Greeting);
    }
    from.read_exact(rest)?;
    Ok(greeting)
}

/// Reads from a connection until a deadline, however few bytes arrive at a time.
struct DeadlineReader<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

impl Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        (&mut &*self.stream).read(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn connected() -> [TcpStream; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [connected, listener.accept().unwrap().0]
    }

    /// Both sides after their greetings.
    fn greeted(tokens: [RankToken; 2]) -> [Handshake; 2] {
        let [connected, accepted] = connected();
        thread::scope(|s| {
            let connect = s.spawn(move || Handshake::connect(connected, tokens[0], TIMEOUT).unwrap());
            let accepted = Handshake::accept(accepted, tokens[1], TIMEOUT).unwrap();
            [connect.join().unwrap(), accepted]
        })
    }

    fn introduction(text: &str) -> Introduction {
        let peer = PeerIdentity::new(usize::MAX, text, text, text);
        Introduction { world_size: usize::MAX, rank: usize::MAX, port: u16::MAX, peer }
    }

    fn token() -> RankToken {
        RankToken::new("job", Some("secret"))
    }

    #[test]
    fn introductions_survive_their_bytes() {
        let [mut one, mut other] = greeted([token(); 2]);
        for text in ["", "node-1", &"ö".repeat(2000), &"\\".repeat(2000), "a\u{1b}[2Jb"] {
            let sent = introduction(text);
            assert!(sent.peer.machine.len() <= 2 * MAX_IDENTITY_CHARS && !sent.peer.machine.contains('\u{1b}'));
            one.send(&sent).unwrap();
            other.send(&sent).unwrap();
            assert_eq!(other.receive::<Introduction>(MAX_INTRODUCTION_BYTES, TIMEOUT).unwrap(), sent);
            assert_eq!(one.receive::<Introduction>(MAX_INTRODUCTION_BYTES, TIMEOUT).unwrap(), sent);
        }
    }

    #[test]
    fn a_different_token_is_not_a_proof() {
        let others = [
            RankToken::new("job", None),
            RankToken::new("job", Some("")),
            RankToken::new("job", Some("other")),
            RankToken::new("job2", Some("secret")),
            RankToken::new("jobs", Some("ecret")),
            token().of_session(&[0; 32]),
            token().of_session(&[1; 32]),
        ];
        for (index, other) in others.iter().enumerate() {
            // A token without a secret equals the token of an empty secret.
            assert_eq!(
                others[..index].iter().filter(|before| before.key == other.key).count(),
                usize::from(index == 1)
            );
            let [mut one, mut two] = greeted([*other, token()]);
            one.send(&introduction("x")).unwrap();
            let error = two.receive::<Introduction>(MAX_INTRODUCTION_BYTES, TIMEOUT).unwrap_err();
            assert!(matches!(error, HandshakeError::Proof), "{error}");
        }
        assert!(!format!("{:?}", token()).contains("key"), "no log shows the key");
    }

    /// A proof is valid once, for its message, its side and its handshake.
    #[test]
    fn a_proof_cannot_be_replayed() {
        let record = |from: &mut Handshake, mut to: &TcpStream| {
            from.send(&introduction("x")).unwrap();
            let mut length = [0; 4];
            to.read_exact(&mut length).unwrap();
            let mut rest = vec![0; u32::from_le_bytes(length) as usize + blake3::OUT_LEN];
            to.read_exact(&mut rest).unwrap();
            [length.as_slice(), &rest].concat()
        };
        let is_refused = |to: &mut Handshake| {
            matches!(to.receive::<Introduction>(MAX_INTRODUCTION_BYTES, TIMEOUT), Err(HandshakeError::Proof))
        };
        let [mut one, other] = greeted([token(); 2]);
        let bytes = record(&mut one, &other.stream);
        // In another handshake.
        let [third, mut fourth] = greeted([token(); 2]);
        (&third.stream).write_all(&bytes).unwrap();
        assert!(is_refused(&mut fourth));
        // Back to its sender.
        (&other.stream).write_all(&bytes).unwrap();
        assert!(is_refused(&mut one));
        // Twice.
        let [mut one, mut other] = greeted([token(); 2]);
        let bytes = record(&mut one, &other.stream);
        (&one.stream).write_all(&[bytes.as_slice(), &bytes].concat()).unwrap();
        assert!(other.receive::<Introduction>(MAX_INTRODUCTION_BYTES, TIMEOUT).is_ok() && is_refused(&mut other));
        // Changed.
        for at in [0, 4, 10, bytes.len() - 40, bytes.len() - 1] {
            let [mut one, mut other] = greeted([token(); 2]);
            let mut bytes = record(&mut one, &other.stream);
            bytes[at] ^= 1;
            (&one.stream).write_all(&bytes).unwrap();
            one.stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(other.receive::<Introduction>(MAX_INTRODUCTION_BYTES, TIMEOUT).is_err(), "{at}");
        }
    }

    #[test]
    fn a_strangers_bytes_are_not_a_greeting() {
        for bytes in [&[0; 8][..], b"GET / HTTP/1.1\r\n", b"\xf8\0\0\0{\"version\":4,"] {
            let [mut connected, accepted] = connected();
            connected.write_all(bytes).unwrap();
            let error = Handshake::accept(accepted, token(), TIMEOUT).unwrap_err();
            assert!(matches!(error, HandshakeError::Greeting), "{error}");
            let mut answer = Vec::new();
            let _ = connected.read_to_end(&mut answer);
            assert!(answer.is_empty(), "{answer:?}");
        }
    }

    /// Bytes that arrive one by one do not prolong the timeout.
    #[test]
    fn a_slow_greeting_times_out() {
        let [mut connected, accepted] = connected();
        let writes = thread::spawn(move || {
            for byte in MAGIC.iter().cycle().take(8).chain([&0; 1000]) {
                if connected.write_all(&[*byte]).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(20));
            }
        });
        let error = Handshake::accept(accepted, token(), Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.to_string(), "it did not answer in time");
        writes.join().unwrap();
    }
}
