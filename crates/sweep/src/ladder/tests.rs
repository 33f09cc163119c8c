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
            (point.pace.tokens_per_step, point.pace.flops_per_step) = (1, 6.0 * parameters * factor);
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
                rows: None,
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
    // Six rungs, of which a law needs four.
    for (check, (reach, left)) in fit.held_out.iter().zip([(4.0, 5), (16.0, 4)]) {
        assert!(check.is_in_interval && (check.extrapolation - reach).abs() < 1e-9, "{check:?}");
        assert_eq!((check.runs, check.parameters, check.rungs_left), (2, 320_000.0, left));
    }
    assert!(fit.held_out.len() == 2 && fit.held_out[0].is_strong, "{fit:?}");
    // 1e6 parameters are 3.125 times those of the largest rung, with as many times its tokens.
    let by_parameters = &fit.predictions[1];
    assert!((by_parameters.extrapolation / 3.125_f64.powi(2) - 1.0).abs() < 1e-9, "{by_parameters:?}");
    assert!((by_parameters.tokens / 2e7 - 1.0).abs() < 1e-9, "{by_parameters:?}");
    assert!((fit.predictions[0].parameters / (1e13_f64 / 120.0).sqrt() - 1.0).abs() < 1e-9, "{fit:?}");
    let truth = 1.5 + 30.0 * 1e6_f64.powf(-0.4) + 20.0 * 2e7_f64.powf(-0.3);
    assert!(by_parameters.loss.unwrap().interval.contains(truth), "{by_parameters:?} {truth}");
    assert_eq!(by_parameters.without.len(), 6, "{by_parameters:?}");
    // A check over 16 times supports 256 times.
    let far = ["flops=3.1e15", "flops=3.2e15"].map(|text| LadderTarget::parse(text).unwrap());
    let [near, far] = results_of(&ladder).fit(&far).unwrap().predictions.try_into().unwrap();
    assert!(near.loss.is_some() && near.not_supported.is_none(), "{near:?}");
    assert_eq!(
        (far.loss, far.not_supported.as_deref()),
        (None, Some("checked over 16.0 times the compute, asked for 260 times, which needs a check over 16.1 times"))
    );
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
    assert!(results_of(&ladder).fit(&[LadderTarget::parse("tokens=1e9").unwrap()]).unwrap_err().contains("both"));
    // A target of FLOPs gets the best size for them, which the law's terms determine.
    let target = [LadderTarget::parse("flops=1e14").unwrap()];
    let [best] = results_of(&ladder).fit(&target).unwrap().predictions.try_into().unwrap();
    let loss = |n: f64| 1.5 + 30.0 * n.powf(-0.4) + 20.0 * (1e14 / (6.0 * n)).powf(-0.3);
    let sizes = (1..4000).map(|i| 1e4 * 1.002_f64.powi(i));
    let truth = sizes.min_by(|a, b| loss(*a).total_cmp(&loss(*b))).unwrap();
    assert!(best.optimum.unwrap().interval.contains(truth), "{best:?} {truth}");
    assert!((6.0 * best.parameters * best.tokens / 1e14 - 1.0).abs() < 1e-6, "{best:?}");
    assert!(best.loss.unwrap().interval.contains(loss(truth)), "{best:?}");
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
    let reason = four.predictions[0].not_supported.as_deref();
    assert_eq!(reason, Some("no rung could be held out, asked for 10.0 times, which needs a check over 3.16 times"));
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
    assert!(error.contains("tokens of the rungs hardly differ"), "{error}");
    // A budget of FLOPs is kept up to a step.
    let budget = constant.iter().enumerate().map(|(i, (n, d))| (*n, d * (1.0 + 1e-3 * (i % 3) as f64)));
    let budget: Vec<(f64, f64)> = budget.collect();
    let error = results_of(&ladder("a", &budget, 1.0)).fit(&[]).unwrap_err();
    assert!(error.contains("a law over flops needs rungs"), "{error}");
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
    let reason = rising.fit(&[]).unwrap_err();
    assert_eq!(
        reason,
        "the losses do not fall steadily with compute (1.0921, 1.0990, 1.1060, 1.1129, 1.1198, 1.1268 from rung to rung); larger rungs or \
         more seeds may show whether they do"
    );
    // A power law without an irreducible loss.
    let pure = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| 30.0 * n.powf(-0.1));
    let fit = pure.fit(&[]).unwrap();
    assert_eq!((fit.at_bound.as_slice(), fit.terms[0].bound), (["E"].as_slice(), None), "{fit:?}");
}

