//! Collectives, piece by piece through the members' staging.
//!
//! Piece number n lies in staging n mod `DEPTH`. Its bytes belong to the member that stages them; once `staged` > n they may
//! be read by all; in a sum, each member then overwrites its share in its own staging, which after `reduced` > n all read;
//! once everyone's `done` > n the staging is the member's own again.

use std::sync::atomic::{AtomicU64, Ordering};

use super::core::{Core, Membership, lock, reached};
use super::layout::{DEPTH, PIECE, Record};
use super::work::Work;
use crate::error::{CommError, Element, Kind, Operation};
use runner_spec::topology::GroupId;

/// What the caller wants done.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub kind: Kind,
    pub element: Element,
    pub bytes: usize,
    pub root: Option<usize>,
}

/// One operation of one member under way.
pub(super) struct Turn<'a> {
    core: &'a Core,
    membership: &'a Membership,
    line: usize,
    operation: Operation,
}

/// Runs a collective in a line of a group's operations.
pub(super) fn run(
    core: &Core,
    group: GroupId,
    line: usize,
    request: Request,
    work: &mut dyn Work,
) -> Result<(), CommError> {
    let membership = core.membership(group)?;
    let Request { kind, element, bytes, root } = request;
    if let Some(root) = root.filter(|r| !membership.ranks.contains(r)) {
        return Err(CommError::NotMember { group: group.0, rank: root });
    }
    let mut position = lock(&membership.lines[line]);
    core.alive(kind)?;
    if position.broken {
        return Err(CommError::Closed { operation: kind });
    }
    let operation = Operation { kind, element, bytes: bytes as u64, root, sequence: position.operations };
    let turn = Turn { core, membership, line, operation };
    let result = if membership.ranks.len() == 1 {
        work.alone();
        Ok(0)
    } else {
        turn.pieces(position.next, work)
    };
    match result {
        Ok(pieces) => {
            position.next = position.next.wrapping_add(pieces);
            position.operations = position.operations.wrapping_add(1);
            turn.record(membership.me).operations.store(position.operations, Ordering::Release);
            Ok(())
        }
        Err(e) => {
            position.broken = true;
            Err(e)
        }
    }
}

impl Turn<'_> {
    pub(super) fn members(&self) -> usize {
        self.membership.ranks.len()
    }

    pub(super) fn me(&self) -> usize {
        self.membership.me
    }

    /// The root's place in the group.
    pub(super) fn root(&self) -> Option<usize> {
        self.membership.ranks.iter().position(|r| Some(*r) == self.operation.root)
    }

    /// All pieces from number `first` on; how many they were.
    fn pieces(&self, first: u64, work: &mut dyn Work) -> Result<u64, CommError> {
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
            work.combine(self, piece, number)?;
            self.publish(|r| &r.reduced, after);
            if piece + 1 < pieces {
                self.stage(after, piece + 1, work)?;
            }
            if work.combines() {
                self.wait_for_all(|r| &r.reduced, after)?;
            }
            work.take(self, piece, number)?;
            self.publish(|r| &r.done, after);
            piece += 1;
        }
        Ok(pieces as u64)
    }

    /// Writes this member's part of piece `piece`, which is number `number`, and says of what it is.
    fn stage(&self, number: u64, piece: usize, work: &mut dyn Work) -> Result<(), CommError> {
        // The last piece in this place was `DEPTH` before.
        self.wait_for_all(|r| &r.done, number.wrapping_add(1).wrapping_sub(DEPTH as u64))?;
        work.stage(self, piece, number)?;
        let header = &self.record(self.me()).pieces[place(number)];
        header.code.store(self.operation.code(), Ordering::Relaxed);
        header.bytes.store(self.operation.bytes, Ordering::Relaxed);
        header.sequence.store(self.operation.sequence, Ordering::Relaxed);
        self.publish(|r| &r.staged, number.wrapping_add(1));
        Ok(())
    }

    /// Whether all members' pieces are of the same operation.
    fn check(&self, number: u64) -> Result<(), CommError> {
        for (member, &peer) in self.membership.ranks.iter().enumerate() {
            let theirs = self.theirs(member, number);
            if !self.operation.meets(&theirs) {
                let Self { core, operation: mine, .. } = *self;
                return Err(CommError::Mismatch { group: self.membership.group, rank: core.rank, mine, peer, theirs });
            }
        }
        Ok(())
    }

    /// What a member said of its staged piece.
    pub(super) fn theirs(&self, member: usize, number: u64) -> Operation {
        let header = &self.record(member).pieces[place(number)];
        let word = |w: &AtomicU64| w.load(Ordering::Relaxed);
        Operation::from_words(word(&header.code), word(&header.bytes), word(&header.sequence))
    }

    /// Where a member's part of piece `number` lies, PIECE bytes.
    pub(super) fn staging(&self, member: usize, number: u64) -> *mut u8 {
        let region = &self.core.region;
        region.pointer(region.layout.staging(self.membership.group, self.line, member, place(number)), PIECE)
    }

    fn record(&self, member: usize) -> &Record {
        let region = &self.core.region;
        region.at(region.layout.record(self.membership.group, self.line, member))
    }

    fn publish(&self, counter: impl Fn(&Record) -> &AtomicU64, value: u64) {
        counter(self.record(self.me())).store(value, Ordering::Release);
        for &rank in self.membership.ranks.iter().filter(|r| **r != self.core.rank) {
            self.core.region.place(rank).bells[self.line].ring();
        }
    }

    fn wait_for_all(&self, counter: impl Fn(&Record) -> &AtomicU64, target: u64) -> Result<(), CommError> {
        for (member, &peer) in self.membership.ranks.iter().enumerate() {
            if member != self.me() {
                let counter = counter(self.record(member));
                let ready = || reached(counter.load(Ordering::Acquire), target);
                self.core.wait_for(self.operation.kind, self.line, peer, ready)?;
            }
        }
        Ok(())
    }
}

fn place(number: u64) -> usize {
    (number % DEPTH as u64) as usize
}
