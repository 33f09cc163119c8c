//! Fitted scaling laws agree with SciPy's (`tests/golden/scaling_laws.py`), and their intervals hold for simulated ladders.

#![allow(clippy::unwrap_used)]

use runner_spec::philox::Philox;
use runner_stats::{ExponentBound, LawFit, NoFit, NoVertex, ParabolaFit, ScaledLoss, rungs_needed};
use serde_json::Value;

/// SciPy's cost may be this much lower, relatively: both end where a step changes nothing.
const COST_TOLERANCE: f64 = 1e-6;
/// Both minimize the same sum. It is flat near its minimum, where the Huber loss changes from quadratic to linear.
const TOLERANCE: f64 = 2e-5;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

#[test]
fn laws_are_those_of_scipy() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/scaling_laws.json");
    let fixture: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let (mut at_bound, mut zeros) = (Vec::new(), 0);
    for case in fixture["cases"].as_array().unwrap() {
        let scales: Vec<Vec<f64>> = case["scales"].as_array().unwrap().iter().map(numbers).collect();
        let runs = scales.iter().cloned().zip(numbers(&case["losses"]));
        let runs: Vec<ScaledLoss> = runs.map(|(scale, loss)| ScaledLoss { scale, loss }).collect();
        let fit = LawFit::new(&runs, Philox::new(1, "test")).unwrap();
        let beyond = (0..scales[0].len()).map(|k| scales.iter().map(|s| s[k]).fold(0.0, f64::max) * 4.0).collect();
        for (scale, expected) in scales.iter().chain([&beyond]).zip(numbers(&case["fit"]["predicted"])) {
            let found = fit.law.loss(scale);
            assert!((found / expected - 1.0).abs() < TOLERANCE, "{found} {expected} at {scale:?}");
        }
        let delta = case["delta"].as_f64().unwrap();
        let residual = |run: &ScaledLoss| huber(fit.law.loss(&run.scale).ln() - run.loss.ln(), delta);
        let (cost, least) = (runs.iter().map(residual).sum::<f64>(), case["fit"]["cost"].as_f64().unwrap());
        assert!(cost <= least * (1.0 + COST_TOLERANCE), "{cost} {least}: {:?}", fit.law);
        let expected = numbers(&case["fit"]["exponents"]);
        for ((term, expected), bound) in fit.law.terms.iter().zip(expected).zip(&fit.exponent_bounds) {
            // Any exponent of a term that is 0 gives the same law.
            let is_same = *bound == Some(ExponentBound::NoTerm) || (term.exponent / expected - 1.0).abs() < 1e-2;
            assert!(is_same, "{:?} {expected}", fit.law);
            at_bound.extend(*bound);
        }
        zeros += usize::from(fit.is_irreducible_zero);
    }
    for bound in [ExponentBound::Lower, ExponentBound::Upper, ExponentBound::NoTerm] {
        assert!(at_bound.contains(&bound), "no case is at {bound:?}: {at_bound:?}");
    }
    assert!(zeros > 1, "{zeros}");
}

fn huber(residual: f64, delta: f64) -> f64 {
    let size = residual.abs();
    if size <= delta { size * size / 2.0 } else { delta * (size - delta / 2.0) }
}

/// Runs of six rungs, 2.5 times the FLOPs apart, `seeds` of each; the last rung is apart.
fn ladder(stream: Philox, seeds: usize, noise: f64, rung_noise: f64) -> (Vec<ScaledLoss>, Vec<f64>) {
    let loss = |rung: usize, seed: usize| {
        let [own, of_rung] =
            [stream.normals((rung * 100 + seed + 1) as u64)[0], stream.normals((rung * 100) as u64)[1]];
        true_loss(rung) * (noise * own + rung_noise * of_rung).exp()
    };
    let run = |(rung, seed)| ScaledLoss { scale: vec![flops(rung)], loss: loss(rung, seed) };
    let runs = (0..5).flat_map(|rung| (0..seeds).map(move |seed| (rung, seed))).map(run).collect();
    (runs, (0..seeds).map(|seed| loss(5, seed)).collect())
}

fn flops(rung: usize) -> f64 {
    1e12 * 2.5_f64.powi(rung as i32)
}

fn true_loss(rung: usize) -> f64 {
    1.6 + 1.2 * (flops(rung) / flops(2)).powf(-0.2)
}

