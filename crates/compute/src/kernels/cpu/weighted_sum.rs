//! Sums of coefficients times tensors, row by row.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::activation::sigmoid;
use super::elementwise::written;
use super::pieces::Pieces;
use super::simd::{axpy, dot, inlined, rows_per_task, vectorize};
use super::{Real, Stored};

/// A coefficient of each group of a row's channels.
#[derive(Debug)]
pub struct Coefficient<'a, S: Stored> {
    pub number: S::Real,
    /// A number, and whether its sigmoid is the factor.
    pub scalar: Option<(S::Real, bool)>,
    /// Logits, `[rows, groups]`.
    pub gate: Option<&'a [S]>,
    pub groups: usize,
}

/// A term; see `kernels::weighted_sum::Term`.
#[derive(Debug)]
pub struct Term<'a, S: Stored> {
    pub x: &'a [S],
    pub coefficient: Coefficient<'a, S>,
    pub is_previous: bool,
}

impl<S: Stored> Coefficient<'_, S> {
    /// The factor by the scalar, and its derivative.
    #[inline(always)]
    fn of_scalar(&self) -> [S::Real; 2] {
        match self.scalar {
            None => [S::Real::ONE, S::Real::ZERO],
            Some((scalar, false)) => [scalar, S::Real::ONE],
            Some((scalar, true)) => with_derivative(scalar),
        }
    }

    /// The factor by the gate of group `index`, counted over all rows, and its derivative.
    #[inline(always)]
    fn of_gate(&self, index: usize) -> [S::Real; 2] {
        self.gate.map_or([S::Real::ONE, S::Real::ZERO], |gate| with_derivative(gate[index].load()))
    }

    #[inline(always)]
    fn at(&self, row: usize, group: usize) -> S::Real {
        self.number * self.of_scalar()[0] * self.of_gate(row * self.groups + group)[0]
    }
}

/// The sigmoid and its derivative.
#[inline(always)]
fn with_derivative<T: Real>(x: T) -> [T; 2] {
    let s = sigmoid(x);
    [s, s * (T::ONE - s)]
}

/// Rows of `width`; each `seq` of them are one sequence.
pub fn weighted_sum<S: Stored>(terms: &[Term<'_, S>], width: usize, seq: usize) -> Vec<S> {
    let len = terms.first().map_or(0, |term| term.x.len());
    let rows = rows_per_task(width);
    let write = |y: &mut [MaybeUninit<S>]| {
        y.par_chunks_mut(rows * width).enumerate().for_each_piece(|(task, y)| {
            let mut sums = S::Real::zeros(width);
            vectorize(inlined!(|| {
                for (i, y) in y.chunks_exact_mut(width).enumerate() {
                    let row = task * rows + i;
                    sums.fill(S::Real::ZERO);
                    for term in terms {
                        let Some(from) = source(row, term.is_previous, seq) else { continue };
                        let (x, groups) = (&term.x[from * width..][..width], term.coefficient.groups);
                        let channels = width / groups;
                        let parts = x.chunks_exact(channels).zip(sums.chunks_exact_mut(channels));
                        for (group, (x, sums)) in parts.enumerate() {
                            axpy(term.coefficient.at(row, group), x, sums);
                        }
                    }
                    for (y, &sum) in y.iter_mut().zip(&sums) {
                        y.write(S::store(sum));
                    }
                }
            }));
        });
    };
    // SAFETY: all rows are written.
    unsafe { written(len, write) }
}

/// The row of the term's tensor that row `row` of the sum reads.
#[inline(always)]
fn source(row: usize, is_previous: bool, seq: usize) -> Option<usize> {
    match (is_previous, row % seq) {
        (false, _) => Some(row),
        (true, 0) => None,
        (true, _) => Some(row - 1),
    }
}

/// The gradients of a term's tensor, gate and scalar: see `kernels::weighted_sum::TermGradients`.
#[expect(clippy::type_complexity, reason = "three gradients")]
pub fn weighted_sum_backward<S: Stored>(
    term: &Term<'_, S>,
    dy: &[S],
    width: usize,
    seq: usize,
) -> (Vec<S>, Option<Vec<S>>, Option<Vec<S::Real>>) {
    let Term { x, coefficient, is_previous } = term;
    let (groups, all) = (coefficient.groups, dy.len() / width);
    let (rows, channels) = (rows_per_task(width), width / groups);
    let is_trained = coefficient.gate.is_some() || coefficient.scalar.is_some();
    let [mut dgate, mut dscalar] = [0, 1].map(|_| S::Real::zeros(if is_trained { all * groups } else { 0 }));
    let write = |dx: &mut [MaybeUninit<S>]| {
        dx.par_chunks_mut(rows * width).enumerate().for_each_piece(|(task, dx)| {
            vectorize(inlined!(|| {
                for (i, dx) in dx.chunks_exact_mut(width).enumerate() {
                    let row = task * rows + i;
                    let reader = if *is_previous { row + 1 } else { row };
                    if reader == all || (*is_previous && reader % seq == 0) {
                        dx.fill(MaybeUninit::new(S::store(S::Real::ZERO)));
                        continue;
                    }
                    let dy = &dy[reader * width..][..width];
                    for (group, (dx, dy)) in dx.chunks_exact_mut(channels).zip(dy.chunks_exact(channels)).enumerate() {
                        let factor = coefficient.at(reader, group);
                        for (dx, &dy) in dx.iter_mut().zip(dy) {
                            dx.write(S::store(factor * dy.load()));
                        }
                    }
                }
            }));
        });
    };
    // SAFETY: all rows are written.
    let dx = unsafe { written(dy.len(), write) };
    if is_trained {
        let [of_scalar, dof_scalar] = coefficient.of_scalar();
        let number = coefficient.number;
        dgate.par_chunks_mut(rows * groups).zip(dscalar.par_chunks_mut(rows * groups)).enumerate().for_each_piece(
            |(task, (dgate, dscalar))| {
                vectorize(inlined!(|| {
                    for (i, (dgate, dscalar)) in dgate.iter_mut().zip(dscalar).enumerate() {
                        let index = task * rows * groups + i;
                        let (row, group) = (index / groups, index % groups);
                        let Some(from) = source(row, *is_previous, seq) else { continue };
                        let place = |row: usize| row * width + group * channels;
                        let product = number * dot(&dy[place(row)..][..channels], &x[place(from)..][..channels]);
                        let [of_gate, dof_gate] = coefficient.of_gate(index);
                        *dgate = product * of_scalar * dof_gate;
                        *dscalar = product * dof_scalar * of_gate;
                    }
                }));
            },
        );
    }
    let dgate = coefficient.gate.map(|_| dgate.into_iter().map(S::store).collect());
    (dx, dgate, coefficient.scalar.map(|_| dscalar))
}
