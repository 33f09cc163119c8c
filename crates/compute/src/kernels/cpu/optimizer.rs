//! Optimizer updates: one parallel pass over flat buffers. In bf16, scaled gradients are rounded before, weights and moments after the
//! arithmetic, which is f32, as PyTorch's fused optimizers do with bfloat16 tensors.

use half::bf16;
use rayon::prelude::*;

use super::pieces::Pieces;
use super::simd::{Shared, TASK, inlined, vectorize};
use super::{Real, Stored};

/// Where the tasks of an update store the first weights rounded, as many as there is room for.
#[derive(Clone, Copy)]
struct RoundedCopy {
    to: Shared<bf16>,
    len: usize,
}

impl RoundedCopy {
    fn new(to: &mut [bf16]) -> Self {
        Self { to: Shared::new(to), len: to.len() }
    }

    /// Stores `weights`, which are those from number `first` on.
    ///
    /// # Safety
    /// The copy's numbers still exist, and no other task stores these.
    #[inline(always)]
    unsafe fn store<S: Stored>(self, first: usize, weights: &[S]) {
        let len = weights.len().min(self.len.saturating_sub(first));
        // SAFETY: the caller's promise, and there are so many.
        let to = unsafe { self.to.slice(first, len) };
        for (to, weight) in to.iter_mut().zip(weights) {
            *to = bf16::store(weight.load().double() as f32);
        }
    }
}

/// The scalars of one AdamW step.
#[derive(Debug, Clone, Copy)]
pub struct AdamW {
    pub lr: f64,
    pub beta1: f64,
    pub beta2: f64,
    pub eps: f64,
    pub weight_decay: f64,
    /// This update's number, counting from 1, for the bias correction.
    pub t: u64,
    /// Factor on the gradients (clipping).
    pub grad_scale: f64,
}

/// Decoupled weight decay (Loshchilov and Hutter 2019), in PyTorch's order of operations: w −= lr·wd·w, then
/// w −= lr/(1−β1^t)·m / (√v/√(1−β2^t) + eps). The first `decayed` elements decay.
pub fn adamw<S: Stored>(
    step: &AdamW,
    decayed: usize,
    w: &mut [S],
    m: &mut [S],
    v: &mut [S],
    g: &[S],
    copy: &mut [bf16],
) {
    let real = <S::Real as Real>::real;
    let correction1 = 1.0 - step.beta1.powf(step.t as f64);
    let correction2 = (1.0 - step.beta2.powf(step.t as f64)).sqrt();
    let (b1, b2) = (real(step.beta1), real(step.beta2));
    let (c1, c2) = (real(1.0 - step.beta1), real(1.0 - step.beta2));
    let size = real(step.lr / correction1);
    let inverse = real(1.0 / correction2);
    let (eps, scale) = (real(step.eps), real(step.grad_scale));
    let shrink = real(1.0 - step.lr * step.weight_decay);
    let (decay, root) = (real(step.lr * step.weight_decay), real(correction2));
    let copy = RoundedCopy::new(copy);
    let update = |first: usize, [shrink, decay]: [S::Real; 2], w: &mut [S], m: &mut [S], v: &mut [S], g: &[S]| {
        w.par_chunks_mut(TASK)
            .zip(m.par_chunks_mut(TASK))
            .zip(v.par_chunks_mut(TASK))
            .zip(g.par_chunks(TASK))
            .enumerate()
            .for_each_piece(|(chunk, (((w, m), v), g))| {
                vectorize(inlined!(|| {
                    for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
                        let g = S::rounded(g.load() * scale);
                        let (w0, m0, v0) = (w.load(), m.load(), v.load());
                        let (w1, m1, v1);
                        if S::IS_BF16 {
                            // In the fused kernel's own order, so that what is rounded is the same number.
                            m1 = m0 + c1 * (g - m0);
                            v1 = b2 * v0 + c2 * g * g;
                            w1 = w0 - decay * w0 - size * m1 / (v1.root() / root + eps);
                        } else {
                            m1 = b1.fma(m0, c1 * g);
                            v1 = b2.fma(v0, c2 * g * g);
                            w1 = w0 * shrink - size * m1 / (v1.root() * inverse + eps);
                        }
                        (*w, *m, *v) = (S::store(w1), S::store(m1), S::store(v1));
                    }
                    // SAFETY: chunks do not overlap.
                    unsafe { copy.store(first + chunk * TASK, w) };
                }));
            });
    };
    let (w0, w1) = w.split_at_mut(decayed);
    let (m0, m1) = m.split_at_mut(decayed);
    let (v0, v1) = v.split_at_mut(decayed);
    update(0, [shrink, decay], w0, m0, v0, &g[..decayed]);
    update(decayed, [S::Real::ONE, S::Real::ZERO], w1, m1, v1, &g[decayed..]);
}