#[test]
fn losses_that_contradict_every_law_are_not_extrapolated() {
    // Each rung falls by more than the one below: as of models that are too small for the data.
    let concave = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| 3.0 - 0.02 * (n / 1e4).ln().powi(2));
    assert_eq!(
        concave.fit(&[]).unwrap_err(),
        "the losses fall faster and faster with compute, which no power law does (exponents from rung to rung: 0.0023, 0.0070, \
         0.012, 0.017, 0.022); use larger rungs"
    );
    let flat = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| 4.0 + 0.01 * (n * 7.0).sin());
    assert!(
        flat.fit(&[]).unwrap_err().starts_with("the losses do not fall steadily with compute"),
        "{:?}",
        flat.fit(&[])
    );
    // The largest rung is not what the others predict.
    let broken = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, d| {
        (1.5 + 30.0 * n.powf(-0.4)) * if n > 3e5 { 1.03 } else { 1.0 + 1e-4 * (d * 3.0).sin() }
    });
    let [prediction] = broken.fit(&[]).unwrap().predictions.try_into().unwrap();
    let reason = prediction.not_supported.unwrap();
    assert!(reason.starts_with("the law missed the largest rung") && prediction.loss.is_none(), "{reason}");
    // Larger models on more tokens whose rates are too high.
    let rising = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, d| {
        let bend = if n > 1e5 { 0.5 * (n / 1e5).ln() } else { 0.0 };
        (3.0 * (n / 1e4).powf(-0.3) + bend) * (1.0 + 1e-4 * (d * 3.0).sin())
    });
    let [prediction] = rising.fit(&[]).unwrap().predictions.try_into().unwrap();
    let reason = prediction.not_supported.unwrap();
    assert!(reason.starts_with("the loss rises from") && prediction.loss.is_none(), "{reason}");
    let vanished = with_losses(ladder("a", &along_one_ratio(), 1.0), |n, _| if n > 1e5 { 0.0 } else { 1.0 });
    assert_eq!(vanished.fit(&[]).unwrap_err(), "a law needs positive losses");
    // Far below the rungs is as far as above them.
    let law = results_of(&ladder("a", &along_one_ratio(), 1.0));
    let targets = ["flops=1e10", "flops=1e7"].map(|text| LadderTarget::parse(text).unwrap());
    let [inside, below] = law.fit(&targets).unwrap().predictions.try_into().unwrap();
    assert!(inside.loss.is_some() && below.loss.is_none(), "{inside:?} {below:?}");
    // L(N, D) whose losses do not depend on the tokens.
    let rungs: Vec<(f64, f64)> =
        [1e4, 4e4, 1.6e5].iter().flat_map(|n| [5.0, 20.0, 80.0].map(|ratio| (*n, ratio * n))).collect();
    let of_size = with_losses(ladder("a", &rungs, 1.0), |n, _| 1.0 + 20.0 * n.powf(-0.3));
    let [prediction] = of_size.fit(&[]).unwrap().predictions.try_into().unwrap();
    assert_eq!(prediction.not_supported.as_deref(), Some("the losses do not fall with tokens"));
    // No size is the best where one of the terms is 0.
    let target = [LadderTarget::parse("flops=1e13").unwrap()];
    let [prediction] = of_size.fit(&target).unwrap().predictions.try_into().unwrap();
    assert!(prediction.not_supported.is_some() && prediction.optimum.is_none(), "{prediction:?}");
    assert!(prediction.parameters.is_normal() && prediction.tokens.is_normal(), "{prediction:?}");
}

#[test]
fn a_ladder_without_a_target_predicts_ten_times_its_compute() {
    let fit = results_of(&ladder("a", &along_one_ratio(), 1.0)).fit(&[]).unwrap();
    assert!((fit.predictions[0].extrapolation - 10.0).abs() < 1e-9, "{fit:?}");
    assert_eq!((fit.measured.len(), fit.curve.len()), (6, CURVE_POINTS));
    // Every rung trains for one epoch, so the largest rung has the tokens of the data.
    assert!((fit.predictions[0].epochs.unwrap() / 10_f64.sqrt() - 1.0).abs() < 1e-9, "{fit:?}");
    assert!((fit.curve[CURVE_POINTS - 1].flops / fit.predictions[0].flops - 1.0).abs() < 1e-9);
    let rungs: Vec<(f64, f64)> =
        [1e4, 4e4, 1.6e5].iter().flat_map(|n| [5.0, 20.0, 80.0].map(|ratio| (*n, ratio * n))).collect();
    let fit = results_of(&ladder("a", &rungs, 1.0)).fit(&[]).unwrap();
    assert!((fit.predictions[0].extrapolation - 10.0).abs() < 1e-9, "{fit:?}");
    assert!(fit.curve.is_empty() && fit.measured.is_sorted_by(|a, b| a.flops <= b.flops));
}

