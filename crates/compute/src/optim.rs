//! Clipping, and one optimizer step over the flat state, group by group. Each optimizer's arithmetic is in a file of its name.

#![allow(clippy::inline_always, reason = "see `kernels::cpu::simd::vectorize`")]

use candle_core::{DType, Result, Tensor, bail};

use crate::kernels::optimizer;
use crate::state::TrainState;
use runner_spec::optimizer::{Optimizer, ParameterGroup};

pub(crate) mod adamw;
pub(crate) mod lion;
mod muon;
pub(crate) mod sgd;

use adamw::AdamWUpdate;
use lion::LionUpdate;
use sgd::{MomentumSgdUpdate, PlainSgdUpdate};

/// The numbers that change from update to update.
#[derive(Debug, Clone, Copy)]
pub struct UpdateInputs {
    pub lr: f64,
    /// This update's number, from 1.
    pub t: u64,
    /// Factor on the gradients (clipping).
    pub grad_scale: f64,
}

/// The factor that brings gradients of L2 norm `norm` to at most `max`, as PyTorch's `clip_grad_norm_` computes it.
pub fn clip_scale(norm: f64, max: Option<f64>) -> f64 {
    match max {
        Some(max) => (max / (norm + 1e-6)).min(1.0),
        None => 1.0,
    }
}

/// Updates the weights and moments in `state`, group by group, with `grad_scale`·`grads` (`[layout.total]`) at learning rate `lr`.
/// `state.step` counts the updates before this one. State and gradients are of one type; matrix products of an optimizer are in `dtype`, which
/// is the same or bf16. `copy` (a bf16 tensor) becomes the first weights rounded.
///
/// # Errors
/// If the state does not have the groups' moments, or an error of the device.
pub fn update(
    state: &TrainState,
    groups: &[ParameterGroup],
    grads: &Tensor,
    [lr, grad_scale]: [f64; 2],
    copy: Option<&Tensor>,
    dtype: DType,
) -> Result<()> {
    let inputs = UpdateInputs { lr, t: state.step + 1, grad_scale };
    let layout = &state.layout;
    let update_group = |group: &ParameterGroup| {
        let Optimizer::Muon(muon) = group.optimizer else {
            return update_elements(group, &state.buffer, layout.one_moment, grads, inputs, copy);
        };
        let flat = [&state.weights()?, &state.section(1)?, grads];
        let inputs = UpdateInputs { lr: inputs.lr * group.lr_scale, ..inputs };
        let mut entries = layout.entries.iter().filter(|entry| group.elements.contains(&entry.offset));
        entries.try_for_each(|entry| muon::update(&muon, inputs, entry, flat, copy, dtype))
    };
    groups.iter().try_for_each(update_group)
}

