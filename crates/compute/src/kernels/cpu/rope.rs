//! Rotary position embedding (Su et al. 2021), rotate-half, in place.

use rayon::prelude::*;

use super::pieces::Pieces;
use super::simd::{inlined, rows_per_task, vectorize};
use super::{Real, Stored};

/// cos and sin of position·frequency, times `factor`, each `[positions, frequencies]`.
pub fn tables(positions: usize, frequencies: &[f64], factor: f64) -> (Vec<f64>, Vec<f64>) {
    let angles = (0..positions).flat_map(|position| frequencies.iter().map(move |f| position as f64 * f));
    angles.map(|angle| (factor * angle.cos(), factor * angle.sin())).unzip()
}

/// Rotates the first `2·half` elements of the first `heads` heads of each row of `x` (`[rows, stride]`); row r is at position
/// `start + r mod seq`, and has `half` numbers of `cos` and `sin`. `inverse` rotates back, which is also the backward.
#[expect(clippy::too_many_arguments, reason = "the shape, two tables and the direction of one kernel")]
pub fn rotate<S: Stored>(
    x: &mut [S],
    stride: usize,
    heads: usize,
    head_dim: usize,
    half: usize,
    seq: usize,
    start: usize,
    cos: &[S::Real],
    sin: &[S::Real],
    inverse: bool,
) {
    let sign = if inverse { -S::Real::ONE } else { S::Real::ONE };
    let rows = rows_per_task(stride);
    x.par_chunks_mut(rows * stride).enumerate().for_each_piece(|(task, x)| {
        vectorize(inlined!(|| {
            for (i, row) in x.chunks_exact_mut(stride).enumerate() {
                let p = start + (task * rows + i) % seq;
                let (cos, sin) = (&cos[p * half..][..half], &sin[p * half..][..half]);
                for head in row[..heads * head_dim].chunks_exact_mut(head_dim) {
                    let (a, b) = head[..2 * half].split_at_mut(half);
                    for (((a, b), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                        let (x, y, s) = (a.load(), b.load(), s * sign);
                        (*a, *b) = (S::store(x * c - y * s), S::store(y * c + x * s));
                    }
                }
            }
        }));
    });
}
