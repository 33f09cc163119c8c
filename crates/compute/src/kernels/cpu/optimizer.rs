//! Optimizer updates: one parallel pass over flat buffers. With `BF16`, gradients are rounded to bf16 before, weights and
//! moments after the arithmetic, as PyTorch's fused optimizers do with bfloat16 tensors.

use rayon::prelude::*;

use super::Real;
use super::elementwise::round_if;
use super::simd::{TASK, inlined, vectorize};

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
pub fn adamw<T: Real, const BF16: bool>(step: &AdamW, decayed: usize, w: &mut [T], m: &mut [T], v: &mut [T], g: &[T]) {
    let correction1 = 1.0 - step.beta1.powf(step.t as f64);
    let correction2 = (1.0 - step.beta2.powf(step.t as f64)).sqrt();
    let (b1, b2) = (T::real(step.beta1), T::real(step.beta2));
    let (c1, c2) = (T::real(1.0 - step.beta1), T::real(1.0 - step.beta2));
    let size = T::real(step.lr / correction1);
    let inverse = T::real(1.0 / correction2);
    let (eps, scale) = (T::real(step.eps), T::real(step.grad_scale));
    let shrink = T::real(1.0 - step.lr * step.weight_decay);
    let (decay, root) = (T::real(step.lr * step.weight_decay), T::real(correction2));
    let update = |shrink: T, decay: T, w: &mut [T], m: &mut [T], v: &mut [T], g: &[T]| {
        w.par_chunks_mut(TASK)
            .zip(m.par_chunks_mut(TASK))
            .zip(v.par_chunks_mut(TASK))
            .zip(g.par_chunks(TASK))
            .for_each(|(((w, m), v), g)| {
                vectorize(inlined!(|| {
                    for (((w, m), v), &g) in w.iter_mut().zip(m).zip(v).zip(g) {
                        let g = round_if(g * scale, BF16);
                        if BF16 {
                            // In the fused kernel's own order, so that what is rounded is the same number.
                            let m1 = *m + c1 * (g - *m);
                            let v1 = b2 * *v + c2 * g * g;
                            let decayed = *w - decay * *w;
                            *w = (decayed - size * m1 / (v1.root() / root + eps)).round_bf16();
                            (*m, *v) = (m1.round_bf16(), v1.round_bf16());
                        } else {
                            *m = b1.fma(*m, c1 * g);
                            *v = b2.fma(*v, c2 * g * g);
                            *w = *w * shrink - size * *m / (v.root() * inverse + eps);
                        }
                    }
                }));
            });
    };
    let (w0, w1) = w.split_at_mut(decayed);
    let (m0, m1) = m.split_at_mut(decayed);
    let (v0, v1) = v.split_at_mut(decayed);
    update(shrink, decay, w0, m0, v0, &g[..decayed]);
    update(T::ONE, T::ZERO, w1, m1, v1, &g[decayed..]);
}

/// The scalars of one SGD step.
#[derive(Debug, Clone, Copy)]
pub struct Sgd {
    pub lr: f64,
    pub momentum: f64,
    pub grad_scale: f64,
}

/// PyTorch's SGD: buf = momentum·buf + g, w −= lr·buf; without momentum, w −= lr·g.
pub fn sgd<T: Real, const BF16: bool>(step: &Sgd, w: &mut [T], buf: Option<&mut [T]>, g: &[T]) {
    let (lr, momentum, scale) = (T::real(step.lr), T::real(step.momentum), T::real(step.grad_scale));
    match buf {
        None => w.par_chunks_mut(TASK).zip(g.par_chunks(TASK)).for_each(|(w, g)| {
            vectorize(inlined!(|| {
                for (w, &g) in w.iter_mut().zip(g) {
                    *w = round_if(*w - if BF16 { lr * round_if(scale * g, true) } else { lr * scale * g }, BF16);
                }
            }));
        }),
        Some(buf) => {
            w.par_chunks_mut(TASK).zip(buf.par_chunks_mut(TASK)).zip(g.par_chunks(TASK)).for_each(|((w, b), g)| {
                vectorize(inlined!(|| {
                    for ((w, b), &g) in w.iter_mut().zip(b).zip(g) {
                        if BF16 {
                            let b1 = momentum * *b + (scale * g).round_bf16();
                            *w = (*w - lr * b1).round_bf16();
                            *b = b1.round_bf16();
                        } else {
                            *b = momentum.fma(*b, scale * g);
                            *w -= lr * *b;
                        }
                    }
                }));
            });
        }
    }
}