/// [`update`] of one group, by an optimizer that updates elements independently. `buffer` is weights and moments, of which the first
/// `one_moment` weights have only the first.
///
/// # Errors
/// As for `update`, or if the optimizer needs whole matrices.
pub fn update_elements(
    group: &ParameterGroup,
    buffer: &Tensor,
    one_moment: usize,
    grads: &Tensor,
    inputs: UpdateInputs,
    copy: Option<&Tensor>,
) -> Result<()> {
    let (elements, skipped) = (&group.elements, one_moment);
    let inputs = UpdateInputs { lr: inputs.lr * group.lr_scale, ..inputs };
    match group.optimizer {
        Optimizer::Adamw(adamw) => {
            optimizer::update(&AdamWUpdate(adamw, inputs), buffer, grads, elements, skipped, copy)
        }
        Optimizer::Lion(lion) => optimizer::update(&LionUpdate(lion, inputs), buffer, grads, elements, skipped, copy),
        Optimizer::Muon(_) => bail!("muon updates whole matrices"),
        Optimizer::Sgd(sgd) if sgd.momentum == 0.0 => {
            optimizer::update(&PlainSgdUpdate(inputs), buffer, grads, elements, skipped, copy)
        }
        Optimizer::Sgd(sgd) => {
            let update = MomentumSgdUpdate(sgd.momentum, inputs);
            optimizer::update(&update, buffer, grads, elements, skipped, copy)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::Device;

    use super::*;
    use crate::testing::{random_state, values, with_buffer};
    use runner_spec::model::layout::ParamLayout;
    use runner_spec::model::{ParamInit, ParamRole, ParamSpec};
    use runner_spec::optimizer::{AdamW, Decays, Lion};

    /// A weight w = s·v in place of a product s·v: with rate·s, decay/s and eps/s its steps are s times the steps of v, because its gradients
    /// are 1/s times as large. The rules of `runner_spec::transfer` rely on it.
    #[test]
    fn a_scaled_weight_has_scaled_settings() {
        const S: f64 = 0.125;
        const START: [f64; 5] = [0.5, -1.0, 2.0, -0.25, 0.0];
        let layout = Arc::new(ParamLayout::new(vec![ParamSpec {
            name: "w".to_owned(),
            shape: vec![1, 5],
            init: ParamInit::Zeros,
            block: 1,
            role: ParamRole::Weight,
        }]));
        let run = |s: f64| -> Vec<f64> {
            let adamw = AdamW { eps: 0.01 / s, weight_decay: 0.5 / s, ..AdamW::default() };
            let mut state = TrainState::zeroed(layout.clone(), 2, DType::F64, &Device::Cpu).unwrap();
            let tensor = |values: [f64; 5]| Tensor::new(&values, &Device::Cpu).unwrap();
            state.buffer.slice_set(&tensor(START.map(|w| w * s)), 0, 0).unwrap();
            let groups = Optimizer::Adamw(adamw).groups(&[], &layout, 1);
            for step in 0..10 {
                let grads = tensor([0, 1, 2, 3, 4].map(|i| f64::from((7 * i + 3 * step) % 11 - 5) * 0.01 / s));
                update(&state, &groups, &grads, [0.1 * s, 1.0], None, DType::F64).unwrap();
                state.step += 1;
            }
            let weights: Vec<f64> = state.weights().unwrap().to_vec1().unwrap();
            weights.into_iter().map(|w| w / s).collect()
        };
        let (plain, scaled) = (run(1.0), run(S));
        for (a, b) in plain.iter().zip(&scaled) {
            // s is a power of two; only the products of constants round differently.
            assert!((a - b).abs() < 1e-14, "{plain:?}, {scaled:?}");
        }
        assert!(plain.iter().zip(START).all(|(w, start)| (w - start).abs() > 0.01), "they move: {plain:?}");
    }

    /// With gradients of 0 and no moments an update is the decay alone, w·(1 − lr·decay).
    #[test]
    fn weight_decay_applies_to_matrices_or_to_all() {
        for decays in [Decays::Matrices, Decays::All] {
            for optimizer in [
                Optimizer::Adamw(AdamW { weight_decay: 0.5, decays, ..AdamW::default() }),
                Optimizer::Lion(Lion { weight_decay: 0.5, decays, ..Lion::default() }),
            ] {
                let moments = optimizer.description().moments();
                let state = random_state(1, moments);
                let total = state.layout.total;
                let zeros = vec![0.0_f32; moments * total];
                let weights: Vec<f32> = values(&state)[..total].iter().map(|bits| f32::from_bits(*bits)).collect();
                let state = with_buffer(&state, [weights.clone(), zeros].concat());
                let grads = state.weights().unwrap().zeros_like().unwrap();
                let groups = optimizer.groups(&[], &state.layout, 2);
                update(&state, &groups, &grads, [0.5, 1.0], None, DType::F32).unwrap();
                let decayed = if decays == Decays::All { total } else { state.layout.matrices };
                assert!(state.layout.matrices > 0 && state.layout.matrices < total);
                for (i, (before, after)) in weights.iter().zip(values(&state)).enumerate() {
                    let factor = if i < decayed { 0.75 } else { 1.0 };
                    assert_eq!(f32::from_bits(after), before * factor, "{decays:?}, element {i} of {total}");
                }
            }
        }
    }
}
