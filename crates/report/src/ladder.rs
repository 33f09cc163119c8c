//! A ladder's forecasts, its fitted law, its held-out rungs, and the comparison of two ladders, as text.

use std::fmt::Write as _;

use serde::Serialize;

use runner_spec::format::{count, loss, percent, printable, significant};
use runner_stats::{ExponentBound, Prediction, ScaleMultiple};
use runner_sweep::ladder::{
    CheckedForecast, ComputeMultiple, FittedTerm, HeldOutRung, LadderComparison, LadderFit, LadderOutcome,
    LadderPrediction, LeftOutRung, RecordedForecast, SizeOptimum, TunedFactor, TunedOptimum, TunedRung, TuningDrift,
};

/// An irreducible loss whose interval begins below this may be 0.
const UNDETERMINED: f64 = 1e-3;
/// The epochs up to which repeated data is almost as good as new data (Muennighoff et al. 2023, "Scaling data-constrained language models").
const MAX_EPOCHS: f64 = 4.0;

/// Lines on one subject, such as the law.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LadderParagraph {
    pub subject: &'static str,
    pub lines: Vec<String>,
}

/// What the results of a ladder show.
#[must_use]
pub fn describe_outcome(outcome: &LadderOutcome) -> Vec<LadderParagraph> {
    match outcome {
        LadderOutcome { fit: Some(fit), .. } => describe_fit(fit),
        LadderOutcome { optimum: Some(optimum), .. } => describe_optimum(optimum),
        LadderOutcome { no_fit, .. } => {
            let reason = printable(no_fit.as_deref().unwrap_or("there are no results"));
            vec![LadderParagraph { subject: "law", lines: vec![format!("none: {reason}")] }]
        }
    }
}

/// The paragraphs as text: the subject of each is in a column at the left.
#[must_use]
pub fn paragraphs_text(paragraphs: &[LadderParagraph]) -> String {
    let mut out = String::new();
    for LadderParagraph { subject, lines } in paragraphs {
        for (i, line) in lines.iter().enumerate() {
            let _ = writeln!(out, "{:<9}{line}", if i == 0 { subject } else { "" });
        }
    }
    out
}

/// The forecasts, the law, and how well it predicts the largest rung.
fn describe_fit(fit: &LadderFit) -> Vec<LadderParagraph> {
    // A larger rung may be unfinished, or have failed.
    let largest = if fit.missing > 0 { "largest rung with a result" } else { "largest rung" };
    // What decides comes first.
    let mut paragraphs: Vec<LadderParagraph> =
        fit.predictions.iter().map(|prediction| describe_prediction(fit, prediction, largest)).collect();
    paragraphs.push(LadderParagraph { subject: "law", lines: describe_law(fit) });
    let mut check = describe_checks(&fit.held_out, largest);
    check.extend(fit.why_not_held_out.clone());
    if !check.is_empty() {
        paragraphs.push(LadderParagraph { subject: "check", lines: check });
    }
    paragraphs.extend(describe_tuning(&fit.tuning));
    paragraphs
}

/// The best size for the FLOPs that all rungs cost.
fn describe_optimum(optimum: &SizeOptimum) -> Vec<LadderParagraph> {
    let SizeOptimum { metric, parameters, tokens, epochs, flops, loss: lowest, runs, rungs, missing, .. } = optimum;
    let size = with_interval(parameters, |x| count(x as u64));
    let without = if *missing > 0 { format!("; {missing} without a result") } else { String::new() };
    let mut lines = vec![
        format!(
            "the best size for {flops:.3e} FLOPs is {size} parameters, with a {metric} of {}",
            with_interval(lowest, loss)
        ),
        format!(
            "with {tokens:.3e} tokens, {} for each parameter{}",
            significant(tokens / parameters.value, 3),
            epochs_text(*epochs)
        ),
        format!("by a parabola of ln {metric} over ln N, of {runs} runs on {rungs} rungs{without}"),
        noise_text("parabola", optimum.lack_of_fit, optimum.noise, optimum.degrees_of_freedom),
        count_text(false).to_owned(),
    ];
    lines.extend(optimum.measured_on.as_ref().map(|sample| format!("losses are measured on {sample}")));
    let optimum_lines = LadderParagraph { subject: "optimum", lines };
    [optimum_lines].into_iter().chain(describe_tuning(&optimum.tuning)).collect()
}

