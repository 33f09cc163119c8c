//! A rank's place in the region, shared by its own thread and the one that runs started operations; and waiting.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::board::{LINES, Seat};
use super::layout::Record;
use super::region::{Region, RegionError};
use crate::error::{CommError, Kind};
use runner_spec::topology::{GroupId, Lane};

/// Half an hour: a checkpoint to a slow disk is shorter, a night is longer.
const LIMIT: Duration = Duration::from_mins(30);

/// Turns of a busy loop, then of giving the core away, before sleeping. Few: on a machine with a core per rank, the
/// ranks' background threads share those cores with the computation.
const SPINS: u32 = 200;
const YIELDS: u32 = 20;

/// Longest sleep: an end of the run is noticed at latest after it.
const NAP: Duration = Duration::from_millis(100);

pub(super) struct Core {
    pub(super) region: Arc<Region>,
    pub(super) rank: usize,
    /// Per group of the topology; `None` where this rank is no member.
    memberships: Vec<Option<Membership>>,
    /// Per channel; a lock for its use from here.
    channels: Vec<Mutex<()>>,
    limit: AtomicU64,
    closing: AtomicBool,
}

/// This rank in a group.
pub(super) struct Membership {
    pub(super) group: usize,
    pub(super) ranks: Vec<usize>,
    /// Its place in the order of ranks.
    pub(super) me: usize,
    pub(super) lines: [Mutex<Line>; LINES],
}

/// How far this rank is with a group's operations of one line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// Number of the next piece.
    pub(super) next: u64,
    pub(super) operations: u64,
    /// An operation failed half way: members may disagree about what comes next.
    pub(super) broken: bool,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("rank", &self.rank).field("region", &self.region).finish_non_exhaustive()
    }
}

impl Core {
    /// Takes the rank's seat: whoever has it is the one writer of the rank's counters.
    pub(super) fn new(region: Arc<Region>, rank: usize) -> Result<Self, RegionError> {
        let world_size = region.world_size();
        let seat = region.seat(rank).ok_or(RegionError::NoSuchRank { rank, world_size })?;
        if !seat.take() {
            return Err(RegionError::Taken { rank });
        }
        let membership = |(group, ranks): (usize, &Vec<usize>)| {
            let me = ranks.iter().position(|&r| r == rank)?;
            // Where an earlier owner of the seat left off.
            let line = |line| {
                let record: &Record = region.at(region.layout.record(group, line, me));
                let next = record.staged.load(Ordering::Acquire);
                Mutex::new(Line { next, operations: record.operations.load(Ordering::Acquire), broken: false })
            };
            Some(Membership { group, ranks: ranks.clone(), me, lines: std::array::from_fn(line) })
        };
        let memberships = region.topology.groups.iter().enumerate().map(membership).collect();
        let channels = region.topology.channels.iter().map(|_| Mutex::new(())).collect();
        let limit = AtomicU64::new(LIMIT.as_millis() as u64);
        Ok(Self { memberships, channels, limit, closing: AtomicBool::new(false), rank, region })
    }

    pub(super) fn seat(&self) -> &Seat {
        self.region.place(self.rank)
    }

    pub(super) fn membership(&self, group: GroupId) -> Result<&Membership, CommError> {
        let membership = self.memberships.get(group.0).and_then(Option::as_ref);
        membership.ok_or(CommError::NotMember { group: group.0, rank: self.rank })
    }

    /// The channel's index, and its use by this rank alone.
    pub(super) fn channel(&self, from: usize, to: usize, lane: Lane) -> Result<(usize, MutexGuard<'_, ()>), CommError> {
        let wanted = |c: &runner_spec::topology::Channel| (c.from, c.to, c.lane) == (from, to, lane);
        let index = self.region.topology.channels.iter().position(wanted);
        let index = index.ok_or(CommError::NoChannel { from, to, lane })?;
        Ok((index, lock(&self.channels[index])))
    }

    pub(super) fn set_limit(&self, limit: Duration) {
        self.limit.store(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Ends all waits of this rank.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
        self.seat().bells.iter().for_each(super::bell::Bell::ring);
    }

    /// Whether operations may go on.
    pub(super) fn alive(&self, operation: Kind) -> Result<(), CommError> {
        if let Some(by) = self.region.aborted() {
            return Err(CommError::Aborted { by });
        }
        if self.closing.load(Ordering::Relaxed) {
            return Err(CommError::Closed { operation });
        }
        Ok(())
    }

    /// Returns once `ready`, which `peer` makes true and then rings this rank's bell of `line`.
    pub(super) fn wait_for(
        &self,
        operation: Kind,
        line: usize,
        peer: usize,
        ready: impl Fn() -> bool,
    ) -> Result<(), CommError> {
        for _ in 0..SPINS {
            if ready() {
                self.seat().progress();
                return Ok(());
            }
            std::hint::spin_loop();
        }
        self.seat().set_waiting(line, Some(peer));
        let result = self.wait_long(operation, line, peer, ready);
        // Before it waits no more: the time until then was not its own.
        self.seat().progress();
        self.seat().set_waiting(line, None);
        result
    }

    fn wait_long(&self, operation: Kind, line: usize, peer: usize, ready: impl Fn() -> bool) -> Result<(), CommError> {
        let started = Instant::now();
        let limit = Duration::from_millis(self.limit.load(Ordering::Relaxed));
        for turn in 0_u64.. {
            if ready() {
                return Ok(());
            }
            self.alive(operation)?;
            let place = self.region.place(peer);
            // In this order: what it did before it left counts, an abort included.
            if place.has_left() && !ready() {
                self.alive(operation)?;
                let doing = place.view().to_string();
                return Err(CommError::Left { operation, rank: self.rank, peer, doing });
            }
            if turn < u64::from(YIELDS) {
                std::thread::yield_now();
                continue;
            }
            let waited = started.elapsed();
            let Some(left) = limit.checked_sub(waited).filter(|left| !left.is_zero()) else {
                let doing = place.view().to_string();
                return Err(CommError::Timeout { operation, rank: self.rank, peer, waited, doing });
            };
            let over = || ready() || place.has_left() || self.alive(operation).is_err();
            self.seat().bells[line].sleep(left.min(NAP), over);
        }
        Ok(())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        self.seat().leave();
        self.region.ring_all();
    }
}

/// Our locks guard positions that are right at any moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a counter that only grows, and may wrap, has come to `target`.
pub(super) fn reached(counter: u64, target: u64) -> bool {
    counter.wrapping_sub(target).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use super::reached;

    #[test]
    fn counters_may_wrap() {
        assert!(reached(5, 5) && reached(6, 5) && !reached(4, 5));
        assert!(reached(1, u64::MAX) && !reached(u64::MAX, 1));
        assert!(reached(0, 0_u64.wrapping_sub(1)), "before the first piece nothing is to be waited for");
    }
}
