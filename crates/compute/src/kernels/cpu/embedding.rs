//! Token and position embeddings.

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::elementwise::written;
use super::pieces::Pieces;
use super::simd::{Shared, axpy, inlined, rows_per_task, vectorize};
use super::{Real, Stored};

/// `scale` · tokens' rows of `table`, plus rows of `positions` if they are given: row r is at position `r mod seq`.
pub fn embed<S: Stored, P: Stored<Real = S::Real>>(
    tokens: &[u32],
    table: &[S],
    scale: Option<S::Real>,
    positions: Option<&[P]>,
    d: usize,
    seq: usize,
) -> Vec<S> {
    let rows = rows_per_task(d);
    let scale = scale.unwrap_or(Real::ONE);
    let write = |y: &mut [MaybeUninit<S>]| {
        y.par_chunks_mut(rows * d).enumerate().for_each_piece(|(task, y)| {
            vectorize(inlined!(|| {
                for (i, y) in y.chunks_exact_mut(d).enumerate() {
                    let row = task * rows + i;
                    let token = &table[tokens[row] as usize * d..][..d];
                    match positions {
                        Some(positions) => {
                            let position = &positions[row % seq * d..][..d];
                            for ((y, &t), &p) in y.iter_mut().zip(token).zip(position) {
                                y.write(S::store(t.load() * scale + p.load()));
                            }
                        }
                        None => {
                            for (y, &t) in y.iter_mut().zip(token) {
                                y.write(S::store(t.load() * scale));
                            }
                        }
                    }
                }
            }));
        });
    };
    // SAFETY: all rows are written.
    unsafe { written(tokens.len() * d, write) }
}

/// Rows of sines and cosines (Vaswani et al. 2017), `[positions, d]`: columns 2i and 2i + 1 of row p are sine and cosine of
/// p / 10000^(2i/d).
pub fn sinusoids(positions: usize, d: usize) -> Vec<f64> {
    let mut table = vec![0.0; positions * d];
    table.par_chunks_mut(d).enumerate().for_each_piece(|(position, row)| {
        for (pair, columns) in row.chunks_mut(2).enumerate() {
            let angle = position as f64 * (-(10_000_f64.ln()) * (2 * pair) as f64 / d as f64).exp();
            for (column, wave) in columns.iter_mut().zip([angle.sin(), angle.cos()]) {
                *column = wave;
            }
        }
    });
    table
}

/// `dtable[index(r)] += factor·dy[r]` for each row in order; tasks own columns, so no two add to the same element.
pub fn scatter_add<S: Stored>(
    dy: &[S],
    d: usize,
    factor: S::Real,
    dtable: &mut [S::Real],
    index: impl Fn(usize) -> usize + Sync,
) {
    const COLUMNS: usize = 64;
    let rows = dy.len() / d;
    let limit = dtable.len() / d;
    let table = Shared::new(dtable);
    (0..d.div_ceil(COLUMNS)).into_par_iter().for_each_piece(|task| {
        let from = task * COLUMNS;
        let width = COLUMNS.min(d - from);
        vectorize(inlined!(|| {
            for row in 0..rows {
                let target = index(row);
                assert!(target < limit, "embedding index beyond its table");
                // SAFETY: the row lies in the table, checked above, and this task alone writes these columns.
                let out = unsafe { table.slice(target * d + from, width) };
                axpy(factor, &dy[row * d + from..][..width], out);
            }
        }));
    });
}
