//! Frames: a header of fixed length, and the bytes that it announces.

use std::io::{self, ErrorKind, Read, Write};

use crate::error::Operation;
use crate::local::{BoardView, Phase};
use runner_spec::topology::Lane;

/// Bytes of a header.
pub(super) const HEADER: usize = 48;

/// Most bytes of a collective's frame.
pub(super) const PIECE: usize = 256 << 10;

/// Most bytes of what ranks tell each other beside the operations.
pub(super) const CONTROL: u64 = 64 << 20;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tag {
    /// A member's part of a collective, in `line` of a group.
    Part { group: usize, line: usize, sum: bool, operation: Operation },
    /// A message in a channel.
    Message { lane: Lane, element: u64 },
    /// One message of a channel was taken.
    Taken { lane: Lane },
    /// Bytes between those who run the ranks.
    Control,
    /// A sign of life, with the board's line.
    Beat,
    /// The run is over because of a rank; `lost`: it did not say so itself.
    Abort { by: usize, code: u8, lost: bool },
    /// The last frame of a rank that leaves.
    Goodbye,
}

const PART: u8 = 1;
const MESSAGE: u8 = 2;
const TAKEN: u8 = 3;
const CONTROL_TAG: u8 = 4;
const BEAT: u8 = 5;
const ABORT: u8 = 6;
const GOODBYE: u8 = 7;

fn lane_code(lane: Lane) -> u8 {
    lane as u8
}

fn lane_of(code: u8) -> Option<Lane> {
    [Lane::Activation, Lane::Gradient].into_iter().find(|lane| lane_code(*lane) == code)
}

/// The header of a frame with `length` bytes after it.
pub(super) fn header(tag: Tag, length: usize) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    // kind, two small ones, a word of 4 bytes, three of 8.
    let (kind, a, b, word, words): (u8, u8, u8, u32, [u64; 3]) = match tag {
        Tag::Part { group, line, sum, operation: o } => {
            (PART, line as u8, u8::from(sum), group as u32, [o.code(), o.bytes, o.sequence])
        }
        Tag::Message { lane, element } => (MESSAGE, lane_code(lane), 0, 0, [element, 0, 0]),
        Tag::Taken { lane } => (TAKEN, lane_code(lane), 0, 0, [0; 3]),
        Tag::Control => (CONTROL_TAG, 0, 0, 0, [0; 3]),
        Tag::Beat => (BEAT, 0, 0, 0, [0; 3]),
        Tag::Abort { by, code, lost } => (ABORT, code, u8::from(lost), by as u32, [0; 3]),
        Tag::Goodbye => (GOODBYE, 0, 0, 0, [0; 3]),
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
pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<(Tag, u64)> {
    let word = |at: usize| -> u64 { (0..8).rev().fold(0, |n, i| n << 8 | u64::from(bytes[8 + 8 * at + i])) };
    let small = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
    let (a, b, length) = (bytes[1], bytes[2], word(3));
    let tag = match bytes[0] {
        PART => {
            let operation = Operation::from_words(word(0), word(1), word(2));
            Tag::Part { group: small, line: usize::from(a), sum: b == 1, operation }
        }
        MESSAGE => Tag::Message { lane: lane_of(a)?, element: word(0) },
        TAKEN => Tag::Taken { lane: lane_of(a)? },
        CONTROL_TAG => Tag::Control,
        BEAT => Tag::Beat,
        ABORT => Tag::Abort { by: small, code: a, lost: b == 1 },
        GOODBYE => Tag::Goodbye,
        _ => return None,
    };
    Some((tag, length))
}

/// Reads `length` bytes. Memory grows with what comes, not with what was announced.
pub(super) fn read_bytes(from: &mut impl Read, length: u64) -> io::Result<Vec<u8>> {
    let mut out = Vec::with_capacity(length.min(PIECE as u64) as usize);
    from.by_ref().take(length).read_to_end(&mut out)?;
    if (out.len() as u64) < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(out) }
}

/// Writes a frame.
pub(super) fn write(to: &mut impl Write, header: &[u8; HEADER], bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > PIECE {
        to.write_all(header)?;
        return to.write_all(bytes);
    }
    // In one piece: the socket sends at once what it is given.
    let mut whole = Vec::with_capacity(HEADER + bytes.len());
    whole.extend_from_slice(header);
    whole.extend_from_slice(bytes);
    to.write_all(&whole)
}

/// A line of the board as a beat carries it.
pub(super) fn view_bytes(view: &BoardView) -> Vec<u8> {
    let words = [view.step, u64::from(view.list), u64::from(view.index), view.phase as u64];
    let waiting = view.waiting_for.or(view.waiting_in_background).map_or(0, |rank| rank as u64 + 1);
    words.into_iter().chain([waiting]).flat_map(u64::to_le_bytes).collect()
}

/// What `view_bytes` wrote; `None` if it did not write it.
pub(super) fn view_of(bytes: &[u8]) -> Option<BoardView> {
    let (words, rest) = bytes.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|w| u64::from_le_bytes(*w)).collect();
    let (&[step, list, index, phase, waiting], true) = (words.as_slice(), rest.is_empty()) else { return None };
    let phase = Phase::from_code(phase)?;
    let waiting_for = waiting.checked_sub(1).map(|rank| rank as usize);
    Some(BoardView { step, list: list as u32, index: index as u32, phase, waiting_for, ..BoardView::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Element, Kind};

    #[test]
    fn headers_come_back() {
        let operation =
            Operation { kind: Kind::Reduce, element: Element::F32, bytes: 1 << 40, root: Some(70), sequence: 9 };
        let tags = [
            Tag::Part { group: 70_000, line: 1, sum: true, operation },
            Tag::Message { lane: Lane::Gradient, element: 3 },
            Tag::Taken { lane: Lane::Activation },
            Tag::Control,
            Tag::Beat,
            Tag::Abort { by: 1023, code: 2, lost: false },
            Tag::Abort { by: 0, code: 1, lost: true },
            Tag::Goodbye,
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
            let bytes: [u8; HEADER] = std::array::from_fn(|_| {
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
    fn a_line_of_the_board_comes_back() {
        let view = BoardView { step: 3, list: 1, index: 4, phase: Phase::Saving, ..BoardView::default() };
        let waiting = BoardView { waiting_for: Some(0), ..view };
        assert_eq!(view_of(&view_bytes(&view)), Some(view));
        assert_eq!(view_of(&view_bytes(&waiting)), Some(waiting));
        assert_eq!(view_of(b"short"), None);
        assert_eq!(view_of(&[255; 40]), None);
    }
}