/// What the rungs measured with the factors of `tune`.
fn describe_tuning(rungs: &[TunedRung]) -> Option<LadderParagraph> {
    let mut lines = Vec::new();
    for TunedRung { parameters, tokens, factors, best, p, is_off, optimum, undetermined, .. } in rungs {
        let factor = |of: &TunedFactor| {
            format!("{} measured {}", of.factor, of.loss.map_or_else(|| "no result".to_owned(), loss))
        };
        let factors: Vec<String> = factors.iter().map(factor).collect();
        let [parameters, tokens] = [parameters, tokens].map(|x| count(*x as u64));
        lines.push(format!("at {parameters} parameters and {tokens} tokens, factor {}", factors.join(", ")));
        lines.extend(is_off.then(|| format!("factor {best} is better than 1, p = {}", significant(*p, 2))));
        lines.extend(optimum.as_ref().map(|TunedOptimum { factor, loss: lowest, cost }| {
            let (factor, cost) = (with_interval(factor, |x| significant(x, 3)), with_interval(cost, share));
            format!(
                "the best factor in this range is {factor}, with {}; factor 1 costs {cost} of the loss",
                with_interval(lowest, loss)
            )
        }));
        lines.extend(undetermined.as_ref().map(|reason| format!("the best factor is not determined: {reason}")));
    }
    (!lines.is_empty()).then_some(LadderParagraph { subject: "tune", lines })
}

/// What counts as N and C.
fn count_text(counts_layers: bool) -> &'static str {
    if counts_layers {
        "N and C count only the layers, without embeddings and head, and attention in full"
    } else {
        "N counts embeddings and head; C counts the head, and attention in full"
    }
}

/// Follows amounts of FLOPs and parameters that `ladder.count` limits to the layers.
fn layers_text(counts_layers: bool) -> &'static str {
    if counts_layers { " of the layers" } else { "" }
}

fn epochs_text(epochs: Option<f64>) -> String {
    let repeated = |epochs: &f64| *epochs > MAX_EPOCHS;
    let warning = if epochs.as_ref().is_some_and(repeated) {
        "; warning: after 4 epochs, repeated data is worth less than new data"
    } else {
        ""
    };
    epochs
        .map_or_else(String::new, |epochs| format!(", {} epochs of the training data{warning}", significant(epochs, 2)))
}

/// `0.21%`.
fn share(x: f64) -> String {
    format!("{}%", significant(100.0 * x, 2))
}

/// The noise from which the intervals of a law or a parabola follow.
fn noise_text(curve: &str, lack_of_fit: bool, noise: f64, freedom: usize) -> String {
    let kind = if lack_of_fit {
        format!("rungs deviate from the {curve} by more than their seeds explain; the noise of a rung is")
    } else {
        "the noise of a run is".to_owned()
    };
    format!("{kind} {} of its loss, with {freedom} degrees of freedom; intervals of 95%", percent(noise))
}

fn describe_law(fit: &LadderFit) -> Vec<String> {
    let LadderFit { metric, formula, irreducible, terms, runs, rungs, missing, diverged, .. } = fit;
    let without = match (*missing, *diverged) {
        (0, _) => String::new(),
        (missing, 0) => format!("; {missing} without a result"),
        (missing, diverged) => format!("; {missing} without a result, of which {diverged} diverged"),
    };
    let mut lines = vec![format!("{formula} for {metric}, of {runs} runs on {rungs} rungs{without}")];
    let undetermined = match irreducible.interval.low {
        _ if fit.at_bound.contains(&"E") => "; it is at its bound, 0, and not an estimate",
        low if low < UNDETERMINED => "; these rungs do not determine it",
        _ => "",
    };
    lines.push(format!("E {}{undetermined}", with_interval(irreducible, loss)));
    for (term, (coefficient_name, exponent_name)) in terms.iter().zip([("A", "a"), ("B", "b")]) {
        let FittedTerm { scale, coefficient, exponent, .. } = term;
        lines.push(format!(
            "{exponent_name} {}, {coefficient_name} {coefficient:.4e} for {} in {}",
            with_interval(exponent, |x| format!("{x:.4}")),
            scale.symbol(),
            scale.name()
        ));
        lines.extend(bound_note(term, exponent_name));
    }
    lines.push(noise_text("law", fit.lack_of_fit, fit.noise, fit.degrees_of_freedom));
    lines.push(count_text(fit.counts_layers).to_owned());
    lines.extend(fit.why_not_parameters_and_tokens.clone());
    lines.extend(fit.measured_on.as_ref().map(|sample| format!("losses are measured on {sample}")));
    lines
}