#[test]
fn tuned_rungs_show_the_best_factor_and_its_drift() {
    // The best factor grows by a fifth with each doubling of the size.
    let drifting = |flops: f64, factor: f64| {
        true_law(flops) * (0.1 * (factor.ln() - 1.2_f64.ln() * (rung(flops) - 1.5)).powi(2)).exp()
    };
    let ladder = simulated(1, &|flops| drifting(flops, 1.0), Some(&drifting));
    let fit = ladder.fit(&[]).unwrap();
    let [first, last] = fit.tuning.as_slice() else { panic!("{fit:?}") };
    assert!(first.parameters == 1e4 && last.parameters == 8e4 && !first.is_off && !last.is_off, "{first:?} {last:?}");
    for (rung, best) in [(first, 1.2_f64.powf(-1.5)), (last, 1.2_f64.powf(1.5))] {
        let TunedOptimum { factor, loss, cost } = rung.optimum.unwrap();
        assert!(factor.interval.contains(best) && loss.interval.contains(true_law(rung.flops)), "{rung:?} {best}");
        assert!(cost.interval.contains((0.1 * best.ln().powi(2)).exp_m1()), "{rung:?}");
        assert_eq!(rung.factors.iter().map(|factor| factor.factor).collect::<Vec<_>>(), [0.5, 1.0, 2.0]);
        assert_eq!(fit.rungs, 6, "the law ignores other factors");
    }
    // Ten times the FLOPs of the largest rung are 6.66 doublings of the size.
    let drift = tuning_drift(&ladder, 10.0 * fit.measured[5].flops);
    let best = 1.2_f64.powf(5.0 + 10_f64.log(4.0) - 1.5);
    assert!(drift.factor.interval.contains(best) && drift.cost.value > 0.01, "{drift:?} {best}");
    // A factor whose run diverged shows nothing, and refuses nothing.
    let mut diverged = simulated(1, &true_law, Some(&drifting));
    diverged.tuned.iter_mut().filter(|(factor, _)| *factor == 2.0).for_each(|(_, run)| run.loss = f64::NAN);
    let fit = diverged.fit(&[]).unwrap();
    assert!(fit.predictions[0].loss.is_some() && fit.predictions[0].drift.is_none(), "{fit:?}");
    assert_eq!(fit.tuning[0].undetermined.as_deref(), Some("fewer than three factors have a result"));
    assert_eq!(fit.tuning[0].factors[2].loss, None);
    // The lowest loss is at a larger factor.
    let off = simulated(2, &true_law, Some(&|flops, factor| true_law(flops) * factor.powf(-0.05)));
    let fit = off.fit(&[]).unwrap();
    assert_eq!((fit.tuning[0].best, fit.tuning[0].is_off), (2.0, true));
    let TunedOptimum { factor, cost, .. } = fit.tuning[0].optimum.unwrap();
    assert!(factor.value > 1.5 && cost.interval.contains(2_f64.powf(0.05) - 1.0), "{factor:?} {cost:?}");
    let reason = fit.predictions[0].not_supported.clone().unwrap();
    assert!(
        reason.starts_with("the rules are not tuned: at the rung of 10,000 parameters `tune` 2 measures"),
        "{reason}"
    );
}

fn tuning_drift(ladder: &LadderResults, flops: f64) -> TuningDrift {
    tuning::drift(&tuning::tuned_rungs(&ladder.runs, &ladder.tuned, (0.003, 12)), flops).unwrap()
}

