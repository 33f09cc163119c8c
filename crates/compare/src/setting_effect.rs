//! The effect of each setting that differs, as the facts of both plans show it.

use serde::Serialize;

use super::facts::{MathematicsPart, Meaning};
use super::plan_facts::{differing_facts, have_same_kinds, same_devices, same_evaluation};
use super::planned_experiment::PlannedExperiment;
use super::settings::{SettingDifference, SettingGroup, is_choice};
use runner_spec::data::DataPart;
use runner_spec::experiment::Train;

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

/// Keys that change a plan and no number.
const WITHOUT_EFFECT: [&str; 2] = ["train.recompute", "parallel.shard"];

/// The effect of `difference` between `a` and `b`. If several settings decide one fact, such as those of the optimizer, a difference in the
/// fact counts for each that differs.
#[must_use]
pub fn effect_of_setting(
    difference: &SettingDifference,
    a: &PlannedExperiment,
    b: &PlannedExperiment,
) -> SettingEffect {
    let key = difference.key.as_str();
    if difference.group == SettingGroup::Bookkeeping {
        return SettingEffect::Bookkeeping;
    }
    if WITHOUT_EFFECT.contains(&key) {
        return SettingEffect::None;
    }
    if key == "device" {
        // `auto` and the name of the device that it stands for are the same.
        return if have_same_kinds(&a.plan, &b.plan) { SettingEffect::None } else { SettingEffect::Rounding };
    }
    let in_data = effect_in_data(key, a, b).unwrap_or(SettingEffect::None);
    if a.plan.hash == b.plan.hash {
        let elsewhere = key == "parallel.devices" && !same_devices(&a.plan, &b.plan);
        return if elsewhere { SettingEffect::Bookkeeping } else { in_data };
    }
    let (p, q) = (a.effective(), b.effective());
    let is_measured = difference.group == SettingGroup::Evaluation && !same_evaluation(p, q);
    let of_evaluation = if is_measured { SettingEffect::Evaluation } else { SettingEffect::None };
    let facts = differing_facts(p, q).filter(|(fact, _)| decides(key, fact));
    let of_facts = facts.map(|(_, meaning)| effect_of_meaning(meaning)).max().unwrap_or(SettingEffect::None);
    in_data.max(of_evaluation).max(of_facts)
}

fn effect_of_meaning(meaning: Meaning) -> SettingEffect {
    match meaning {
        Meaning::Mathematics(MathematicsPart::Evaluation) => SettingEffect::Evaluation,
        Meaning::Mathematics(_) => SettingEffect::Mathematics,
        Meaning::Rounding => SettingEffect::Rounding,
        Meaning::None | Meaning::Bits(_) => SettingEffect::None,
    }
}

/// True if `key` is `section`, or lies in it.
fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// True if the setting `key` may decide the fact of a plan that is called `fact`. Data and evaluations are compared by what they are.
fn decides(key: &str, fact: &str) -> bool {
    match fact {
        "data" | "eval" => false,
        "learning rate" => is_within(key, "optimizer") || is_within(key, "train.transfer"),
        "train.stages" => is_within(key, fact) || is_within(key, "batch.warmup"),
        // A stage may have its own micro-batch.
        "batch.micro_batch" => is_within(key, fact) || is_within(fact, key) || is_within(key, "train.stages"),
        "train.steps" => Train::LENGTH_KEYS.contains(&key),
        _ => is_within(key, fact) || is_within(fact, key),
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
    let (_, parts) = DATA_KEYS.iter().find(|(section, _)| is_within(key, section))?;
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
