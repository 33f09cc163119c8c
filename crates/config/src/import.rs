//! Turns the configuration of another trainer into an experiment file: a config.py of nanoGPT, a YAML file of litgpt or axolotl, or the
//! config.json of a Hugging Face model.

mod data;
mod draft;
mod hugging_face;
mod pretrained;
mod python;
mod schedule;
mod settings;
mod translate;

use std::path::Path;

use serde_json::Value;

use self::draft::{ExperimentDraft, ImportFolders};
use self::settings::Settings;
use crate::{ExperimentFile, LoadOptions};
use runner_files::strict_json;
use runner_spec::diagnostic::ConfigError;
use runner_spec::error::PlainError;
use runner_yaml::document;
use runner_yaml::source::Source;
use runner_yaml::tree::Node;

/// The trainer whose configuration a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trainer {
    NanoGpt,
    Litgpt,
    Axolotl,
    HuggingFace,
}

impl Trainer {
    fn name(self) -> &'static str {
        match self {
            Self::NanoGpt => "nanoGPT",
            Self::Litgpt => "litgpt",
            Self::Axolotl => "axolotl",
            Self::HuggingFace => "Hugging Face",
        }
    }
}

/// The files that are understood.
const KNOWN_FILES: &str = "supported files are nanoGPT's config.py, YAML files of litgpt (with `model_name`, `model_config` or \
                           `checkpoint_dir`) and axolotl (with `base_model`), and the config.json of a Hugging Face GPT-2 or Llama";

/// A larger file is not a config.py. Reading one takes a time that grows with the square of its length.
const MAX_PYTHON_BYTES: usize = 64 << 10;

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

/// Translates `text`, the content of the file `path`, whose ending names its format, to an experiment file in the folder `output`, from
/// which its relative paths start. Nothing in `text` is executed.
///
/// # Errors
/// If the file is not a configuration of a known trainer.
pub fn import_config(text: &str, path: &Path, output: &Path) -> Result<ImportedConfig, PlainError> {
    let wrong = |message: String| PlainError::request(format!("{}: {message}", path.display()));
    let source = Source::file(path, text.to_owned());
    let text = source.text.as_str();
    if text.trim().is_empty() {
        return Err(wrong(format!("the file is empty; {KNOWN_FILES}")));
    }
    let mut draft = ExperimentDraft::new(ImportFolders::new(path, output));
    let (trainer, settings) = match path.extension().and_then(|ending| ending.to_str()) {
        Some("py") if text.len() > MAX_PYTHON_BYTES => {
            let most = MAX_PYTHON_BYTES >> 10;
            let size = text.len().div_ceil(1 << 10);
            return Err(wrong(format!("a config.py of nanoGPT must be at most {most} KiB, got {size} KiB")));
        }
        Some("py") => {
            let settings = python::read_assignments(text);
            if !settings.has_known_name() {
                return Err(wrong(format!(
                    "found no setting of nanoGPT, such as `batch_size`, `n_layer`, `learning_rate` or `max_iters`; assign \
                     settings at the top level, not in a dict or a class; {KNOWN_FILES}"
                )));
            }
            (Trainer::NanoGpt, settings)
        }
        Some("json") => {
            let value = strict_json::parse(text.as_bytes()).map_err(|error| wrong(error.to_string()))?;
            let Value::Object(map) = value else {
                return Err(wrong("not the config.json of a Hugging Face model: it must be a JSON object".to_owned()));
            };
            hugging_face::translate_model(path, map, &mut draft)
                .map_err(|error| PlainError::request(error.to_string()))?;
            (Trainer::HuggingFace, Settings::default())
        }
        Some("yaml" | "yml") => {
            let value: Value = document::from_str(text).map_err(|error| wrong(error.to_string()))?;
            let has = |key: &str| value.get(key).is_some();
            let trainer = trainer_of_yaml(has).ok_or_else(|| {
                wrong(if ["model", "data"].into_iter().all(|section| value[section].is_object()) {
                    format!("this is already an experiment file; `runner validate {}` checks it", path.display())
                } else {
                    format!("not a configuration of litgpt or axolotl; {KNOWN_FILES}")
                })
            })?;
            (trainer, Settings::flatten(&value))
        }
        _ => {
            return Err(wrong(format!(
                "unknown format: the name must end in .py, .yaml, .yml or .json; {KNOWN_FILES}"
            )));
        }
    };
    translate::translate(trainer, path, settings, &mut draft);
    let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let title = match trainer {
        Trainer::NanoGpt => {
            format!(
                "Imported from nanoGPT's {file}. Settings that it leaves out have the defaults of nanoGPT's train.py and are marked."
            )
        }
        _ => format!("Imported from {}'s {file}.", trainer.name()),
    };
    Ok(ImportedConfig { text: draft.render(&title), warnings: draft.warnings })
}

/// The trainer whose configuration a YAML file with the keys for which `has` is true is.
fn trainer_of_yaml(has: impl Fn(&str) -> bool) -> Option<Trainer> {
    if has("base_model") || has("sequence_len") {
        return Some(Trainer::Axolotl);
    }
    let is_litgpt = ["model_name", "model_config", "initial_checkpoint_dir", "checkpoint_dir"].into_iter().any(has);
    is_litgpt.then_some(Trainer::Litgpt)
}

/// The trainer whose configuration the file `path` with the content `root` is, unless it looks like an experiment.
pub(crate) fn foreign_trainer(path: &Path, root: Option<&Node>) -> Option<&'static str> {
    let has = |key: &str| root.is_some_and(|root| root.get(key).is_some());
    let trainer = match path.extension().and_then(|ending| ending.to_str()) {
        Some("py") => Some(Trainer::NanoGpt),
        Some("json") => has("model_type").then_some(Trainer::HuggingFace),
        _ if has("model") && has("data") => None,
        _ => trainer_of_yaml(has),
    };
    trainer.map(Trainer::name)
}

#[cfg(test)]
mod tests;