/// Says that an exponent is at a bound of the fit.
fn bound_note(term: &FittedTerm, name: &str) -> Option<String> {
    let at = |which: &str| {
        format!("{name} is at {}, the {which} bound of the fit, and not an estimate", term.exponent.value)
    };
    Some(match term.bound? {
        ExponentBound::NoTerm => format!(
            "{name} is not an estimate: the losses do not fall with {}, so this term is 0 for any exponent",
            term.scale.name()
        ),
        ExponentBound::Lower => at("lower"),
        ExponentBound::Upper => at("upper"),
    })
}

fn describe_prediction(fit: &LadderFit, prediction: &LadderPrediction, largest: &str) -> LadderParagraph {
    let metric = &fit.metric;
    let LadderPrediction { target, loss: predicted, measurement, not_supported, without, .. } = prediction;
    let LadderPrediction { optimum, parameters, tokens, flops, extrapolation, .. } = prediction;
    let given: Vec<String> = target.iter().map(|(name, value)| format!("{name} {value:.3e}")).collect();
    let figures = [("parameters", parameters), ("tokens", tokens), ("flops", flops)];
    let assumed: Vec<String> = figures
        .iter()
        .filter(|(name, _)| !target.contains_key(name))
        .map(|(name, value)| format!("{name} {value:.3e}"))
        .collect();
    let given = given.join(", ") + layers_text(fit.counts_layers);
    let first = match (predicted, not_supported) {
        (Some(predicted), _) => format!("{metric} {} at {given}", with_interval(predicted, loss)),
        (None, Some(reason)) => format!("not supported at {given}: {reason}"),
        (None, None) => format!("not supported at {given}"),
    };
    let (assumed, epochs) = (assumed.join(" and "), epochs_text(prediction.epochs));
    let mut lines =
        vec![first, format!("with {assumed}, {} the FLOPs of the {largest}{epochs}", times(*extrapolation))];
    lines.extend(optimum.as_ref().map(|best| {
        let [low, high] = [best.interval.low, best.interval.high].map(|end| format!("{end:.3e}"));
        format!("the best size for these FLOPs is {low} to {high} parameters")
    }));
    lines.extend(measurement.map(|one| format!("one run measures {} to {}", loss(one.low), loss(one.high))));
    lines.extend(describe_left_out(without, predicted.as_ref()));
    lines.extend(prediction.drift.map(|TuningDrift { factor, cost }| {
        let (factor, cost) = (with_interval(&factor, |x| significant(x, 3)), with_interval(&cost, share));
        format!("by its drift between the tuned rungs, the best factor there is {factor}, and factor 1 costs {cost} of the loss")
    }));
    LadderParagraph { subject: "forecast", lines }
}

/// How far the forecast moves without one rung.
fn describe_left_out(without: &[LeftOutRung], predicted: Option<&Prediction>) -> Option<String> {
    let away = |rung: &&LeftOutRung| predicted.map_or(0.0, |predicted| (rung.loss - predicted.value).abs());
    let furthest = without.iter().max_by(|a, b| away(a).total_cmp(&away(b)))?;
    let ends = |end: fn(f64, f64) -> f64, start: f64| loss(without.iter().map(|rung| rung.loss).fold(start, end));
    Some(format!(
        "without one rung {} to {}; the rung of {} parameters and {} tokens matters most",
        ends(f64::min, f64::INFINITY),
        ends(f64::max, f64::NEG_INFINITY),
        count(furthest.parameters as u64),
        count(furthest.tokens as u64)
    ))
}

/// A line for each check: its reach, and how far the prediction of the largest rung was off.
fn describe_checks(checks: &[HeldOutRung], largest: &str) -> Vec<String> {
    let Some(first) = checks.first() else { return Vec::new() };
    let mut lines = vec![format!(
        "the {largest} ({} parameters, {} tokens, {:.3e} FLOPs) measured {}",
        count(first.parameters as u64),
        count(first.tokens as u64),
        first.flops,
        loss(first.measured)
    )];
    for check in checks {
        let Prediction { value, interval } = check.predicted;
        let inside = if check.is_in_interval { "" } else { ", which it missed" };
        let weak = if check.is_strong {
            String::new()
        } else {
            format!("; too wide to be a strong check, as all rungs range over {}", loss(check.range_of_losses))
        };
        lines.push(format!(
            "predicted from the {} rungs of at most 1/{} of its compute: {} ({} to {}), {}{inside}{weak}",
            check.rungs_left,
            significant(check.extrapolation, 3),
            loss(value),
            loss(interval.low),
            loss(interval.high),
            off(value / check.measured - 1.0)
        ));
    }
    lines
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
                let fitted = Prediction { value: *value, interval: *interval };
                (with_interval(&fitted, |x| format!("{x:.2}")), format!("{verdict}{unreached}"))
            }
        };
        let _ =
            writeln!(out, "{other} reaches a {metric} of {reached} with {share} of the compute of {base}: {verdict}");
    }
    out
}

