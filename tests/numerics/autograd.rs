//! Every layer's values and gradients against the same layer in plain differentiable candle operations, in f64.

use crate::common::WholePasses as _;
use crate::common::cases::{self, Case};
use crate::common::{assert_close, assert_close_relative, largest, values};
use candle_core::Var;
use runner_compute::model::Params;

/// Both sides round at 1.1e-16 per operation and differ in the order of sums of at most a few thousand terms; the deepest
/// chain here is some hundred operations: 1e-12 of the largest element is expected, 1e-10 is demanded.
const TOLERANCE: f64 = 1e-10;

fn check(cases: Vec<Case>) {
    for case in cases {
        let name = &case.name;
        let flat = Var::from_tensor(&case.params.flat).unwrap();
        let x = case.x.as_ref().map(|x| Var::from_tensor(x).unwrap());
        let params = Params::new(case.params.layout.clone(), flat.as_tensor().clone());
        let input = x.as_ref().map(Var::as_tensor);

        let expected = case.oracle_output(&params, input);
        let y = case.output(&case.params, case.x.as_ref());
        assert_close_relative(&format!("{name}: output"), &values(&y), &values(&expected), TOLERANCE);

        let loss = case.oracle_loss(&expected, input);
        let ours = case.loss(&case.params, case.x.as_ref());
        assert_close(&format!("{name}: L"), &[ours.value], &values(&loss), TOLERANCE * ours.magnitude);

        let store = loss.backward().unwrap();
        let expected = values(store.get(&flat).unwrap());
        let (dx, grads) = case.gradients();
        // Accumulated on top of numbers of order 1, so no better than their rounding.
        for entry in &params.layout.entries {
            let (ours, theirs) = (&grads[entry.range()], &expected[entry.range()]);
            let tolerance = TOLERANCE * largest(theirs).max(1e-3);
            assert_close(&format!("{name}: gradient of {}", entry.spec.name), ours, theirs, tolerance);
        }
        if let Some(x) = x {
            let expected = values(store.get(&x).unwrap());
            assert_close_relative(&format!("{name}: gradient of x"), &dx.unwrap(), &expected, TOLERANCE);
        }
    }
}

#[test]
fn linear_layers_agree_with_autograd() {
    check(cases::linears());
}

#[test]
fn norms_agree_with_autograd() {
    check(cases::norms());
}

#[test]
fn attention_agrees_with_autograd() {
    check(cases::attentions());
}

#[test]
fn mlps_agree_with_autograd() {
    check(cases::mlps());
}

#[test]
fn embeddings_agree_with_autograd() {
    check(cases::embeddings());
}

#[test]
fn heads_agree_with_autograd() {
    check(cases::heads());
}

#[test]
fn transformer_layers_agree_with_autograd() {
    check(cases::transformers());
}

#[test]
fn every_variant_with_every_other_agrees_with_autograd() {
    check(cases::variants());
}

#[test]
fn models_with_recent_parts_agree_with_autograd() {
    check(cases::recent_models());
}

#[test]
fn whole_models_agree_with_autograd() {
    check(cases::models(false));
}

/// The losses that a model reports, token by token, are those of its logits; they are f32.
#[test]
fn reported_losses_are_those_of_the_logits() {
    for case in cases::models(true) {
        let cases::Layer::Model(model) = &case.layer else { unreachable!("models are models") };
        let (losses, _) = model.forward_losses(&case.params, &case.mb);
        let total: f64 = losses.iter().map(|&l| f64::from(l)).sum::<f64>() * case.mb.scale;
        let expected = case.loss(&case.params, None);
        assert_close(&case.name, &[total], &[expected.value], f64::from(f32::EPSILON) * expected.magnitude);
        for (&loss, &target) in losses.iter().zip(&case.mb.targets) {
            assert_eq!(
                loss == 0.0,
                target == runner_spec::data::IGNORED_TARGET,
                "{}: ignored tokens alone cost nothing",
                case.name
            );
        }
    }
}
