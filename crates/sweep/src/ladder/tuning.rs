//! Whether what the rules give is near the best: runs of some rungs with the factors of `tune`, which the rules use.

use runner_spec::format::{count, loss, significant};
use runner_spec::philox::Philox;
use runner_stats::{NoVertex, ParabolaFit, ScaledLoss, one_sided_p};

use super::support::{same_within, seed_noise};
use super::{DIFFERENT_TOKENS, LadderRun, TunedFactor, TunedOptimum, TunedRung, TuningDrift, mean_loss, rungs};

/// The level of the test whether another factor is better than 1.
const LEVEL: f64 = 0.01;

/// The end of an interval of sizes or factors that is shown as 0.
const NEGLIGIBLE: f64 = 1e-3;

/// A tuned rung with the parabola of ln L over ln factor, if one can be fitted.
pub(super) type RungTuning = (TunedRung, Option<ParabolaFit>);

/// The tuned rungs of `runs`, the smallest first. `tuned` are the runs with other factors than 1; the loss is NaN without a result. `fitted` is the
/// noise of ln L by the law, with its degrees of freedom.
pub(super) fn tuned_rungs(runs: &[LadderRun], tuned: &[(f64, LadderRun)], fitted: (f64, usize)) -> Vec<RungTuning> {
    let rungs = rungs(runs);
    // The runs of each rung with each factor.
    let factors_of = |rung: &Vec<LadderRun>| {
        let is_of_rung = |(_, run): &&(f64, LadderRun)| {
            run.parameters == rung[0].parameters && same_within(DIFFERENT_TOKENS, run.tokens, rung[0].tokens)
        };
        let mut factors = vec![(1.0, rung.clone())];
        for (factor, run) in tuned.iter().filter(is_of_rung) {
            match factors.iter_mut().find(|(known, _)| known == factor) {
                Some((_, runs)) => runs.push(*run),
                None => factors.push((*factor, vec![*run])),
            }
        }
        factors.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        factors
    };
    let factors = rungs.iter().map(factors_of).filter(|factors| factors.len() > 1);
    factors.map(|factors| tuned_rung(&factors, fitted)).collect()
}

fn tuned_rung(factors: &[(f64, Vec<LadderRun>)], fitted: (f64, usize)) -> RungTuning {
    // The noise of small models is often larger, and would hide what a larger rung shows.
    let noise = seed_noise(factors.iter().map(|(_, runs)| runs.as_slice()), fitted);
    // Without some of its runs, the others of a factor are a selection.
    let measured: Vec<&(f64, Vec<LadderRun>)> =
        factors.iter().filter(|(_, runs)| runs.iter().all(|run| run.loss.is_finite())).collect();
    let (mut best, mut p) = (1.0, 1.0);
    if let (Some((_, own)), Some((factor, runs))) = (
        measured.iter().find(|(factor, _)| *factor == 1.0),
        measured.iter().min_by(|(_, a), (_, b)| mean_loss(a).total_cmp(&mean_loss(b))),
    ) {
        let error = noise.0 * (1.0 / own.len() as f64 + 1.0 / runs.len() as f64).sqrt();
        // Each other factor might have been the best one.
        let others = measured.len().saturating_sub(1).max(1) as f64;
        let alone = one_sided_p((mean_loss(own) / mean_loss(runs)).ln(), error, noise.1);
        (best, p) = (*factor, (others * alone).min(1.0));
    }
    let scaled: Vec<ScaledLoss> = measured
        .iter()
        .flat_map(|(factor, runs)| runs.iter().map(|run| ScaledLoss { scale: vec![*factor], loss: run.loss }))
        .collect();
    let LadderRun { parameters, tokens, flops, .. } = factors[0].1[0];
    let parabola = ParabolaFit::new(&scaled, Some(noise), Philox::new(flops.to_bits(), "tuned rung"));
    let optimum = parabola.as_ref().map(|fit| {
        let [factor, loss, cost] = fit.best_in_range();
        TunedOptimum { factor, loss, cost }
    });
    let undetermined = match parabola.as_ref().map(ParabolaFit::vertex) {
        None => Some("fewer than three factors have a result".to_owned()),
        Some(Err(reason)) => Some(describe_no_vertex(reason, "factor", |x| significant(x, 3))),
        Some(Ok(_)) => describe_lowest_at_end(&measured),
    };
    let factor = |(factor, runs): &(f64, Vec<LadderRun>)| {
        let loss = Some(mean_loss(runs)).filter(|loss| loss.is_finite());
        TunedFactor { factor: *factor, runs: runs.len(), loss }
    };
    let factors = factors.iter().map(factor).collect();
    let rung = TunedRung { parameters, tokens, flops, factors, best, p, is_off: p < LEVEL, optimum, undetermined };
    (rung, parabola)
}

/// Why a parabola through losses that fall or rise up to the last factor does not show the best one.
fn describe_lowest_at_end(measured: &[&(f64, Vec<LadderRun>)]) -> Option<String> {
    let lowest =
        (0..measured.len()).min_by(|&a, &b| mean_loss(&measured[a].1).total_cmp(&mean_loss(&measured[b].1)))?;
    let end = match lowest {
        0 => "smallest",
        last if last + 1 == measured.len() => "largest",
        _ => return None,
    };
    Some(format!("the lowest loss was measured with the {end} factor"))
}

/// Says that another factor than 1 is better at a tuned rung, if one is.
pub(super) fn describe_off(rungs: &[RungTuning]) -> Option<String> {
    let (rung, _) = rungs.iter().find(|(rung, _)| rung.is_off)?;
    let of = |factor: f64| rung.factors.iter().find(|known| known.factor == factor).and_then(|found| found.loss);
    Some(format!(
        "the rules are not tuned: at the rung of {} parameters `tune` {} measures {}, and 1 {}",
        count(rung.parameters as u64),
        rung.best,
        loss(of(rung.best)?),
        loss(of(1.0)?)
    ))
}

/// The best factor at `flops` if it moves on as from the smallest tuned rung to the largest one, and what factor 1 then costs. `None` unless every tuned
/// rung determines its best factor.
pub(super) fn drift(rungs: &[RungTuning], flops: f64) -> Option<TuningDrift> {
    let ([(first, base), .., (last, own)], true) = (rungs, rungs.iter().all(|(rung, _)| rung.undetermined.is_none()))
    else {
        return None;
    };
    let steps = (flops / last.flops).ln() / (last.flops / first.flops).ln();
    let (factor, cost) = own.as_ref()?.extrapolate(base.as_ref()?, steps);
    Some(TuningDrift { factor, cost })
}

/// Why losses do not show which `what` is the best.
pub(super) fn describe_no_vertex(reason: NoVertex, what: &str, number: impl Fn(f64) -> String) -> String {
    match reason {
        NoVertex::NotConvex => format!("the losses do not bend upwards over the {what}"),
        NoVertex::Below => format!("the lowest loss is below the smallest {what}"),
        NoVertex::Above => format!("the lowest loss is above the largest {what}"),
        NoVertex::NotDetermined(interval) => {
            let end = |x: f64| match x {
                _ if x < NEGLIGIBLE => "0".to_owned(),
                _ if x.is_finite() => number(x),
                _ => "infinity".to_owned(),
            };
            let [low, high] = [interval.low, interval.high].map(end);
            format!("its interval of 95%, {low} to {high}, reaches beyond the {what}s that were trained")
        }
    }
}
