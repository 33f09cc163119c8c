//! Collectives, piece by piece through the members' staging.
//!
//! Piece number n lies in staging n mod `STAGED_PIECES`. Its bytes belong to the member that stages them; once `staged` > n they may
//! be read by all; in a sum, each member then overwrites its share in its own staging, which after `reduced` > n all read;
//! once everyone's `done` > n the staging is the member's own again.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::{MemberCounters, STAGED_PIECES};
use super::local_rank::LocalRank;
use crate::collective::{Collective, PIECE_BYTES, RunningCollective};
use crate::error::{CommError, Operation};

impl RunningCollective<'_, LocalRank> {
    /// Runs all pieces from number `first` on, and returns how many there were.
    pub(super) fn run_pieces(&self, first: u64, work: &mut Collective<'_>) -> Result<usize, CommError> {
        self.stage(first, 0, work)?;
        let mut pieces = 1;
        let mut piece = 0;
        while piece < pieces {
            let number = first + piece as u64;
            let after = number + 1;
            self.wait_for_all(|r| &r.staged, after)?;
            (0..self.members()).try_for_each(|member| self.check_same(member, self.announced_by(member, number)))?;
            if piece == 0 {
                // In an all-gather the members' bytes differ.
                let longest = (0..self.members()).map(|member| self.announced_by(member, number).bytes).max();
                pieces = (longest.unwrap_or(0) as usize).div_ceil(PIECE_BYTES).max(1);
            }
            work.reduce_piece(self, piece, number);
            self.publish(|r| &r.reduced, after);
            if piece + 1 < pieces {
                self.stage(after, piece + 1, work)?;
            }
            if matches!(work, Collective::Sum(_)) {
                self.wait_for_all(|r| &r.reduced, after)?;
            }
            work.take_piece(self, piece, number)?;
            self.publish(|r| &r.done, after);
            piece += 1;
        }
        Ok(pieces)
    }

    /// Writes this member's bytes of piece `piece`, which is number `number`, and announces their operation.
    fn stage(&self, number: u64, piece: usize, work: &Collective<'_>) -> Result<(), CommError> {
        // The last piece in this place was `STAGED_PIECES` before.
        self.wait_for_all(|r| &r.done, (number + 1).saturating_sub(STAGED_PIECES as u64))?;
        work.stage_piece(self, piece, number)?;
        let header = &self.counters(self.own_index()).pieces[staging_slot(number)];
        header.iter().zip(self.operation.words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        self.publish(|r| &r.staged, number + 1);
        Ok(())
    }

    /// The operation that a member has announced with its staged piece.
    pub(super) fn announced_by(&self, member: usize, number: u64) -> Operation {
        let header = &self.counters(member).pieces[staging_slot(number)];
        Operation::from_words(header.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    /// The staging of a member for piece `number`, PIECE_BYTES bytes.
    pub(super) fn staging(&self, member: usize, number: u64) -> *mut u8 {
        let region = &self.transport.region;
        region.pointer(
            region.layout.staging(self.membership.group, self.queue, member, staging_slot(number)),
            PIECE_BYTES,
        )
    }

    pub(super) fn counters(&self, member: usize) -> &MemberCounters {
        let region = &self.transport.region;
        region.object_at(region.layout.counters(self.membership.group, self.queue, member))
    }

    fn publish(&self, counter: impl Fn(&MemberCounters) -> &AtomicU64, value: u64) {
        counter(self.counters(self.own_index())).store(value, Ordering::Release);
        for member in self.membership.others() {
            self.transport.wake(self.membership.ranks[member], self.queue);
        }
    }

    fn wait_for_all(&self, counter: impl Fn(&MemberCounters) -> &AtomicU64, target: u64) -> Result<(), CommError> {
        for member in self.membership.others() {
            let counter = counter(self.counters(member));
            let ready = || counter.load(Ordering::Acquire) >= target;
            self.transport.wait_for(self.operation.kind, self.queue, self.membership.ranks[member], ready)?;
        }
        Ok(())
    }
}

fn staging_slot(number: u64) -> usize {
    (number % STAGED_PIECES as u64) as usize
}
