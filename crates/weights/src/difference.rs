//! Differences between a model and the weights that it starts from, and keys of a model that no format of weights has.

use serde_json::Value;

use super::describe::DescribedModel;
use runner_spec::experiment::Model;

/// Keys of the model section that must agree with the weights. Vocabulary, dropout and a shorter context may differ.
const FIXED: [&str; 9] =
    ["family", "layers", "heads", "kv_heads", "d_model", "d_ff", "tie_embeddings", "norm_eps", "rope_theta"];

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

/// The differences that keep `model` from starting with the weights of `described`. The planner checks the vocabulary.
pub fn differences(described: &DescribedModel, model: &Model) -> Vec<Difference> {
    let mut theirs = described.model_section();
    let ours = runner_spec::format::json_value(model);
    let difference = |key: &str, ours: &Value, theirs: &Value| {
        let equal = theirs == ours || theirs.as_f64().is_some_and(|t| Some(t) == ours.as_f64());
        (!equal).then(|| Difference { key: key.to_owned(), ours: ours.clone(), theirs: Some(theirs.clone()) })
    };
    let mut all: Vec<Difference> =
        FIXED.iter().filter_map(|key| difference(key, ours.get(key)?, theirs.get(key)?)).collect();
    all.extend(beyond_format(model).into_iter().map(|(key, ours)| Difference { key, ours, theirs: None }));
    if model.context_length > described.spec.context_length {
        let (ours, theirs) = (model.context_length.into(), Some(theirs[CONTEXT].take()));
        all.push(Difference { key: CONTEXT.to_owned(), ours, theirs });
    }
    all
}

/// The keys of `model`, a specification or the section of an experiment, that make it another model than Hugging Face's GPT-2
/// and Llama, and llm.c's GPT-2; with their values.
///
/// The JSON of a model leaves out extensions that have their default, so every key that is not known here is an extension.
pub(super) fn beyond_format(model: &impl serde::Serialize) -> Vec<(String, Value)> {
    // Keys of training (`mlp_dropout`, `init`, `pytorch_init`) do not change what a model computes.
    const FREE: [&str; 7] = ["vocab_size", "pad_vocab_to", CONTEXT, "dropout", "mlp_dropout", "init", "pytorch_init"];
    let value = runner_spec::format::json_value(model);
    let Value::Object(mut map) = value else { return Vec::new() };
    // A specification has its extensions under this key, the section of an experiment among its other keys.
    if let Some(Value::Object(variant)) = map.remove("variant") {
        map.extend(variant);
    }
    let is_known = |key: &str| FIXED.contains(&key) || FREE.contains(&key);
    map.into_iter().filter(|(key, value)| !is_known(key) && !value.is_null()).collect()
}
