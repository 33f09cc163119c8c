//! Translates the config.json of a Hugging Face model.

use std::path::Path;

use serde_json::{Map, Value};

use super::draft::ExperimentDraft;
use runner_spec::error::PlainError;

/// GPT-2's dropouts, whose default is 0.1 in `transformers`.
const DROPOUTS: [&str; 3] = ["resid_pdrop", "embd_pdrop", "attn_pdrop"];

/// Translates `map`, the content of the config.json at `path`.
///
/// # Errors
/// All reasons for which the model cannot be trained here.
pub(super) fn translate_model(
    path: &Path,
    map: Map<String, Value>,
    draft: &mut ExperimentDraft,
) -> Result<(), PlainError> {
    let dropouts = DROPOUTS.map(|key| (key, map.get(key).filter(|value| !value.is_null()).cloned()));
    let is_gpt2 = map.get("model_type").is_some_and(|kind| kind == "gpt2");
    let described = runner_weights::describe_config(path, map.clone())
        .map_err(|error| PlainError::request(refusal_reasons(path, map, error.to_string()).join("; ")))?;
    if is_gpt2 {
        let origins = dropouts.map(|(key, value)| match value {
            Some(_) if described.gives_dropout => key.to_owned(),
            Some(value) => format!("{key} = {value}"),
            None if described.gives_dropout => format!("{key} (Hugging Face's default)"),
            None => format!("{key} = 0.1 (Hugging Face's default)"),
        });
        let origins = origins.join(", ");
        if described.gives_dropout {
            draft.set("model.dropout", described.spec.dropout, origins);
        } else {
            draft.leave_out(origins, "`model.dropout` is one number for all three, and 0 here: give it");
        }
    }
    draft.set_section("model", &described.model_section());
    Ok(())
}

/// The reasons for which the config.json at `path` with the content `map` is refused, of which `first` is the first.
fn refusal_reasons(path: &Path, mut map: Map<String, Value>, first: String) -> Vec<String> {
    let prefix = format!("{}: ", path.display());
    let mut reasons = Vec::new();
    let mut next = Some(first);
    while let Some(message) = next.take() {
        let reason = message.strip_prefix(&prefix).unwrap_or(&message).to_owned();
        // A reason begins with the key that it is about. Without this key, the next reason is found.
        let is_subject = |key: &&String| {
            let rest = reason.trim_start_matches('`').strip_prefix(key.as_str());
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_'))
        };
        let subject = map.keys().find(is_subject).cloned();
        if let Some(key) = subject {
            map.remove(&key);
            // A key that must be present is its own only reason.
            let absent = format!("`{key}` is missing");
            next = runner_weights::describe_config(path, map.clone()).err().map(|error| error.to_string());
            next = next.filter(|message| !message.contains(&absent));
        }
        reasons.push(reason);
    }
    reasons
}
