//! Finds the files of an experiment's source, and hashes their content.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::text_selector::TextSelector;
use crate::cache::DataCache;
use crate::error::{DataError, Result};
use crate::fingerprint::SourceFile;
use crate::hashing::hash_parts;
use crate::hub::{HubSplit, Report as DownloadReport};
use crate::progress::{Progress, Report};
use crate::split_name::SplitName;
use crate::stories;
use runner_files::{matching_paths, special_file_kind};
use runner_spec::error::{ErrorKind, PlainError};
use runner_spec::experiment::{Content, RecordFormat, Source, TokenType};
use runner_spec::format::quoted_line;
use runner_spec::safe_text::is_plain_line;

/// The format of a source's files, and with it what a document is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DocumentFormat {
    /// Each file is a document.
    Text,
    /// Each record has a document.
    Records(RecordFormat, TextSelector),
    /// Token shards, which hold no text, with the type of a token in files without a header.
    Tokens(Option<TokenType>),
}

impl DocumentFormat {
    pub(crate) fn is_tokens(&self) -> bool {
        matches!(self, Self::Tokens(_))
    }
}

/// A source whose files are known.
#[derive(Debug, Clone)]
pub(crate) struct LocatedSource {
    pub split: SplitName,
    pub documents: DocumentFormat,
    pub files: Vec<SourceFile>,
    /// Content hash over the format, the column or template, and the content of the files. File names do not count.
    pub hash: String,
    /// The files on the hub, which are downloaded when they are read; `None` for files of this machine.
    pub hub: Option<Arc<HubSplit>>,
}

impl LocatedSource {
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// True if the source is a single text.
    pub(crate) fn is_single_text(&self) -> bool {
        self.documents == DocumentFormat::Text && self.files.len() == 1
    }

    /// The path of the file `index`, which may have to be downloaded first.
    ///
    /// # Errors
    /// If it is on the hub, and cannot be downloaded.
    pub(crate) fn path(&self, index: usize, report: &DownloadReport<'_>) -> Result<PathBuf> {
        match &self.hub {
            Some(split) => Ok(split.path(index, report)?),
            None => Ok(self.files[index].path.clone()),
        }
    }

    /// Checks every file of the source. Those of the hub were checked when they were downloaded.
    ///
    /// # Errors
    /// If a file has changed since it was hashed.
    pub(crate) fn check_unchanged(&self) -> Result<()> {
        if self.hub.is_some() {
            return Ok(());
        }
        self.files.iter().try_for_each(SourceFile::check_unchanged)
    }
}

/// Finds and hashes the files of `source`.
///
/// # Errors
/// If a pattern matches no file, a template is wrong, or a file cannot be read.
pub(crate) fn locate(
    source: &Source,
    split: SplitName,
    cache: &DataCache,
    report: &Report<'_>,
) -> Result<LocatedSource> {
    if let Content::Builtin(_) = source.content() {
        let file = stories::open_or_write_corpus(cache, report)?.source(split);
        return locate(&file, split, cache, report);
    }
    let documents = document_format(source, split)?;
    let paths = expand_patterns(source.files(), split.key())?;
    let bytes_total = paths.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
    let bytes_done = Cell::new(0);
    let progress = |bytes| {
        bytes_done.set(bytes_done.get() + bytes);
        report(Progress::Hashing { split, bytes_done: bytes_done.get(), bytes_total });
    };
    let identify = |path: &PathBuf| SourceFile::identify(path, cache, &progress);
    let files = paths.iter().map(identify).collect::<Result<Vec<_>, _>>()?;
    let hash = source_hash(&documents, &files);
    Ok(LocatedSource { split, documents, files, hash, hub: None })
}

/// Describes the files of a split on the hub. They are downloaded when they are read, and the hub's names of their contents take the
/// place of hashes.
///
/// # Errors
/// If a template is wrong.
pub(crate) fn locate_on_hub(opened: HubSplit, split: SplitName) -> Result<LocatedSource> {
    let documents = document_format(&opened.local_source(Vec::new()), split)?;
    let files: Vec<SourceFile> =
        opened.files.iter().map(|file| SourceFile::listed(&file.path, file.size, &file.etag)).collect();
    let hash = source_hash(&documents, &files);
    Ok(LocatedSource { split, documents, files, hash, hub: Some(Arc::new(opened)) })
}

