//! GELU (Hendrycks and Gimpel 2016, the tanh form that GPT-2 uses), ReLU, ReLU² (So et al. 2021) and SiLU, also as gates (Shazeer 2020).

use std::mem::MaybeUninit;

use rayon::prelude::*;

use super::elementwise::written;
use super::pieces::Pieces;
use super::simd::{inlined, rows_per_task, vectorize};
use super::{Real, Stored, elementwise};
use runner_spec::experiment::Activation;

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

/// y = f(x).
pub fn activate<S: Stored>(activation: Activation, x: &[S]) -> Vec<S> {
    match activation {
        Activation::Gelu => gelu(x),
        Activation::Relu => relu(x),
        Activation::Relu2 => relu2(x),
        Activation::Silu => elementwise::map_real(x, inlined!(|x: S::Real| x * sigmoid(x))),
    }
}

/// `dy` becomes dL/dx, where `x` is the activation's input.
pub fn activate_backward<S: Stored>(activation: Activation, x: &[S], dy: &mut [S]) {
    match activation {
        Activation::Gelu => gelu_backward(x, dy),
        Activation::Relu => relu_backward(x, dy),
        Activation::Relu2 => relu2_backward(x, dy),
        Activation::Silu => elementwise::zip_real(dy, x, inlined!(|dy, x| dy * slope_of_silu(x))),
    }
}

/// y = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
fn gelu<S: Stored>(x: &[S]) -> Vec<S> {
    elementwise::map_real(x, inlined!(|x| gelu_of(x)))
}

#[inline(always)]
fn gelu_of<T: Real>(x: T) -> T {
    let (s, c, half) = (T::real(SQRT_2_OVER_PI), T::real(CUBIC), T::real(0.5));
    let t = (s * x * (c * x).fma(x, T::ONE)).fast_tanh();
    half * x * (T::ONE + t)
}

/// `dy` becomes dL/dx.
fn gelu_backward<S: Stored>(x: &[S], dy: &mut [S]) {
    elementwise::zip_real(dy, x, inlined!(|dy, x| dy * slope_of_gelu(x)));
}

#[inline(always)]
fn slope_of_gelu<T: Real>(x: T) -> T {
    let (s, c, half, three) = (T::real(SQRT_2_OVER_PI), T::real(CUBIC), T::real(0.5), T::real(3.0));
    let t = (s * x * (c * x).fma(x, T::ONE)).fast_tanh();
    let slope = s * (three * c * x).fma(x, T::ONE);
    half * (T::ONE + t) + half * x * (T::ONE - t * t) * slope
}

/// y = max(x, 0); NaN stays NaN.
fn relu<S: Stored>(x: &[S]) -> Vec<S> {
    elementwise::map(x, inlined!(|x: S| if x.load() < Real::ZERO { S::store(Real::ZERO) } else { x }))
}

/// `dy` becomes dL/dx; the slope at 0 is 0, as in PyTorch.
fn relu_backward<S: Stored>(x: &[S], dy: &mut [S]) {
    let zero = S::store(Real::ZERO);
    elementwise::zip(dy, x, inlined!(|dy: &mut S, x: S| *dy = if x.load() > Real::ZERO { *dy } else { zero }));
}

/// y = max(x, 0)²; NaN stays NaN.
fn relu2<S: Stored>(x: &[S]) -> Vec<S> {
    elementwise::map_real(x, inlined!(|x: S::Real| if x < Real::ZERO { Real::ZERO } else { x * x }))
}

/// `dy` becomes dL/dx = dy·2·max(x, 0).
fn relu2_backward<S: Stored>(x: &[S], dy: &mut [S]) {
    let slope = inlined!(|x: S::Real| if x > Real::ZERO { x + x } else { Real::ZERO });
    elementwise::zip_real(dy, x, inlined!(|dy, x| dy * slope(x)));
}

#[inline(always)]
pub(super) fn sigmoid<T: Real>(x: T) -> T {
    T::ONE / (T::ONE + (-x).fast_exp())
}

/// silu(x) = x·σ(x), so silu'(x) = σ(x)·(1 + x·(1 − σ(x))).
#[inline(always)]
fn slope_of_silu<T: Real>(x: T) -> T {
    let s = sigmoid(x);
    s * (x * (T::ONE - s) + T::ONE)
}

/// x becomes c·tanh(x/c).
pub fn softcap<S: Stored>(x: &mut [S], cap: f64) {
    let cap = S::Real::real(cap);
    elementwise::each(x, inlined!(|x: &mut S| *x = S::store(cap * (x.load() / cap).fast_tanh())));
}

