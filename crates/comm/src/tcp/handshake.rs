//! The handshake: the first message of a rank that connects. It holds the run's token and the rank's identity.

use serde::{Deserialize, Serialize};

/// The answer to a handshake whose token the receiver knows.
pub(super) const MAGIC: [u8; 8] = *b"rnrtcp\r\n";

/// Version of the protocol between ranks. Every change of a message raises it.
pub(super) const VERSION: u32 = 4;

/// The most bytes of a handshake. A longer one is not read.
pub(super) const MAX_HANDSHAKE_BYTES: u32 = 4 << 10;

/// The most characters of each text of an identity.
const MAX_IDENTITY_CHARS: usize = 192;

/// A rank as the other ranks know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerIdentity {
    pub local_rank: usize,
    pub machine: String,
    /// The cores that the rank may use.
    pub cores: String,
}

impl PeerIdentity {
    /// The texts are shortened, and lose their control characters.
    pub fn new(local_rank: usize, machine: &str, cores: &str) -> Self {
        let [machine, cores] =
            [machine, cores].map(|text| text.chars().filter(|c| !c.is_control()).take(MAX_IDENTITY_CHARS).collect());
        Self { local_rank, machine, cores }
    }
}

/// The first message of a rank that connects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Handshake {
    pub(super) version: u32,
    pub(super) world_size: usize,
    pub(super) rank: usize,
    pub(super) token: [u8; 32],
    /// The port at which the rank listens.
    pub(super) port: u16,
    pub(super) peer: PeerIdentity,
}

#[cfg(test)]
mod tests {
    use super::super::frame::{encode_message, read_message};
    use super::*;

    #[test]
    fn handshakes_survive_their_bytes() {
        for text in ["", "node-1", &"ö".repeat(2000), &"\\".repeat(2000), "a\u{1b}[2Jb"] {
            let peer = PeerIdentity::new(usize::MAX, text, text);
            assert!(peer.machine.len() <= 2 * MAX_IDENTITY_CHARS && !peer.machine.contains('\u{1b}'));
            let (world_size, rank, token, port) = (usize::MAX, usize::MAX, [255; 32], u16::MAX);
            let handshake = Handshake { version: VERSION, world_size, rank, token, port, peer };
            let bytes = encode_message(&handshake);
            assert_eq!(read_message(&mut bytes.as_slice(), MAX_HANDSHAKE_BYTES).unwrap(), Some(handshake));
        }
    }

    #[test]
    fn a_strangers_bytes_are_no_handshake() {
        let read = |mut bytes: &[u8]| read_message::<Handshake>(&mut bytes, MAX_HANDSHAKE_BYTES);
        for bytes in [&[0; 8][..], b"GET / HTTP/1.1\r\n", b"\x02\0\0\0{}"] {
            assert_eq!(read(bytes).unwrap(), None);
        }
        // A handshake that is longer than the bytes that follow.
        assert!(read(b"\xff\0\0\0{}").is_err());
    }
}
