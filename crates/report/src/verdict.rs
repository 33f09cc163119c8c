//! What a person reads of a reproduction.

use std::fmt::Write as _;

use runner_spec::event::Traced;
use runner_spec::format::{count, printable};
use runner_store::verdict::{FirstDifferingTensor, Judgement, NumberDifference, ReproductionVerdict};

/// The verdict first, then what there is to say of it.
#[must_use]
pub fn words(verdict: &ReproductionVerdict) -> String {
    let ReproductionVerdict { original, copy, .. } = verdict;
    let steps = number(verdict.steps, "step");
    let mut out = match (verdict.verdict, &verdict.diverged) {
        (Judgement::Bitwise | Judgement::BitwiseNumbers, _) => {
            let (word, weights) = if let Some(weights) = &verdict.weights {
                ("bitwise", format!(" and the weights after step {}", count(weights.step)))
            } else {
                let why = verdict.weights_not_compared.as_deref().unwrap_or("none were kept");
                ("bitwise, weights not compared", format!("; {}", printable(why)))
            };
            format!(
                "{word}: {copy} is {original} again: {steps}, {}{weights}",
                number(verdict.evaluations, "evaluation")
            )
        }
        (Judgement::Incomplete, _) => {
            let what = verdict.first_missing.as_ref().map_or_else(
                || format!("no step of {original} could be compared"),
                |first| {
                    let (lacks, other) = if first.in_original { (original, copy) } else { (copy, original) };
                    let (what, step) = (printable(&first.what), count(first.step));
                    let what =
                        if what == "step" { format!("step {step}") } else { format!("the {what} after step {step}") };
                    let more = match verdict.missing {
                        0 | 1 => String::new(),
                        n => format!(" (of {} such)", count(n)),
                    };
                    format!("{lacks} has no record of {what}, which {other} has{more}")
                },
            );
            format!("incomplete: {what}; compared were {steps}, {}", number(verdict.evaluations, "evaluation"))
        }
        (Judgement::Diverged, Some(first)) => {
            format!("diverged at step {}: {}", count(first.step), difference(first))
        }
        (Judgement::Diverged | Judgement::WithinTolerance, _) => {
            let largest = verdict.largest.as_ref().map_or_else(
                || "the losses are equal, but not all else".to_owned(),
                |largest| format!("the largest difference is at step {}: {}", count(largest.step), difference(largest)),
            );
            format!("within tolerance: {copy} is {original} again over {steps}; {largest}")
        }
    };
    let mut line = |name: &str, text: String| {
        let _ = write!(out, "\n  {name:12}{text}");
    };
    if !matches!(verdict.verdict, Judgement::Bitwise | Judgement::BitwiseNumbers) {
        line("tolerance", format!("{:e} of a loss", verdict.tolerance));
        if let Some(first) = &verdict.first_bits {
            line("bits", format!("differ first at step {}: {}", count(first.step), difference(first)));
        }
        if let Some(weights) = &verdict.weights {
            let equal = if weights.equal { "equal" } else { "differ" };
            line("weights", format!("{equal} after step {}", count(weights.step)));
        }
        match &verdict.first_tensor {
            Some(first) => {
                let late = verdict.traced_from.filter(|&n| first.traced.is_some() && n > verdict.from_step + 1);
                let late =
                    late.map_or_else(String::new, |n| format!(", of the steps that both traced, from {} on", count(n)));
                line("tensor", format!("the first that differs: {}{late}", tensor(first)));
            }
            None => line("tensor", "none was found that differs, in what both runs kept".to_owned()),
        }
        if !verdict.traced {
            let how =
                "traces name the first tensor of all: `runner apply --new --trace`, then `runner reproduce --trace`";
            line("", how.to_owned());
        }
    }
    for drift in &verdict.drift {
        line("changed", printable(drift));
    }
    out
}

/// `1 step`, `2 steps`.
fn number(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}

fn difference(d: &NumberDifference) -> String {
    let number = |x: Option<f64>| x.map_or_else(|| "not a number".to_owned(), |x| format!("{x}"));
    let relative = d.relative.map_or_else(String::new, |r| format!(" (relative difference {r:.1e})"));
    format!("{} {}, was {}{relative}", d.what, number(d.copy), number(d.original))
}

fn tensor(first: &FirstDifferingTensor) -> String {
    let name = printable(&first.name);
    let what = match first.traced {
        None => format!("{name}, in the checkpoint"),
        Some(Traced::Output) => name,
        Some(Traced::Gradient) => format!("gradient of {name}"),
        Some(Traced::Parameter) => format!("{name} after its update"),
    };
    format!("{what} of step {}", count(first.step))
}
