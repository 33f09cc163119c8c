//! Models known by name, from `presets.yaml`: the keys that `model.preset` stands for.
#![expect(clippy::expect_used, reason = "presets.yaml is part of the program, and tests read all of it")]

use std::sync::LazyLock;

use runner_yaml::document::{self, Mapping};
use serde_json::{Value, json};

use runner_spec::experiment::Family;
use serde::Deserialize;

static PRESETS: LazyLock<Mapping> =
    LazyLock::new(|| document::from_str(include_str!("presets.yaml")).expect("presets.yaml is a mapping"));

/// All names, the published models first.
pub(crate) fn names() -> Vec<&'static str> {
    PRESETS.keys().map(|name| name.as_str().expect("names are text")).collect()
}

/// The family of a preset.
pub(crate) fn family(name: &str) -> Option<Family> {
    let family = &PRESETS.get(name)?["family"];
    Some(Family::deserialize(family).expect("a preset has a family"))
}

/// The preset as sections of an experiment file.
pub(crate) fn layer(name: &str) -> Option<Value> {
    PRESETS.get(name).map(|model| json!({ "model": model }))
}
