//! The names of runs that are shown together: the settings that distinguish them, and their ids.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::settings::{CHOICES, DATA_POSITION, SettingGroup, differing_keys, is_choice};
use runner_spec::experiment::Train;
use runner_spec::format::setting_text;

/// The settings that a name has at most.
const MAX_SETTINGS: usize = 4;
/// The characters that are shown of a value.
const MAX_CHARACTERS: usize = 28;

/// The settings of a run, as [`settings`](super::settings::settings) returns them.
pub type RunSettings = BTreeMap<String, Value>;

/// The settings that distinguish runs, the seed last. Bookkeeping influences no outcome. A setting of a choice that all runs
/// with this choice agree on follows from the choice, and the position of a fork from its checkpoint.
#[must_use]
pub fn distinguishing_keys(runs: &[&RunSettings]) -> Vec<String> {
    let mut keys = differing_keys(runs);
    keys.retain(|key| {
        SettingGroup::of_key(key) != SettingGroup::Bookkeeping
            && key != DATA_POSITION
            && !is_implied_by_choice(key, runs)
    });
    keys.sort_by_key(|key| SettingGroup::of_key(key) == SettingGroup::Seed);
    keys
}

/// True if some of `runs` lack `key` because they made another choice (such as another optimizer), and the others agree on it.
#[must_use]
pub fn is_implied_by_choice(key: &str, runs: &[&RunSettings]) -> bool {
    let belongs_to = |choice: &str| key.strip_prefix(choice).is_some_and(|rest| rest.starts_with('.'));
    let is_of_choice = CHOICES.into_iter().chain(["parallel.pipeline"]).any(belongs_to) || key == "parallel.pipeline";
    let mut present = runs.iter().filter_map(|run| run.get(key));
    let first = present.next();
    let is_absent_somewhere = runs.iter().any(|run| !run.contains_key(key));
    is_of_choice && is_absent_somewhere && present.all(|value| Some(value) == first)
}

/// The shortest end of `key` that no other of `keys` has, and that is not `reserved`: `lr` for `optimizer.adamw.lr`. `keys` are all keys of
/// the experiments, also those that are equal: `seed` is the training's seed, so it does not stand for `eval.samples.seed`.
#[must_use]
pub fn shortest_name(key: &str, keys: &BTreeSet<String>, reserved: &[&str]) -> String {
    if is_choice(key) {
        return key.to_owned();
    }
    let is_taken = |end: &str| {
        let mut others = keys.iter().filter(|other| other.as_str() != key);
        reserved.contains(&end) || others.any(|other| other == end || other.ends_with(&format!(".{end}")))
    };
    let ends = key.rmatch_indices('.').map(|(dot, _)| &key[dot + 1..]);
    ends.chain([key]).find(|end| !is_taken(end)).unwrap_or(key).to_owned()
}

/// The end of a long value: paths differ there.
#[must_use]
pub fn end_of_value(text: &str) -> String {
    match text.chars().count() {
        0..=MAX_CHARACTERS => text.to_owned(),
        length => format!("…{}", text.chars().skip(length - MAX_CHARACTERS + 1).collect::<String>()),
    }
}

/// What distinguishes each of `runs`: `lr 0.01, layers 4, seed 2`; an empty text if nothing does.
#[must_use]
pub fn describe_differences(runs: &[&RunSettings]) -> Vec<String> {
    let keys = distinguishing_keys(runs);
    let all: BTreeSet<String> = runs.iter().copied().flat_map(BTreeMap::keys).cloned().collect();
    let heads: Vec<String> = keys.iter().map(|key| shortest_name(key, &all, &[])).collect();
    let describe = |settings: &&RunSettings| {
        let pairs = keys.iter().zip(&heads).filter_map(|(key, head)| Some((head.as_str(), settings.get(key)?)));
        // Another key gives the length of the run.
        let pairs = pairs.filter(|(head, value)| !value.is_null() || !is_length(head));
        describe_settings(&pairs.collect::<Vec<_>>())
    };
    runs.iter().map(describe).collect()
}