/// The scalars of one SGD step.
#[derive(Debug, Clone, Copy)]
pub struct Sgd {
    pub lr: f64,
    pub momentum: f64,
    pub grad_scale: f64,
}

/// PyTorch's SGD: buf = momentum·buf + g, w −= lr·buf; without momentum, w −= lr·g.
pub fn sgd<S: Stored>(step: &Sgd, w: &mut [S], buf: Option<&mut [S]>, g: &[S], copy: &mut [bf16]) {
    let real = <S::Real as Real>::real;
    let (lr, momentum, scale) = (real(step.lr), real(step.momentum), real(step.grad_scale));
    let copy = RoundedCopy::new(copy);
    let chunks = w.par_chunks_mut(TASK).zip(g.par_chunks(TASK)).enumerate();
    match buf {
        None => chunks.for_each_piece(|(chunk, (w, g))| {
            vectorize(inlined!(|| {
                for (w, g) in w.iter_mut().zip(g) {
                    let g = g.load();
                    let change = if S::IS_BF16 { lr * S::rounded(scale * g) } else { lr * scale * g };
                    *w = S::store(w.load() - change);
                }
                // SAFETY: chunks do not overlap.
                unsafe { copy.store(chunk * TASK, w) };
            }));
        }),
        Some(buf) => chunks.zip(buf.par_chunks_mut(TASK)).for_each_piece(|((chunk, (w, g)), b)| {
            vectorize(inlined!(|| {
                for ((w, b), g) in w.iter_mut().zip(b).zip(g) {
                    let g = scale * g.load();
                    let b1 = if S::IS_BF16 { momentum * b.load() + S::rounded(g) } else { momentum.fma(b.load(), g) };
                    (*w, *b) = (S::store(w.load() - lr * b1), S::store(b1));
                }
                // SAFETY: chunks do not overlap.
                unsafe { copy.store(chunk * TASK, w) };
            }));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Update<'a> = &'a dyn Fn(&mut [f32], &mut [bf16]);

    /// The copy ends before the weights, and the decayed weights end within a chunk.
    #[test]
    fn first_weights_are_copied_rounded() {
        const LEN: usize = 3 * TASK + 7;
        const COPIED: usize = 2 * TASK + 5;
        let numbers = |scale: f32| (0..LEN).map(|i| ((i * 7919 % 1009) as f32 - 504.0) * scale).collect::<Vec<_>>();
        let grads = numbers(1e-3);
        let adam = AdamW { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.1, t: 1, grad_scale: 0.5 };
        let sgd_step = Sgd { lr: 0.1, momentum: 0.9, grad_scale: 0.5 };
        let updates: [Update; 3] = [
            &|w, copy| adamw(&adam, TASK + 9, w, &mut vec![0.0; LEN], &mut vec![0.0; LEN], &grads, copy),
            &|w, copy| sgd(&sgd_step, w, None, &grads, copy),
            &|w, copy| sgd(&sgd_step, w, Some(&mut vec![0.0; LEN]), &grads, copy),
        ];
        for update in updates {
            let mut weights = numbers(0.01);
            let mut copy = vec![bf16::NAN; COPIED + 1];
            update(&mut weights, &mut copy[..COPIED]);
            assert_ne!(weights, numbers(0.01));
            let rounded: Vec<bf16> = weights[..COPIED].iter().map(|weight| bf16::store(*weight)).collect();
            assert_eq!(copy[..COPIED], rounded);
            assert!(copy[COPIED].is_nan(), "written behind the copy");
        }
    }
}
