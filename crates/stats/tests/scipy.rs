//! The statistics agree with SciPy and statsmodels (`tests/golden/scipy_statistics.py`).

#![allow(clippy::unwrap_used)]

use runner_stats::{PairedComparison, Sample, paired_t_power, seeds_needed};
use serde_json::Value;

/// Both sides compute in f64, with different series for the same functions.
const TOLERANCE: f64 = 1e-9;
/// The power is an integral by Simpson's rule here, and a series in SciPy.
const POWER_TOLERANCE: f64 = 1e-7;

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/statistics.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn means_intervals_and_tests_are_those_of_scipy() {
    for case in fixture()["pairs"].as_array().unwrap() {
        let (a, b) = (numbers(&case["a"]), numbers(&case["b"]));
        let near = |name: &str, found: &[f64]| {
            let expected = match &case[name] {
                Value::Array(_) => numbers(&case[name]),
                number => vec![number.as_f64().unwrap()],
            };
            for (x, y) in found.iter().zip(&expected) {
                assert!((x - y).abs() <= TOLERANCE * (1.0 + y.abs()), "{name}: {found:?} {expected:?} of {a:?} {b:?}");
            }
        };
        let sample = Sample::new(&a, 0.95).unwrap();
        near("mean", &[sample.mean]);
        near("sd", &[sample.sd.unwrap()]);
        let interval = sample.interval.unwrap();
        near("mean_interval", &[interval.low, interval.high]);
        let found = PairedComparison::new(&a, &b, 0.95).unwrap();
        near("difference", &[found.difference]);
        near("difference_sd", &[found.sd.unwrap()]);
        let interval = found.interval.unwrap();
        near("difference_interval", &[interval.low, interval.high]);
        near("t", &[found.t.unwrap().statistic]);
        near("t_p", &[found.t.unwrap().p]);
        near("permutation_p", &[found.permutation.p]);
    }
}

#[test]
fn powers_are_those_of_statsmodels() {
    let fixture = fixture();
    for case in fixture["power"].as_array().unwrap() {
        let n = case["n"].as_u64().unwrap() as usize;
        let [effect, alpha, power] = ["effect", "alpha", "power"].map(|name| case[name].as_f64().unwrap());
        let found = paired_t_power(n, 3.0, 3.0 * effect, alpha);
        assert!((found - power).abs() < POWER_TOLERANCE, "{case}: {found}");
    }
    for case in fixture["seeds"].as_array().unwrap() {
        let effect = case["effect"].as_f64().unwrap();
        assert_eq!(seeds_needed(0.5, effect * 0.5, 0.8, 0.05), Some(case["n"].as_u64().unwrap() as usize), "{case}");
    }
}
