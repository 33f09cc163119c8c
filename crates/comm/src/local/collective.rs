//! Collectives, piece by piece through the members' staging.
//!
//! Piece number n lies in staging n mod `STAGED_PIECES`. Its bytes belong to the member that stages them; once `staged` > n they may
//! be read by all; in a sum, each member then overwrites its share in its own staging, which after `reduced` > n all read;
//! once everyone's `done` > n the staging is the member's own again.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{MemberCounters, PIECE_BYTES, STAGED_PIECES};
use super::local_rank::{LocalRank, reached};
use crate::collective::Request;
use crate::error::{CommError, Operation};
use crate::group::Membership;
use crate::host_comm::HostTransport;

/// The steps of one collective for each of its pieces. `number` is the piece's number in its queue.
pub(super) trait PieceSteps {
    /// The number of pieces, known once all members have staged their first.
    fn pieces(&self, running: &RunningCollective, first: u64) -> usize;
    fn stage(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError>;
    /// True if `take` must wait until all members have done `reduce`.
    fn is_reduction(&self) -> bool {
        false
    }
    fn reduce(&mut self, _running: &RunningCollective, _piece: usize, _number: u64) -> Result<(), CommError> {
        Ok(())
    }
    fn take(&mut self, running: &RunningCollective, piece: usize, number: u64) -> Result<(), CommError>;
}

/// One operation of one member while it runs.
pub(super) struct RunningCollective<'a> {
    core: &'a LocalRank,
    membership: &'a Membership,
    queue: usize,
    operation: Operation,
}

/// Runs a collective in a queue of a group's operations.
pub(super) fn run(
    core: &LocalRank,
    membership: &Membership,
    queue: usize,
    request: Request,
    work: &mut dyn PieceSteps,
) -> Result<(), CommError> {
    membership.run(
        queue,
        request,
        |kind| core.ensure_running(kind),
        |operation, position| {
            let running = RunningCollective { core, membership, queue, operation };
            let pieces = running.run_pieces(position.next_piece, work)?;
            position.next_piece = position.next_piece.wrapping_add(pieces);
            running.counters(membership.own_index).operations.store(position.operations, Ordering::Release);
            Ok(())
        },
    )
}

impl RunningCollective<'_> {
    pub(super) fn members(&self) -> usize {
        self.membership.ranks.len()
    }

    pub(super) fn me(&self) -> usize {
        self.membership.own_index
    }

    /// The root's index in the group.
    pub(super) fn root(&self) -> Option<usize> {
        self.membership.root_index(&self.operation)
    }

    /// Runs all pieces from number `first` on, and returns how many there were.
    fn run_pieces(&self, first: u64, work: &mut dyn PieceSteps) -> Result<u64, CommError> {
        self.stage(first, 0, work)?;
        let mut pieces = 1;
        let mut piece = 0;
        while piece < pieces {
            let number = first.wrapping_add(piece as u64);
            let after = number.wrapping_add(1);
            self.wait_for_all(|r| &r.staged, after)?;
            self.check(number)?;
            if piece == 0 {
                pieces = work.pieces(self, number).max(1);
            }
            work.reduce(self, piece, number)?;
            self.publish(|r| &r.reduced, after);
            if piece + 1 < pieces {
                self.stage(after, piece + 1, work)?;
            }
            if work.is_reduction() {
                self.wait_for_all(|r| &r.reduced, after)?;
            }
            work.take(self, piece, number)?;
            self.publish(|r| &r.done, after);
            piece += 1;
        }
        Ok(pieces as u64)
    }

    /// Writes this member's part of piece `piece`, which is number `number`, and says of what it is.
    fn stage(&self, number: u64, piece: usize, work: &mut dyn PieceSteps) -> Result<(), CommError> {
        // The last piece in this place was `STAGED_PIECES` before.
        self.wait_for_all(|r| &r.done, number.wrapping_add(1).wrapping_sub(STAGED_PIECES as u64))?;
        work.stage(self, piece, number)?;
        let header = &self.counters(self.me()).pieces[staging_slot(number)];
        header.code.store(self.operation.code(), Ordering::Relaxed);
        header.bytes.store(self.operation.bytes, Ordering::Relaxed);
        header.sequence.store(self.operation.sequence, Ordering::Relaxed);
        self.publish(|r| &r.staged, number.wrapping_add(1));
        Ok(())
    }

    /// Whether all members' pieces are of the same operation.
    fn check(&self, number: u64) -> Result<(), CommError> {
        for (member, &peer) in self.membership.ranks.iter().enumerate() {
            let theirs = self.announced_by(member, number);
            if !self.operation.matches(&theirs) {
                let Self { core, operation: mine, .. } = *self;
                return Err(CommError::Mismatch { group: self.membership.group, rank: core.rank, mine, peer, theirs });
            }
        }
        Ok(())
    }

    /// What a member said of its staged piece.
    pub(super) fn announced_by(&self, member: usize, number: u64) -> Operation {
        let header = &self.counters(member).pieces[staging_slot(number)];
        let word = |w: &AtomicU64| w.load(Ordering::Relaxed);
        Operation::from_words(word(&header.code), word(&header.bytes), word(&header.sequence))
    }

    /// Where a member's part of piece `number` lies, PIECE_BYTES bytes.
    pub(super) fn staging(&self, member: usize, number: u64) -> *mut u8 {
        let region = &self.core.region;
        region.pointer(
            region.layout.staging(self.membership.group, self.queue, member, staging_slot(number)),
            PIECE_BYTES,
        )
    }

    fn counters(&self, member: usize) -> &MemberCounters {
        let region = &self.core.region;
        region.at(region.layout.counters(self.membership.group, self.queue, member))
    }

    fn publish(&self, counter: impl Fn(&MemberCounters) -> &AtomicU64, value: u64) {
        counter(self.counters(self.me())).store(value, Ordering::Release);
        for &rank in self.membership.ranks.iter().filter(|r| **r != self.core.rank) {
            self.core.region.status_of(rank).wake_signals[self.queue].wake_all();
        }
    }

    fn wait_for_all(&self, counter: impl Fn(&MemberCounters) -> &AtomicU64, target: u64) -> Result<(), CommError> {
        for (member, &peer) in self.membership.ranks.iter().enumerate() {
            if member != self.me() {
                let counter = counter(self.counters(member));
                let ready = || reached(counter.load(Ordering::Acquire), target);
                self.core.wait_for(self.operation.kind, self.queue, peer, ready)?;
            }
        }
        Ok(())
    }
}

fn staging_slot(number: u64) -> usize {
    (number % STAGED_PIECES as u64) as usize
}
