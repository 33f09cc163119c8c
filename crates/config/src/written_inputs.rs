//! The names of inputs of the hub as a person wrote them. A run's resolved experiment has commits in their place.

use std::path::Path;

use serde_json::Value;

use super::initial_weights::INIT_FROM;
use super::layers::Layers;
use super::load::read_layers;
use super::overrides::LoadOptions;
use runner_spec::experiment::{HubModel, WeightsSource};
use runner_yaml::source::Source;

/// Inputs of the hub as the text of an experiment names them, before their branches and tags become commits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WrittenInputs {
    /// The value of `model.init.from`, if it is of the hub.
    pub weights: Option<WeightsSource>,
    /// The value of `data.tokenizer.hub`.
    pub tokenizer: Option<HubModel>,
}

impl WrittenInputs {
    /// Reads the experiment `text` under the layers of `options`. `None` if it has mistakes.
    pub fn read(text: &str, options: &LoadOptions<'_>) -> Option<Self> {
        let source = Source::file(Path::new("experiment.yaml"), text.to_owned());
        let (layers, _) = read_layers(source, options).ok().filter(|(_, found)| found.diagnostics.is_empty())?;
        let value = Layers::merge(layers).ok()?.value();
        let weights = value.pointer(INIT_FROM).and_then(Value::as_str).map(|text| WeightsSource::from(text.to_owned()));
        let tokenizer = value.pointer("/data/tokenizer/hub").cloned();
        Some(Self {
            weights: weights.filter(|weights| matches!(weights, WeightsSource::Hub(_))),
            tokenizer: tokenizer.and_then(|hub| serde_json::from_value(hub).ok()),
        })
    }
}
