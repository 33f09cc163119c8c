//! The timeout of operations, which is the same over every transport.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::error::{CommError, OperationKind};
use super::rank_status::RankSnapshot;

/// An operation that waits longer for a rank fails. A checkpoint to a slow disk is faster, and a night is longer.
pub(crate) const OPERATION_TIMEOUT: Duration = Duration::from_mins(30);

/// The longest sleep of a thread that waits. It notices the end of the run after this time at the latest.
pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The timeout of a rank's operations, in milliseconds; `OPERATION_TIMEOUT` at first.
#[derive(Debug)]
pub(crate) struct OperationTimeout(AtomicU64);

impl Default for OperationTimeout {
    fn default() -> Self {
        Self(AtomicU64::new(OPERATION_TIMEOUT.as_millis() as u64))
    }
}

impl OperationTimeout {
    pub(crate) fn set(&self, timeout: Duration) {
        self.0.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The time that is left to `rank`, which has waited for `peer` since `started`. `peer_status` is the peer's last known status.
    ///
    /// # Errors
    /// `CommError::Timeout` if no time is left.
    pub(crate) fn time_left(
        &self,
        operation: OperationKind,
        rank: usize,
        peer: usize,
        started: Instant,
        peer_status: &RankSnapshot,
    ) -> Result<Duration, CommError> {
        let waited = started.elapsed();
        let left = Duration::from_millis(self.0.load(Ordering::Relaxed)).saturating_sub(waited);
        if left.is_zero() {
            return Err(CommError::Timeout { operation, rank, peer, waited, last_seen: peer_status.to_string() });
        }
        Ok(left)
    }
}
