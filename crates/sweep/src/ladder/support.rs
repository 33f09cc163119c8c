//! Whether the rungs of a ladder support its forecasts: the losses fall as a power law can, the law predicted rungs that it was not fitted to,
//! and these checks reach far enough for the forecast.

use runner_spec::format::{count, counted, loss, significant};
use runner_stats::{ExponentBound, LawFit, Trend, trend};

use super::{EXPONENT_NAMES, HeldOutRung, LadderRun, Scale, mean_loss, rungs};

/// A rise of the loss from a smaller rung to a larger one by so many standard errors is not noise.
const RISE: f64 = 3.0;
/// No smaller rise of ln L counts, even if all seeds of a rung measure the same.
const LEAST_RISE: f64 = 1e-4;
/// With fewer, seeds say too little about their noise.
const FEWEST_DEGREES_OF_FREEDOM: usize = 3;

/// Why no power law over FLOPs is fitted to the losses of `runs`; `None` if one may describe them.
pub(super) fn contradiction(runs: &[LadderRun]) -> Option<String> {
    let (flops, losses): (Vec<f64>, Vec<f64>) = runs.iter().map(|run| (run.flops, run.loss)).unzip();
    let rungs = rungs(runs);
    match trend(&flops, &losses) {
        Trend::Falls => None,
        Trend::NotShownToFall => {
            let losses: Vec<String> = rungs.iter().map(|rung| loss(mean_loss(rung))).collect();
            Some(format!(
                "the losses do not fall steadily with compute ({} from rung to rung); larger rungs or more seeds may show whether they do",
                losses.join(", ")
            ))
        }
        Trend::FallsFasterAndFaster => {
            let point = |rung: &Vec<LadderRun>| (rung[0].flops.ln(), mean_loss(rung).ln());
            let slope = |pair: &[Vec<LadderRun>]| {
                let ((x0, y0), (x1, y1)) = (point(&pair[0]), point(&pair[1]));
                significant((y0 - y1) / (x1 - x0), 2)
            };
            let exponents: Vec<String> = rungs.windows(2).map(slope).collect();
            Some(format!(
                "the losses fall faster and faster with compute, which no power law does (exponents from rung to rung: {}); use larger \
                 rungs",
                exponents.join(", ")
            ))
        }
    }
}

/// Why no forecast of the law `fitted` over `scales` is supported, whatever its reach.
pub(super) fn unsupported_law(
    runs: &[LadderRun],
    scales: &[Scale],
    fitted: &LawFit,
    diverged: usize,
) -> Option<String> {
    if let Some(reason) = describe_diverged(diverged) {
        return Some(reason);
    }
    let bounds = scales.iter().zip(&fitted.exponent_bounds).zip(EXPONENT_NAMES);
    let mut at_bound = bounds.filter_map(|((scale, bound), name)| {
        Some(match (*bound)? {
            ExponentBound::NoTerm => format!("the losses do not fall with {}", scale.name()),
            ExponentBound::Lower | ExponentBound::Upper => format!("the exponent {name} is at a bound of the fit"),
        })
    });
    if let Some(reason) = at_bound.next_back() {
        return Some(reason);
    }
    if scales.len() > 1 {
        return None;
    }
    let rungs = rungs(runs);
    // The noise of the fit also contains how far rungs are from the law, for instance by a rise.
    let (noise, _) = seed_noise(rungs.iter().map(Vec::as_slice), (fitted.noise, fitted.freedom));
    let rise = |(i, larger): (usize, &Vec<LadderRun>)| {
        let smaller = rungs[..i].iter().min_by(|a, b| mean_loss(a).total_cmp(&mean_loss(b)))?;
        let [below, above] = [mean_loss(smaller), mean_loss(larger)];
        let error = noise * (1.0 / smaller.len() as f64 + 1.0 / larger.len() as f64).sqrt();
        ((above / below).ln() > (RISE * error).max(LEAST_RISE)).then(|| {
            format!(
                "the loss rises from {} to {} between the rungs of {:.3e} and {:.3e} FLOPs",
                loss(below),
                loss(above),
                smaller[0].flops,
                larger[0].flops
            )
        })
    };
    rungs.iter().enumerate().find_map(rise)
}

/// Why runs that did not diverge say too little, if others did.
pub(super) fn describe_diverged(diverged: usize) -> Option<String> {
    let runs = counted(diverged as u64, "run");
    (diverged > 0).then(|| format!("{runs} diverged, so the others of their rungs are a selection"))
}

/// The standard deviation of ln L and its degrees of freedom by `groups` of runs that differ only in their seed; `fitted` if these are too few. Groups
/// that lack a result do not count.
pub(super) fn seed_noise<'r>(groups: impl Iterator<Item = &'r [LadderRun]>, fitted: (f64, usize)) -> (f64, usize) {
    let (mut within, mut freedom) = (0.0, 0);
    for group in groups.filter(|group| mean_loss(group).is_finite()) {
        let mean = mean_loss(group).ln();
        within += group.iter().map(|run| (run.loss.ln() - mean).powi(2)).sum::<f64>();
        freedom += group.len() - 1;
    }
    if freedom < FEWEST_DEGREES_OF_FREEDOM { fitted } else { ((within / freedom as f64).sqrt(), freedom) }
}

/// True if two positive numbers are the same up to `factor`.
pub(super) fn same_within(factor: f64, a: f64, b: f64) -> bool {
    (a / b).ln().abs() <= factor.ln()
}

/// Why a forecast whose run lies outside of the rungs by the factor `reach` of FLOPs is not supported by `checks`, which are in the order of their
/// reach. A strong check must reach at least half as far, counted in doublings, and none up to it may fail.
pub(super) fn unsupported_reach(reach: f64, checks: &[HeldOutRung]) -> Option<String> {
    let needed = reach.sqrt();
    let is_enough = |check: &&HeldOutRung| check.extrapolation >= needed * (1.0 - 1e-9);
    let enough = checks.iter().find(|check| is_enough(check) && check.is_strong);
    // A check that reaches at most as far as the forecast may not fail either.
    let until = enough.map_or(f64::INFINITY, |check| check.extrapolation.max(reach));
    if let Some(missed) = checks.iter().find(|check| check.extrapolation <= until && !check.is_in_interval) {
        return Some(format!(
            "the law missed the largest rung: {} ({} to {}) from rungs of at most 1/{} of its compute, measured {}",
            loss(missed.predicted.value),
            loss(missed.predicted.interval.low),
            loss(missed.predicted.interval.high),
            times(missed.extrapolation),
            loss(missed.measured)
        ));
    }
    if enough.is_some() {
        return None;
    }
    if let Some(weak) = checks.iter().find(is_enough) {
        return Some(format!(
            "the check over {} times the compute is weak: its interval, {} to {}, would contain almost any loss",
            times(weak.extrapolation),
            loss(weak.predicted.interval.low),
            loss(weak.predicted.interval.high)
        ));
    }
    let asked = format!("asked for {} times, which needs a check over {} times", times(reach), times(needed));
    Some(match checks.last() {
        Some(furthest) => format!("checked over {} times the compute, {asked}", times(furthest.extrapolation)),
        None => format!("no rung could be held out, {asked}"),
    })
}

fn times(x: f64) -> String {
    if x < 100.0 { significant(x, 3) } else { count(x as u64) }
}