/// A ladder whose sizes cost the same FLOPs, with the lowest loss at `best` parameters.
fn isoflop(best: f64) -> (SweepRecord, SweepResults) {
    let rungs: Vec<(f64, f64)> = (0..6).map(|i| 1e4 * 2_f64.powi(i)).map(|n| (n, 1e12 / (6.0 * n).floor())).collect();
    let (mut record, mut results) = ladder("iso", &rungs, 1.0);
    record.budget = Some(Budget { kind: BudgetKind::Flops, amount: 1e12 });
    for (i, row) in results.rows.iter_mut().enumerate() {
        let n = record.point(row.point).unwrap().parameters as f64;
        row.objective = Some(2.0 * (0.03 * (n / best).ln().powi(2) + 0.002 * [0.9, -1.1, 0.4, -0.8][i % 4]).exp());
    }
    (record, results)
}

#[test]
fn sizes_of_the_same_compute_show_the_best_one() {
    let outcome = results_of(&isoflop(6e4)).outcome(&[]).unwrap();
    let optimum = outcome.optimum.unwrap();
    assert!(outcome.fit.is_none() && optimum.parameters.interval.contains(6e4), "{optimum:?}");
    assert!((optimum.parameters.value / 6e4).ln().abs() < 0.05 && optimum.loss.interval.contains(2.0), "{optimum:?}");
    assert!((optimum.tokens * optimum.parameters.value * 6.0 / 1e12 - 1.0).abs() < 0.01, "{optimum:?}");
    assert_eq!((optimum.runs, optimum.rungs, optimum.lack_of_fit), (12, 6, false));
    let refused = |ladder: &(SweepRecord, SweepResults)| results_of(ladder).outcome(&[]).unwrap_err();
    let reason = "the losses do not show the best size for 1.000e12 FLOPs: ";
    assert_eq!(refused(&isoflop(1e7)), format!("{reason}the lowest loss is above the largest size"));
    assert_eq!(refused(&isoflop(1e3)), format!("{reason}the lowest loss is below the smallest size"));
    let at_the_end = refused(&isoflop(3.1e5));
    assert!(at_the_end.contains("reaches beyond the sizes that were trained"), "{at_the_end}");
    let mut bent = isoflop(6e4);
    bent.1.rows.iter_mut().for_each(|row| row.objective = row.objective.map(|loss| 4.0 / loss));
    assert_eq!(refused(&bent), format!("{reason}the losses do not bend upwards over the size"));
    let mut diverged = isoflop(6e4);
    diverged.1.rows[0].diverged = true;
    assert!(refused(&diverged).contains("1 run diverged"), "{}", refused(&diverged));
    // A target, and budgets that are not kept.
    let target = LadderTarget::parse("flops=1e13").unwrap();
    assert!(results_of(&isoflop(6e4)).outcome(&[target]).unwrap_err().contains("no law for a target"));
    let mut rounded = isoflop(6e4);
    rounded.0.points[..2].iter_mut().for_each(|point| point.steps = point.steps * 9 / 10);
    assert!(refused(&rounded).contains("a law over flops needs rungs"), "{}", refused(&rounded));
    let few = ladder("few", &[(1e4, 1e8), (2e4, 5e7), (4e4, 2.5e7)], 1.0);
    assert!(results_of(&few).outcome(&[]).unwrap_err().contains("needs at least 4 rungs"));
}

#[test]
fn the_layers_are_counted_if_the_ladder_counts_them() {
    let mut all = ladder("a", &along_one_ratio(), 1.0);
    for point in &mut all.0.points {
        point.layers =
            Some(ModelSize { parameters: point.parameters / 2, flops_per_step: point.pace.flops_per_step / 4.0 });
    }
    let results = results_of(&all);
    assert!(results.counts_layers && results.fit(&[]).unwrap().counts_layers);
    let largest = results.runs.last().unwrap();
    assert_eq!((largest.parameters, largest.tokens, largest.flops), (1.6e5, 6.4e6, 6.0 * 3.2e5 * 6.4e6 / 4.0));
}

