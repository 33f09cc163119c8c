//! What a rank that connects says first, in bytes of fixed length: the run's token, and of itself what the others must know.

use serde::{Deserialize, Serialize};

use super::rendezvous::Meeting;

/// What a greeting begins with, and what answers one.
pub(super) const MAGIC: [u8; 8] = *b"rnrtcp\r\n";

/// Of what ranks send each other. Raised with every change of it.
pub(super) const VERSION: u32 = 2;

/// Bytes of the longest place.
const PLACE: usize = 192;

/// Bytes of a greeting: magic, version, world, rank, local rank, token, port, length of the place, place.
pub(super) const GREETING: usize = 8 + 4 * 4 + 32 + 2 + 2 + PLACE;

/// What a rank says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    pub local_rank: usize,
    pub place: String,
}

/// What who connects says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) version: u32,
    pub(super) world_size: u32,
    pub(super) rank: u32,
    pub(super) local_rank: u32,
    pub(super) token: [u8; 32],
    pub(super) port: u16,
    pub(super) place: String,
}

impl Greeting {
    pub(super) fn new(meeting: &Meeting, token: [u8; 32], port: u16) -> Self {
        let place: String = meeting.place.chars().filter(|c| !c.is_control()).collect();
        let mut end = place.len().min(PLACE);
        while !place.is_char_boundary(end) {
            end -= 1;
        }
        Self {
            version: VERSION,
            world_size: meeting.world_size as u32,
            rank: meeting.rank as u32,
            local_rank: meeting.local_rank as u32,
            token,
            port,
            place: place[..end].to_owned(),
        }
    }

    pub(super) fn bytes(&self) -> [u8; GREETING] {
        let mut out = [0; GREETING];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&MAGIC);
        for number in [self.version, self.world_size, self.rank, self.local_rank] {
            put(&number.to_le_bytes());
        }
        put(&self.token);
        put(&self.port.to_le_bytes());
        put(&(self.place.len() as u16).to_le_bytes());
        put(self.place.as_bytes());
        out
    }

    /// `None` for what is no greeting.
    pub(super) fn of(bytes: &[u8; GREETING]) -> Option<Self> {
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
        Some(Self { version, world_size, rank, local_rank, token, port, place })
    }

    pub(super) fn peer(&self) -> Peer {
        Peer { local_rank: self.local_rank as usize, place: self.place.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::tests::meeting;

    fn at(place: &str) -> Meeting {
        Meeting { place: place.to_owned(), ..meeting(3, 8, 1) }
    }

    #[test]
    fn greetings_come_back() {
        for place in ["", "node-1 0-3", &"ö".repeat(200), "a\u{1b}[2Jb"] {
            let greeting = Greeting::new(&at(place), [9; 32], 4242);
            assert_eq!(Greeting::of(&greeting.bytes()), Some(greeting.clone()));
            assert!(greeting.place.len() <= PLACE && !greeting.place.contains('\u{1b}'));
        }
    }

    #[test]
    fn a_strangers_bytes_are_no_greeting() {
        assert_eq!(Greeting::of(&[0; GREETING]), None);
        let mut bytes = Greeting::new(&at("x"), [9; 32], 1).bytes();
        // A place longer than what is there.
        bytes[GREETING - PLACE - 2] = 255;
        assert_eq!(Greeting::of(&bytes), None);
    }
}
