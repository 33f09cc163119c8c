//! From a source of the experiment to the files it means, with their content hashes.

use std::path::{Path, PathBuf};

use super::text_of::TextOf;
use crate::cache::Cache;
use crate::error::DataError;
use crate::fingerprint::{SourceFile, hash_parts};
use crate::progress::SplitName;
use runner_spec::experiment::{Source, Validation};

/// Which setting of the experiment a source belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Train,
    Validation,
    Test,
}

impl Origin {
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Train => "data.train",
            Self::Validation => "data.validation",
            Self::Test => "eval.test",
        }
    }

    pub(crate) fn split(self) -> SplitName {
        match self {
            Self::Train => SplitName::Train,
            Self::Validation => SplitName::Validation,
            Self::Test => SplitName::Test,
        }
    }
}

/// How the documents lie in the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Documents {
    /// Each file is one document.
    Text,
    /// Each row's.
    Parquet { text: TextOf },
    /// Each line's.
    Jsonl { text: TextOf },
    /// Each item's of one array.
    Json { text: TextOf },
    /// Token shards: no text at all.
    Tokens,
}

/// A source whose files are known.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub origin: Origin,
    pub documents: Documents,
    pub files: Vec<SourceFile>,
    /// Content hash of the source: kind, column or template, and files, whatever their names.
    pub hash: String,
}

impl Located {
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// # Errors
    /// If a file is not the one that was hashed any more.
    pub(crate) fn check_unchanged(&self) -> Result<(), DataError> {
        self.files.iter().try_for_each(SourceFile::check_unchanged)
    }
}

/// Finds and hashes the files of `source`. `builtin` says which parquet file holds the built-in corpus for an origin.
pub(crate) fn locate(
    source: &Source,
    origin: Origin,
    cache: &Cache,
    builtin: &dyn Fn(Origin) -> Result<PathBuf, DataError>,
    progress: &dyn Fn(u64, u64),
) -> Result<Located, DataError> {
    let text_of = |field: &Option<String>, template: &Option<String>| {
        TextOf::new(field.as_deref(), template.as_deref())
            .map_err(|message| DataError::setting(origin.key(), format!("the template of the source: {message}")))
    };
    let (documents, patterns) = match source {
        Source::Text { files } => (Documents::Text, files.clone()),
        Source::Parquet(from) => {
            (Documents::Parquet { text: text_of(&from.column, &from.template)? }, from.files.clone())
        }
        Source::Jsonl(from) => (Documents::Jsonl { text: text_of(&from.field, &from.template)? }, from.files.clone()),
        Source::Json(from) => (Documents::Json { text: text_of(&from.field, &from.template)? }, from.files.clone()),
        Source::Tokens { files } => (Documents::Tokens, files.clone()),
        Source::Builtin { corpus: _ } => (Documents::Parquet { text: text_of(&None, &None)? }, vec![builtin(origin)?]),
        Source::Hub(_) => {
            return Err(DataError::setting(origin.key(), "on the hub: `hub::lower` finds its files first"));
        }
    };
    let paths = expand(&patterns, origin.key())?;
    let total = paths.iter().filter_map(|path| path.metadata().ok()).map(|meta| meta.len()).sum();
    let done = std::cell::Cell::new(0);
    let step = |bytes| {
        done.set(done.get() + bytes);
        progress(done.get(), total);
    };
    let files = paths.iter().map(|path| SourceFile::identify(path, cache, &step)).collect::<Result<Vec<_>, _>>()?;
    let (kind, text) = match &documents {
        Documents::Text => ("text", None),
        Documents::Parquet { text } => ("parquet", Some(text)),
        Documents::Jsonl { text } => ("jsonl", Some(text)),
        Documents::Json { text } => ("json", Some(text)),
        Documents::Tokens => ("tokens", None),
    };
    let (how, of) = text.map(TextOf::hashed).unwrap_or_default();
    let kind = [&format!("{kind}{how}"), of];
    let hash = hash_parts(kind.into_iter().chain(files.iter().map(|file| file.hash.as_str())));
    Ok(Located { origin, documents, files, hash })
}

/// `validation` as a source of its own; `None` for a fraction of the training source.
pub(crate) fn own_source(validation: &Validation) -> Option<Source> {
    match validation {
        Validation::Fraction(_) => None,
        Validation::Source(source) => Some(source.clone()),
    }
}

/// The files that the patterns mean, pattern by pattern, each pattern's in alphabetical order. A path that exists is
/// itself, whatever characters it has.
fn expand(patterns: &[PathBuf], key: &'static str) -> Result<Vec<PathBuf>, DataError> {
    let mut files = Vec::new();
    for pattern in patterns {
        if pattern.is_file() {
            files.push(pattern.clone());
            continue;
        }
        let before = files.len();
        files.extend(matches(pattern, key)?);
        if files.len() == before {
            return Err(if pattern.is_dir() {
                DataError::file(
                    pattern,
                    format!("a folder; {key} wants files, such as {}", pattern.join("*").display()),
                )
            } else {
                DataError::NoFile { key, path: pattern.clone() }
            });
        }
    }
    if files.is_empty() {
        return Err(DataError::setting(key, "`files` names no file"));
    }
    Ok(files)
}

fn matches(pattern: &Path, key: &'static str) -> Result<Vec<PathBuf>, DataError> {
    let illegal = |message: String| DataError::Pattern { key, path: pattern.to_owned(), message };
    let text = pattern.to_str().ok_or_else(|| illegal("not UTF-8".into()))?;
    let mut files = Vec::new();
    for path in glob::glob(text).map_err(|error| illegal(error.to_string()))? {
        let path = path.map_err(|error| DataError::Io { path: error.path().to_owned(), source: error.into() })?;
        if path.is_file() {
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
    fn patterns_expand_in_order_and_say_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.txt", "c[1].txt"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        let names = |patterns: &[&str]| {
            let patterns: Vec<_> = patterns.iter().map(|p| dir.path().join(p)).collect();
            let strip = |p: PathBuf| p.file_name().unwrap().to_string_lossy().into_owned();
            expand(&patterns, "data.train").map(|files| files.into_iter().map(strip).collect::<Vec<_>>())
        };
        assert_eq!(names(&["*.txt"]).unwrap(), ["a.txt", "b.txt", "c[1].txt"]);
        assert_eq!(names(&["c[1].txt", "a*"]).unwrap(), ["c[1].txt", "a.txt"]);
        let message = |patterns: &[&str]| names(patterns).unwrap_err().to_string();
        assert!(message(&["*.md"]).starts_with("data.train: no file matches "), "{}", message(&["*.md"]));
        assert!(message(&["***"]).contains("not a legal file pattern"), "{}", message(&["***"]));
        assert!(message(&["."]).contains("a folder"), "{}", message(&["."]));
        assert!(message(&[]).contains("names no file"));
    }
}
