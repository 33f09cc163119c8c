//! A text that settings come from: the file, one environment variable, or one `--set`.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use runner_files::{BYTE_ORDER_MARK, special_file_kind};
use runner_spec::diagnostic::{ConfigError, Diagnostic, TemplatePlace};
use runner_spec::error::ErrorKind;
use runner_spec::lookalikes::lookalike_advice;

use super::placeholder::placeholder_advice;

/// A place in a source: line and column from 1, and the number of characters in that line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub line: usize,
    pub column: usize,
    pub length: usize,
}

/// Finds the places of templates that a rendered text comes from.
pub trait TemplateLines: fmt::Debug + Send + Sync {
    /// The place of a template that a place in the rendered text comes from.
    fn locate(&self, line: usize, column: usize, length: usize) -> Option<TemplatePlace>;
}

/// The text itself, with the name it goes by.
#[derive(Debug, Clone)]
pub struct Source {
    /// `dir/exp.yaml`, `RUNNER_SEED` or `--set`.
    pub label: String,
    pub text: String,
    /// Bytes at the start of `text` that are a name and `=`, before the YAML begins.
    pub skip: usize,
    pub kind: SourceKind,
    /// For a rendered template, the templates that its lines come from.
    pub line_map: Option<Arc<dyn TemplateLines>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    File,
    /// A template, or the text that it renders to.
    Template,
    Environment,
    /// A flag, `--set` or `--var`.
    Set,
}

impl Source {
    fn new(label: String, text: String, skip: usize, kind: SourceKind) -> Self {
        Self { label, text, skip, kind, line_map: None }
    }

    /// The content of the file `path`, without the byte order mark that some editors write in front of UTF-8.
    pub fn file(path: &Path, mut text: String) -> Self {
        if text.starts_with(BYTE_ORDER_MARK) {
            text.drain(..BYTE_ORDER_MARK.len_utf8());
        }
        Self::new(path.display().to_string(), text, 0, SourceKind::File)
    }

    /// The content of the template `path`, or the text that it renders to.
    pub fn template(path: &Path, text: String) -> Self {
        Self { kind: SourceKind::Template, ..Self::file(path, text) }
    }

    /// `NAME=value`.
    pub fn environment(name: &str, value: &str) -> Self {
        Self::new(name.to_owned(), format!("{name}={value}"), name.len() + 1, SourceKind::Environment)
    }

    /// The text `NAME=VALUE` of `flag`, such as `--set`. The value begins at byte `skip`.
    pub fn flag(flag: &str, text: &str, skip: usize) -> Self {
        Self::new(flag.to_owned(), text.to_owned(), skip, SourceKind::Set)
    }

    /// The YAML in it.
    pub fn yaml(&self) -> &str {
        self.text.get(self.skip..).unwrap_or_default()
    }

    /// A place in the YAML, as a place in the text.
    pub fn place(&self, line: usize, column: usize, length: usize) -> Place {
        let before = if line == 1 { self.text.get(..self.skip).map_or(0, |s| s.chars().count()) } else { 0 };
        Place { line, column: column + before, length: length.max(1) }
    }

    /// The name of a value's `place` in `runner validate --explain`.
    pub fn origin(&self, place: Place) -> String {
        match self.kind {
            SourceKind::File | SourceKind::Template => match self.template_place(place) {
                Some(found) => format!("{}:{}:{}", found.file.display(), found.line, found.column),
                None => format!("{}:{}:{}", self.label, place.line, place.column),
            },
            SourceKind::Environment => self.label.clone(),
            SourceKind::Set => format!("--set {}", self.text),
        }
    }

    /// The place of a template that `place` comes from, if this is a rendered text.
    fn template_place(&self, place: Place) -> Option<TemplatePlace> {
        self.line_map.as_ref()?.locate(place.line, place.column, place.length.max(1))
    }

    /// A mistake at `place`.
    pub fn diagnostic(&self, place: Place, key: &str, message: String, help: String) -> Diagnostic {
        let source_line = nth_line(&self.text, place.line);
        let underlined: String = source_line.chars().skip(place.column.saturating_sub(1)).take(place.length).collect();
        // What is not seen, or is taken for something else, explains the mistake better than the rule does.
        let mut advice = self.advice(&underlined, key);
        advice.extend((!help.is_empty()).then_some(help));
        Diagnostic {
            source: self.label.clone(),
            line: place.line,
            column: place.column,
            length: place.length.max(1),
            key: key.to_owned(),
            message,
            help: advice.join("\n"),
            source_line,
            kind: ErrorKind::Request,
            template: self.template_place(place).map(Box::new),
        }
    }

