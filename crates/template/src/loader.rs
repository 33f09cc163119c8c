//! The files of one template: the template itself, and what it includes or imports, from two folders and nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::{Error, ErrorKind};

use super::builtins::FUNCTIONS;
use super::limits::{MAX_FILE_BYTES, error_detail, invalid_operation};
use super::rewrite::undeclared_variables;
use super::tags::{Tags, find_tags};
use runner_files::open_regular;
use runner_spec::diagnostic::{Diagnostic, TemplatePlace, short};
use runner_yaml::source::{Place, Source, nth_line, place_of_range, read_limited};

/// A file of a template that was read.
#[derive(Debug)]
pub struct TemplateFile {
    /// The name that templates use for it.
    pub(super) name: String,
    pub path: PathBuf,
    pub text: String,
    pub(super) tags: Tags,
    /// Variables that it does not set itself.
    pub(super) undeclared: Vec<String>,
}

impl TemplateFile {
    pub(super) fn source(&self) -> Source {
        Source::template(&self.path, self.text.clone())
    }
}

/// A range of a template.
#[derive(Debug, Clone)]
pub(super) struct FileRange {
    pub file: Arc<TemplateFile>,
    pub range: Range<usize>,
}

impl FileRange {
    pub(super) fn code(&self) -> &str {
        self.file.text.get(self.range.clone()).unwrap_or("")
    }

    pub(super) fn place(&self) -> Place {
        place_of_range(&self.file.text, &self.range)
    }

    pub(super) fn template_place(&self) -> TemplatePlace {
        let Place { line, column, length } = self.place();
        TemplatePlace {
            file: self.file.path.clone(),
            line,
            column,
            length,
            source_line: nth_line(&self.file.text, line),
        }
    }

    pub(super) fn diagnostic(&self, message: String, help: String) -> Diagnostic {
        self.file.source().diagnostic(self.place(), "", message, help)
    }
}

/// The content of each file when it was first needed.
#[derive(Debug)]
pub(super) struct TemplateFiles {
    folders: Vec<PathBuf>,
    environment: BTreeMap<String, String>,
    read: Mutex<Vec<Arc<TemplateFile>>>,
    /// A mistake in a file itself, at its place.
    pub mistake: Mutex<Option<Diagnostic>>,
    env_read: Mutex<BTreeMap<String, String>>,
}

impl TemplateFiles {
    /// `folders` are searched for includes, in this order. `environment` has the variables that `env()` may find.
    pub(super) fn new(folders: Vec<PathBuf>, environment: BTreeMap<String, String>) -> Self {
        Self { folders, environment, read: Mutex::default(), mistake: Mutex::default(), env_read: Mutex::default() }
    }

    /// Adds `text` as the file `name`.
    ///
    /// # Errors
    /// A text that is not a template.
    pub(super) fn add(&self, name: &str, path: &Path, text: String) -> Result<Arc<TemplateFile>, Box<Diagnostic>> {
        let source = Source::template(path, text);
        let text = source.text.clone();
        if text.len() as u64 > MAX_FILE_BYTES {
            let message =
                format!("a template must be at most {} kB, got {} kB", MAX_FILE_BYTES >> 10, text.len() >> 10);
            return Err(Box::new(source.diagnostic_whole(message, "name data by its path, under `data`".to_owned())));
        }
        let tags = find_tags(&text);
        let undeclared =
            undeclared_variables(name, &text, &tags).map_err(|error| Box::new(syntax_error(&error, &source)))?;
        let undeclared = undeclared.into_iter().filter(|name| !FUNCTIONS.contains(&name.as_str())).collect();
        let file = Arc::new(TemplateFile { name: name.to_owned(), path: path.to_owned(), text, tags, undeclared });
        lock(&self.read).push(file.clone());
        Ok(file)
    }

    /// All files that were read, in the order in which they were needed.
    pub(super) fn all(&self) -> Vec<Arc<TemplateFile>> {
        lock(&self.read).clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<TemplateFile>> {
        lock(&self.read).iter().find(|file| file.name == name).cloned()
    }

    /// The file that a template calls `name`; `None` if there is none.
    ///
    /// # Errors
    /// A name outside the folders; a file that cannot be read or is not a template.
    pub(super) fn load(&self, name: &str) -> Result<Option<Arc<TemplateFile>>, Error> {
        if let Some(file) = self.find(name) {
            return Ok(Some(file));
        }
        let wrong = |problem: &str| invalid_operation(format!("`{}` {problem}", short(name)));
        if name.is_empty() || !Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            let help = "include files of the template's folder or of templates/, by their paths from there";
            return Err(wrong(&format!("is not the name of a file in the folder\n{help}")));
        }
        let mut paths = self.folders.iter().map(|folder| folder.join(name));
        let Some(path) = paths.find(|path| path.exists()) else { return Ok(None) };
        let unreadable = |e: std::io::Error| wrong(&format!("cannot be read: {e}"));
        let bytes = open_regular(&path).and_then(|file| read_limited(file, MAX_FILE_BYTES)).map_err(unreadable)?;
        let text = String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8"))?;
        self.add(name, &path, text).map(Some).map_err(|mistake| {
            *lock(&self.mistake) = Some(*mistake);
            Error::new(ErrorKind::SyntaxError, "in an included file")
        })
    }

    /// Files that could have been meant by the name `missing`: those next to it with its extension.
    pub(super) fn names(&self, missing: &str) -> Vec<String> {
        let missing = Path::new(missing);
        let next_to = missing.parent().unwrap_or(Path::new(""));
        let folders = self.folders.iter().map(|folder| Path::new(".").join(folder).join(next_to));
        let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
        let alike = names.filter(|name| Path::new(name).extension() == missing.extension());
        alike.filter_map(|name| next_to.join(name).into_os_string().into_string().ok()).collect()
    }

    /// The environment variable `name`; remembers that it was read.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        let value = self.environment.get(name)?.clone();
        lock(&self.env_read).insert(name.to_owned(), value.clone());
        Some(value)
    }

    pub(super) fn env_read(&self) -> Vec<(String, String)> {
        lock(&self.env_read).clone().into_iter().collect()
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A mistake of syntax in `source`.
fn syntax_error(error: &Error, source: &Source) -> Diagnostic {
    let detail = error_detail(error);
    let message = format!("invalid template: {detail}");
    let Some(range) = error.range() else {
        return match error.line() {
            Some(line) => source.diagnostic(Place { line, column: 1, length: 1 }, "", message, String::new()),
            None => source.diagnostic_whole(message, String::new()),
        };
    };
    // A part that is missing at the end is reported after the last character.
    let end = source.text.trim_end().len();
    let range = if range.start >= end { end..end + 1 } else { range };
    let help = if detail.contains("end of input") || detail.contains("unexpected end") {
        "a `{{`, `{%` or `{#` is not closed, or an `{% end… %}` is missing"
    } else if detail.contains("unknown") {
        "statements are if, for, set, macro, include, import, from, call, with, filter, raw and their ends"
    } else {
        ""
    };
    source.diagnostic(place_of_range(&source.text, &range), "", message, help.to_owned())
}
