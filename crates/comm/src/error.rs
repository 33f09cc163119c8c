//! The errors of communication, and the vocabulary of their messages.

use std::fmt;
use std::time::Duration;

use candle_core::DType;
use serde::{Deserialize, Serialize};
use strum::{Display, FromRepr};

use runner_spec::error::{Classified, ErrorKind, PlainError};
use runner_spec::topology::Lane;

/// The error of an operation. After an error, the group or channel must not be used again.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// The run was ended; `by` is the rank that caused it.
    #[error("the run was aborted because of rank {by}")]
    Aborted { by: usize },
    /// `last_seen` is the last known status of `peer`.
    #[error("rank {rank} waited {} s in {operation} for rank {peer}, which was last seen {last_seen}", waited.as_secs_f64())]
    Timeout { operation: OperationKind, rank: usize, peer: usize, waited: Duration, last_seen: String },
    /// `peer` dropped its communicator: what is waited for cannot come.
    #[error("rank {rank} waits in {operation} for rank {peer}, which has left: {last_seen}")]
    Left { operation: OperationKind, rank: usize, peer: usize, last_seen: String },
    #[error("{operation} cannot run: an earlier operation failed, or the communicator was closed")]
    Closed { operation: OperationKind },
    /// Members of a group are in different operations, or in one of different sizes.
    #[error("group {group}: rank {rank} is in {mine}, but rank {peer} is in {theirs}")]
    Mismatch { group: usize, rank: usize, mine: Operation, peer: usize, theirs: Operation },
    /// A message that does not fit its channel or its receiver.
    #[error("{0}")]
    Message(String),
    #[error("there is no {lane} channel from rank {from} to rank {to}")]
    NoChannel { from: usize, to: usize, lane: Lane },
    #[error("rank {rank} is not in group {group}")]
    NotMember { group: usize, rank: usize },
    #[error("{operation}: {what}")]
    Request { operation: OperationKind, what: String },
    /// The error of a transport between devices.
    #[error("rank {rank} in {operation}: {what}")]
    Device { operation: OperationKind, rank: usize, what: String },
    #[error("a started operation panicked: {0}")]
    Panicked(String),
    #[error("{0}")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

impl CommError {
    /// True if the end of another rank caused this error: that rank's own error has the details.
    pub fn is_aborted(&self) -> bool {
        matches!(self, Self::Aborted { .. } | Self::Left { .. })
    }
}

/// The reason why ranks cannot be connected.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Memory is short, or the ranks did not meet or do not agree.
    #[error("{0}")]
    Failed(String),
    /// Threads or random bytes are short.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Plain(#[from] PlainError),
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl Classified for CommError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Failure
    }
}

impl Classified for JoinError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Failure
    }
}

/// The operations of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display, FromRepr)]
#[strum(serialize_all = "kebab-case")]
#[repr(u8)]
pub enum OperationKind {
    AllReduce = 1,
    Reduce = 2,
    Broadcast = 3,
    AllGather = 4,
    Connect = 5,
    Send = 6,
    Receive = 7,
    Wait = 8,
}

/// The types that can be sent. `Bytes` have no type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Display, FromRepr)]
#[strum(serialize_all = "lowercase")]
#[repr(u8)]
pub enum ElementType {
    Bytes = 0,
    F32 = 1,
    F64 = 2,
    U32 = 3,
    Bf16 = 4,
}

impl ElementType {
    /// The element type of a tensor; `None` if the tensor cannot be sent.
    pub fn from_dtype(dtype: DType) -> Option<Self> {
        [Self::F32, Self::F64, Self::U32, Self::Bf16].into_iter().find(|element| element.dtype() == dtype)
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

    /// The type with this number; any other number is that of `Bytes`.
    pub fn from_code(code: u64) -> Self {
        Self::from_repr(code as u8).unwrap_or(Self::Bytes)
    }
}

pub(crate) const OPERATION_WORDS: usize = 5;

/// A collective as its members announce it to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operation {
    pub kind: OperationKind,
    pub element: ElementType,
    pub bytes: u64,
    pub root: Option<usize>,
    /// The number of the operation in its group, from 0; started operations are counted apart.
    pub sequence: u64,
}

impl Operation {
    /// True if both may be the same operation. In an all-gather the bytes may differ.
    pub fn matches(&self, other: &Self) -> bool {
        let bytes = if self.kind == OperationKind::AllGather { self.bytes } else { other.bytes };
        *self == Self { bytes, ..*other }
    }

    /// The operation as numbers.
    pub fn words(&self) -> [u64; OPERATION_WORDS] {
        let root = self.root.map_or(0, |r| r as u64 + 1);
        [self.kind as u64, self.element as u64, self.bytes, root, self.sequence]
    }

    pub fn from_words([kind, element, bytes, root, sequence]: [u64; OPERATION_WORDS]) -> Self {
        let kind = OperationKind::from_repr(kind as u8).unwrap_or(OperationKind::Wait);
        let root = root.checked_sub(1).map(|r| r as usize);
        Self { kind, element: ElementType::from_code(element), bytes, root, sequence }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (number {}, {} bytes", self.kind, self.sequence, self.bytes)?;
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
        for kind in (1..=8).filter_map(OperationKind::from_repr) {
            for (element, root) in
                (0..5).filter_map(ElementType::from_repr).zip([None, Some(0), Some(1), Some(70_000), None])
            {
                let op = Operation { kind, element, bytes: 12, root, sequence: 9 };
                assert_eq!(Operation::from_words(op.words()), op);
            }
        }
    }
}
