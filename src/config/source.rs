//! A text that settings come from: the file, one environment variable, or one `--set`.

use std::path::Path;
use std::sync::Arc;

use super::diagnostic::Diagnostic;
use crate::template::Lines;

/// Where in a source something stands: line and column from 1, and how many characters it has in that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub line: usize,
    pub column: usize,
    pub length: usize,
}

/// The text itself, with the name it goes by.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// `dir/exp.yaml`, `RUNNER_SEED` or `--set`.
    pub label: String,
    pub text: String,
    /// Bytes at the start of `text` that are a name and `=`, before the YAML begins.
    pub skip: usize,
    pub kind: SourceKind,
    /// Of a rendered template: where its lines are from.
    pub lines: Option<Arc<Lines>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceKind {
    File,
    Environment,
    Set,
}

impl Source {
    pub(crate) fn file(path: &Path, text: String) -> Self {
        Self { label: path.display().to_string(), text, skip: 0, kind: SourceKind::File, lines: None }
    }

    /// `NAME=value`.
    pub(crate) fn environment(name: &str, value: &str) -> Self {
        let text = format!("{name}={value}");
        Self { label: name.to_owned(), text, skip: name.len() + 1, kind: SourceKind::Environment, lines: None }
    }

    /// `NAME=VALUE` of a template's variable, whose value begins at byte `skip`.
    pub(crate) fn var(text: &str, skip: usize) -> Self {
        Self { label: "--var".to_owned(), ..Self::set(text, skip) }
    }

    /// `key.path=value`, whose value begins at byte `skip`.
    pub(crate) fn set(text: &str, skip: usize) -> Self {
        Self { label: "--set".to_owned(), text: text.to_owned(), skip, kind: SourceKind::Set, lines: None }
    }

    /// The YAML in it.
    pub(crate) fn yaml(&self) -> &str {
        self.text.get(self.skip..).unwrap_or_default()
    }

    /// A place in the YAML, as a place in the text.
    pub(crate) fn place(&self, line: usize, column: usize, length: usize) -> Place {
        let before = if line == 1 { self.text.get(..self.skip).map_or(0, |s| s.chars().count()) } else { 0 };
        Place { line, column: column + before, length: length.max(1) }
    }

    /// How `runner validate --explain` names a value at `place`.
    pub(crate) fn origin(&self, place: Place) -> String {
        match self.kind {
            SourceKind::File => {
                match self.lines.as_ref().and_then(|l| l.locate(place.line, place.column, place.length)) {
                    Some(at) => format!("{}:{}:{}", at.file.display(), at.line, at.column),
                    None => format!("{}:{}:{}", self.label, place.line, place.column),
                }
            }
            SourceKind::Environment => self.label.clone(),
            SourceKind::Set => format!("--set {}", self.text),
        }
    }

    /// A mistake at `place`.
    pub(crate) fn diagnostic(&self, place: Place, key: &str, message: String, help: String) -> Diagnostic {
        Diagnostic {
            source: self.label.clone(),
            line: place.line,
            column: place.column,
            length: place.length.max(1),
            key: key.to_owned(),
            message,
            help,
            source_line: nth_line(&self.text, place.line).to_owned(),
            template: self
                .lines
                .as_ref()
                .and_then(|lines| lines.locate(place.line, place.column, place.length.max(1)))
                .map(Box::new),
        }
    }

    /// A mistake of the source as a whole.
    pub(crate) fn diagnostic_whole(&self, message: String, help: String) -> Diagnostic {
        Diagnostic {
            source: self.label.clone(),
            line: 0,
            column: 0,
            length: 0,
            key: String::new(),
            message,
            help,
            source_line: String::new(),
            template: None,
        }
    }
}

/// The lines of a text, broken where YAML breaks them: at LF, CR LF and CR.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

fn nth_line(text: &str, line: usize) -> &str {
    lines(text).nth(line.saturating_sub(1)).unwrap_or_default()
}
