//! Translates the config.json of a Hugging Face model.

use std::path::Path;

use serde_json::{Map, Value};

use super::draft::ExperimentDraft;
use runner_weights::WeightsError;

/// GPT-2's dropouts, whose default is 0.1 in `transformers`.
const DROPOUTS: [&str; 3] = ["resid_pdrop", "embd_pdrop", "attn_pdrop"];

/// Translates `map`, the content of the config.json at `path`.
///
/// # Errors
/// The reason why the model cannot be trained here.
pub(super) fn translate_model(
    path: &Path,
    map: Map<String, Value>,
    draft: &mut ExperimentDraft,
) -> Result<(), WeightsError> {
    let dropouts = DROPOUTS.map(|key| (key, map.get(key).filter(|value| !value.is_null()).cloned()));
    let is_gpt2 = map.get("model_type").is_some_and(|kind| kind == "gpt2");
    let described = runner_weights::describe_config(path, map)?;
    if is_gpt2 {
        let origins = dropouts.map(|(key, value)| match value {
            Some(_) if described.gives("dropout") => key.to_owned(),
            Some(value) => format!("{key} = {value}"),
            None if described.gives("dropout") => format!("{key} (Hugging Face's default)"),
            None => format!("{key} = 0.1 (Hugging Face's default)"),
        });
        let origins = origins.join(", ");
        if described.gives("dropout") {
            draft.set("model.dropout", described.spec.dropout, origins);
        } else {
            draft.leave_out(origins, "`model.dropout` is one number for all three and defaults to 0; set it");
        }
    }
    draft.set_section("model", &described.model_section());
    Ok(())
}
