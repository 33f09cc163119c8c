//! Mistakes in an experiment: what is wrong, where, and what is legal; and their text for a terminal.

use std::fmt::{self, Display, Write as _};

use std::path::PathBuf;

use unicode_width::UnicodeWidthStr as _;

use super::error::{Classified, ErrorKind};
use super::lookalikes::{code_point, is_unseen};
use super::safe_text::{is_plain_line, is_unsafe};

/// At most this many mistakes are collected; a file with more has one cause.
pub const MAX_DIAGNOSTICS: usize = 100;
/// A source line is shown up to this many characters.
const MAX_SHOWN: usize = 160;

/// One mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, the environment variable or the `--set` flag it is in.
    pub source: String,
    /// The line, from 1; 0 if there is no line to show.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// Characters that the caret underlines.
    pub length: usize,
    /// The key it is about, as `batch.micro_batch`; empty for the file as a whole.
    pub key: String,
    pub message: String,
    /// Advice on the mistake. It may be empty or have several lines.
    pub help: String,
    /// The line of the source, as given.
    pub source_line: String,
    /// `Request`, except where the machine failed while the file was read.
    pub kind: ErrorKind,
    /// The line of the template that a rendered line comes from.
    pub template: Option<Box<TemplatePlace>>,
}

/// A mistake in values that their schema allows, before its place in the file is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyMistake {
    /// The keys that contradict each other, or the one that is wrong.
    pub keys: Vec<String>,
    pub message: String,
    pub help: String,
}

impl KeyMistake {
    pub fn new(
        keys: impl IntoIterator<Item = impl Into<String>>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { keys: keys.into_iter().map(Into::into).collect(), message: message.into(), help: help.into() }
    }
}

/// A place in a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplatePlace {
    pub file: PathBuf,
    /// From 1, as in `Diagnostic`.
    pub line: usize,
    pub column: usize,
    pub length: usize,
    pub source_line: String,
}

/// All mistakes of an experiment, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    pub diagnostics: Vec<Diagnostic>,
}

impl ConfigError {
    pub fn new(mut diagnostics: Vec<Diagnostic>) -> Self {
        // Sources keep the order in which they were read. Within a source, mistakes are sorted by place; duplicates are removed.
        let mut sources: Vec<String> = Vec::new();
        for d in &diagnostics {
            if !sources.contains(&d.source) {
                sources.push(d.source.clone());
            }
        }
        let rank = |d: &Diagnostic| sources.iter().position(|s| *s == d.source);
        diagnostics.sort_by_key(|d| (rank(d), d.line, d.column));
        diagnostics.dedup();
        Self { diagnostics }
    }

    /// The whole report, with ANSI colours if asked for.
    pub fn render(&self, color: bool) -> String {
        let mut out = self.render_mistakes(color);
        let n = self.diagnostics.len();
        let count = match n {
            1 => "1 mistake".to_owned(),
            n if n >= MAX_DIAGNOSTICS => format!("the first {MAX_DIAGNOSTICS} mistakes"),
            n => format!("{n} mistakes"),
        };
        let _ = write!(out, "{count}; nothing was started");
        out
    }

    /// The mistakes as text for a person, with an empty line after each.
    #[must_use]
    pub fn render_mistakes(&self, color: bool) -> String {
        self.render_as("error", color)
    }

    /// The mistakes as [`Self::render_mistakes`] shows them, as warnings.
    #[must_use]
    pub fn render_warnings(&self, color: bool) -> String {
        self.render_as("warning", color)
    }

    fn render_as(&self, label: &str, color: bool) -> String {
        let mut out = String::new();
        for d in self.diagnostics.iter().take(MAX_DIAGNOSTICS) {
            d.render(&mut out, label, color);
            out.push('\n');
        }
        out
    }
}

impl From<Diagnostic> for ConfigError {
    fn from(mistake: Diagnostic) -> Self {
        Self::new(vec![mistake])
    }
}

impl Classified for ConfigError {
    fn kind(&self) -> ErrorKind {
        let has_failure = self.diagnostics.iter().any(|mistake| mistake.kind == ErrorKind::Failure);
        if has_failure { ErrorKind::Failure } else { ErrorKind::Request }
    }

    fn report(&self, color: bool) -> Option<String> {
        Some(self.render(color))
    }
}

impl Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for ConfigError {}