/// Names the forecasts of `fit` that were stored, and the targets without a supported forecast.
#[must_use]
pub fn recorded_text(fit: &LadderFit, recorded: &[RecordedForecast]) -> String {
    let layers = layers_text(fit.counts_layers);
    let line = |RecordedForecast { made, flops, hash, .. }: &RecordedForecast| {
        format!("recorded {made}, for a run of {flops:.3e} FLOPs{layers}: {hash}\n")
    };
    let left_out = fit.predictions.iter().filter(|prediction| prediction.loss.is_none());
    let left_out =
        left_out.map(|prediction| format!("not recorded, for a run of {:.3e} FLOPs{layers}\n", prediction.flops));
    recorded.iter().map(line).chain(left_out).collect()
}

/// Stored forecasts compared with the run that they were for.
#[must_use]
pub fn checked_text(checked: &[CheckedForecast]) -> String {
    let mut out = String::new();
    for checked in checked {
        let CheckedForecast { forecast, has_its_hash, run, started, is_recorded_before, .. } = checked;
        let CheckedForecast { measured, is_in_interval, error, .. } = checked;
        let RecordedForecast { made, objective, hash, loss: predicted, measurement, extrapolation, .. } = forecast;
        let inside = if *is_in_interval { "in" } else { "outside" };
        let when = match is_recorded_before {
            Some(true) => format!("made {}, before the run started ({})", printable(made), printable(started)),
            Some(false) => format!("made {}, after the run started ({})", printable(made), printable(started)),
            None if *has_its_hash => format!("made {}, which is not a time", printable(made)),
            None => "the line does not have its hash: it was changed after it was written".to_owned(),
        };
        let _ = writeln!(
            out,
            "{} measured a {objective} of {}, {inside} the interval of one run, {} to {}; the forecast of {}, for {} the FLOPs of the \
             largest rung, was {}",
            printable(run),
            loss(*measured),
            loss(measurement.low),
            loss(measurement.high),
            with_interval(predicted, loss),
            times(*extrapolation),
            off(*error)
        );
        let _ = writeln!(out, "{when}: {}", printable(hash));
    }
    out
}

/// `1.2% too high`.
fn off(error: f64) -> String {
    let direction = if error < 0.0 { "low" } else { "high" };
    format!("{:.1}% too {direction}", 100.0 * error.abs())
}

/// `0.81 (0.74 to 0.90)`.
fn with_interval(fitted: &Prediction, format: impl Fn(f64) -> String) -> String {
    let Prediction { value, interval } = fitted;
    format!("{} ({} to {})", format(*value), format(interval.low), format(interval.high))
}

fn times(x: f64) -> String {
    if x < 0.1 { format!("{} times", significant(x, 2)) } else { format!("{x:.1} times") }
}

#[cfg(test)]
mod tests {
    use runner_stats::Interval;
    use runner_sweep::ladder::Scale;

    use super::*;

    #[test]
    fn an_exponent_at_a_bound_is_not_shown_as_an_estimate() {
        let note = |value: f64, bound| {
            let exponent = Prediction { value, interval: Interval { low: 0.1, high: 0.5 } };
            let term = FittedTerm { scale: Scale::Parameters, coefficient: 2.0, exponent, bound };
            bound_note(&term, "a").unwrap_or_default()
        };
        let notes = [
            note(3.0, Some(ExponentBound::Upper)),
            note(0.001, Some(ExponentBound::Lower)),
            note(0.02, Some(ExponentBound::NoTerm)),
        ];
        insta::assert_snapshot!(notes.join("\n"), @r"
        a is at 3, the upper bound of the fit, and not an estimate
        a is at 0.001, the lower bound of the fit, and not an estimate
        a is not an estimate: the losses do not fall with parameters, so this term is 0 for any exponent
        ");
        assert_eq!(note(0.3, None), "");
    }
}