/// The shares of simulated ladders whose intervals contain the expected and the measured loss of the rung that was held out, and the share
/// whose rungs are found to deviate from the law.
fn coverage(ladders: usize, seeds: usize, rung_noise: f64) -> [f64; 3] {
    let mut contained = [0_usize; 3];
    for ladder_number in 0..ladders {
        let stream = Philox::new(ladder_number as u64, "simulated ladder");
        let (runs, held_out) = ladder(stream, seeds, 0.005, rung_noise);
        let fit = LawFit::new(&runs, Philox::new(ladder_number as u64, "draws")).unwrap();
        let measured = held_out.iter().map(|loss| loss.ln()).sum::<f64>() / seeds as f64;
        let expected = fit.predict(&[flops(5)]).interval.contains(true_loss(5));
        let predicted = fit.predict_measurement(&[flops(5)], seeds, Philox::new(ladder_number as u64, "measured"));
        contained[0] += usize::from(expected);
        contained[1] += usize::from(predicted.interval.contains(measured.exp()));
        contained[2] += usize::from(fit.has_lack_of_fit);
    }
    contained.map(|count| count as f64 / ladders as f64)
}

#[test]
fn intervals_contain_what_they_promise() {
    // Three and a half standard errors of 0.95 in 200 ladders are 0.054.
    let [expected, measured, rejected] = coverage(200, 2, 0.0);
    println!("expected {expected}, measured {measured}, lack of fit {rejected}");
    assert!(expected > 0.895 && measured > 0.895, "{expected} {measured}");
    // Rungs that deviate by more than their seeds do. The test of that misses some, so fewer intervals hold.
    let [expected, measured, rejected] = coverage(100, 3, 0.005);
    println!("noise of rungs: expected {expected}, measured {measured}, lack of fit {rejected}");
    assert!(measured > 0.8, "{measured}");
}

#[test]
fn fits_are_repeatable_and_few_rungs_are_refused() {
    let (runs, _) = ladder(Philox::new(1, "simulated ladder"), 2, 0.005, 0.0);
    let fit = |runs: &[ScaledLoss]| LawFit::new(runs, Philox::new(1, "draws"));
    let [a, b] = [fit(&runs).unwrap(), fit(&runs).unwrap()].map(|fit| fit.predict(&[1e15]));
    assert_eq!(a, b);
    assert_eq!(fit(&runs[..6]).unwrap_err(), NoFit::TooFewRungs { rungs: 3, needed: rungs_needed(1) });
    let pairs: Vec<ScaledLoss> =
        runs.iter().map(|run| ScaledLoss { scale: vec![run.scale[0]; 2], ..run.clone() }).collect();
    assert_eq!(fit(&pairs).unwrap_err(), NoFit::TooFewRungs { rungs: 5, needed: 6 });
    assert_eq!(fit(&[ScaledLoss { scale: vec![1.0], loss: f64::NAN }]).unwrap_err(), NoFit::NotPositive);
}

#[test]
fn the_multiple_of_compute_is_found() {
    let (runs, _) = ladder(Philox::new(5, "simulated ladder"), 3, 0.003, 0.0);
    let cheaper = runs.iter().map(|run| ScaledLoss { scale: vec![run.scale[0] * 0.8], loss: run.loss });
    let [a, b] = [runs.clone(), cheaper.collect()].map(|runs| LawFit::new(&runs, Philox::new(1, "draws")).unwrap());
    let found = b.scale_multiple(&a, true_loss(3));
    assert!((found.value.unwrap() - 0.8).abs() < 1e-6, "{found:?}");
    assert!(found.not_reached == 0 && found.interval.unwrap().half_width() < 1e-5, "{found:?}");
    let independent = LawFit::new(&runs, Philox::new(2, "draws")).unwrap();
    assert!(b.scale_multiple(&independent, true_loss(3)).interval.unwrap().contains(0.8));
    // No scale reaches a loss below what is irreducible.
    assert!(a.law.scale_at(a.law.irreducible).is_infinite());
    let unreached = b.scale_multiple(&independent, 1e-9);
    assert_eq!((unreached.value, unreached.interval, unreached.not_reached), (None, None, unreached.draws));
}

