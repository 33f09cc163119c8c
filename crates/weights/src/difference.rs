//! Differences between a model and the weights that it starts from, and keys of a model that no format of weights has.

use serde_json::Value;

use super::described_model::DescribedModel;
use runner_spec::experiment::Model;
use runner_spec::format::json_value;
use runner_spec::model::options::{OptionKey, option_keys};
use runner_spec::model::{Family, ModelOptions};

/// The key of the context, which may be shorter than that of the weights.
pub const CONTEXT: &str = "context_length";

/// A key of the model section that the weights contradict.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub key: String,
    pub ours: Value,
    /// `None` if no format of weights has such a model.
    pub theirs: Option<Value>,
}

/// Keys of the model section that may differ from those of the weights; of the context, only in one direction.
const FREE: [&str; 3] = ["vocab_size", CONTEXT, "dropout"];

/// The differences that keep `model` from starting with the weights of `described`. The planner checks the vocabulary.
pub fn differences(described: &DescribedModel, model: &Model) -> Vec<Difference> {
    let (ours, theirs) = (json_value(model), described.model_section());
    let mut all = Vec::new();
    let options: Vec<&str> = option_keys(model.family).map(|option| option.key).to_vec();
    let is_compared = |key: &str| !FREE.contains(&key) && !options.contains(&key);
    for (key, theirs) in theirs.as_object().into_iter().flatten().filter(|(key, _)| is_compared(key)) {
        let Some(ours) = ours.get(key) else { continue };
        if theirs != ours && theirs.as_f64().is_none_or(|theirs| Some(theirs) != ours.as_f64()) {
            all.push(Difference { key: key.clone(), ours: ours.clone(), theirs: Some(theirs.clone()) });
        }
    }
    let groups = described.spec.heads / described.spec.kv_heads;
    if !described.gives("heads") && model.heads != model.kv_heads * groups {
        // The heads that share keys follow from the shapes, their number does not.
        let (key, ours, theirs) = if model.heads.is_multiple_of(groups) {
            ("kv_heads", model.kv_heads, (model.heads / groups).into())
        } else {
            ("heads", model.heads, format!("a multiple of {groups}").into())
        };
        all.push(Difference { key: key.to_owned(), ours: ours.into(), theirs: Some(theirs) });
    }
    all.extend(option_differences(described, &model.options));
    if model.context_length > described.spec.context_length {
        let (ours, theirs) = (model.context_length.into(), Some(described.spec.context_length.into()));
        all.push(Difference { key: CONTEXT.to_owned(), ours, theirs });
    }
    all
}

/// The options that differ. GPT-2's formats have no options, so every one that is given differs.
fn option_differences(described: &DescribedModel, ours: &ModelOptions) -> Vec<Difference> {
    let (given, theirs) = (beyond_format(ours), beyond_format(&described.spec.options));
    if described.spec.family == Family::Gpt2 {
        return given.into_iter().map(|(key, ours)| Difference { key, ours, theirs: None }).collect();
    }
    let of = |list: &[(String, Value)], option: &OptionKey| {
        let given = list.iter().find(|(key, _)| key == option.key).map(|(_, value)| value);
        given.unwrap_or(&option.default).clone()
    };
    let options = option_keys(described.spec.family).into_iter();
    let differences = options.map(|option| (of(&given, &option), of(&theirs, &option), option.key.to_owned()));
    let different = differences.filter(|(ours, theirs, _)| ours != theirs);
    different.map(|(ours, theirs, key)| Difference { key, ours, theirs: Some(theirs) }).collect()
}

/// The `options` that make a model another than Hugging Face's GPT-2 and Llama, with their values.
pub(super) fn beyond_format(options: &ModelOptions) -> Vec<(String, Value)> {
    // Options that have their default are left out of the JSON.
    let Value::Object(given) = json_value(&options.without_training()) else { return Vec::new() };
    given.into_iter().collect()
}
