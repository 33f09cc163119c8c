//! The verdict on a reproduction as text.

use std::fmt::Write as _;

use runner_compare::verdict::{FirstDifferingTensor, NumberDifference, ReproductionVerdict, Verdict};
use runner_spec::event::TracedTensor;
use runner_spec::format::{count, counted, printable};

/// The names of the original and the copy. A copy in another folder may have the original's id.
fn names(verdict: &ReproductionVerdict) -> (&str, &str) {
    let ReproductionVerdict { original, copy, .. } = verdict;
    (original, if copy == original { "the copy" } else { copy })
}

/// The verdict in one line, then its reasons, one per line.
pub fn describe_verdict(verdict: &ReproductionVerdict) -> String {
    let (original, copy) = names(verdict);
    let (steps, evaluations) = (counted(verdict.steps, "step"), counted(verdict.evaluations, "evaluation"));
    let mut out = match (verdict.verdict, &verdict.diverged) {
        (Verdict::Bitwise | Verdict::BitwiseNumbers, _) => {
            let (word, weights) = if let Some(weights) = &verdict.weights {
                ("bitwise", format!(" and the weights after step {}", count(weights.step)))
            } else {
                let reason = verdict.weights_not_compared.as_deref().unwrap_or("none were kept");
                ("bitwise, weights not compared", format!("; {}", printable(reason)))
            };
            format!("{word}: {copy} repeats {original}: {steps}, {evaluations}{weights}")
        }
        (Verdict::Incomplete, _) => {
            let what = describe_missing(verdict);
            format!("incomplete: {what}; compared: {steps}, {evaluations}")
        }
        (Verdict::Diverged, Some(first)) => {
            format!("diverged at step {}: {}", count(first.step), describe_difference(first))
        }
        (Verdict::Diverged | Verdict::WithinTolerance, _) => {
            let largest = match &verdict.largest {
                None => "the losses are equal, but other numbers differ".to_owned(),
                Some(d) => format!("the largest difference is at step {}: {}", count(d.step), describe_difference(d)),
            };
            format!("within tolerance: {copy} repeats {original} over {steps}; {largest}")
        }
    };
    let mut line = |name: &str, text: String| {
        let _ = write!(out, "\n  {name:12}{text}");
    };
    if !matches!(verdict.verdict, Verdict::Bitwise | Verdict::BitwiseNumbers) {
        line("tolerance", format!("{:e} of a loss", verdict.tolerance));
        if let Some(first) = &verdict.first_bits {
            line("bits", format!("differ first at step {}: {}", count(first.step), describe_difference(first)));
        }
        if let Some(weights) = &verdict.weights {
            let equal = if weights.equal { "equal" } else { "differ" };
            line("weights", format!("{equal} after step {}", count(weights.step)));
        }
        match &verdict.first_tensor {
            Some(first) => {
                let traced_from = verdict.traced_from.filter(|&n| first.traced.is_some() && n > verdict.from_step + 1);
                let range = |n| format!(", among the steps that both traced, from {} on", count(n));
                let range = traced_from.map_or_else(String::new, range);
                line("tensor", format!("the first that differs: {}{range}", describe_tensor(first)));
            }
            // Weights that only the comparison of hashes knows.
            None if verdict.weights.as_ref().is_some_and(|weights| !weights.equal) => {}
            None => line("tensor", "no tensor differs among those that both runs kept".to_owned()),
        }
        if !verdict.traced {
            let how = "a trace names the first tensor that differs: `runner apply FILE --new --trace`, then `runner reproduce RUN --trace`";
            line("", how.to_owned());
        }
    }
    for damage in &verdict.record_damage {
        line("record", printable(damage));
    }
    for drift in &verdict.drift {
        line("changed", printable(drift));
    }
    out
}

/// The first step or evaluation that only one of the two runs recorded.
fn describe_missing(verdict: &ReproductionVerdict) -> String {
    let (original, copy) = names(verdict);
    let Some(first) = &verdict.first_missing else {
        return if verdict.record_damage.is_empty() {
            format!("no step of {original} could be compared")
        } else {
            "a record is damaged".to_owned()
        };
    };
    let (lacks, has) = if first.is_missing_in_original { (original, copy) } else { (copy, original) };
    let step = count(first.step);
    let what = match printable(&first.what).as_str() {
        "step" => format!("step {step}"),
        other => format!("the {other} after step {step}"),
    };
    let total = if verdict.missing > 1 { format!(" (the first of {})", count(verdict.missing)) } else { String::new() };
    format!("{lacks} has no record of {what}, which {has} has{total}")
}

fn describe_difference(d: &NumberDifference) -> String {
    let number = |x: Option<f64>| x.map_or_else(|| "not a number".to_owned(), |x| format!("{x}"));
    let relative = d.relative.map_or_else(String::new, |r| format!(" (relative difference {r:.1e})"));
    format!("{} {}, was {}{relative}", d.what, number(d.copy), number(d.original))
}

fn describe_tensor(first: &FirstDifferingTensor) -> String {
    let name = printable(&first.name);
    let what = match first.traced {
        None => format!("{name}, in the checkpoint"),
        Some(TracedTensor::Output) => name,
        Some(TracedTensor::Gradient) => format!("gradient of {name}"),
        Some(TracedTensor::Parameter) => format!("{name} after its update"),
    };
    format!("{what} of step {}", count(first.step))
}
