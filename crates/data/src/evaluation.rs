//! Data to evaluate a model on that needs no experiment: text, and multiple-choice items.

use std::cell::RefCell;
use std::fs::File;
use std::path::Path;

use super::prepare::{Preparation, Prepared, padding_tokens};
use crate::cache::DataCache;
use crate::error::{DataError, Result};
use crate::model_tokenizer::ModelTokenizer;
use crate::progress::Progress;
use crate::shared_files::describe_repeated_files;
use crate::split::Split;
use crate::split_name::SplitName;
use runner_spec::data::{DataPart, NO_SEPARATOR_WARNING, SplitFacts, TaskItems};
use runner_spec::experiment::{Layout, Source, Task};

/// The data to evaluate a model on.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationRequest<'a> {
    pub tokenizer: &'a ModelTokenizer,
    /// Text, which is cut into rows of `layout`, as validation data is.
    pub text: Option<&'a Source>,
    pub layout: &'a Layout,
    /// The tasks, by their names, with files on this machine.
    pub tasks: &'a [(String, Task)],
    /// The folder of tokens, created if necessary.
    pub cache_dir: &'a Path,
    /// Tokens of the model. Ids beyond them are an error.
    pub vocab_size: usize,
}

/// Prepared data of an evaluation.
#[derive(Debug, Default)]
pub struct EvaluationData {
    /// The rows whose loss is measured.
    pub rows: Option<Split>,
    /// The items of each task.
    pub tasks: TaskItems,
    /// A warning about the documents that the rows clip.
    pub clipped: Option<String>,
    /// Warnings about the text.
    pub warnings: Vec<String>,
    /// The locks that keep the rows in the cache.
    #[expect(dead_code, reason = "it is only held")]
    cache_locks: Vec<File>,
}

impl From<Prepared> for EvaluationData {
    /// The validation split and the items of a run.
    fn from(prepared: Prepared) -> Self {
        let rows = prepared.dataset.validation;
        let split = rows.as_ref().zip(prepared.facts.validation.as_ref());
        Self {
            clipped: split.and_then(|(rows, SplitFacts { documents, tokens, clipped, .. })| {
                clipped.note(DataPart::Validation.name(), rows.length(), *documents, *tokens)
            }),
            rows,
            tasks: prepared.tasks,
            warnings: Vec::new(),
            cache_locks: prepared.cache_locks,
        }
    }
}

/// Tokenizes the text of `request` unless the cache has its tokens, and encodes its items. Works in the current rayon pool.
///
/// # Errors
/// If the files cannot be read, the tokenizer does not know their text or knows ids alone, or the text is too short for a row.
pub fn prepare_evaluation(
    request: &EvaluationRequest<'_>,
    progress: &(dyn Fn(Progress) + Sync),
) -> Result<EvaluationData> {
    let tokenizer = &request.tokenizer.text;
    if !tokenizer.knows_text() && (request.text.is_some() || !request.tasks.is_empty()) {
        return Err(DataError::setting(
            "tokenizer",
            "the tokenizer of the model is unknown, so text cannot be turned into tokens; name it",
        ));
    }
    let cache = DataCache::open(request.cache_dir)?;
    let vocab_size = Some(request.vocab_size);
    let preparation = Preparation {
        layout: request.layout,
        fraction: None,
        vocab_size,
        text_name: Some("the text"),
        cache,
        report: progress,
        origins: RefCell::default(),
        warnings: RefCell::default(),
    };
    let rows = |source: &Source| -> Result<_> {
        let source = preparation.locate(source, SplitName::Validation)?;
        let padding = padding_tokens(request.layout, tokenizer)?;
        let tokens = preparation.load_tokens(&source, tokenizer)?;
        let range = 0..tokens.units(padding);
        let (split, _) = preparation.cut_split(&tokens, tokenizer, padding, &range, source.split.key())?;
        let (documents, length) = (tokens.documents, split.length());
        let clipped = split.clipped()?.note("the text", length, documents, tokens.stream.count());
        let mut warnings = preparation.warnings.borrow_mut();
        warnings.extend(describe_repeated_files(&source));
        warnings.extend(tokenizer.joins_documents(request.layout, documents).then(|| NO_SEPARATOR_WARNING.to_owned()));
        Ok((split, (preparation.cache.take_locks(&source.hash), clipped)))
    };
    let (rows, taken) = request.text.map(rows).transpose()?.unzip();
    let (cache_locks, clipped) = taken.unwrap_or_default();
    let (tasks, _) = preparation.load_tasks(request.tasks, request.tokenizer)?;
    Ok(EvaluationData { rows, tasks, clipped, warnings: preparation.warnings.take(), cache_locks })
}
