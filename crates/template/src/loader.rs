//! The files of one template: the template itself, and what it includes or imports, from two folders and nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use minijinja::{Error, ErrorKind};

use super::builtins::FUNCTIONS;
use super::limits::{error_detail, invalid_operation};
use super::rewrite::{Rewritten, undeclared_variables};
use super::tags::{Tags, find_tags, listed_env};
use runner_files::open_regular;
use runner_spec::diagnostic::{Diagnostic, TemplatePlace, short};
use runner_yaml::source::{Place, Source, nth_line, place_of_range, read_limited};

/// A larger file is not a template.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Files of one template.
const MAX_FILES: usize = 100;

/// A file of a template that was read.
#[derive(Debug)]
pub struct TemplateFile {
    /// The name that templates use for it.
    pub(super) name: String,
    pub path: PathBuf,
    pub text: String,
    pub(super) tags: Tags,
    /// The environment variables that it lists.
    pub(super) env: Vec<String>,
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
            return Err(Box::new(source.diagnostic_whole(
                format!(
                    "the template must be at most {} MB, got {:.1} MB",
                    MAX_FILE_BYTES >> 20,
                    text.len() as f64 / 1e6
                ),
                "name data by its path, under `data`".to_owned(),
            )));
        }
        let tags = find_tags(&text).map_err(|limit| {
            let place = place_of_range(&text, &limit.range);
            Box::new(source.diagnostic(place, "", limit.message, limit.help.to_owned()))
        })?;
        let undeclared = undeclared_variables(name, &text, &tags)
            .map_err(|(error, rewritten)| Box::new(syntax_error(&error, &rewritten, &source)))?;
        let undeclared = undeclared.into_iter().filter(|name| !FUNCTIONS.contains(&name.as_str())).collect();
        let env = listed_env(&text);
        let file = Arc::new(TemplateFile { name: name.to_owned(), path: path.to_owned(), text, tags, env, undeclared });
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
        let bad_name = |problem: &str| {
            let help = "include files of the template's folder or of templates/, by their paths from there";
            wrong(&format!("{problem}\n{help}"))
        };
        if name.starts_with('/') {
            return Err(bad_name("is an absolute path"));
        }
        if name.split('/').any(|part| part == "..") {
            return Err(bad_name("is outside the folder"));
        }
        let strange = |part: &str| part.is_empty() || part == "." || part.contains(['\\', '\0']);
        if name.split('/').any(strange) {
            return Err(bad_name("is not the name of a file"));
        }
        for folder in &self.folders {
            let path = folder.join(name);
            let Ok(real) = path.canonicalize() else { continue };
            if !is_inside(folder, &real) {
                return Err(bad_name("is a link to a file outside the folder"));
            }
            let unreadable = |e: std::io::Error| wrong(&format!("cannot be read: {e}"));
            if self.all().len() >= MAX_FILES {
                return Err(invalid_operation(format!("more than {MAX_FILES} files")));
            }
            let bytes = open_regular(&real).and_then(|file| read_limited(file, MAX_FILE_BYTES)).map_err(unreadable)?;
            if bytes.len() as u64 > MAX_FILE_BYTES {
                return Err(wrong(&format!("is larger than {} MB", MAX_FILE_BYTES >> 20)));
            }
            let text = String::from_utf8(bytes).map_err(|_| wrong("is not UTF-8"))?;
            return self.add(name, &path, text).map(Some).map_err(|mistake| {
                *lock(&self.mistake) = Some(*mistake);
                Error::new(ErrorKind::SyntaxError, "in an included file")
            });
        }
        Ok(None)
    }

    /// Files that could have been meant by the name `missing`: those next to it with its extension.
    pub(super) fn names(&self, missing: &str) -> Vec<String> {
        let (next_to, extension) =
            (Path::new(missing).parent().unwrap_or(Path::new("")), Path::new(missing).extension());
        let open = |folder: &PathBuf| {
            let inner = folder_or_current(folder).join(next_to);
            inner.canonicalize().is_ok_and(|real| is_inside(folder, &real)).then(|| fs::read_dir(inner).ok())?
        };
        let names = self.folders.iter().filter_map(open).flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
        let alike = names.filter(|name| Path::new(name).extension() == extension).take(1000);
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

/// True if `real`, a canonical path, is in `folder`.
fn is_inside(folder: &Path, real: &Path) -> bool {
    folder_or_current(folder).canonicalize().is_ok_and(|folder| real.starts_with(folder))
}

/// The current folder for a file that is named without one.
fn folder_or_current(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// A mistake of syntax in `source`.
fn syntax_error(error: &Error, rewritten: &Rewritten, source: &Source) -> Diagnostic {
    let detail = error_detail(error);
    let message = format!("invalid template: {detail}");
    let Some(range) = error.range() else {
        return match error.line() {
            Some(line) => source.diagnostic(Place { line, column: 1, length: 1 }, "", message, String::new()),
            None => source.diagnostic_whole(message, String::new()),
        };
    };
    let range = rewritten.original_range(&range);
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
