//! Tasks of multiple choice: the items, and the fields of a file that hold them.

use std::borrow::Cow;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::source::Corpus;
use crate::hub_name::HUB_DEFAULT_BRANCH;
use crate::serde_defaults::{defaults, or_text};

/// The name of the task of `eval.hellaswag`. All others are in `eval.tasks`.
pub const HELLASWAG: &str = "hellaswag";

/// The source of the file for `eval.hellaswag.file`, for messages about a missing one.
pub const HELLASWAG_FILE_ADVICE: &str = "HellaSwag's validation set is `hub: Rowan/hellaswag`, or the file data/hellaswag_val.jsonl of github.com/rowanz/hellaswag";

/// A task of multiple choice: one of `file`, `builtin` and `hub` has its items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("x-exclusive" = ["file", "builtin", "hub"]))]
pub struct Task {
    /// Path of a JSONL or parquet file.
    pub file: Option<PathBuf>,
    /// The multiple-choice set of a built-in corpus.
    pub builtin: Option<Corpus>,
    /// A dataset of the Hugging Face hub, such as `Rowan/hellaswag`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub hub: Option<HubChoice>,
    /// At most this many items, from the start. Default: all.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub limit: Option<usize>,
    /// Optimizer steps between scores; one always follows the last step. Default: `eval.every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000u64))]
    pub every: Option<u64>,
    /// The text of an item. `raw`: the fields as they are, as in build-nanogpt. `lm_eval`: the context is made of `activity_label`,
    /// `ctx_a` and `ctx_b`, and marks in brackets are removed, as in lm-eval's task `hellaswag`.
    pub text: ChoiceText,
    /// The field with the text before the answer, or a template such as `"Question: {{ question }}"`. A point leads into a field:
    /// `question.stem`. Default: `ctx`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub context: Option<String>,
    /// The field with the list of answers, or the fields with one answer each. Default: `[endings]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, length(min = 1))]
    pub choices: Option<Vec<String>>,
    /// The field with the right answer: its number, from 0, or its label. Default: `label`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub answer: Option<String>,
    /// The field with the list of the answers' labels, or the labels themselves, such as `[A, B, C, D]`. Default: answers have numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, length(min = 1))]
    pub labels: Option<Vec<String>>,
}

/// The key of the task `name` in a file.
#[must_use]
pub fn task_key(name: &str) -> Cow<'static, str> {
    if name == HELLASWAG { "eval.hellaswag".into() } else { format!("eval.tasks.{name}").into() }
}

/// Where to get the file of the key `key` if it is missing, where that is known.
#[must_use]
pub fn advice_for_file(key: &str) -> Option<&'static str> {
    key.starts_with(&*task_key(HELLASWAG)).then_some(HELLASWAG_FILE_ADVICE)
}

/// How the text of an item is prepared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ChoiceText {
    #[default]
    Raw,
    LmEval,
}

impl ChoiceText {
    /// Its name in files and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// A multiple-choice dataset of the hub by its name. The name alone is enough: `hub: Rowan/hellaswag`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-short" = "dataset"), transform = or_text)]
pub struct HubChoice {
    /// Its name, such as `Rowan/hellaswag`.
    pub dataset: String,
    /// The configuration to read. Default: the dataset's own default, or its only one.
    #[serde(default)]
    pub config: Option<String>,
    /// The split to read. Default: validation.
    #[serde(default = "validation_split")]
    pub split: String,
    /// Branch, tag or commit. Default: main. In the record of a run it is the commit that was read.
    #[serde(default = "default_branch")]
    pub revision: String,
}

defaults! {
    validation_split: String = "validation".to_owned();
    default_branch: String = HUB_DEFAULT_BRANCH.to_owned();
}

impl HubChoice {
    /// The validation split of `dataset` at `revision`.
    #[must_use]
    pub fn new(dataset: String, revision: String) -> Self {
        Self { dataset, config: None, split: validation_split(), revision }
    }
}