/// f(gate)·up, `[rows, width]`; `gate_up` is `[rows, 2·width]` with the gate first.
pub fn gated<S: Stored>(activation: Activation, gate_up: &[S], width: usize) -> Vec<S> {
    match activation {
        Activation::Gelu => gated_by(gate_up, width, inlined!(|g: S::Real| gelu_of(g))),
        Activation::Relu => {
            gated_by(gate_up, width, inlined!(|g: S::Real| if g < Real::ZERO { Real::ZERO } else { g }))
        }
        Activation::Relu2 => {
            gated_by(gate_up, width, inlined!(|g: S::Real| if g < Real::ZERO { Real::ZERO } else { g * g }))
        }
        Activation::Silu => gated_by(gate_up, width, inlined!(|g: S::Real| g * sigmoid(g))),
    }
}

/// dL/d(gate_up), `[rows, 2·width]`.
pub fn gated_backward<S: Stored>(activation: Activation, gate_up: &[S], dy: &[S], width: usize) -> Vec<S> {
    let zero = S::Real::ZERO;
    match activation {
        Activation::Gelu => gated_backward_by(
            gate_up,
            dy,
            width,
            inlined!(|g: S::Real, u, dy: S::Real| [dy * u * slope_of_gelu(g), dy * gelu_of(g)]),
        ),
        Activation::Relu => gated_backward_by(
            gate_up,
            dy,
            width,
            inlined!(|g: S::Real, u, dy: S::Real| if g > zero { [dy * u, dy * g] } else { [zero; 2] }),
        ),
        Activation::Relu2 => gated_backward_by(
            gate_up,
            dy,
            width,
            inlined!(|g: S::Real, u, dy: S::Real| if g > zero { [dy * u * (g + g), dy * (g * g)] } else { [zero; 2] }),
        ),
        Activation::Silu => gated_backward_by(
            gate_up,
            dy,
            width,
            inlined!(|g: S::Real, u, dy: S::Real| {
                let s = sigmoid(g);
                [dy * u * s * (g * (S::Real::ONE - s) + S::Real::ONE), dy * g * s]
            }),
        ),
    }
}

fn gated_by<S: Stored>(gate_up: &[S], width: usize, f: impl Fn(S::Real) -> S::Real + Sync) -> Vec<S> {
    assert!(gate_up.len().is_multiple_of(2 * width), "rows of another width");
    let rows = rows_per_task(2 * width);
    let write = |y: &mut [MaybeUninit<S>]| {
        y.par_chunks_mut(rows * width).zip(gate_up.par_chunks(rows * 2 * width)).for_each_piece(|(y, gu)| {
            vectorize(inlined!(|| {
                for (y, gu) in y.chunks_exact_mut(width).zip(gu.chunks_exact(2 * width)) {
                    let (gate, up) = gu.split_at(width);
                    for ((y, &g), &u) in y.iter_mut().zip(gate).zip(up) {
                        y.write(S::store(f(g.load()) * u.load()));
                    }
                }
            }));
        });
    };
    // SAFETY: all rows are written.
    unsafe { written(gate_up.len() / 2, write) }
}

/// `slopes` gives the gradients of gate and up, from gate, up and `dy`.
fn gated_backward_by<S: Stored>(
    gate_up: &[S],
    dy: &[S],
    width: usize,
    slopes: impl Fn(S::Real, S::Real, S::Real) -> [S::Real; 2] + Sync,
) -> Vec<S> {
    assert!(gate_up.len().is_multiple_of(2 * width) && dy.len() == gate_up.len() / 2, "rows of another width");
    let rows = rows_per_task(2 * width);
    let write = |dgate_up: &mut [MaybeUninit<S>]| {
        dgate_up.par_chunks_mut(rows * 2 * width).enumerate().for_each_piece(|(task, dgu)| {
            vectorize(inlined!(|| {
                for (i, dgu) in dgu.chunks_exact_mut(2 * width).enumerate() {
                    let row = task * rows + i;
                    let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
                    let (dgate, dup) = dgu.split_at_mut(width);
                    let dy = &dy[row * width..][..width];
                    for ((((dg, du), &g), &u), &dy) in dgate.iter_mut().zip(dup).zip(gate).zip(up).zip(dy) {
                        let [of_gate, of_up] = slopes(g.load(), u.load(), dy.load());
                        du.write(S::store(of_up));
                        dg.write(S::store(of_gate));
                    }
                }
            }));
        });
    };
    // SAFETY: all rows are written.
    unsafe { written(gate_up.len(), write) }
}
