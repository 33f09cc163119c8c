//! Tests of ladders.

use super::*;
use crate::testing::sweep;
use crate::{PointStatus, ResultsRow};
use runner_spec::measure::Measured;
use runner_stats::ExponentBound;

/// A ladder of `rungs` (parameters, tokens), with two runs of each at a law of N and D, within a thousandth of it.
fn ladder(id: &str, rungs: &[(f64, f64)], factor: f64) -> (SweepRecord, SweepResults) {
    let mut record = sweep();
    let (template, mut points, mut rows) = (record.points[0].clone(), Vec::new(), Vec::new());
    for (rung, (parameters, tokens)) in rungs.iter().enumerate() {
        for seed in 0..2 {
            let index = points.len() + 1;
            let mut point = template.clone();
            (point.index, point.parameters, point.steps) = (index, *parameters as u64, *tokens as u64);
            (point.tokens_per_step, point.flops_per_step) = (1, 6.0 * parameters * factor);
            points.push(point);
            let noise = 1.0 + 1e-3 * [0.9, -1.1, 0.4, -0.2, 1.3, -0.8, 0.1, -0.6][(rung * 3 + seed * 5) % 8];
            let loss = (1.5 + 30.0 * parameters.powf(-0.4) + 20.0 * tokens.powf(-0.3)) * noise;
            rows.push(ResultsRow {
                point: index,
                values: Vec::new(),
                status: PointStatus::Done,
                steps: point_steps(*tokens),
                objective: Some(loss),
                diverged: false,
                run: None,
                seconds: None,
                own_seconds: None,
                tokens: None,
                flops: None,
                evaluated: Measured::default(),
                measured_on: None,
                tokens_per_second: None,
                mfu: None,
            });
        }
    }
    (record.points, record.is_ladder, record.early_stop) = (points, true, None);
    id.clone_into(&mut record.id);
    let results = SweepResults::new(record.objective.clone(), rows, None);
    (record, results)
}

fn point_steps(tokens: f64) -> u64 {
    tokens as u64
}

fn results_of(ladder: &(SweepRecord, SweepResults)) -> LadderResults {
    LadderResults::new(&ladder.0, &ladder.1).unwrap()
}

fn along_one_ratio() -> Vec<(f64, f64)> {
    (0..6).map(|i| 1e4 * 2_f64.powi(i)).map(|n| (n, 20.0 * n)).collect()
}

#[test]
fn a_law_of_compute_predicts_the_largest_rung() {
    let ladder = ladder("a", &along_one_ratio(), 1.0);
    let targets = ["flops=1e13", "parameters=1e6"].map(|text| LadderTarget::parse(text).unwrap());
    let fit = results_of(&ladder).fit(&targets).unwrap();
    assert_eq!((fit.formula, fit.runs, fit.rungs, fit.missing), ("L(C) = E + A·C^-a", 12, 6, 0));
    assert!(fit.why_not_parameters_and_tokens.clone().unwrap().contains("vary independently"), "{fit:?}");
    let held_out = fit.held_out.clone().unwrap();
    assert!(held_out.is_in_interval && (held_out.extrapolation - 4.0).abs() < 1e-9, "{held_out:?}");
    assert_eq!((held_out.runs, held_out.parameters), (2, 320_000.0));
    assert!(held_out.is_strong, "{held_out:?}");
    // 1e6 parameters are 3.125 times those of the largest rung, with as many times its tokens.
    let by_parameters = &fit.predictions[1];
    assert!((by_parameters.extrapolation / 3.125_f64.powi(2) - 1.0).abs() < 1e-9, "{by_parameters:?}");
    assert!((by_parameters.tokens / 2e7 - 1.0).abs() < 1e-9, "{by_parameters:?}");
    assert!((fit.predictions[0].parameters / (1e13_f64 / 120.0).sqrt() - 1.0).abs() < 1e-9, "{fit:?}");
    let truth = 1.5 + 30.0 * 1e6_f64.powf(-0.4) + 20.0 * 2e7_f64.powf(-0.3);
    assert!(by_parameters.loss.interval.contains(truth), "{by_parameters:?} {truth}");
    let both = [LadderTarget::parse("parameters=1e6,tokens=1e7").unwrap()];
    assert!(results_of(&ladder).fit(&both).unwrap_err().contains("together"));
}

