//! Translates the config.json of a Hugging Face model.

use std::path::Path;

use serde_json::{Map, Value};

use super::draft::ExperimentDraft;
use runner_weights::WeightsError;

/// Translates `map`, the content of the config.json at `path`.
///
/// # Errors
/// The reason why the model cannot be trained here.
pub(super) fn translate_model(
    path: &Path,
    map: Map<String, Value>,
    draft: &mut ExperimentDraft,
) -> Result<(), WeightsError> {
    /// GPT-2's dropouts, whose default is 0.1 in `transformers`.
    const DROPOUTS: &str = "resid_pdrop, embd_pdrop, attn_pdrop";
    let is_gpt2 = map.get("model_type").is_some_and(|kind| kind == "gpt2");
    let described = runner_weights::describe_config(path, map)?;
    if is_gpt2 && described.gives("dropout") {
        draft.set("model.dropout", described.spec.dropout, DROPOUTS);
    } else if is_gpt2 {
        draft.leave_out(DROPOUTS, "`model.dropout` is one number for all three and defaults to 0; set it");
    }
    for (key, value) in described.model_section().as_object().into_iter().flatten() {
        if !value.is_null() {
            draft.set(&format!("model.{key}"), value.clone(), "");
        }
    }
    let tokenizer = draft.file(&path.with_file_name("tokenizer.json").to_string_lossy());
    draft.set("data.tokenizer.file", tokenizer, "the model's tokenizer");
    Ok(())
}
