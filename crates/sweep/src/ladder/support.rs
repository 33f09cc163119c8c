//! Whether what a ladder measured supports its forecasts: the losses fall as a power law can, the law predicted the rungs that it was not
//! fitted to, and the reach of a forecast is within that of these checks.

use runner_spec::format::{count, loss, significant};
use runner_stats::{ExponentBound, LawFit, Trend, trend};

use super::{EXPONENT_NAMES, HeldOutRung, LadderRun, Scale, mean_loss, rungs};

/// A rung whose loss is above that of a smaller one by so many standard errors is not noise.
const RISE: f64 = 3.0;

/// Why no power law over FLOPs describes the losses of `runs`; `None` if one may.
pub(super) fn contradiction(runs: &[LadderRun]) -> Option<String> {
    let (flops, losses): (Vec<f64>, Vec<f64>) = runs.iter().map(|run| (run.flops, run.loss)).unzip();
    let rungs = rungs_by_flops(runs);
    match trend(&flops, &losses) {
        Trend::Falls => None,
        Trend::DoesNotFall => {
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
pub(super) fn unsupported_law(runs: &[LadderRun], scales: &[Scale], fitted: &LawFit) -> Option<String> {
    let bounds = scales.iter().zip(&fitted.exponent_bounds).zip(EXPONENT_NAMES);
    let at_bound = bounds.filter_map(|((scale, bound), name)| {
        Some(match (*bound)? {
            ExponentBound::NoTerm => format!("the losses do not fall with {}", scale.name()),
            ExponentBound::Lower | ExponentBound::Upper => format!("the exponent {name} is at a bound of the fit"),
        })
    });
    if let Some(reason) = at_bound.last() {
        return Some(reason);
    }
    if scales.len() > 1 {
        return None;
    }
    let rungs = rungs_by_flops(runs);
    // That of seeds, if rungs have several: the law's also contains how far rungs are from it, such as by a rise.
    let within =
        |rung: &Vec<LadderRun>| rung.iter().map(|run| (run.loss.ln() - mean_loss(rung).ln()).powi(2)).sum::<f64>();
    let noise = match runs.len() - rungs.len() {
        0 => fitted.noise,
        freedom => (rungs.iter().map(within).sum::<f64>() / freedom as f64).sqrt(),
    };
    let rise = |pair: &[Vec<LadderRun>]| {
        let [below, above] = [mean_loss(&pair[0]), mean_loss(&pair[1])];
        let error = noise * (1.0 / pair[0].len() as f64 + 1.0 / pair[1].len() as f64).sqrt();
        ((above / below).ln() > RISE * error).then(|| {
            format!(
                "the loss rises from {} to {} between the rungs of {:.3e} and {:.3e} FLOPs",
                loss(below),
                loss(above),
                pair[0][0].flops,
                pair[1][0].flops
            )
        })
    };
    rungs.windows(2).find_map(rise)
}

/// Why a forecast at `reach` times the FLOPs of the largest rung is not supported by `checks`, which are in the order of their reach. A check
/// must reach at least half as far, counted in doublings, and be a strong one, and those before it must not fail.
pub(super) fn unsupported_reach(reach: f64, checks: &[HeldOutRung]) -> Option<String> {
    let needed = reach.max(1.0).sqrt();
    let enough = checks.iter().position(|check| check.extrapolation >= needed);
    let used = &checks[..enough.map_or(checks.len(), |last| last + 1)];
    if let Some(missed) = used.iter().find(|check| !check.is_in_interval) {
        return Some(format!(
            "the law missed the largest rung: {} ({} to {}) from rungs of {} times less compute, measured {}",
            loss(missed.predicted.value),
            loss(missed.predicted.interval.low),
            loss(missed.predicted.interval.high),
            times(missed.extrapolation),
            loss(missed.measured)
        ));
    }
    if let Some(weak) = enough.map(|last| &checks[last]).filter(|check| !check.is_strong) {
        return Some(format!(
            "the check over {} times is weak: its interval, {} to {}, would contain almost any loss",
            times(weak.extrapolation),
            loss(weak.predicted.interval.low),
            loss(weak.predicted.interval.high)
        ));
    }
    if enough.is_some() || reach <= 1.0 {
        return None;
    }
    let asked = format!("asked for {} times, which needs a check over {} times", times(reach), times(needed));
    Some(match checks.last() {
        Some(furthest) => format!("checked to {} times the compute, {asked}", times(furthest.extrapolation)),
        None => format!("no rung could be held out, {asked}"),
    })
}

fn times(x: f64) -> String {
    if x < 100.0 { format!("{x:.1}") } else { count(x as u64) }
}

fn rungs_by_flops(runs: &[LadderRun]) -> Vec<Vec<LadderRun>> {
    let mut rungs = rungs(runs);
    rungs.sort_by(|a, b| a[0].flops.total_cmp(&b[0].flops));
    rungs
}
