//! Turns the configuration of another trainer into an experiment file: a config.py of nanoGPT, or the config.json of a Hugging Face model.

mod draft;
mod hugging_face;
mod nanogpt;
mod python;

use std::path::Path;

use serde_json::{Value, json};

use self::draft::ExperimentDraft;
use crate::{ExperimentFile, LoadOptions};
use runner_files::strict_json;
use runner_spec::diagnostic::ConfigError;
use runner_spec::error::PlainError;
use runner_yaml::source::Source;
use runner_yaml::tree::Node;

/// The files that are understood.
const KNOWN_FILES: &str = "supported files are nanoGPT's config.py and the config.json of a Hugging Face model; the settings of other \
                           trainers get errors that name their counterparts here (docs/coming-from.md)";

/// An experiment file made of another trainer's configuration.
#[derive(Debug)]
pub struct ImportedConfig {
    /// The YAML text. Comments name the settings that its values come from, and those that have no counterpart.
    pub text: String,
    /// Choices that are left to the user, because the configuration does not state them.
    pub warnings: Vec<String>,
}

impl ImportedConfig {
    /// Checks the experiment as the content of `file`, as far as this is possible without the files that it names.
    ///
    /// # Errors
    /// All mistakes in it.
    pub fn check(&self, file: &Path) -> Result<(), ConfigError> {
        let options =
            LoadOptions { allows_absent_files: true, allows_absent_initial_inputs: true, ..LoadOptions::default() };
        ExperimentFile::new(self.text.clone(), file).load(&options).map(|_| ())
    }
}

/// Translates `text`, the content of the file `path`, whose ending names its format, to an experiment file in the folder `output`. Nothing
/// in `text` is executed.
///
/// # Errors
/// If the file is not a configuration of a known trainer.
pub fn import_config(text: &str, path: &Path, output: &Path) -> Result<ImportedConfig, PlainError> {
    let wrong = |message: String| PlainError::request(format!("{}: {message}", path.display()));
    let source = Source::file(path, text.to_owned());
    let text = source.text.as_str();
    let mut draft = ExperimentDraft::new(output);
    draft.set("version", 1, "");
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let title = match path.extension().and_then(|ending| ending.to_str()) {
        Some("py") => {
            if !nanogpt::translate(text, &mut draft) {
                return Err(wrong(format!(
                    "found no setting of nanoGPT, such as `batch_size`, `n_layer`, `learning_rate` or `max_iters`; assign \
                     settings at the top level, not in a dict or a class; {KNOWN_FILES}"
                )));
            }
            format!(
                "Imported from nanoGPT's {file}. Settings that it leaves out have the defaults of nanoGPT's train.py and are marked."
            )
        }
        Some("json") => {
            let value = strict_json::parse(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
            let Value::Object(map) = value else {
                return Err(wrong("not the config.json of a Hugging Face model: it must be a JSON object".to_owned()));
            };
            hugging_face::translate_model(path, map, &mut draft)
                .map_err(|error| PlainError::request(error.to_string()))?;
            format!("Imported from Hugging Face's {file}.")
        }
        _ => {
            return Err(wrong(format!(
                "the name must end in .py or .json; {KNOWN_FILES}; if it is an experiment, `runner validate` checks it"
            )));
        }
    };
    if !draft.has("data.train") {
        draft.set("data.train.text.files", json!(["input.txt"]), "your text");
        draft.warnings.push("the configuration names no data, so `data.train` is input.txt; name your text".to_owned());
    }
    Ok(ImportedConfig { text: draft.render(&title), warnings: draft.warnings })
}

/// The trainer whose configuration the file `path` with the content `root` is, unless it looks like an experiment.
pub(crate) fn foreign_trainer(path: &Path, root: Option<&Node>) -> Option<&'static str> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("py") => Some("nanoGPT"),
        Some("json") => root.and_then(|root| root.get("model_type")).map(|_| "Hugging Face"),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
