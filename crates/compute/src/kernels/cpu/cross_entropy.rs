//! Softmax cross-entropy over rows of logits, fused with its gradient.

use rayon::prelude::*;

use super::Real;
use super::elementwise::round_if;
use super::simd::{inlined, max, rows_per_task, sum_by, vectorize};
use runner_spec::data::IGNORED_TARGET;

/// Per row: loss = logsumexp(logits) − logits\[target\] (0 where the target is ignored). With `scale`, the logits become
/// their own gradient, scale·(softmax − onehot), and 0 in ignored rows.
pub fn cross_entropy<T: Real>(
    logits: &mut [T],
    vocab: usize,
    targets: &[u32],
    scale: Option<f64>,
    losses: &mut [f32],
    bf16: bool,
) {
    let rows = rows_per_task(vocab);
    logits.par_chunks_mut(rows * vocab).zip(targets.par_chunks(rows)).zip(losses.par_chunks_mut(rows)).for_each(
        |((logits, targets), losses)| {
            vectorize(inlined!(|| {
                for ((row, &target), loss) in logits.chunks_exact_mut(vocab).zip(targets).zip(losses) {
                    *loss = one_row(row, target, scale, bf16);
                }
            }));
        },
    );
}

#[inline(always)]
fn one_row<T: Real>(row: &mut [T], target: u32, scale: Option<f64>, bf16: bool) -> f32 {
    if target == IGNORED_TARGET {
        if scale.is_some() {
            row.fill(T::ZERO);
        }
        return 0.0;
    }
    let target = target as usize;
    let (top, at_target) = (max(row), row[target]);
    let total = if scale.is_some() {
        for v in row.iter_mut() {
            *v = (*v - top).fast_exp();
        }
        sum_by(row, inlined!(|v| v))
    } else {
        sum_by(row, inlined!(|v| (v - top).fast_exp()))
    };
    if let Some(scale) = scale {
        let factor = T::real(scale) / total;
        row[target] -= total;
        for v in row.iter_mut() {
            *v = round_if(*v * factor, bf16);
        }
    }
    // The difference first: a small loss among large logits keeps its digits.
    (total.log() + (top - at_target)).double() as f32
}
