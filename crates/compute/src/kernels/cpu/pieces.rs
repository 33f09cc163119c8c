//! Parallel iterators whose items are pieces of a region ([`runner_threads::work_stealing`]).

use std::cell::UnsafeCell;

use rayon::iter::plumbing::{Producer, ProducerCallback};
use rayon::prelude::*;
use runner_threads::work_stealing;

/// The most pieces of a region: enough to balance them among the cores of a large machine.
const MAX_PIECES: usize = 1024;

/// `per_thread` tasks for each thread of the current pool.
pub fn task_count(per_thread: usize) -> usize {
    rayon::current_num_threads() * per_thread
}

/// Computes the items of a parallel iterator as the pieces of a region.
pub trait Pieces: IndexedParallelIterator {
    /// Calls `f` with each item, on the threads of the current pool.
    fn for_each_piece(self, f: impl Fn(Self::Item) + Sync) {
        let len = self.len();
        self.with_producer(EachPiece(f, len));
    }
}

impl<I: IndexedParallelIterator> Pieces for I {}

/// The function and the number of items that it is called with.
struct EachPiece<F>(F, usize);

impl<T, F: Fn(T) + Sync> ProducerCallback<T> for EachPiece<F> {
    type Output = ();

    fn callback<P: Producer<Item = T>>(self, producer: P) {
        let Self(f, len) = self;
        // Items of which there are many are small.
        let size = len.div_ceil(MAX_PIECES).max(1);
        let mut pieces = Vec::with_capacity(len.div_ceil(size));
        let (mut rest, mut left) = (producer, len);
        while left > size {
            let (piece, later) = rest.split_at(size);
            pieces.push(Piece(UnsafeCell::new(Some(piece))));
            (rest, left) = (later, left - size);
        }
        pieces.push(Piece(UnsafeCell::new(Some(rest))));
        let pieces = &pieces;
        work_stealing::for_each_piece(pieces.len(), |i| {
            // SAFETY: each piece is taken once, by the thread that was given its number.
            let piece = unsafe { (*pieces[i].0.get()).take() };
            piece.into_iter().flat_map(Producer::into_iter).for_each(&f);
        });
    }
}

/// A part of an iterator.
struct Piece<P>(UnsafeCell<Option<P>>);

// SAFETY: only the thread that was given a piece's number uses it.
unsafe impl<P: Send> Sync for Piece<P> {}
