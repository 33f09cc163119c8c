//! GELU (Hendrycks and Gimpel 2016, the tanh form that GPT-2 uses), ReLU and SwiGLU (Shazeer 2020).

use rayon::prelude::*;

use super::elementwise::round_if;
use super::simd::{inlined, rows_per_task, vectorize};
use super::{Real, elementwise};

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

/// y = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))).
pub fn gelu<T: Real>(x: &[T], y: &mut [T], bf16: bool) {
    let (s, c, half) = (T::real(SQRT_2_OVER_PI), T::real(CUBIC), T::real(0.5));
    elementwise::zip(
        y,
        x,
        inlined!(|y, x| {
            let t = (s * x * (c * x).fma(x, T::ONE)).fast_tanh();
            *y = round_if(half * x * (T::ONE + t), bf16);
        }),
    );
}

/// `dy` becomes dL/dx.
pub fn gelu_backward<T: Real>(x: &[T], dy: &mut [T], bf16: bool) {
    let (s, c, half, three) = (T::real(SQRT_2_OVER_PI), T::real(CUBIC), T::real(0.5), T::real(3.0));
    elementwise::zip(
        dy,
        x,
        inlined!(|dy, x| {
            let t = (s * x * (c * x).fma(x, T::ONE)).fast_tanh();
            let slope = s * (three * c * x).fma(x, T::ONE);
            let d = half * (T::ONE + t) + half * x * (T::ONE - t * t) * slope;
            *dy = round_if(*dy * d, bf16);
        }),
    );
}

/// y = max(x, 0); NaN stays NaN.
pub fn relu<T: Real>(x: &[T], y: &mut [T]) {
    elementwise::zip(y, x, inlined!(|y, x| *y = if x < T::ZERO { T::ZERO } else { x }));
}

/// `dy` becomes dL/dx; the slope at 0 is 0, as in PyTorch.
pub fn relu_backward<T: Real>(x: &[T], dy: &mut [T]) {
    elementwise::zip(dy, x, inlined!(|dy, x| *dy = if x > T::ZERO { *dy } else { T::ZERO }));
}

/// y = silu(gate)·up; `gate_up` is [rows, 2·width] with the gate first, y [rows, width].
pub fn swiglu<T: Real>(gate_up: &[T], width: usize, y: &mut [T], bf16: bool) {
    let rows = rows_per_task(2 * width);
    y.par_chunks_mut(rows * width).zip(gate_up.par_chunks(rows * 2 * width)).for_each(|(y, gu)| {
        vectorize(inlined!(|| {
            for (y, gu) in y.chunks_exact_mut(width).zip(gu.chunks_exact(2 * width)) {
                let (gate, up) = gu.split_at(width);
                for ((y, &g), &u) in y.iter_mut().zip(gate).zip(up) {
                    let sigmoid = T::ONE / (T::ONE + (-g).fast_exp());
                    *y = round_if(g * sigmoid * u, bf16);
                }
            }
        }));
    });
}

/// Writes dL/d(gate_up), [rows, 2·width].
pub fn swiglu_backward<T: Real>(gate_up: &[T], dy: &[T], width: usize, dgate_up: &mut [T], bf16: bool) {
    let rows = rows_per_task(2 * width);
    dgate_up.par_chunks_mut(rows * 2 * width).enumerate().for_each(|(task, dgu)| {
        vectorize(inlined!(|| {
            for (i, dgu) in dgu.chunks_exact_mut(2 * width).enumerate() {
                let row = task * rows + i;
                let (gate, up) = gate_up[row * 2 * width..][..2 * width].split_at(width);
                let (dgate, dup) = dgu.split_at_mut(width);
                let dy = &dy[row * width..][..width];
                for ((((dg, du), &g), &u), &dy) in dgate.iter_mut().zip(dup).zip(gate).zip(up).zip(dy) {
                    let sigmoid = T::ONE / (T::ONE + (-g).fast_exp());
                    *du = round_if(dy * g * sigmoid, bf16);
                    *dg = round_if(dy * u * sigmoid * (g * (T::ONE - sigmoid) + T::ONE), bf16);
                }
            }
        }));
    });
}
