//! Collectives as a caller requests them, whatever the transport.

use super::buffers::Buffers;
use super::error::{CommError, ElementType, OperationKind};

/// A collective with the caller's data.
pub enum Collective<'a> {
    Sum(&'a Buffers<'a>),
    Broadcast(&'a Buffers<'a>),
    /// `all` receives the bytes of each member, in the order of the group's ranks.
    Gather {
        own: &'a [u8],
        all: &'a mut Vec<Vec<u8>>,
    },
    Barrier,
}

/// What the members of a group must agree on.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub kind: OperationKind,
    pub element: ElementType,
    pub bytes: usize,
    pub root: Option<usize>,
}

impl Request {
    /// A request for one of the operations that have neither buffers nor a root.
    #[must_use]
    pub fn of_bytes(kind: OperationKind, bytes: usize) -> Self {
        Self { kind, element: ElementType::Bytes, bytes, root: None }
    }

    /// # Errors
    /// If the buffers cannot be summed.
    pub fn sum(kind: OperationKind, root: Option<usize>, buffers: &Buffers<'_>) -> Result<Self, CommError> {
        if !matches!(buffers.element, ElementType::F32 | ElementType::F64 | ElementType::Bytes) {
            let what = format!("sums are of f32 or f64, not {}", buffers.element);
            return Err(CommError::Request { operation: kind, what });
        }
        Ok(Self { kind, element: buffers.element, bytes: buffers.bytes, root })
    }
}