/// True for the end of a key that gives the length of a run, of which an experiment has one.
fn is_length(head: &str) -> bool {
    Train::LENGTH_KEYS.iter().any(|key| *key == head || key.ends_with(&format!(".{head}")))
}

/// The names of `runs`, each an id and its settings, in their order: `lr 0.01, layers 4, seed 2 (stories-a960bb14)`. A run that nothing
/// distinguishes has its id as its name.
#[must_use]
pub fn name_runs(runs: &[(&str, &RunSettings)]) -> Vec<String> {
    let settings: Vec<&RunSettings> = runs.iter().map(|(_, settings)| *settings).collect();
    runs.iter().zip(describe_differences(&settings)).map(|((id, _), text)| run_name(&text, id)).collect()
}

/// The name of the run `id` that the settings in `text` distinguish.
#[must_use]
pub fn run_name(text: &str, id: &str) -> String {
    if text.is_empty() { id.to_owned() } else { format!("{text} ({id})") }
}

/// `lr 0.01, layers 4`.
#[must_use]
pub fn describe_settings(settings: &[(&str, &Value)]) -> String {
    let shown = settings.iter().take(MAX_SETTINGS);
    let mut parts: Vec<String> =
        shown.map(|(name, value)| format!("{name} {}", end_of_value(&setting_text(value)))).collect();
    if settings.len() > MAX_SETTINGS {
        parts.push("…".to_owned());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn run(lr: f64, optimizer: &str, seed: u64) -> RunSettings {
        let settings = json!({"seed": seed, "optimizer": optimizer, "name": lr, "eval.samples.seed": 42,
            format!("optimizer.{optimizer}.lr"): lr});
        settings.as_object().unwrap().clone().into_iter().collect()
    }

    #[test]
    fn runs_are_named_by_what_distinguishes_them() {
        let names = |runs: &[RunSettings]| {
            let ids: Vec<String> = (0..runs.len()).map(|i| format!("exp-{i}")).collect();
            name_runs(&ids.iter().map(String::as_str).zip(runs).collect::<Vec<_>>())
        };
        assert_eq!(
            names(&[run(0.01, "adamw", 1), run(1e-4, "adamw", 2)]),
            ["lr 0.01, seed 1 (exp-0)", "lr 1e-4, seed 2 (exp-1)"]
        );
        assert_eq!(names(&[run(0.01, "adamw", 1), run(0.01, "adamw", 2)]), ["seed 1 (exp-0)", "seed 2 (exp-1)"]);
        assert_eq!(
            names(&[run(0.01, "adamw", 1), run(0.1, "sgd", 1), run(0.1, "sgd", 1)]),
            ["optimizer adamw (exp-0)", "optimizer sgd (exp-1)", "optimizer sgd (exp-2)"]
        );
        assert_eq!(names(&[run(0.01, "adamw", 1), run(0.01, "adamw", 1)]), ["exp-0", "exp-1"]);
        assert_eq!(names(&[run(0.01, "adamw", 1)]), ["exp-0"]);
        let with = |key: &str, value: Value, other: &str| {
            let mut settings = run(0.01, "adamw", 1);
            settings.extend([(key.to_owned(), value), (other.to_owned(), Value::Null)]);
            settings
        };
        let fork = with("data.position", json!({"step": 7}), "name");
        let whole = with("train.steps", json!(9), "train.epochs");
        assert_eq!(names(&[run(0.01, "adamw", 1), fork]), ["exp-0", "exp-1"]);
        let epochs = with("train.epochs", json!(2), "train.steps");
        assert_eq!(names(&[whole, epochs]), ["steps 9 (exp-0)", "epochs 2 (exp-1)"]);
        let value = json!(1);
        let many: Vec<(&str, &Value)> = ["a", "b", "c", "d", "e"].map(|name| (name, &value)).to_vec();
        assert_eq!(describe_settings(&many), "a 1, b 1, c 1, d 1, …");
    }
}
