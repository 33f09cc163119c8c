//! Errors of minijinja as diagnostics: at their place in the right file, in the words of templates.

use std::fmt::Write as _;
use std::ops::Range;

use minijinja::{Error, ErrorKind};

use super::builtins;
use super::limits::{EXPERIMENT_TEXT, MAX_FUEL, error_detail, is_own};
use super::loader::{FileRange, TemplateFile, TemplateFiles, lock};
use runner_spec::diagnostic::{Diagnostic, list, nearest, short};

/// A rendering that failed.
pub(super) struct FailedRendering<'a> {
    pub files: &'a TemplateFiles,
    pub main: &'a TemplateFile,
    /// The names of the variables that were given.
    pub given: Vec<String>,
}

impl FailedRendering<'_> {
    /// The diagnostic for `error`: the innermost mistake, and the includes that led to it.
    pub(super) fn diagnostic(&self, error: &Error) -> Diagnostic {
        let mistake = lock(&self.files.mistake).take();
        let mut outer = Vec::new();
        let mut inner = error;
        while let Some(source) = std::error::Error::source(inner).and_then(|e| e.downcast_ref::<Error>())
            && source.name().is_some()
        {
            outer.push(inner);
            inner = source;
        }
        if mistake.is_some() {
            outer.push(inner);
        }
        let mut found = mistake.unwrap_or_else(|| self.innermost(inner));
        for site in outer.iter().rev().filter_map(|error| self.find_code(error)) {
            let (file, place) = (site.file.path.display(), site.place());
            if !found.help.is_empty() {
                found.help.push('\n');
            }
            let _ = write!(found.help, "included at {file}:{}:{}", place.line, place.column);
        }
        found
    }

    /// The code that `error` is about.
    fn find_code(&self, error: &Error) -> Option<FileRange> {
        Some(FileRange { file: self.files.find(error.name()?)?, range: error.range()? })
    }

    fn innermost(&self, error: &Error) -> Diagnostic {
        let Some(site) = self.find_code(error) else {
            let (message, help) = self.describe(error, "");
            return self.main.source().diagnostic_whole(message, help);
        };
        if let Some(diagnostic) = self.undefined_variable(error, &site) {
            return diagnostic;
        }
        let (message, help) = self.describe(error, site.code());
        let culprit = match error.kind() {
            ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
                quoted_name(error).and_then(|name| find_name(site.code(), &name))
            }
            _ => None,
        };
        let start = site.range.start;
        let range = culprit.map_or(site.range.clone(), |culprit| start + culprit.start..start + culprit.end);
        FileRange { range, ..site }.diagnostic(message, help)
    }

    /// The diagnostic for a variable that is not defined, if that is what is wrong.
    fn undefined_variable(&self, error: &Error, site: &FileRange) -> Option<Diagnostic> {
        let is_undefined = error.kind() == ErrorKind::UndefinedError;
        let may_be = error.detail().is_some_and(|d| d.contains("undefined") || d.contains("is unknown"));
        let is_other = is_own(error)
            || [ErrorKind::UnknownFilter, ErrorKind::UnknownTest, ErrorKind::UnknownFunction].contains(&error.kind());
        if is_other || !(is_undefined || may_be) {
            return None;
        }
        let TemplateFile { text, tags, undeclared, .. } = &*site.file;
        let tag = tags.tags.iter().find(|tag| tag.range.contains(&site.range.start))?;
        // An argument that a call leaves out is undefined, too, although its macro declares it.
        let is_undefined_name =
            |name: &&String| *name == site.code() || (undeclared.contains(name) && !self.given.contains(name));
        // The error of a filter is at the filter, after the value that it is applied to.
        let start = tag.range.start;
        let code = text.get(start..site.range.end)?;
        let found = tag.read.iter().filter(is_undefined_name).filter_map(|name| Some((name, find_name(code, name)?)));
        let Some((name, range)) = found.max_by_key(|(_, range)| range.start) else {
            let help = "test it with `is defined`, or give a value with `| default(…)`";
            let message = format!("`{}` is not defined", short(site.code()));
            return is_undefined.then(|| site.diagnostic(message, help.to_owned()));
        };
        let declared = tags.tags.iter().flat_map(|tag| tag.assigned.iter().chain(&tag.read));
        let declared = declared.filter(|name| !undeclared.contains(name));
        let others = declared.chain(&self.given).map(String::as_str).filter(|other| other != name);
        let mut help = nearest(name, others).map_or_else(String::new, |near| format!("did you mean `{near}`?\n"));
        if self.given.contains(name) {
            help.push_str("the variable is set, but here the name is an argument that the call leaves out");
        } else {
            let _ = write!(help, "give it with `--var {name}=VALUE`, or a default: `{name} | default(…)`");
        }
        let found = FileRange { file: site.file.clone(), range: start + range.start..start + range.end };
        Some(found.diagnostic(format!("`{name}` is not defined"), help))
    }

    /// The message and the help for `error`, whose place has this `code`.
    fn describe(&self, error: &Error, code: &str) -> (String, String) {
        let unknown = |kind: &str, names: Vec<&str>| {
            let name = quoted_name(error).unwrap_or_else(|| code.to_owned());
            let help = match nearest(&name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("available: {}", list(&names, "and")),
            };
            (format!("unknown {kind} `{}`", short(&name)), help)
        };
        let text = error_detail(error);
        match error.kind() {
            ErrorKind::UnknownFilter => unknown("filter", builtins::FILTERS.split_ascii_whitespace().collect()),
            ErrorKind::UnknownTest => unknown("test", builtins::TESTS.split_ascii_whitespace().collect()),
            ErrorKind::UnknownFunction => unknown("function or macro", builtins::FUNCTIONS.to_vec()),
            ErrorKind::OutOfFuel => (
                format!("the template was stopped after {MAX_FUEL} instructions"),
                "check how often its loops run".to_owned(),
            ),
            ErrorKind::WriteFailure => (text, format!("an experiment has at most {} MB", EXPERIMENT_TEXT >> 20)),
            ErrorKind::TemplateNotFound => {
                let name = quoted_name(error).unwrap_or_default();
                let names = self.files.names(&name);
                let help = "files must be in the template's folder or in templates/";
                let help = match nearest(&name, names.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?\n{help}"),
                    None => help.to_owned(),
                };
                (format!("there is no file `{}`", short(&name)), help)
            }
            ErrorKind::UndefinedError => ("a value is not defined".to_owned(), String::new()),
            _ if !is_own(error) && text.contains("recursion limit") => {
                ("macros or includes call each other endlessly".to_owned(), String::new())
            }
            _ => {
                let (message, help) = text.split_once('\n').unwrap_or((&text, ""));
                (message.to_owned(), help.to_owned())
            }
        }
    }
}

/// The name in an error's detail: in quotes, or before `is unknown`.
fn quoted_name(error: &Error) -> Option<String> {
    let detail = error.detail()?;
    if let Some((_, rest)) = detail.split_once('"') {
        let (mut name, mut rest) = (String::new(), rest.chars());
        // Quotes and backslashes within the name have a backslash before them.
        while let Some(c) = rest.next().filter(|c| *c != '"') {
            name.extend(if c == '\\' { rest.next() } else { Some(c) });
        }
        return Some(name);
    }
    let before = detail.split(" is unknown").next().filter(|b| b.len() < detail.len())?;
    before.rsplit(' ').next().map(str::to_owned)
}

/// The range of the variable `name` in `text`.
fn find_name(text: &str, name: &str) -> Option<Range<usize>> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name).map(|(i, _)| i..i + name.len()).find(|r| {
        !text[..r.start].ends_with(part) && !text[..r.start].ends_with('.') && !text[r.end..].starts_with(part)
    })
}