    /// Advice on what `text` does not mean here, in a mistake about `key`.
    fn advice(&self, text: &str, key: &str) -> Vec<String> {
        let mut advice = lookalike_advice(text);
        // The template of a record is filled in for each record.
        if !key.ends_with(".template") {
            advice.extend(placeholder_advice(self, text));
        }
        advice
    }

    /// A mistake of the source as a whole.
    pub fn diagnostic_whole(&self, message: String, help: String) -> Diagnostic {
        let nowhere = Place { line: 0, column: 0, length: 0 };
        Diagnostic { length: 0, source_line: String::new(), ..self.diagnostic(nowhere, "", message, help) }
    }
}

/// The lines of a text, broken where YAML breaks them: at LF, CR LF and CR.
pub fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
}

/// Line `line` of `text`, from 1; empty if there is none.
pub fn nth_line(text: &str, line: usize) -> String {
    lines(text).nth(line.saturating_sub(1)).unwrap_or_default().to_owned()
}

/// Line, column and length of a range of `text`, as far as it lies in one line.
pub fn place_of_range(text: &str, range: &Range<usize>) -> Place {
    let start = range.start.min(text.len());
    let (mut number, mut begin, mut content) = (1, 0, "");
    for (i, line) in lines(text).enumerate() {
        let at = line.as_ptr() as usize - text.as_ptr() as usize;
        if at > start {
            break;
        }
        (number, begin, content) = (i + 1, at, line);
    }
    let chars = |from: usize, to: usize| text.get(from..to).map_or(0, |s| s.chars().count());
    let end = range.end.clamp(start, (begin + content.len()).max(start));
    Place { line: number, column: chars(begin, start) + 1, length: chars(start, end).max(1) }
}

/// A larger file is not an experiment.
const MAX_BYTES: u64 = 4 << 20;

/// The diagnostic for `source`, which has `bytes` bytes and so more than [`MAX_BYTES`].
fn too_large(source: &Source, bytes: u64) -> Diagnostic {
    let message = format!("the file must be at most {} MB, got {:.1} MB", MAX_BYTES >> 20, bytes as f64 / 1e6);
    source.diagnostic_whole(message, "name data by its path, under `data`".to_owned())
}

/// The text of the file `path`. If there is none, the error's help is `wanted`, which says what to name instead.
///
/// # Errors
/// A file that is not there, too large, or no text.
pub fn read(path: &Path, wanted: &str) -> Result<String, ConfigError> {
    let source = Source::file(path, String::new());
    let whole = |message: String, help: &str| ConfigError::from(source.diagnostic_whole(message, help.to_owned()));
    let unreadable = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => whole("there is no such file".into(), wanted),
        _ => whole(format!("cannot read the file: {e}"), ""),
    };
    if let Some(kind) = special_file_kind(path).filter(|_| path.is_dir() || !is_stream(path)) {
        return Err(whole(format!("this is {kind}, not a file"), wanted));
    }
    let file = File::open(path).map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    if meta.len() > MAX_BYTES {
        return Err(too_large(&source, meta.len()).into());
    }
    let bytes = read_limited(file, MAX_BYTES).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(too_large(&source, bytes.len() as u64).into());
    }
    String::from_utf8(bytes).map_err(|e| not_utf8(path, &e).into())
}

/// True if `path` names an open stream of this process: standard input, or the pipe of a shell's `<(command)`.
pub fn is_stream(path: &Path) -> bool {
    path == Path::new("/dev/stdin") || path.starts_with("/dev/fd") || path.starts_with("/proc/self/fd")
}

/// The bytes of `file`, at most one more than `limit`: a pipe or a file that grows has no length to trust.
pub fn read_limited(file: File, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn not_utf8(path: &Path, error: &std::string::FromUtf8Error) -> Diagnostic {
    let (bytes, at) = (error.as_bytes(), error.utf8_error().valid_up_to());
    let source = Source::file(path, String::from_utf8_lossy(bytes).into_owned());
    let place = place_of_range(&source.text, &(at..at));
    let help = match bytes {
        [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => "it looks like UTF-16; save it as UTF-8",
        _ => "save it as UTF-8",
    };
    let message = format!("the file is not UTF-8: byte 0x{:02X} at offset {at}", bytes.get(at).copied().unwrap_or(0));
    source.diagnostic(place, "", message, help.to_owned())
}
