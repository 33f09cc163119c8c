//! Frames: a header and the bytes that it announces. They cross a connection in chunks, each with a checksum.
//!
//! The header is the first chunk of a frame; its bytes follow in chunks of `CHUNK_BYTES`. A checksum covers the chunk's number and its
//! bytes. Each direction of a connection numbers its chunks from 0, so lost, repeated and exchanged chunks are noticed as well as
//! changed bytes.

use std::io::{self, BufReader, ErrorKind, IoSlice, Read, Write};

use crc32c::{crc32c, crc32c_append};
use serde::{Deserialize, Serialize};

use crate::collective::PIECE_BYTES;
use crate::error::{ElementType, Operation};
use runner_spec::format::json_bytes;
use runner_spec::topology::Lane;

/// Most bytes of a header.
const MAX_HEADER_BYTES: u32 = 1 << 10;

/// The bytes of a chunk. The last chunk of a frame may be shorter.
const CHUNK_BYTES: usize = 64 << 10;

/// The number of chunks that are handed to the system at once, while their bytes are in a core's cache after the checksums.
const CHUNKS_PER_WRITE: usize = 8;

/// Most bytes of a control message.
pub(super) const MAX_CONTROL_BYTES: u64 = 64 << 20;

/// The kinds of frames, with a description of their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FrameTag {
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
pub(crate) struct Frame {
    header: Vec<u8>,
    pub(super) bytes: Vec<u8>,
}

impl Frame {
    pub(super) fn new(tag: FrameTag, bytes: Vec<u8>) -> Self {
        Self { header: encode_header(tag, bytes.len() as u64), bytes }
    }
}

/// The header's JSON after its length.
fn encode_header(tag: FrameTag, length: u64) -> Vec<u8> {
    let json = json_bytes(&(tag, length));
    [&(json.len() as u32).to_le_bytes(), json.as_slice()].concat()
}

/// The reason why frames of a peer can be read no longer. `it` in the texts is the peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("{}", describe_broken(.0))]
    Connection(#[from] io::Error),
    #[error("chunk {chunk} has a wrong checksum")]
    Damaged { chunk: u64 },
    /// The bytes are undamaged, but are not a frame.
    #[error("it sent an invalid frame")]
    Invalid,
    /// A frame that the peer must not send now.
    #[error("{0}")]
    Refused(&'static str),
}

/// The reason for the end of a connection that was not announced.
fn describe_broken(error: &io::Error) -> String {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => {
            "its connection was closed without notice".to_owned()
        }
        _ => format!("its connection broke ({error})"),
    }
}

fn checksum(chunk: u64, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&chunk.to_le_bytes()), bytes)
}

/// Writes frames to a connection.
#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    to: W,
    next_chunk: u64,
}

impl<W: Write> FrameWriter<W> {
    pub(super) fn new(to: W) -> Self {
        Self { to, next_chunk: 0 }
    }

    pub(super) fn write(&mut self, frame: &Frame) -> Result<(), FrameError> {
        let mut chunks = [frame.header.as_slice()].into_iter().chain(frame.bytes.chunks(CHUNK_BYTES)).peekable();
        while chunks.peek().is_some() {
            let next: Vec<(&[u8], [u8; 4])> = (self.next_chunk..)
                .zip(chunks.by_ref().take(CHUNKS_PER_WRITE))
                .map(|(number, bytes)| (bytes, checksum(number, bytes).to_le_bytes()))
                .collect();
            self.next_chunk += next.len() as u64;
            let mut slices: Vec<IoSlice<'_>> =
                next.iter().flat_map(|(bytes, checksum)| [IoSlice::new(bytes), IoSlice::new(checksum)]).collect();
            write_all(&mut self.to, &mut slices)?;
        }
        Ok(())
    }

    pub(super) fn connection(&self) -> &W {
        &self.to
    }
}