#[test]
fn independent_parameters_and_tokens_give_both_exponents() {
    let rungs: Vec<(f64, f64)> =
        [1e4, 4e4, 1.6e5, 6.4e5].iter().flat_map(|n| [5.0, 20.0, 80.0].map(|ratio| (*n, ratio * n))).collect();
    let ladder = ladder("a", &rungs, 1.0);
    let target = [LadderTarget::parse("parameters=2e6, tokens=4e7").unwrap()];
    let fit = results_of(&ladder).fit(&target).unwrap();
    assert_eq!((fit.formula, fit.terms.len()), ("L(N, D) = E + A·N^-a + B·D^-b", 2));
    for (term, truth) in fit.terms.iter().zip([0.4, 0.3]) {
        assert!(term.exponent.interval.contains(truth), "{term:?}");
    }
    assert!(results_of(&ladder).fit(&[LadderTarget::parse("flops=1e15").unwrap()]).unwrap_err().contains("both"));
    let error = results_of(&ladder).compare(&results_of(&ladder)).unwrap_err();
    assert!(error.contains("independently"), "{error}");
}

#[test]
fn few_rungs_are_refused_with_the_number_needed() {
    let three = ladder("a", &along_one_ratio()[..3], 1.0);
    let error = results_of(&three).fit(&[]).unwrap_err();
    assert_eq!(error, "a law of 3 parameters needs at least 4 rungs with a result, got 3");
    let four = results_of(&ladder("a", &along_one_ratio()[..4], 1.0)).fit(&[]).unwrap();
    assert!(four.why_not_held_out.unwrap().contains("not held out"));
    assert!(four.why_not_parameters_and_tokens.unwrap().contains("at least 6 rungs, got 4"));
}

#[test]
fn flops_that_hardly_vary_are_refused() {
    let constant: Vec<(f64, f64)> = (0..6).map(|i| 1e4 * 2_f64.powi(i)).map(|n| (n, 1e10 / n)).collect();
    let error = results_of(&ladder("a", &constant, 1.0)).fit(&[]).unwrap_err();
    assert!(error.contains("a law over flops needs rungs") && error.contains("got 1.00 times"), "{error}");
    // Tokens that do not vary cannot be a target.
    let tokens: Vec<(f64, f64)> = (0..6).map(|i| (1e4 * 2_f64.powi(i), 1e6)).collect();
    let results = results_of(&ladder("a", &tokens, 1.0));
    let fit = results.fit(&[LadderTarget::parse("parameters=1e6").unwrap()]).unwrap();
    assert!((fit.predictions[0].tokens - 1e6).abs() < 1e-3, "{fit:?}");
    let error = results.fit(&[LadderTarget::parse("tokens=1e7").unwrap()]).unwrap_err();
    assert!(error.contains("a law over tokens needs rungs"), "{error}");
}

#[test]
fn flops_that_do_not_determine_the_loss_are_refused() {
    let pairs = |sizes: &[f64], ratios: &[f64]| -> Vec<(f64, f64)> {
        sizes.iter().flat_map(|n| ratios.iter().map(|ratio| (*n, ratio * n)).collect::<Vec<_>>()).collect()
    };
    let few = pairs(&[1e4, 4e4], &[5.0, 80.0]);
    let error = results_of(&ladder("a", &few, 1.0)).fit(&[]).unwrap_err();
    assert!(error.contains("L(N, D) needs at least 6 rungs with a result, got 4; add sizes"), "{error}");
    let close = pairs(&[1e4, 4e4, 1.6e5, 6.4e5], &[10.0, 20.0]);
    let error = results_of(&ladder("a", &close, 1.0)).fit(&[]).unwrap_err();
    assert!(error.contains("FLOPs do not determine the loss") && error.contains("further apart"), "{error}");
}

