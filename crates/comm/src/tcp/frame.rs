//! Frames: a header of fixed length, and the bytes that it announces.

use std::io::{self, ErrorKind, Read, Write};

use crate::error::Operation;
use crate::local::{RankPhase, RankSnapshot};
use runner_spec::topology::Lane;

/// Bytes of a header.
pub(super) const HEADER_BYTES: usize = 48;

/// Most bytes of a collective's frame.
pub(super) const PIECE_BYTES: usize = 256 << 10;

/// Most bytes of what ranks tell each other beside the operations.
pub(super) const MAX_CONTROL_BYTES: u64 = 64 << 20;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FrameTag {
    /// A member's part of a collective, in `queue` of a group.
    CollectiveFrame { group: usize, queue: usize, sum: bool, operation: Operation },
    /// A message in a channel.
    Message { lane: Lane, element: u64 },
    /// One message of a channel was taken.
    SlotFreed { lane: Lane },
    /// Bytes between those who run the ranks.
    Control,
    /// A heartbeat, with the rank's status.
    Heartbeat,
    /// The run was aborted because of rank `by`. `lost` is true if that rank did not announce it.
    Abort { by: usize, code: u8, lost: bool },
    /// The last frame of a rank that leaves.
    Goodbye,
}

const PART: u8 = 1;
const MESSAGE: u8 = 2;
const SLOT_FREED: u8 = 3;
const CONTROL: u8 = 4;
const HEARTBEAT: u8 = 5;
const ABORT: u8 = 6;
const GOODBYE: u8 = 7;

fn lane_code(lane: Lane) -> u8 {
    lane as u8
}

fn lane_from_code(code: u8) -> Option<Lane> {
    [Lane::Activation, Lane::Gradient].into_iter().find(|lane| lane_code(*lane) == code)
}

/// The header of a frame with `length` bytes after it.
pub(super) fn header(tag: FrameTag, length: usize) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    // kind, two small ones, a word of 4 bytes, three of 8.
    let (kind, a, b, word, words): (u8, u8, u8, u32, [u64; 3]) = match tag {
        FrameTag::CollectiveFrame { group, queue, sum, operation: o } => {
            (PART, queue as u8, u8::from(sum), group as u32, [o.code(), o.bytes, o.sequence])
        }
        FrameTag::Message { lane, element } => (MESSAGE, lane_code(lane), 0, 0, [element, 0, 0]),
        FrameTag::SlotFreed { lane } => (SLOT_FREED, lane_code(lane), 0, 0, [0; 3]),
        FrameTag::Control => (CONTROL, 0, 0, 0, [0; 3]),
        FrameTag::Heartbeat => (HEARTBEAT, 0, 0, 0, [0; 3]),
        FrameTag::Abort { by, code, lost } => (ABORT, code, u8::from(lost), by as u32, [0; 3]),
        FrameTag::Goodbye => (GOODBYE, 0, 0, 0, [0; 3]),
    };
    out[0] = kind;
    out[1] = a;
    out[2] = b;
    out[4..8].copy_from_slice(&word.to_le_bytes());
    for (at, w) in words.into_iter().chain([length as u64]).enumerate() {
        out[8 + 8 * at..16 + 8 * at].copy_from_slice(&w.to_le_bytes());
    }
    out
}

/// What a header says, and how many bytes follow; `None` if it is no header.
pub(super) fn parse(bytes: &[u8; HEADER_BYTES]) -> Option<(FrameTag, u64)> {
    let word = |at: usize| -> u64 { (0..8).rev().fold(0, |n, i| n << 8 | u64::from(bytes[8 + 8 * at + i])) };
    let small = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
    let (a, b, length) = (bytes[1], bytes[2], word(3));
    let tag = match bytes[0] {
        PART => {
            let operation = Operation::from_words(word(0), word(1), word(2));
            FrameTag::CollectiveFrame { group: small, queue: usize::from(a), sum: b == 1, operation }
        }
        MESSAGE => FrameTag::Message { lane: lane_from_code(a)?, element: word(0) },
        SLOT_FREED => FrameTag::SlotFreed { lane: lane_from_code(a)? },
        CONTROL => FrameTag::Control,
        HEARTBEAT => FrameTag::Heartbeat,
        ABORT => FrameTag::Abort { by: small, code: a, lost: b == 1 },
        GOODBYE => FrameTag::Goodbye,
        _ => return None,
    };
    Some((tag, length))
}

