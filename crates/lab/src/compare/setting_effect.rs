//! What each differing setting does: found by giving one side the other's value and looking at the plan's hashes.

use serde::Serialize;
use serde_json::Value;

use super::classification::{same_devices, same_evaluation};
use super::planned_experiment::PlannedExperiment;
use super::settings::{SettingDifference, SettingGroup, document, is_choice, with};
use runner_spec::experiment::Experiment;
use runner_spec::plan::Plan;

/// What a difference changes, from nothing to everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingEffect {
    /// Nothing under these settings.
    None,
    /// What is kept of the run, or where it is.
    Bookkeeping,
    Rounding,
    /// What is measured.
    Evaluation,
    Mathematics,
}

/// Passes in a step of all ranks, from which on plans are not made again for each setting: that would take long.
const MOST_PASSES: usize = 1 << 13;

/// It is said of training, and changes no number.
const RECOMPUTE: &str = "train.recompute";

/// Settings that are one thing: where one of them is missing on a side, all are taken from the other.
const UNITS: [(&str, &[&str]); 9] = [
    (RECOMPUTE, &[RECOMPUTE]),
    ("train", &["train.steps", "train.epochs", "train.tokens"]),
    ("optimizer", &["optimizer"]),
    ("schedule.decay", &["schedule.decay"]),
    ("parallel", &["parallel", "batch.micro_batch"]),
    ("eval.loss", &["eval.loss"]),
    ("eval.hellaswag", &["eval.hellaswag"]),
    ("eval.samples", &["eval.samples"]),
    ("data.layout", &["data.layout"]),
];

/// The effect of `difference` between `a` and `b`.
#[must_use]
pub fn effect(difference: &SettingDifference, a: &PlannedExperiment, b: &PlannedExperiment) -> SettingEffect {
    if difference.group == SettingGroup::Bookkeeping {
        return SettingEffect::Bookkeeping;
    }
    let by_data = by_data(&difference.key, a, b);
    if a.plan.hash == b.plan.hash {
        let elsewhere = difference.key == "parallel.devices" && !same_devices(&a.plan, &b.plan);
        return if elsewhere { SettingEffect::Bookkeeping } else { by_data.unwrap_or(SettingEffect::None) };
    }
    let passes = |side: &PlannedExperiment| side.plan.world_size.saturating_mul(side.plan.totals.accumulation_steps);
    if passes(a).max(passes(b)) > MOST_PASSES {
        let most = if difference.key == RECOMPUTE { SettingEffect::Rounding } else { by_group(difference.group) };
        return by_data.unwrap_or(most);
    }
    let by_plan = [(a, b), (b, a)].into_iter().filter_map(|(to, from)| taken(difference, to, from)).max();
    by_plan.max(by_data).unwrap_or(by_group(difference.group))
}

/// What becomes of `to` when it takes the setting of `from`; `None` if that alone makes no experiment.
fn taken(difference: &SettingDifference, to: &PlannedExperiment, from: &PlannedExperiment) -> Option<SettingEffect> {
    let key = difference.key.as_str();
    let alone = difference.a.is_some() && difference.b.is_some() && !is_choice(key) && !is_mapped(difference);
    let unit =
        UNITS.iter().find(|(unit, _)| key == *unit || key.strip_prefix(unit).is_some_and(|k| k.starts_with('.')));
    let itself = [key];
    let paths = match unit {
        Some((_, paths)) if !alone => *paths,
        _ => &itself,
    };
    let changed = with(&document(&to.experiment), &document(&from.experiment), paths);
    let experiment: Experiment = serde_json::from_value(changed).ok()?;
    let effect = of_plans(to.effective(), &to.replanned(&experiment).ok()?);
    // Of evaluations that come to the same, such as periods past the end of the run, the plans differ and nothing else.
    let idle = difference.group == SettingGroup::Evaluation && effect == SettingEffect::Rounding;
    Some(if idle { SettingEffect::None } else { effect })
}

/// Whether one side has settings where the other has none: `null` there is a key of its own.
fn is_mapped(difference: &SettingDifference) -> bool {
    [&difference.a, &difference.b].into_iter().any(|value| matches!(value, Some(Value::Null)))
        && matches!(difference.key.as_str(), "parallel.pipeline" | "eval.loss" | "eval.hellaswag" | "eval.samples")
}

fn of_plans(before: &Plan, after: &Plan) -> SettingEffect {
    if before.hash == after.hash {
        if same_devices(before, after) { SettingEffect::None } else { SettingEffect::Bookkeeping }
    } else if before.math_hash != after.math_hash {
        SettingEffect::Mathematics
    } else if same_evaluation(before, after) {
        SettingEffect::Rounding
    } else {
        SettingEffect::Evaluation
    }
}

/// What the prepared data says of a setting that it depends on.
fn by_data(key: &str, a: &PlannedExperiment, b: &PlannedExperiment) -> Option<SettingEffect> {
    let (x, y) = (&a.data, &b.data);
    let under = |part: &str| key == part || key.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
    let trains = x.train != y.train;
    let tokens = (&x.tokenizer_hash, x.tokenizer_vocab) != (&y.tokenizer_hash, y.tokenizer_vocab);
    let measures = x.validation != y.validation;
    let (mathematics, evaluation) = match () {
        () if under("data.tokenizer") => (tokens, false),
        () if under("data.train") || under("data.layout") => (trains, false),
        // A part of the training text, or text of its own.
        () if under("data.validation") => (trains, measures),
        () if under("eval.hellaswag") => (false, x.choice != y.choice),
        () if under("eval.test") => (false, x.test != y.test),
        () => return None,
    };
    // What is named otherwise has the same content.
    let place = ["files", "file", "vocab", "merges", "builtin", "corpus"];
    let named = key.rsplit('.').next().is_some_and(|last| place.contains(&last)) || is_choice(key);
    Some(match (mathematics, evaluation) {
        (true, _) => SettingEffect::Mathematics,
        (_, true) => SettingEffect::Evaluation,
        _ if named => SettingEffect::Bookkeeping,
        _ => SettingEffect::None,
    })
}

/// What a setting of `group` may do at most.
fn by_group(group: SettingGroup) -> SettingEffect {
    match group {
        SettingGroup::Bookkeeping => SettingEffect::Bookkeeping,
        SettingGroup::Parallel => SettingEffect::Rounding,
        SettingGroup::Evaluation => SettingEffect::Evaluation,
        _ => SettingEffect::Mathematics,
    }
}
