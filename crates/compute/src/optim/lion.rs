//! Lion (Chen et al. 2023, arXiv 2302.06675): w −= lr·(sign(β1·m + (1−β1)·g) + wd·w), then m = β2·m + (1−β2)·g. The sign of 0 is 0.

use super::UpdateInputs;
use crate::kernels::cpu::{Real, Stored};
use crate::kernels::optimizer::ElementUpdate;
use runner_spec::optimizer::Lion;

/// One update by Lion.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LionUpdate(pub(crate) Lion, pub(crate) UpdateInputs);

impl ElementUpdate<7, 1> for LionUpdate {
    const KERNEL: &'static str = "lion";

    fn scalars(&self) -> [f64; 7] {
        let Self(Lion { betas: [beta1, beta2], weight_decay, .. }, UpdateInputs { lr, grad_scale, .. }) = *self;
        [beta1, beta2, 1.0 - beta1, 1.0 - beta2, lr, grad_scale, 1.0 - lr * weight_decay]
    }

    #[inline(always)]
    fn element<S: Stored>(
        &[beta1, beta2, rest1, rest2, lr, scale, shrink]: &[S::Real; 7],
        w: S::Real,
        [m]: [S::Real; 1],
        g: S::Real,
    ) -> (S::Real, [S::Real; 1]) {
        let zero = S::Real::ZERO;
        let g = S::rounded(g * scale);
        let direction = beta1.fma(m, rest1 * g);
        // 0 and NaN stay what they are.
        let change = if direction > zero { lr } else { direction };
        let change = if direction < zero { -lr } else { change };
        (w * shrink - change, [beta2.fma(m, rest2 * g)])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::optim::update_elements;
    use runner_spec::optimizer::{Optimizer, OptimizerDescription as _, ParameterGroup};

    /// The formula of the paper, one operation after the other in f64. The state is rounded to `dtype` after each step, as stored state is.
    fn oracle(lion: &Lion, start: &[f64], grads: &[Vec<f64>], decayed: usize, round: impl Fn(f64) -> f64) -> Vec<f64> {
        let [beta1, beta2] = lion.betas;
        let (mut w, mut m) = (start.to_vec(), vec![0.0; start.len()]);
        for g in grads {
            for i in 0..w.len() {
                let g = round(g[i] * 0.5);
                let direction = beta1 * m[i] + (1.0 - beta1) * g;
                assert!(direction.abs() > 1e-4 || direction == 0.0, "rounding must not decide a sign");
                let sign = if direction == 0.0 { 0.0 } else { direction.signum() };
                let decay = if i < decayed { lion.weight_decay * w[i] } else { 0.0 };
                w[i] = round(w[i] - lion.lr * (sign + decay));
                m[i] = round(beta2 * m[i] + (1.0 - beta2) * g);
            }
        }
        [w, m].concat()
    }

    /// Relative to weights of up to 3 and moments of up to 0.1. In f64 only fused multiply-adds differ, by a few units in the last place. State
    /// in f32 is rounded in each of 6 steps. Stored bf16 rounds the same numbers; next to a rounding edge it may be one unit off, 2^-7.
    #[test]
    fn updates_follow_the_papers_formula() {
        const LEN: usize = 40;
        let lion = Lion { lr: 0.125, weight_decay: 0.25, ..Lion::default() };
        // Multiples of 1/16: bf16 holds them.
        let numbers = |seed: usize| -> Vec<f64> {
            (0..LEN).map(|i| ((i * 7919 + seed * 104_729) % 61) as f64 / 16.0 - 1.875).collect()
        };
        // The first elements get no gradient: they decay, and do not move otherwise.
        let grads: Vec<Vec<f64>> = (1..7)
            .map(|seed| numbers(seed).into_iter().enumerate().map(|(i, g)| if i < 3 { 0.0 } else { g }).collect())
            .collect();
        for (dtype, tolerance) in [(DType::F64, 4e-15), (DType::F32, 1e-6), (DType::BF16, 1.0 / 128.0)] {
            let round = |x: f64| match dtype {
                DType::F64 => x,
                DType::F32 => f64::from(x as f32),
                _ => half::bf16::from_f64(x).to_f64(),
            };
            let tensor =
                |values: Vec<f64>| Tensor::new(values, &Device::Cpu).and_then(|values| values.to_dtype(dtype)).unwrap();
            let state = tensor([numbers(0), vec![0.0; LEN]].concat());
            for (t, g) in grads.iter().enumerate() {
                let inputs = UpdateInputs { lr: lion.lr, t: t as u64 + 1, grad_scale: 0.5 };
                for (elements, optimizer) in
                    [(0..LEN / 2, Optimizer::Lion(lion)), (LEN / 2..LEN, lion.with_decay(0.0).unwrap())]
                {
                    let group = ParameterGroup { name: String::new(), elements, optimizer, lr_scale: 1.0 };
                    update_elements(&group, &state, 0, &tensor(g.clone()), inputs, None).unwrap();
                }
            }
            let got: Vec<f64> = state.to_dtype(DType::F64).unwrap().to_vec1().unwrap();
            let expected = oracle(&lion, &numbers(0), &grads, LEN / 2, round);
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                let size = if i < LEN { 3.0 } else { 0.1 };
                assert!((got - expected).abs() <= tolerance * size, "{dtype:?}, {i}: {got} is not {expected}");
            }
            assert!((expected[0] - numbers(0)[0] * (1.0 - 0.125 * 0.25_f64).powi(6)).abs() < 0.05, "it decays");
            assert_ne!(expected[LEN / 2..LEN], numbers(0)[LEN / 2..], "it moves");
        }
    }
}