impl Diagnostic {
    fn render(&self, out: &mut String, label: &str, color: bool) {
        let label_color = if label == "warning" { "\x1b[1;33m" } else { "\x1b[1;31m" };
        let (accent, blue, bold, reset) =
            if color { (label_color, "\x1b[1;34m", "\x1b[1m", "\x1b[0m") } else { ("", "", "", "") };
        let _ = writeln!(out, "{accent}{label}{reset}{bold}: {}{reset}", printable_line(&self.message));
        let template = self.template.as_deref();
        let file =
            template.map_or_else(|| printable_line(&self.source), |t| printable_line(&t.file.display().to_string()));
        let (main_line, column) = template.map_or((self.line, self.column), |t| (t.line, t.column));
        let width = main_line.max(self.line).to_string().len();
        let pad = " ".repeat(if main_line == 0 { 1 } else { width });
        let place = if main_line == 0 { file } else { format!("{file}:{main_line}:{column}") };
        let _ = writeln!(out, "{pad}{blue}-->{reset} {place}");
        let show = |out: &mut String, line: usize, column: usize, length: usize, text: &str| {
            let (shown, lead, caret) = excerpt(text, column, length);
            let _ = writeln!(out, "{blue}{line:>width$} |{reset} {shown}");
            let _ = writeln!(out, "{pad} {blue}|{reset} {}{accent}{}{reset}", " ".repeat(lead), "^".repeat(caret));
        };
        if main_line > 0 {
            let _ = writeln!(out, "{pad} {blue}|{reset}");
        }
        if let Some(t) = template {
            show(out, t.line, t.column, t.length, &t.source_line);
            let _ = writeln!(out, "{pad} {blue}= rendered:{reset}");
        }
        if main_line > 0 {
            show(out, self.line, self.column, self.length, &self.source_line);
        }
        for (i, line) in self.help.lines().enumerate() {
            let line = printable_line(line);
            let _ = match i {
                0 => writeln!(out, "{pad} {blue}={reset} {bold}help:{reset} {line}"),
                _ => writeln!(out, "{pad}         {line}"),
            };
        }
    }
}

/// The line `text` as shown, and the columns before and under the caret. A long line is cut around the place.
fn excerpt(text: &str, column: usize, length: usize) -> (String, usize, usize) {
    let start = column.saturating_sub(1);
    let from = if start + length.min(40) > MAX_SHOWN { start.saturating_sub(MAX_SHOWN / 2) } else { 0 };
    let mut shown = String::from(if from > 0 { "…" } else { "" });
    let mut lead = shown.clone();
    let mut under = String::new();
    let mut rest = text.chars().skip(from);
    for (i, c) in (from..).zip(rest.by_ref().take(MAX_SHOWN)) {
        let c = shown_char(c);
        shown.push(c);
        if i < start {
            lead.push(c);
        } else if i < start + length {
            under.push(c);
        }
    }
    if rest.next().is_some() {
        shown.push('…');
    }
    (shown, lead.width(), under.width().max(1))
}

/// `c`, or a character of one column if `c` would move the cursor or change the terminal.
fn shown_char(c: char) -> char {
    match c {
        '\t' => '→',
        c if c.is_control() || is_unsafe(c) => char::REPLACEMENT_CHARACTER,
        c if is_unseen(c) => '␣',
        c => c,
    }
}

/// `text` on one line. Characters that would move the cursor or change the terminal, or that a reader cannot see, are shown by their code
/// points.
fn printable_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' => out.push('→'),
            c if c.is_control() || is_unseen(c) => {
                let _ = write!(out, "<{}>", code_point(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// `text` cut to a length that fits into a sentence.
pub fn short(text: &str) -> String {
    if text.chars().count() <= 60 {
        return text.to_owned();
    }
    format!("{}…", text.chars().take(57).collect::<String>())
}

/// The candidate that `word` is probably a slip of.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase();
    candidates
        .into_iter()
        // Names of files may be anything.
        .filter(|c| is_plain_line(c))
        .map(|c| (strsim::damerau_levenshtein(&word, &c.to_lowercase()), c))
        .filter(|&(distance, c)| distance <= (word.len().max(c.len()) / 3).max(1) && distance < word.len().min(c.len()))
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, c)| c)
}

/// `a`, `b` or `c`, each in backquotes.
pub fn list<S: AsRef<str>>(items: &[S], last: &str) -> String {
    let quoted: Vec<String> = items.iter().map(|s| format!("`{}`", s.as_ref())).collect();
    match quoted.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [init @ .., end] => format!("{} {last} {end}", init.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_slips_and_not_other_words() {
        let keys = ["micro_batch", "sequences", "tokens"];
        assert_eq!(nearest("micro_bach", keys), Some("micro_batch"));
        assert_eq!(nearest("Sequence", keys), Some("sequences"));
        assert_eq!(nearest("learning_rate", keys), None);
        assert_eq!(nearest("", keys), None);
    }

    #[test]
    fn a_long_line_is_cut_around_the_place_and_control_characters_cannot_reach_the_terminal() {
        let line = format!("{}\x1b[31mbad{}", "x".repeat(5000), "y".repeat(5000));
        let d = Diagnostic {
            source: "e.yaml".into(),
            line: 3,
            column: 5006,
            length: 3,
            key: String::new(),
            message: "no".into(),
            help: String::new(),
            source_line: line,
            kind: ErrorKind::Request,
            template: None,
        };
        let text = ConfigError::new(vec![d]).to_string();
        assert!(text.len() < 1000 && !text.contains('\x1b') && text.contains("bad"), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        let chars = |s: &str| s.chars().collect::<Vec<_>>();
        let caret = chars(lines[4]).iter().position(|&c| c == '^').unwrap();
        assert_eq!(chars(lines[3])[caret..caret + 3], ['b', 'a', 'd']);
    }
}
