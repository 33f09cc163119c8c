//! Messages, which are JSON after its length, and frames: a header, which is a message, and the bytes that it announces.

use std::io::{self, ErrorKind, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::collective::PIECE_BYTES;
use crate::error::{ElementType, Operation};
use runner_spec::format::json_bytes;
use runner_spec::topology::Lane;

/// Most bytes of a header.
const MAX_HEADER_BYTES: u32 = 1 << 10;

/// Most bytes of a message beside the operations.
pub(super) const MAX_CONTROL_BYTES: u64 = 64 << 20;

/// The kinds of frames, with what each says of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FrameTag {
    /// A member's bytes of a collective, in `queue` of a group.
    Collective { group: usize, queue: usize, is_sum: bool, operation: Operation },
    /// A message in a channel.
    Message { lane: Lane, element: ElementType },
    /// One message of a channel was taken.
    SlotFreed { lane: Lane },
    /// A message beside the operations.
    Control,
    /// A heartbeat, with the rank's status.
    Heartbeat,
    /// The run was aborted because of rank `by`. `is_loss` is true if that rank did not announce it.
    Abort { by: usize, code: u8, is_loss: bool },
    /// The last frame of a rank that leaves, with its status.
    Goodbye,
}

/// A frame that is ready to be sent.
#[derive(Debug)]
pub(super) struct Frame {
    header: Vec<u8>,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    pub(super) fn new(tag: FrameTag, bytes: Vec<u8>) -> Self {
        Self { header: encode_message(&(tag, bytes.len())), bytes }
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        if self.bytes.len() > PIECE_BYTES {
            to.write_all(&self.header)?;
            return to.write_all(&self.bytes);
        }
        // In one call: the socket sends at once what it is given.
        to.write_all(&[self.header.as_slice(), &self.bytes].concat())
    }
}

/// Reads the header of the next frame: its tag, and the number of bytes that follow. `None` if it is no header.
pub(super) fn read_header(from: &mut impl Read) -> io::Result<Option<(FrameTag, u64)>> {
    read_message(from, MAX_HEADER_BYTES)
}

pub(super) fn encode_message(message: &impl Serialize) -> Vec<u8> {
    let json = json_bytes(message);
    [&(json.len() as u32).to_le_bytes(), json.as_slice()].concat()
}

pub(super) fn write_message(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    to.write_all(&encode_message(message))
}

/// Reads a message of at most `max_bytes` bytes. `None` if what arrives is no such message.
pub(super) fn read_message<T: DeserializeOwned>(from: &mut impl Read, max_bytes: u32) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length);
    if length > max_bytes {
        return Ok(None);
    }
    Ok(serde_json::from_slice(&read_bytes(from, length.into())?).ok())
}

/// Reads `length` bytes. Memory grows with the bytes that arrive, not with the announced length.
pub(super) fn read_bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(length.min(PIECE_BYTES as u64) as usize);
    from.by_ref().take(length).read_to_end(&mut out)?;
    if (out.len() as u64) < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::OperationKind;
    use crate::rank_status::{RankPhase, RankSnapshot};

    #[test]
    fn headers_survive_their_bytes() {
        let operation = Operation {
            kind: OperationKind::Reduce,
            element: ElementType::F32,
            bytes: 1 << 40,
            root: Some(70),
            sequence: u64::MAX,
        };
        let tags = [
            FrameTag::Collective { group: 70_000, queue: 1, is_sum: true, operation },
            FrameTag::Message { lane: Lane::Gradient, element: ElementType::U32 },
            FrameTag::SlotFreed { lane: Lane::Activation },
            FrameTag::Control,
            FrameTag::Heartbeat,
            FrameTag::Abort { by: 1023, code: 2, is_loss: false },
            FrameTag::Abort { by: 0, code: 1, is_loss: true },
            FrameTag::Goodbye,
        ];
        for tag in tags {
            let header = encode_message(&(tag, 12345));
            assert!(header.len() <= MAX_HEADER_BYTES as usize);
            assert_eq!(read_header(&mut header.as_slice()).unwrap(), Some((tag, 12345)));
        }
    }

    /// Arbitrary bytes give an error, no header, or a header, but no panic.
    #[test]
    fn a_strangers_bytes_are_no_header() {
        let mut state = 7_u64;
        for _ in 0..10_000 {
            let bytes: [u8; 48] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            });
            let _ = read_header(&mut bytes.as_slice());
        }
        assert_eq!(read_header(&mut &b"GET / HTTP/1.1\r\nHost: localhost\r\n"[..]).unwrap(), None);
        assert_eq!(read_header(&mut &b"\x02\0\0\0{}"[..]).unwrap(), None);
    }

    #[test]
    fn memory_is_for_bytes_that_arrived() {
        let error = read_bytes(&mut &b"three"[..], u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_bytes(&mut &b"three"[..], 3).unwrap(), b"thr");
    }

    #[test]
    fn heartbeats_fit_their_frame() {
        let largest = RankSnapshot {
            heartbeat: u64::MAX,
            step: u64::MAX,
            list: u32::MAX,
            index: u32::MAX,
            phase: RankPhase::Saving,
            progress: u64::MAX,
            waiting_for: Some(usize::MAX),
            waiting_for_parent: false,
            waiting_in_background: Some(usize::MAX),
        };
        let bytes = json_bytes(&largest);
        assert!(bytes.len() <= 1 << 10, "{} bytes", bytes.len());
        assert_eq!(serde_json::from_slice::<RankSnapshot>(&bytes).unwrap(), largest);
    }
}
