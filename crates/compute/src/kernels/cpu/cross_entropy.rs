//! Softmax cross-entropy over rows of logits, fused with its gradient.

use rayon::prelude::*;

use super::pieces::Pieces;
use super::product::{FreeBuffers, grow_to};
use super::simd::{inlined, max, rows_per_task, sum_by, vectorize};
use super::{Real, Stored};
use crate::kernels::loss::LossOptions;
use runner_spec::data::IGNORED_TARGET;

/// Per row: loss = logsumexp(logits) − `logits[target]` (0 where the target is ignored). With `scale`, the logits become
/// their own gradient, scale·(softmax − onehot), and 0 in ignored rows. The `options` change both.
pub fn cross_entropy<S: Stored>(
    logits: &mut [S],
    vocab: usize,
    targets: &[u32],
    scale: Option<f64>,
    options: LossOptions,
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
                    *loss = match options.cap {
                        None => one_row(row, target, scale, options.z, exponentials),
                        Some(cap) => one_capped_row(row, target, scale, cap, options.z, exponentials),
                    };
                }
            }));
            free.put_back(buffer);
        },
    );
}

/// The loss of a row; `exponentials` are as many numbers as the row has, for the gradient.
#[inline(always)]
fn one_row<S: Stored>(row: &mut [S], target: u32, scale: Option<f64>, z: f64, exponentials: &mut [S::Real]) -> f32 {
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
        let factor = factor_of_exponentials(exponentials, target, total, top, scale, z);
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

/// The factor by which the exponentials of a row become the gradient of scale·(loss + z·lse²), scale·((1 + 2·z·lse)·softmax − onehot). Changes
/// the target's so that this holds.
#[inline(always)]
fn factor_of_exponentials<T: Real>(exponentials: &mut [T], target: usize, total: T, top: T, scale: f64, z: f64) -> T {
    let factor = T::real(scale) / total;
    if z == 0.0 {
        exponentials[target] -= total;
        return factor;
    }
    let weight = T::ONE + T::real(2.0 * z) * (total.log() + top);
    // A weight of almost 0 would make its inverse infinite.
    let smallest = T::real(1e-6);
    let weight = if weight.larger(-weight) > smallest { weight } else { smallest };
    exponentials[target] -= total / weight;
    factor * weight
}

/// [`one_row`] of c·tanh(x/c) for the logits x, whose slope is 1 − tanh²(x/c).
#[inline(always)]
fn one_capped_row<S: Stored>(
    row: &mut [S],
    target: u32,
    scale: Option<f64>,
    cap: f64,
    z: f64,
    exponentials: &mut [S::Real],
) -> f32 {
    if target == IGNORED_TARGET {
        return one_row(row, target, scale, z, exponentials);
    }
    let (target, cap) = (target as usize, S::Real::real(cap));
    let tanh = inlined!(|v: S::Real| (v / cap).fast_tanh());
    let (top, at_target) = (cap * tanh(max(row)), cap * tanh(row[target].load()));
    for (e, &v) in exponentials.iter_mut().zip(row.iter()) {
        *e = (cap * tanh(v.load()) - top).fast_exp();
    }
    let total = sum_by(exponentials, inlined!(|e| e));
    if let Some(scale) = scale {
        let factor = factor_of_exponentials(exponentials, target, total, top, scale, z);
        for (v, &e) in row.iter_mut().zip(exponentials.iter()) {
            let t = tanh(v.load());
            *v = S::store(e * factor * (S::Real::ONE - t * t));
        }
    }
    (total.log() + (top - at_target)).double() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gradient of loss + z·lse² by differences, for plain and capped logits.
    #[test]
    fn the_gradient_includes_the_z_loss() {
        let logits: Vec<f64> = (0..13).map(|i| f64::from(i * 7 % 13) / 3.0 - 1.5).collect();
        for (cap, z) in [(None, 0.0), (None, 0.1), (Some(2.0), 0.0), (Some(2.0), 0.1)] {
            let options = LossOptions { cap, z };
            let value = |logits: &[f64]| {
                let shown = logits.iter().map(|v: &f64| cap.map_or(*v, |cap| cap * (v / cap).tanh()));
                let lse = shown.clone().map(f64::exp).sum::<f64>().ln();
                lse - shown.clone().nth(4).unwrap() + z * lse * lse
            };
            let mut gradient = logits.clone();
            let mut losses = [0.0];
            cross_entropy(&mut gradient, 13, &[4], Some(1.0), options, &mut losses);
            for i in 0..logits.len() {
                let moved = |by: f64| {
                    let mut moved = logits.clone();
                    moved[i] += by;
                    value(&moved)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((slope - gradient[i]).abs() < 1e-8, "{options:?}, {i}: {slope} and {}", gradient[i]);
            }
        }
    }
}
