//! The effect of each setting that differs. It is found by giving one experiment the value of the other and comparing plan hashes.

use serde::Serialize;
use serde_json::Value;

use super::plan_facts::{have_same_kinds, same_devices, same_evaluation};
use super::planned_experiment::PlannedExperiment;
use super::settings::{SettingDifference, SettingGroup, document, is_choice, replace_paths};
use runner_spec::data::DataPart;
use runner_spec::experiment::{Experiment, Train};
use runner_spec::plan::Plan;

/// The effect of a difference, from none to the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingEffect {
    /// Every number is the same: the setting changes memory and time alone, or nothing under the other settings.
    None,
    /// The difference changes what is recorded of the run, or where.
    Bookkeeping,
    Rounding,
    /// The difference changes what is measured.
    Evaluation,
    Mathematics,
}

/// The largest number of passes in a step of all ranks for which the plan is compiled again for each setting.
const MAX_PASSES: usize = 1 << 13;

/// Keys that change a plan and no number.
const WITHOUT_EFFECT: [&str; 2] = ["train.recompute", "parallel.shard"];

/// Settings that belong together: if an experiment lacks one of them, all are taken from the other.
const UNITS: [(&str, &[&str]); 9] = [
    ("train", &Train::LENGTH_KEYS),
    ("optimizer", &["optimizer"]),
    ("schedule.decay", &["schedule.decay"]),
    ("parallel", &["parallel", "batch.micro_batch"]),
    ("eval.loss", &["eval.loss"]),
    ("eval.hellaswag", &["eval.hellaswag"]),
    ("eval.tasks", &["eval.tasks"]),
    ("eval.samples", &["eval.samples"]),
    ("data.layout", &["data.layout"]),
];

/// The effect of `difference` between `a` and `b`.
#[must_use]
pub fn effect_of_setting(
    difference: &SettingDifference,
    a: &PlannedExperiment,
    b: &PlannedExperiment,
) -> SettingEffect {
    if difference.group == SettingGroup::Bookkeeping {
        return SettingEffect::Bookkeeping;
    }
    if WITHOUT_EFFECT.contains(&difference.key.as_str()) {
        return SettingEffect::None;
    }
    if difference.key == "device" {
        // `auto` and the name of the device that it stands for are the same.
        return if have_same_kinds(&a.plan, &b.plan) { SettingEffect::None } else { SettingEffect::Rounding };
    }
    let in_data = effect_in_data(&difference.key, a, b);
    if a.plan.hash == b.plan.hash {
        let elsewhere = difference.key == "parallel.devices" && !same_devices(&a.plan, &b.plan);
        return if elsewhere { SettingEffect::Bookkeeping } else { in_data.unwrap_or(SettingEffect::None) };
    }
    let passes = |side: &PlannedExperiment| side.plan.world_size.saturating_mul(side.plan.totals.accumulation_steps);
    if passes(a).max(passes(b)) > MAX_PASSES {
        return in_data.unwrap_or(largest_effect_of_group(difference.group));
    }
    let by_plan = [(a, b), (b, a)].into_iter().filter_map(|(to, from)| effect_of_taking(difference, to, from)).max();
    by_plan.max(in_data).unwrap_or(largest_effect_of_group(difference.group))
}

/// The effect on `to` of the setting of `from`; `None` if the result is not a legal experiment.
fn effect_of_taking(
    difference: &SettingDifference,
    to: &PlannedExperiment,
    from: &PlannedExperiment,
) -> Option<SettingEffect> {
    let key = difference.key.as_str();
    let alone = difference.a.is_some() && difference.b.is_some() && !is_choice(key) && !is_mapped(difference);
    let unit =
        UNITS.iter().find(|(unit, _)| key == *unit || key.strip_prefix(unit).is_some_and(|k| k.starts_with('.')));
    let itself = [key];
    let paths = match unit {
        Some((_, paths)) if !alone => *paths,
        _ => &itself,
    };
    let changed = replace_paths(&document(&to.experiment), &document(&from.experiment), paths);
    let experiment: Experiment = serde_json::from_value(changed).ok()?;
    let effect = effect_between_plans(to.effective(), &to.replanned(&experiment).ok()?);
    // Two settings of evaluation can mean the same, such as two intervals longer than the run. Then only the plans differ.
    let idle = difference.group == SettingGroup::Evaluation && effect == SettingEffect::Rounding;
    Some(if idle { SettingEffect::None } else { effect })
}

/// True if one experiment has `null` where the other has a mapping.
fn is_mapped(difference: &SettingDifference) -> bool {
    [&difference.a, &difference.b].into_iter().any(|value| matches!(value, Some(Value::Null)))
        && matches!(difference.key.as_str(), "parallel.pipeline" | "eval.loss" | "eval.hellaswag" | "eval.samples")
}

fn effect_between_plans(before: &Plan, after: &Plan) -> SettingEffect {
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

/// The keys that prepared data depends on, each with the parts. Validation data is a part of the training text, or a separate text.
const DATA_KEYS: [(&str, &[DataPart]); 7] = [
    ("data.tokenizer", &[DataPart::Tokenizer]),
    ("data.train", &[DataPart::Train]),
    ("data.layout", &[DataPart::Train]),
    ("data.validation", &[DataPart::Train, DataPart::Validation]),
    ("eval.hellaswag", &[DataPart::Choice]),
    ("eval.tasks", &[DataPart::Choice]),
    ("eval.test", &[DataPart::Test]),
];

/// The effect of a setting that the prepared data depends on.
fn effect_in_data(key: &str, a: &PlannedExperiment, b: &PlannedExperiment) -> Option<SettingEffect> {
    let under = |part: &str| key == part || key.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'));
    let (_, parts) = DATA_KEYS.iter().find(|(part, _)| under(part))?;
    let mut changed = parts.iter().filter(|part| a.data.hash_of(**part) != b.data.hash_of(**part));
    // The names differ, and the content is the same.
    let place = ["files", "file", "vocab", "merges", "builtin", "corpus"];
    let named = key.rsplit('.').next().is_some_and(|last| place.contains(&last)) || is_choice(key);
    Some(match changed.next() {
        Some(DataPart::Tokenizer | DataPart::Train) => SettingEffect::Mathematics,
        Some(_) => SettingEffect::Evaluation,
        None if named => SettingEffect::Bookkeeping,
        None => SettingEffect::None,
    })
}

/// The largest effect that a setting of `group` can have.
fn largest_effect_of_group(group: SettingGroup) -> SettingEffect {
    match group {
        SettingGroup::Bookkeeping => SettingEffect::Bookkeeping,
        SettingGroup::Parallel => SettingEffect::Rounding,
        SettingGroup::Evaluation => SettingEffect::Evaluation,
        _ => SettingEffect::Mathematics,
    }
}
