//! Softmax cross-entropy over rows of logits, fused with its gradient.

use rayon::prelude::*;

use super::pieces::Pieces;
use super::product::{FreeBuffers, grow_to};
use super::simd::{inlined, max, rows_per_task, sum_by, vectorize};
use super::{Real, Stored};
use runner_spec::data::IGNORED_TARGET;

/// Per row: loss = logsumexp(logits) − `logits[target]` (0 where the target is ignored). With `scale`, the logits become
/// their own gradient, scale·(softmax − onehot), and 0 in ignored rows. With `cap`, all this is of cap·tanh(logits/cap).
pub fn cross_entropy<S: Stored>(
    logits: &mut [S],
    vocab: usize,
    targets: &[u32],
    scale: Option<f64>,
    cap: Option<f64>,
    losses: &mut [f32],
) {
    let rows = rows_per_task(vocab);
    let free = FreeBuffers::new();
    logits.par_chunks_mut(rows * vocab).zip(targets.par_chunks(rows)).zip(losses.par_chunks_mut(rows)).for_each_piece(
        |((logits, targets), losses)| {
            let mut buffer: Vec<S::Real> = free.take();
            let exponentials = grow_to(&mut buffer, vocab);
            vectorize(inlined!(|| {
                for ((row, &target), loss) in logits.chunks_exact_mut(vocab).zip(targets).zip(losses) {
                    *loss = match cap {
                        None => one_row(row, target, scale, exponentials),
                        Some(cap) => one_capped_row(row, target, scale, cap, exponentials),
                    };
                }
            }));
            free.put_back(buffer);
        },
    );
}

/// The loss of a row; `exponentials` are as many numbers as the row has, for the gradient.
#[inline(always)]
fn one_row<S: Stored>(row: &mut [S], target: u32, scale: Option<f64>, exponentials: &mut [S::Real]) -> f32 {
    if target == IGNORED_TARGET {
        if scale.is_some() {
            row.fill(S::store(Real::ZERO));
        }
        return 0.0;
    }
    let target = target as usize;
    let (top, at_target) = (max(row), row[target].load());
    let exponential = inlined!(|v: S| (v.load() - top).fast_exp());
    let total = if let Some(scale) = scale {
        for (e, &v) in exponentials.iter_mut().zip(row.iter()) {
            *e = exponential(v);
        }
        let total = sum_by(exponentials, inlined!(|e| e));
        exponentials[target] -= total;
        let factor = S::Real::real(scale) / total;
        for (v, &e) in row.iter_mut().zip(exponentials.iter()) {
            *v = S::store(e * factor);
        }
        total
    } else {
        sum_by(row, exponential)
    };
    // The difference first: a small loss among large logits keeps its digits.
    (total.log() + (top - at_target)).double() as f32
}

/// [`one_row`] of c·tanh(z/c) for the logits z, whose slope is 1 − tanh²(z/c).
#[inline(always)]
fn one_capped_row<S: Stored>(
    row: &mut [S],
    target: u32,
    scale: Option<f64>,
    cap: f64,
    exponentials: &mut [S::Real],
) -> f32 {
    if target == IGNORED_TARGET {
        return one_row(row, target, scale, exponentials);
    }
    let (target, cap) = (target as usize, S::Real::real(cap));
    let tanh = inlined!(|v: S::Real| (v / cap).fast_tanh());
    let (top, at_target) = (cap * tanh(max(row)), cap * tanh(row[target].load()));
    for (e, &v) in exponentials.iter_mut().zip(row.iter()) {
        *e = (cap * tanh(v.load()) - top).fast_exp();
    }
    let total = sum_by(exponentials, inlined!(|e| e));
    if let Some(scale) = scale {
        exponentials[target] -= total;
        let factor = S::Real::real(scale) / total;
        for (v, &e) in row.iter_mut().zip(exponentials.iter()) {
            let t = tanh(v.load());
            *v = S::store(e * factor * (S::Real::ONE - t * t));
        }
    }
    (total.log() + (top - at_target)).double() as f32
}