/// A simulated ladder whose rungs have the losses `measured` at their FLOPs, with noise. If `tuned` gives the losses with a factor, the smallest and the
/// fourth rung are tuned.
fn simulated(number: u64, measured: &dyn Fn(f64) -> f64, tuned: Option<&dyn Fn(f64, f64) -> f64>) -> LadderResults {
    let stream = Philox::new(number, "ladders of a simulation");
    let run = |i: usize, rung: usize, loss: &dyn Fn(f64) -> f64| {
        let parameters = 1e4 * 2_f64.powi(rung as i32);
        let flops = 120.0 * parameters * parameters;
        let loss = loss(flops) * (0.003 * stream.normals(i as u64)[0]).exp();
        LadderRun { parameters, tokens: 20.0 * parameters, flops, loss }
    };
    let tuned = tuned.map(|loss| {
        let run = |i: usize| {
            let factor = [0.5, 2.0][i % 2];
            (factor, run(100 + i, [0, 3][i / 2 % 2], &|flops| loss(flops, factor)))
        };
        (0..12).map(run).collect()
    });
    LadderResults {
        metric: "val_loss".to_owned(),
        id: "simulated".to_owned(),
        runs: (0..18).map(|i| run(i, i / 3, measured)).collect(),
        tuned: tuned.unwrap_or_default(),
        budget: None,
        counts_layers: false,
        epoch_tokens: Some(1e6),
        measured_on: None,
        missing: 0,
        diverged: 0,
    }
}

/// Ladders of six rungs, four times the compute apart, with three seeds and 0.3% of noise, and their forecasts for 33 times the compute of the
/// largest rung: the shares that are refused, and that contain the loss of `truth`.
fn refused_and_right(ladders: u64, ladder: impl Fn(u64) -> LadderResults, truth: impl Fn(f64) -> f64) -> [f64; 2] {
    let (mut refused, mut right) = (0, 0);
    for number in 0..ladders {
        let results = ladder(number);
        let flops = 33.0 * results.runs[17].flops;
        let fit = results.fit(&[LadderTarget(vec![(Scale::Flops, flops)])]);
        match fit.ok().and_then(|fit| fit.predictions[0].loss) {
            None => refused += 1,
            Some(loss) => right += usize::from(loss.interval.contains(truth(flops))),
        }
    }
    [refused, right].map(|count| count as f64 / ladders as f64)
}

fn true_law(flops: f64) -> f64 {
    1.7 + 1.8 * (flops / 1e12).powf(-0.15)
}

/// The number of a rung of [`simulated`] by its FLOPs.
fn rung(flops: f64) -> f64 {
    (flops / (120.0 * 1e8)).log(4.0)
}

/// The loss with a factor on rates that cost 2% of the loss for a factor of e, and whose best factor costs 0.5% more for each doubling of the size.
fn mistuned(flops: f64, factor: f64) -> f64 {
    let best = (0.005 * rung(flops) / 0.02).sqrt();
    true_law(flops) * (1.0 + 0.02 * (factor.ln() - best).powi(2))
}

/// As an audit of the first version found: it forecast all of them, with intervals of 95% that contained 95%, 17% and 38%.
#[test]
fn forecasts_are_right_or_refused() {
    const LADDERS: u64 = 60;
    let of = |measured: &dyn Fn(f64) -> f64, tuned: Option<&dyn Fn(f64, f64) -> f64>| {
        refused_and_right(LADDERS, |number| simulated(number, measured, tuned), true_law)
    };
    let law = || of(&true_law, Some(&|flops, factor| true_law(flops) * (1.0 + 0.02 * factor.ln().powi(2))));
    let off = || of(&|flops| mistuned(flops, 1.0), None);
    let off_and_tuned = || of(&|flops| mistuned(flops, 1.0), Some(&mistuned));
    let small = || of(&|c| true_law(c) * [1.08, 1.03, 1.0, 1.0, 1.0, 1.0][rung(c).round() as usize], None);
    let [law, off, off_and_tuned, small] = std::thread::scope(|threads| {
        let kinds: [&(dyn Fn() -> [f64; 2] + Sync); 4] = [&law, &off, &off_and_tuned, &small];
        kinds.map(|kind| threads.spawn(kind)).map(|thread| thread.join().unwrap())
    });
    for (name, [refused, right]) in [
        ("a law, tuned", law),
        ("rates that are off by 0.5% of the loss for each doubling of the size", off),
        ("the same, tuned", off_and_tuned),
        ("the smallest rungs 8% and 3% above the law", small),
    ] {
        println!("{name}: refused {refused:.2}, right {right:.2}, wrong {:.2}", 1.0 - refused - right);
    }
    assert!(law[1] > 0.8 && law[0] < 0.2, "{law:?}");
    assert!(off_and_tuned[0] > 0.95, "{off_and_tuned:?}");
    assert!(off[0] + off[1] < 0.3, "without `tune` nothing shows it: {off:?}");
    assert!(small[0] + small[1] > 0.9, "{small:?}");
}
