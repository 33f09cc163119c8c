//! The handshake: the first message of a rank that connects, of fixed length. It holds the run's token and the rank's identity.

use serde::{Deserialize, Serialize};

/// The first bytes of a handshake, and the answer to one.
pub(super) const MAGIC: [u8; 8] = *b"rnrtcp\r\n";

/// Version of the protocol between ranks. Every change of a message raises it.
pub(super) const VERSION: u32 = 3;

/// The length in bytes of the longest place.
const MAX_PLACE_BYTES: usize = 192;

/// Bytes of a handshake: magic, version, world, rank, local rank, token, port, length of the place, place.
pub(super) const HANDSHAKE_BYTES: usize = 8 + 4 * 4 + 32 + 2 + 2 + MAX_PLACE_BYTES;

/// A rank as the other ranks know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerIdentity {
    pub local_rank: usize,
    pub place: String,
}

/// The first message of a rank that connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handshake {
    pub(super) version: u32,
    pub(super) world_size: u32,
    pub(super) rank: u32,
    pub(super) token: [u8; 32],
    pub(super) port: u16,
    pub(super) peer: PeerIdentity,
}

impl Handshake {
    /// The place is shortened to `MAX_PLACE_BYTES`, and loses its control characters.
    pub(super) fn new(rank: usize, world_size: usize, identity: &PeerIdentity, token: [u8; 32], port: u16) -> Self {
        let mut place: String = identity.place.chars().filter(|c| !c.is_control()).collect();
        place.truncate(place.floor_char_boundary(MAX_PLACE_BYTES));
        Self {
            version: VERSION,
            world_size: world_size as u32,
            rank: rank as u32,
            token,
            port,
            peer: PeerIdentity { local_rank: identity.local_rank, place },
        }
    }

    pub(super) fn encode(&self) -> [u8; HANDSHAKE_BYTES] {
        let PeerIdentity { local_rank, place } = &self.peer;
        let numbers = [self.version, self.world_size, self.rank, *local_rank as u32].map(u32::to_le_bytes);
        let lengths = [self.port, place.len() as u16].map(u16::to_le_bytes);
        let bytes = [&MAGIC, numbers.as_flattened(), &self.token, lengths.as_flattened(), place.as_bytes()].concat();
        let mut out = [0; HANDSHAKE_BYTES];
        out[..bytes.len()].copy_from_slice(&bytes);
        out
    }

    /// `None` if the bytes are no handshake.
    pub(super) fn decode(bytes: &[u8; HANDSHAKE_BYTES]) -> Option<Self> {
        let mut rest = bytes.as_slice();
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at_checked(count)?;
            rest = left;
            Some(taken)
        };
        if take(8)? != MAGIC {
            return None;
        }
        let mut numbers = [0; 4];
        for number in &mut numbers {
            *number = u32::from_le_bytes(take(4)?.try_into().ok()?);
        }
        let [version, world_size, rank, local_rank] = numbers;
        let token = take(32)?.try_into().ok()?;
        let port = u16::from_le_bytes(take(2)?.try_into().ok()?);
        let length = u16::from_le_bytes(take(2)?.try_into().ok()?);
        let place = String::from_utf8_lossy(take(usize::from(length))?).chars().filter(|c| !c.is_control()).collect();
        let peer = PeerIdentity { local_rank: local_rank as usize, place };
        Some(Self { version, world_size, rank, token, port, peer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn handshake_from(place: &str, port: u16) -> Handshake {
        Handshake::new(3, 8, &PeerIdentity { local_rank: 1, place: place.to_owned() }, [9; 32], port)
    }

    #[test]
    fn handshakes_survive_their_bytes() {
        for place in ["", "node-1 0-3", &"ö".repeat(200), "a\u{1b}[2Jb"] {
            let handshake = handshake_from(place, 4242);
            assert_eq!(Handshake::decode(&handshake.encode()), Some(handshake.clone()));
            assert!(handshake.peer.place.len() <= MAX_PLACE_BYTES && !handshake.peer.place.contains('\u{1b}'));
        }
    }

    #[test]
    fn a_strangers_bytes_are_no_handshake() {
        assert_eq!(Handshake::decode(&[0; HANDSHAKE_BYTES]), None);
        let mut bytes = handshake_from("x", 1).encode();
        // A place that is longer than the bytes that follow.
        bytes[HANDSHAKE_BYTES - MAX_PLACE_BYTES - 2] = 255;
        assert_eq!(Handshake::decode(&bytes), None);
    }
}
