//! A ladder's fitted law, its held-out rung, its predictions, and the comparison of two ladders, as text.

use std::fmt::Write as _;

use runner_spec::format::{count, loss, percent, printable};
use runner_stats::ScaleMultiple;
use runner_sweep::ladder::{
    ComputeMultiple, FittedTerm, FittedValue, HeldOutRung, LadderComparison, LadderFit, LadderPrediction,
};

/// An irreducible loss whose interval begins below this may be 0.
const UNDETERMINED: f64 = 1e-3;

/// The law, how well it predicts the largest rung, and what it predicts.
#[must_use]
pub fn fit_text(fit: &LadderFit) -> String {
    let LadderFit { metric, formula, irreducible, terms, runs, rungs, missing, degrees_of_freedom, noise, .. } = fit;
    let mut out = format!("law      {formula} for {metric}, of {runs} runs on {rungs} rungs");
    if *missing > 0 {
        let _ = write!(out, "; {missing} without a result");
    }
    let undetermined = if irreducible.interval.low < UNDETERMINED { "; these rungs do not determine it" } else { "" };
    let _ = writeln!(out, "\n         E {}{undetermined}", with_interval(irreducible, loss));
    for (FittedTerm { scale, coefficient, exponent }, (coefficient_name, exponent_name)) in
        terms.iter().zip([("A", "a"), ("B", "b")])
    {
        let _ = writeln!(
            out,
            "         {exponent_name} {}, {coefficient_name} {coefficient:.4e} for {} in {}",
            with_interval(exponent, |x| format!("{x:.4}")),
            scale.symbol(),
            scale.name()
        );
    }
    let kind = if fit.lack_of_fit {
        "rungs deviate from the law by more than their seeds explain; the noise of a rung is"
    } else {
        "the noise of a run is"
    };
    let _ = writeln!(
        out,
        "         {kind} {} of its loss, with {degrees_of_freedom} degrees of freedom; intervals of 95%",
        percent(*noise)
    );
    if let Some(reason) = &fit.why_not_parameters_and_tokens {
        let _ = writeln!(out, "         {reason}");
    }
    match &fit.held_out {
        Ok(rung) => out.push_str(&held_out_text(rung)),
        Err(reason) => {
            let _ = writeln!(out, "check    {reason}");
        }
    }
    for prediction in &fit.predictions {
        out.push_str(&prediction_text(metric, prediction));
    }
    out
}

fn prediction_text(metric: &str, prediction: &LadderPrediction) -> String {
    let LadderPrediction { target, loss: predicted, parameters, tokens, flops, extrapolation } = prediction;
    let given: Vec<String> = target.iter().map(|(name, value)| format!("{name} {value:.3e}")).collect();
    let figures = [("parameters", parameters), ("tokens", tokens), ("flops", flops)];
    let assumed: Vec<String> = figures
        .iter()
        .filter(|(name, _)| !target.contains_key(name))
        .map(|(name, value)| format!("{name} {value:.3e}"))
        .collect();
    format!(
        "predict  {metric} {} at {}\n         with {}, {} the FLOPs of the largest rung\n",
        with_interval(predicted, loss),
        given.join(", "),
        assumed.join(" and "),
        times(*extrapolation)
    )
}

fn held_out_text(rung: &HeldOutRung) -> String {
    let HeldOutRung { predicted, range_of_losses, .. } = rung;
    let FittedValue { interval, .. } = predicted;
    let inside = if rung.is_in_interval { "lies in" } else { "lies outside" };
    let mut out = format!(
        "check    without the largest rung ({} parameters, {} tokens, {:.3e} FLOPs), the law predicts {}\n         \
         the measured {} {inside} {} to {}; its FLOPs are {} those of the rung below\n",
        count(rung.parameters as u64),
        count(rung.tokens as u64),
        rung.flops,
        loss(predicted.value),
        loss(rung.measured),
        loss(interval.low),
        loss(interval.high),
        times(rung.extrapolation)
    );
    if !rung.is_strong {
        let _ = writeln!(
            out,
            "         the interval is too wide to be a strong check: {} wide, and the losses of all rungs range over {}",
            loss(interval.high - interval.low),
            loss(*range_of_losses)
        );
    }
    out
}

/// How much compute one ladder needs for the loss of another.
#[must_use]
pub fn comparison_text(comparison: &LadderComparison) -> String {
    let LadderComparison { metric, base, other, multiples } = comparison;
    let mut out = String::new();
    for ComputeMultiple { loss: reached, multiple } in multiples {
        let ScaleMultiple { value, interval, draws, not_reached } = multiple;
        let unreached = format!("not reached in {not_reached} of {draws} draws");
        let (base, other, reached) = (printable(base), printable(other), loss(*reached));
        let Some(value) = value else {
            let _ = writeln!(
                out,
                "{other} and {base} do not compare at a {metric} of {reached}: a fitted law never reaches it; {unreached}"
            );
            continue;
        };
        let (share, verdict) = match interval {
            None => (format!("{value:.2}"), format!("{unreached}, so there is no interval")),
            Some(interval) => {
                let verdict = match (interval.low, interval.high) {
                    (_, high) if high < 1.0 => "less",
                    (low, _) if low > 1.0 => "more",
                    _ => "no clear difference",
                };
                let unreached = if *not_reached > 0 { format!("; {unreached}") } else { String::new() };
                let fitted = FittedValue { value: *value, interval: *interval };
                (with_interval(&fitted, |x| format!("{x:.2}")), format!("{verdict}{unreached}"))
            }
        };
        let _ =
            writeln!(out, "{other} reaches a {metric} of {reached} with {share} of the compute of {base}: {verdict}");
    }
    out
}

/// `0.81 (0.74 to 0.90)`.
fn with_interval(fitted: &FittedValue, format: impl Fn(f64) -> String) -> String {
    let FittedValue { value, interval } = fitted;
    format!("{} ({} to {})", format(*value), format(interval.low), format(interval.high))
}

fn times(x: f64) -> String {
    format!("{x:.1} times")
}