#[test]
fn a_cheaper_ladder_needs_less_compute() {
    let (a, b) = (ladder("a", &along_one_ratio(), 1.0), ladder("b", &along_one_ratio(), 0.8));
    let comparison = results_of(&b).compare(&results_of(&a)).unwrap();
    assert_eq!((comparison.base.as_str(), comparison.other.as_str()), ("a", "b"));
    for ComputeMultiple { multiple, .. } in &comparison.multiples {
        assert!((multiple.value.unwrap() - 0.8).abs() < 0.01, "{multiple:?}");
        assert!(multiple.interval.unwrap().contains(0.8), "{multiple:?}");
    }
    let small = ladder("c", &along_one_ratio()[..4], 1.0);
    let far: Vec<(f64, f64)> = along_one_ratio().iter().map(|(n, d)| (n * 1e3, d * 1e3)).collect();
    let error = results_of(&ladder("d", &far, 1.0)).compare(&results_of(&small)).unwrap_err();
    assert!(error.contains("have no val_loss in common"), "{error}");
}

#[test]
fn targets_are_positive_numbers_of_known_scales() {
    for text in ["", "x=1", "flops", "flops=0", "flops=nan", "flops=1,flops=2", "flops=1e400"] {
        assert!(LadderTarget::parse(text).is_err(), "{text}");
    }
}

/// `ladder` with the losses that `loss` gives to parameters and tokens.
fn with_losses(mut ladder: (SweepRecord, SweepResults), loss: impl Fn(f64, f64) -> f64) -> LadderResults {
    for row in &mut ladder.1.rows {
        let point = ladder.0.point(row.point).unwrap();
        row.objective = Some(loss(point.parameters as f64, point.tokens()));
    }
    results_of(&ladder)
}

#[test]
fn an_exponent_at_its_bound_is_not_an_estimate() {
    // Steeper than any exponent that is fitted.
    let steep = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| 1.0 + 0.5 * (n / 1e4).powi(-9));
    let fit = steep.fit(&[]).unwrap();
    assert_eq!((fit.at_bound.as_slice(), fit.terms[0].bound), (["a"].as_slice(), Some(ExponentBound::Upper)));
    assert_eq!(fit.terms[0].exponent.value, 3.0, "{fit:?}");
    // Losses that rise follow no law that falls.
    let rising = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| 1.0 + 0.01 * n.ln());
    let fit = rising.fit(&[]).unwrap();
    assert_eq!((fit.terms[0].bound, fit.at_bound.as_slice()), (Some(ExponentBound::NoTerm), ["a"].as_slice()));
    // A power law without an irreducible loss.
    let pure = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| 30.0 * n.powf(-0.1));
    let fit = pure.fit(&[]).unwrap();
    assert_eq!((fit.at_bound.as_slice(), fit.terms[0].bound), (["E"].as_slice(), None), "{fit:?}");
}

#[test]
fn a_ladder_without_a_target_predicts_ten_times_its_compute() {
    let fit = results_of(&ladder("a", &along_one_ratio(), 1.0)).fit(&[]).unwrap();
    assert!((fit.predictions[0].extrapolation - 10.0).abs() < 1e-9, "{fit:?}");
    assert_eq!((fit.measured.len(), fit.curve.len()), (6, CURVE_POINTS));
    assert!((fit.curve[CURVE_POINTS - 1].flops / fit.predictions[0].flops - 1.0).abs() < 1e-9);
    let rungs: Vec<(f64, f64)> =
        [1e4, 4e4, 1.6e5].iter().flat_map(|n| [5.0, 20.0, 80.0].map(|ratio| (*n, ratio * n))).collect();
    let fit = results_of(&ladder("a", &rungs, 1.0)).fit(&[]).unwrap();
    assert!((fit.predictions[0].extrapolation - 10.0).abs() < 1e-9, "{fit:?}");
    assert!(fit.curve.is_empty() && fit.measured.is_sorted_by(|a, b| a.flops <= b.flops));
}