fn source_hash(documents: &DocumentFormat, files: &[SourceFile]) -> String {
    let (format, selected) = match documents {
        DocumentFormat::Text => ("text".to_owned(), ""),
        DocumentFormat::Records(format, text) => {
            let (suffix, selected) = text.identity();
            (format!("{}{suffix}", format.identity()), selected)
        }
        // The default is left out, so that naming it changes nothing.
        DocumentFormat::Tokens(kind) => {
            ("tokens".to_owned(), kind.filter(|kind| *kind != TokenType::Uint16).map_or("", TokenType::name))
        }
    };
    hash_parts([format.as_str(), selected].into_iter().chain(files.iter().map(|file| file.hash.as_str())))
}

/// The format of `source`, whose files are known.
fn document_format(source: &Source, split: SplitName) -> Result<DocumentFormat> {
    match source.content() {
        Content::Text => Ok(DocumentFormat::Text),
        Content::Records { format, field, template } => match TextSelector::new(field, template) {
            Ok(text) => Ok(DocumentFormat::Records(format, text)),
            Err(PlainError { kind, text }) => {
                let text = format!("the template of the source: {text}");
                Err(match kind {
                    ErrorKind::Failure => DataError::Threads(format!("{}: {text}", split.key())),
                    _ => DataError::setting(split.key(), text),
                })
            }
        },
        Content::Tokens(kind) => Ok(DocumentFormat::Tokens(kind)),
        Content::Builtin(_) | Content::Hub(_) => {
            Err(DataError::setting(split.key(), "the files of this source were not made or downloaded"))
        }
    }
}

/// The files that match `patterns`, pattern by pattern, for each pattern in alphabetical order. The path of an existing file stands for
/// that file, whatever characters it has.
fn expand_patterns(patterns: &[PathBuf], key: &'static str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for pattern in patterns {
        let found = if pattern.is_file() { vec![pattern.clone()] } else { files_matching(pattern, key)? };
        if found.is_empty()
            && let Some(kind) = special_file_kind(pattern)
        {
            let example = pattern.is_dir().then(|| format!(", such as {}", pattern.join("*").display()));
            return Err(DataError::file(pattern, format!("{kind}; {key} needs files{}", example.unwrap_or_default())));
        }
        if found.is_empty() {
            return Err(DataError::setting(key, format!("no file matches {}", pattern.display())));
        }
        files.extend(found);
    }
    if files.is_empty() {
        return Err(DataError::setting(key, "`files` names no file"));
    }
    Ok(files)
}

/// The number of files that match `patterns`; 0 if they are wrong.
pub(crate) fn count_files(patterns: &[PathBuf]) -> usize {
    expand_patterns(patterns, "").map_or(0, |files| files.len())
}

fn files_matching(pattern: &Path, key: &'static str) -> Result<Vec<PathBuf>> {
    let illegal = |message: &dyn std::fmt::Display| {
        DataError::setting(key, format!("invalid file pattern {}: {message}", pattern.display()))
    };
    let text = pattern.to_str().ok_or_else(|| illegal(&"not UTF-8"))?;
    let mut files = Vec::new();
    for path in matching_paths(text).map_err(|error| illegal(&error))? {
        let path = path.map_err(|error| DataError::Io { path: error.path().to_owned(), source: error.into() })?;
        if path.is_file() {
            // Names of files are shown, and whoever published a folder chose them.
            if !is_plain_line(&path.to_string_lossy()) {
                let name = quoted_line(&path.to_string_lossy());
                return Err(DataError::setting(
                    key,
                    format!("the name of the file {name:?} has control characters; rename it"),
                ));
            }
            files.push(path);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn patterns_expand_in_order_and_report_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "c[1].txt"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let names = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|p| dir.path().join(p)).collect();
            let strip = |p: PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
            expand_patterns(&patterns, "data.train").map(|files| files.into_iter().map(strip).collect::<Vec<_>>())
        };
        assert_eq!(names(&["*.txt"]).unwrap(), ["a.txt", "b.txt", "c[1].txt"]);
        assert_eq!(names(&["c[1].txt", "a*"]).unwrap(), ["c[1].txt", "a.txt"]);
        let message = |patterns: &[&str]| names(patterns).unwrap_err().to_string();
        assert!(message(&["*.md"]).starts_with("data.train: no file matches "), "{}", message(&["*.md"]));
        assert!(message(&["***"]).contains("invalid file pattern"), "{}", message(&["***"]));
        assert!(message(&["."]).contains("a folder"), "{}", message(&["."]));
        fs::write(dir.path().join("x\nerror: none.text"), "x").unwrap();
        assert!(
            message(&["*.text"]).contains("x error: none.text\" has control characters"),
            "{}",
            message(&["*.text"])
        );
        assert!(message(&[]).contains("names no file"));
    }
}
