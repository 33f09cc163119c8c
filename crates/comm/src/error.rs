//! Why ranks could not talk, and the vocabulary of those messages.

use std::fmt;
use std::time::Duration;

use candle_core::DType;

use runner_spec::topology::Lane;

/// What an operation can fail with. After one, the group or channel is not to be used again.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// The run was ended; `by` is the rank that caused it.
    #[error("the run was aborted because of rank {by}")]
    Aborted { by: usize },
    /// `doing` is the last known status of `peer`.
    #[error("rank {rank} waited {} s in {operation} for rank {peer}, which was last seen {doing}", waited.as_secs_f64())]
    Timeout { operation: OperationKind, rank: usize, peer: usize, waited: Duration, doing: String },
    /// `peer` dropped its communicator: what is waited for cannot come.
    #[error("rank {rank} waits in {operation} for rank {peer}, which has left: {doing}")]
    Left { operation: OperationKind, rank: usize, peer: usize, doing: String },
    #[error("{operation} cannot run: an earlier operation failed, or the communicator was closed")]
    Closed { operation: OperationKind },
    /// Members of a group are in different operations, or in one of different sizes.
    #[error("group {group}: rank {rank} is in {mine}, but rank {peer} is in {theirs}")]
    Mismatch { group: usize, rank: usize, mine: Operation, peer: usize, theirs: Operation },
    #[error(
        "the next {lane} message from rank {from} to rank {to} has {sent} bytes of {element}, but a tensor of shape \
         {shape:?} of {} ({expected} bytes) was expected", dtype.as_str()
    )]
    Message {
        from: usize,
        to: usize,
        lane: Lane,
        sent: u64,
        element: ElementType,
        dtype: DType,
        shape: Vec<usize>,
        expected: u64,
    },
    #[error(
        "a message of {bytes} bytes from rank {from} to rank {to} ({lane}) is longer than the channel's {slot_bytes}"
    )]
    TooLong { from: usize, to: usize, lane: Lane, bytes: usize, slot_bytes: usize },
    #[error("there is no {lane} channel from rank {from} to rank {to}")]
    NoChannel { from: usize, to: usize, lane: Lane },
    #[error("rank {rank} is not in group {group}")]
    NotMember { group: usize, rank: usize },
    #[error("{operation}: {what}")]
    Request { operation: OperationKind, what: String },
    /// Of a transport between devices.
    #[error("rank {rank} in {operation}: {what}")]
    Device { operation: OperationKind, rank: usize, what: String },
    #[error("no thread for started operations: {0}")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// Operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum OperationKind {
    AllReduce = 1,
    Reduce,
    Broadcast,
    AllGather,
    Barrier,
    Send,
    Receive,
    Wait,
}

impl OperationKind {
    const ALL: [Self; 8] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::AllGather,
        Self::Barrier,
        Self::Send,
        Self::Receive,
        Self::Wait,
    ];
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AllReduce => "all-reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all-gather",
            Self::Barrier => "barrier",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Wait => "wait",
        })
    }
}

/// Types that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ElementType {
    /// Bytes without a type.
    Bytes,
    F32,
    F64,
    U32,
    Bf16,
}

impl ElementType {
    const ALL: [Self; 5] = [Self::Bytes, Self::F32, Self::F64, Self::U32, Self::Bf16];

    /// Of a tensor; `None` if it cannot be sent.
    #[must_use]
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::U32 => Some(Self::U32),
            DType::BF16 => Some(Self::Bf16),
            _ => None,
        }
    }

    pub fn dtype(self) -> DType {
        match self {
            Self::Bytes => DType::U8,
            Self::F32 => DType::F32,
            Self::F64 => DType::F64,
            Self::U32 => DType::U32,
            Self::Bf16 => DType::BF16,
        }
    }

    pub fn from_code(code: u64) -> Self {
        Self::ALL.into_iter().find(|e| *e as u64 == code).unwrap_or(Self::Bytes)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bytes => "bytes",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::U32 => "u32",
            Self::Bf16 => "bf16",
        })
    }
}

/// A collective as its members announce it to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    pub kind: OperationKind,
    pub element: ElementType,
    pub bytes: u64,
    pub root: Option<usize>,
    /// Counts the group's operations, from 0; started ones apart.
    pub sequence: u64,
}

impl Operation {
    /// Whether both may be the same operation: all but the bytes of an all-gather.
    pub fn matches(&self, other: &Self) -> bool {
        let bytes = if self.kind == OperationKind::AllGather { self.bytes } else { other.bytes };
        *self == Self { bytes, ..*other }
    }

    /// OperationKind, element and root in one word; the bytes and the sequence are words of their own.
    pub fn code(&self) -> u64 {
        let root = self.root.map_or(0, |r| r as u64 + 1);
        self.kind as u64 | (self.element as u64) << 8 | root << 16
    }

    pub fn from_words(code: u64, bytes: u64, sequence: u64) -> Self {
        let kind = OperationKind::ALL.into_iter().find(|k| *k as u64 == code & 0xff).unwrap_or(OperationKind::Wait);
        let root = (code >> 16).checked_sub(1).map(|r| r as usize);
        Self { kind, element: ElementType::from_code(code >> 8 & 0xff), bytes, root, sequence }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (number {}", self.kind, self.sequence)?;
        if self.kind != OperationKind::Barrier {
            write!(f, ", {} bytes", self.bytes)?;
        }
        if self.element != ElementType::Bytes {
            write!(f, " of {}", self.element)?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_survive_their_header() {
        for kind in OperationKind::ALL {
            for (element, root) in ElementType::ALL.into_iter().zip([None, Some(0), Some(1), Some(70_000), None]) {
                let op = Operation { kind, element, bytes: 12, root, sequence: 9 };
                assert_eq!(Operation::from_words(op.code(), 12, 9), op);
            }
        }
    }
}