/// Writes all bytes of `slices`, none of which is empty.
fn write_all(to: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        match to.write_vectored(slices) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => IoSlice::advance_slices(&mut slices, count),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads frames from a connection.
pub(super) struct FrameReader<R, F> {
    // Long chunks bypass the buffer.
    from: BufReader<R>,
    next_chunk: u64,
    /// Called after each chunk whose checksum is right.
    on_chunk: F,
}

impl<R: Read, F: Fn()> FrameReader<R, F> {
    pub(super) fn new(from: R, on_chunk: F) -> Self {
        Self { from: BufReader::with_capacity(MAX_HEADER_BYTES as usize, from), next_chunk: 0, on_chunk }
    }

    /// Reads the header of the next frame: its tag, and the number of bytes that follow.
    pub(super) fn read_header(&mut self) -> Result<(FrameTag, u64), FrameError> {
        let mut header = vec![0; size_of::<u32>()];
        self.from.read_exact(&mut header)?;
        let length = header.as_slice().try_into().map_or(u32::MAX, u32::from_le_bytes);
        // The length is not verified yet. No rank sends a longer header.
        if length > MAX_HEADER_BYTES {
            return Err(FrameError::Damaged { chunk: self.next_chunk });
        }
        header.resize(size_of::<u32>() + length as usize, 0);
        self.from.read_exact(&mut header[size_of::<u32>()..])?;
        self.verify(&header)?;
        serde_json::from_slice(&header[size_of::<u32>()..]).map_err(|_| FrameError::Invalid)
    }

    /// Reads the `length` bytes after a header. Memory grows with the bytes that arrive, not with the announced length.
    pub(super) fn read_bytes(&mut self, length: u64) -> Result<Vec<u8>, FrameError> {
        let mut out = Vec::with_capacity(length.min(PIECE_BYTES as u64) as usize);
        while (out.len() as u64) < length {
            let start = out.len();
            out.resize(start + (length - start as u64).min(CHUNK_BYTES as u64) as usize, 0);
            self.from.read_exact(&mut out[start..])?;
            self.verify(&out[start..])?;
        }
        Ok(out)
    }

    /// Reads the checksum of a chunk, and compares it with that of `bytes`.
    fn verify(&mut self, bytes: &[u8]) -> Result<(), FrameError> {
        let mut expected = [0; 4];
        self.from.read_exact(&mut expected)?;
        let chunk = self.next_chunk;
        if checksum(chunk, bytes) != u32::from_le_bytes(expected) {
            return Err(FrameError::Damaged { chunk });
        }
        self.next_chunk += 1;
        (self.on_chunk)();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::OperationKind;
    use crate::rank_status::{RankPhase, RankSnapshot};

    fn written(frames: &[Frame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut writer = FrameWriter::new(&mut bytes);
        for frame in frames {
            writer.write(frame).unwrap();
        }
        bytes
    }

    fn reader(bytes: &[u8]) -> FrameReader<&[u8], impl Fn()> {
        FrameReader::new(bytes, || ())
    }

    /// The frames in `bytes`, up to their end or the first error.
    fn read_all(bytes: &[u8]) -> Vec<(FrameTag, Vec<u8>)> {
        let mut reader = reader(bytes);
        let mut next = || {
            let (tag, length) = reader.read_header()?;
            Ok::<_, FrameError>((tag, reader.read_bytes(length)?))
        };
        std::iter::from_fn(|| next().ok()).collect()
    }

    fn payload(length: usize) -> Vec<u8> {
        (0..length).map(|i| ((i * i) >> 3) as u8).collect()
    }

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
        let lengths = [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 20 * CHUNK_BYTES + 5, 0, 77];
        let frames: Vec<Frame> = tags.iter().zip(lengths).map(|(tag, n)| Frame::new(*tag, payload(n))).collect();
        assert!(frames.iter().all(|frame| frame.header.len() <= MAX_HEADER_BYTES as usize));
        let expected: Vec<_> = tags.into_iter().zip(lengths.map(payload)).collect();
        assert!(read_all(&written(&frames)) == expected);
    }

    /// If one place of the bytes is damaged, the frames before it are read, and no others.
    #[test]
    fn damage_is_noticed_at_its_frame() {
        let frames: Vec<Frame> = [700, 3, 0, CHUNK_BYTES + 300, 40, 40]
            .map(|length| {
                Frame::new(if length == 3 { FrameTag::Heartbeat } else { FrameTag::Control }, payload(length))
            })
            .into();
        let bytes = written(&frames);
        let intact = read_all(&bytes);
        assert_eq!(intact.len(), frames.len());
        let check = |what: &str, at: usize, damaged: &[u8]| {
            let read = read_all(damaged);
            assert!(read.len() < intact.len() && read == intact[..read.len()], "{what} at {at}: {} frames", read.len());
        };
        for at in (0..bytes.len()).filter(|at| *at < 1200 || at % 997 == 0 || bytes.len() - at < 400) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            check("a flipped bit", at, &flipped);
            for count in [1, 4, 300] {
                let end = (at + count).min(bytes.len());
                check("lost bytes", at, &[&bytes[..at], &bytes[end..]].concat());
                // Bytes after the last frame do not count, because a rank announces its end in that frame.
                if end < bytes.len() {
                    check("repeated bytes", at, &[&bytes[..end], &bytes[at..]].concat());
                }
            }
        }
        // Two whole frames of the same length are exchanged, and one is repeated.
        let last = written(&frames[..5]).len();
        let one = bytes.len() - last;
        let exchanged = [&bytes[..last - one], &bytes[last..], &bytes[last - one..last]].concat();
        assert_eq!(read_all(&exchanged).len(), 4);
        assert_eq!(read_all(&[&bytes[..], &bytes[last..]].concat()).len(), 6);
    }

    /// An incomplete chunk is not a sign of life.
    #[test]
    fn only_verified_chunks_count() {
        let bytes = written(&[
            Frame::new(FrameTag::Control, payload(2 * CHUNK_BYTES)),
            Frame::new(FrameTag::Heartbeat, payload(9)),
        ]);
        let count = |bytes: &[u8]| {
            let chunks = Cell::new(0);
            let mut reader = FrameReader::new(bytes, || chunks.set(chunks.get() + 1));
            while let Ok((_, length)) = reader.read_header() {
                let _ = reader.read_bytes(length);
            }
            chunks.get()
        };
        assert_eq!(count(&bytes), 5);
        assert_eq!(count(&[&bytes[..1000], &bytes[1001..]].concat()), 1, "the header before the lost byte");
    }

    /// Arbitrary bytes give an error, but no panic.
    #[test]
    fn a_strangers_bytes_are_not_a_header() {
        let mut state = 7_u64;
        for _ in 0..10_000 {
            let bytes: [u8; 48] = std::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            });
            assert!(reader(&bytes).read_header().is_err());
        }
        let is_damaged = |bytes: &[u8]| matches!(reader(bytes).read_header(), Err(FrameError::Damaged { chunk: 0 }));
        assert!(is_damaged(b"GET / HTTP/1.1\r\nHost: localhost\r\n"));
        assert!(is_damaged(b"\x02\0\0\0{}1234"));
        let checksum = checksum(0, b"\x02\0\0\0{}").to_le_bytes();
        let invalid = [&b"\x02\0\0\0{}"[..], &checksum].concat();
        assert!(matches!(reader(&invalid).read_header(), Err(FrameError::Invalid)));
    }

    #[test]
    fn memory_is_for_bytes_that_arrived() {
        let error = reader(b"three").read_bytes(u64::MAX).unwrap_err();
        assert!(matches!(error, FrameError::Connection(error) if error.kind() == ErrorKind::UnexpectedEof));
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
