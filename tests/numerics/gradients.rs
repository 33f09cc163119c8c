//! Every layer's backward against central finite differences, in f64.

use crate::common::cases::{self, Case};
use crate::common::{below, largest, with_values};
use candle_core::{DType, Tensor};

/// The step of the differences.
const H: f64 = 1e-5;

/// (L(v + h) − L(v − h)) / 2h is off by h²/6·|L‴| from truncation, and by up to eps·k·S/h from rounding, where S is the
/// sum of the magnitudes of L's terms and k the roundings that each term went through. With L‴ of order 50·S and k of
/// order 10 both are about 1e-9·S; hence 1e-8·S. A wrong backward is off by about the gradient itself: the check
/// demands that this be 100 times larger.
const TOLERANCE: f64 = 1e-8;

/// Elements checked of each tensor.
const ELEMENTS: usize = 48;

fn chosen(name: &str, len: usize) -> Vec<usize> {
    if len <= ELEMENTS { (0..len).collect() } else { below(name, ELEMENTS, len).iter().map(|&i| i as usize).collect() }
}

fn check(cases: Vec<Case>) {
    for case in cases {
        let (dx, grads) = case.gradients();
        let magnitude = case.loss(&case.params, case.x.as_ref()).magnitude;
        let compare = |what: &str, element: usize, analytic: f64, at: &dyn Fn(f64) -> f64| {
            let numeric = (at(H) - at(-H)) / (2.0 * H);
            assert!(
                (analytic - numeric).abs() <= TOLERANCE * magnitude,
                "{}: {what}[{element}]: {analytic:e} by the backward, {numeric:e} by differences (S = {magnitude:e})",
                case.name,
            );
        };
        let flat = crate::common::values(&case.params.flat);
        for entry in &case.params.layout.entries {
            let name = &entry.spec.name;
            let significant = largest(&grads[entry.range()]);
            assert!(significant > 100.0 * TOLERANCE * magnitude, "{}: {name}: gradients of {significant:e}", case.name);
            for i in chosen(name, entry.spec.len()) {
                let at = |h: f64| {
                    let mut moved = flat.clone();
                    moved[entry.offset + i] += h;
                    case.loss(&with_values(&case.params.layout, moved, DType::F64), case.x.as_ref()).value
                };
                compare(name, i, grads[entry.offset + i], &at);
            }
        }
        let Some(x) = &case.x else { continue };
        let (dx, shape, values) = (dx.unwrap(), x.dims2().unwrap(), crate::common::values(x));
        for i in chosen("x", values.len()) {
            let at = |h: f64| {
                let mut moved = values.clone();
                moved[i] += h;
                let moved = Tensor::from_vec(moved, shape, x.device()).unwrap();
                case.loss(&case.params, Some(&moved)).value
            };
            compare("x", i, dx[i], &at);
        }
    }
}

#[test]
fn linear_layers_agree_with_differences() {
    check(cases::linears());
}

#[test]
fn norms_agree_with_differences() {
    check(cases::norms());
}

#[test]
fn attention_agrees_with_differences() {
    check(cases::attentions());
}

#[test]
fn mlps_agree_with_differences() {
    check(cases::mlps());
}

#[test]
fn embeddings_agree_with_differences() {
    check(cases::embeddings());
}

#[test]
fn heads_agree_with_differences() {
    check(cases::heads());
}

#[test]
fn transformer_layers_agree_with_differences() {
    check(cases::transformers());
}

#[test]
fn models_with_recent_parts_agree_with_differences() {
    check(cases::recent_models());
}

#[test]
fn models_with_sums_agree_with_differences() {
    check(cases::models_with_sums());
}

#[test]
fn whole_models_agree_with_differences() {
    check(cases::models(true));
}