/// Reads `length` bytes. Memory grows with what comes, not with what was announced.
pub(super) fn read_bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(length.min(PIECE_BYTES as u64) as usize);
    from.by_ref().take(length).read_to_end(&mut out)?;
    if (out.len() as u64) < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(out) }
}

/// Writes a frame.
pub(super) fn write(to: &mut impl Write, header: &[u8; HEADER_BYTES], bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > PIECE_BYTES {
        to.write_all(header)?;
        return to.write_all(bytes);
    }
    // In one piece: the socket sends at once what it is given.
    let mut whole = Vec::with_capacity(HEADER_BYTES + bytes.len());
    whole.extend_from_slice(header);
    whole.extend_from_slice(bytes);
    to.write_all(&whole)
}

/// Encodes a snapshot as a heartbeat carries it.
pub(super) fn encode_snapshot(view: &RankSnapshot) -> Vec<u8> {
    let words = [view.step, u64::from(view.list), u64::from(view.index), view.phase as u64];
    let waiting = view.waiting_for.or(view.waiting_in_background).map_or(0, |rank| rank as u64 + 1);
    words.into_iter().chain([waiting]).flat_map(u64::to_le_bytes).collect()
}

/// What `encode_snapshot` wrote; `None` if it did not write it.
pub(super) fn decode_snapshot(bytes: &[u8]) -> Option<RankSnapshot> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
    let (&[step, list, index, phase, waiting], true) = (words.as_slice(), rest.is_empty()) else { return None };
    let phase = RankPhase::from_code(phase)?;
    let waiting_for = waiting.checked_sub(1).map(|rank| rank as usize);
    Some(RankSnapshot { step, list: list as u32, index: index as u32, phase, waiting_for, ..RankSnapshot::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{ElementType, OperationKind};

    #[test]
    fn headers_come_back() {
        let operation = Operation {
            kind: OperationKind::Reduce,
            element: ElementType::F32,
            bytes: 1 << 40,
            root: Some(70),
            sequence: 9,
        };
        let tags = [
            FrameTag::CollectiveFrame { group: 70_000, queue: 1, sum: true, operation },
            FrameTag::Message { lane: Lane::Gradient, element: 3 },
            FrameTag::SlotFreed { lane: Lane::Activation },
            FrameTag::Control,
            FrameTag::Heartbeat,
            FrameTag::Abort { by: 1023, code: 2, lost: false },
            FrameTag::Abort { by: 0, code: 1, lost: true },
            FrameTag::Goodbye,
        ];
        for tag in tags {
            assert_eq!(parse(&header(tag, 12345)), Some((tag, 12345)));
        }
    }

    /// Whatever bytes come: nothing, or a frame.
    #[test]
    fn a_strangers_bytes_are_no_frame() {
        let mut state = 7_u64;
        for _ in 0..10_000 {
            let bytes: [u8; HEADER_BYTES] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            });
            let _ = parse(&bytes);
        }
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: cur"), None);
    }

    #[test]
    fn memory_is_for_what_came() {
        let error = read_bytes(&mut &b"three"[..], u64::MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_bytes(&mut &b"three"[..], 3).unwrap(), b"thr");
    }

    #[test]
    fn snapshots_survive_their_bytes() {
        let view = RankSnapshot { step: 3, list: 1, index: 4, phase: RankPhase::Saving, ..RankSnapshot::default() };
        let waiting = RankSnapshot { waiting_for: Some(0), ..view };
        assert_eq!(decode_snapshot(&encode_snapshot(&view)), Some(view));
        assert_eq!(decode_snapshot(&encode_snapshot(&waiting)), Some(waiting));
        assert_eq!(decode_snapshot(b"short"), None);
        assert_eq!(decode_snapshot(&[255; 40]), None);
    }
}