/// Simulates ladders of Chinchilla models that cost the same, in sizes that are `apart` times apart, with three seeds and 0.3% of noise. Returns the
/// share of ladders without a best size, the share of the others whose interval contains it, and the mean ratio of the found size to it.
fn coverage_of_best_size(apart: f64) -> [f64; 3] {
    const LADDERS: u64 = 200;
    let tokens = |n: f64| 1e19 / (6.0 * n);
    let loss = |n: f64| 1.69 + 406.4 * n.powf(-0.34) + 410.7 * tokens(n).powf(-0.28);
    let best = (406.4 * 0.34 / (410.7 * 0.28) * tokens(1.0).powf(0.28)).powf(1.0 / 0.62);
    let (mut refused, mut contained, mut off) = (0.0, 0.0, 0.0);
    for number in 0..LADDERS {
        let stream = Philox::new(number, "sizes of a budget");
        // The best size is not in the middle.
        let run = |i: usize| {
            let n = best * apart.powf((i / 3) as f64 - 2.2);
            ScaledLoss { scale: vec![n], loss: loss(n) * (0.003 * stream.normals(i as u64)[0]).exp() }
        };
        let runs: Vec<ScaledLoss> = (0..18).map(run).collect();
        match ParabolaFit::new(&runs, None, Philox::new(number, "draws")).unwrap().vertex() {
            Ok(found) => {
                contained += f64::from(u8::from(found.interval.contains(best)));
                off += (found.value / best).ln();
            }
            Err(_) => refused += 1.0,
        }
    }
    let shown = LADDERS as f64 - refused;
    [refused / LADDERS as f64, contained / shown, (off / shown).exp()]
}

#[test]
fn the_best_size_of_a_budget_is_in_its_interval() {
    for (apart, least) in [(1.5, 0.9), (2.0, 0.7), (3.0, 0.0)] {
        let [refused, contained, off] = coverage_of_best_size(apart);
        println!("sizes {apart} times apart: refused {refused}, contained {contained}, {off} of the best size");
        assert!(contained > least && refused < 0.1 && (off - 1.0).abs() < 0.3, "{apart}: {refused} {contained} {off}");
    }
    // What shows no best size.
    let runs = |y: [f64; 3]| -> Vec<ScaledLoss> {
        y.iter().enumerate().map(|(i, y)| ScaledLoss { scale: vec![2_f64.powi(i as i32)], loss: y.exp() }).collect()
    };
    let noise = Some((1e-3, 10));
    let fit = |y| ParabolaFit::new(&runs(y), noise, Philox::new(1, "draws")).unwrap();
    assert_eq!(fit([1.0, 1.1, 1.0]).vertex(), Err(NoVertex::NotConvex));
    assert_eq!(fit([1.0, 1.1, 1.3]).vertex(), Err(NoVertex::Below));
    assert_eq!(fit([1.3, 1.1, 1.0]).vertex(), Err(NoVertex::Above));
    assert!(matches!(fit([1.0, 1.0, 1.0 + 2e-4]).vertex(), Err(NoVertex::NotDetermined(_))));
    let even = fit([1.1, 1.0, 1.1]);
    let (vertex, [best, lowest, cost]) = (even.vertex().unwrap(), even.best_in_range());
    assert!((vertex.value - 2.0).abs() < 1e-9 && (lowest.value - 1_f64.exp()).abs() < 1e-9, "{vertex:?} {lowest:?}");
    // One is half of the best: 0.1 of ln L above it.
    assert!((cost.value - 0.1_f64.exp_m1()).abs() < 1e-9 && cost.interval.contains(cost.value), "{cost:?}");
    assert!(best.value == vertex.value && !best.interval.contains(1.0), "{best:?}");
    // The lowest loss in the range, whether or not the parabola has a vertex there.
    let ends = [([1.0, 1.1, 1.0 + 1e-2], 1.0), ([1.3, 1.1, 1.0], 4.0), ([1.3, 1.6, 1.0], 4.0)];
    for (y, x) in ends {
        let [best, _, cost] = fit(y).best_in_range();
        assert!((best.value - x).abs() < 1e-9 && cost.value >= 0.0, "{y:?} {best:?} {cost:?}");
    }
    // As far again from a parabola whose best is one, the best is four.
    let base = ParabolaFit::new(
        &[0.5, 1.0, 2.0].map(|x: f64| ScaledLoss { scale: vec![x], loss: x.ln().powi(2).exp() }),
        noise,
        Philox::new(2, "draws"),
    );
    let (beyond, _) = even.extrapolate(&base.unwrap(), 1.0);
    assert!((beyond.value - 4.0).abs() < 1e-9 && beyond.interval.contains(4.0), "{beyond:?}");
    // Without several seeds or more sizes, nothing shows the noise.
    assert!(ParabolaFit::new(&runs([1.1, 1.0, 1.1]), None, Philox::new(1, "draws")).is_none());
    assert!(ParabolaFit::new(&runs([1.1, 1.0, 1.1])[..2], noise, Philox::new(1, "draws")).is_none());
}
