//! Rotary position embedding (Su et al. 2021), rotate-half, in place.

use rayon::prelude::*;

use super::pieces::Pieces;
use super::simd::{inlined, rows_per_task, vectorize};
use super::{Real, Stored};

/// cos and sin of position·theta^(−2i/head_dim), each `[positions, head_dim/2]`.
pub fn tables(positions: usize, head_dim: usize, theta: f64) -> (Vec<f64>, Vec<f64>) {
    let half = head_dim / 2;
    let angle = |n: usize| {
        let (p, i) = (n / half, n % half);
        p as f64 * theta.powf(-2.0 * i as f64 / head_dim as f64)
    };
    (0..positions * half).map(|n| (angle(n).cos(), angle(n).sin())).unzip()
}

/// Rotates the first `heads` heads of each row of `x` (`[rows, stride]`); row r is at position `start + r mod seq`.
/// `inverse` rotates back, which is also the backward.
#[expect(clippy::too_many_arguments, reason = "the shape, two tables and the direction of one kernel")]
pub fn rotate<S: Stored>(
    x: &mut [S],
    stride: usize,
    heads: usize,
    head_dim: usize,
    seq: usize,
    start: usize,
    cos: &[S::Real],
    sin: &[S::Real],
    inverse: bool,
) {
    let half = head_dim / 2;
    let sign = if inverse { -S::Real::ONE } else { S::Real::ONE };
    let rows = rows_per_task(stride);
    x.par_chunks_mut(rows * stride).enumerate().for_each_piece(|(task, x)| {
        vectorize(inlined!(|| {
            for (i, row) in x.chunks_exact_mut(stride).enumerate() {
                let p = start + (task * rows + i) % seq;
                let (cos, sin) = (&cos[p * half..][..half], &sin[p * half..][..half]);
                for head in row[..heads * head_dim].chunks_exact_mut(head_dim) {
                    let (a, b) = head.split_at_mut(half);
                    for (((a, b), &c), &s) in a.iter_mut().zip(b).zip(cos).zip(sin) {
                        let (x, y, s) = (a.load(), b.load(), s * sign);
                        (*a, *b) = (S::store(x * c - y * s), S::store(y * c + x * s));
                    }
                }
            }
        }));
    });
}
