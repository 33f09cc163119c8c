//! What minijinja says is wrong, as a diagnostic at its place in the right file, in the words of templates.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::PoisonError;

use minijinja::{Error, ErrorKind};

use super::loader::Files;
use super::rewrite::Rewritten;
use super::scan::{GUARD, Kind, ONE};
use super::{builtins, functions, guard};
use crate::source::{Place, Source, lines};
use runner_spec::diagnostic::Diagnostic;
use runner_spec::diagnostic::{list, nearest, short};

/// What was rendered, as far as a mistake in it is to be explained.
pub(super) struct Scene<'a> {
    pub files: &'a Files,
    pub guards: &'a guard::Guards,
    /// By name: what minijinja got, and the number of the first guard in it.
    pub rewritten: &'a BTreeMap<String, (Rewritten, usize)>,
    /// The names of the variables that were given.
    pub given: &'a [String],
}

/// Line, column and length of a range of `text`, as far as it lies in one line.
pub(super) fn place(text: &str, range: &Range<usize>) -> Place {
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

/// A mistake of syntax in `source`.
pub(super) fn syntax(error: &Error, rewritten: &Rewritten, source: &Source) -> Diagnostic {
    let message = format!("not a valid template: {}", detail(error));
    let Some(range) = error.range() else {
        return match error.line() {
            Some(line) => source.diagnostic(Place { line, column: 1, length: 1 }, "", message, String::new()),
            None => source.diagnostic_whole(message, String::new()),
        };
    };
    let range = rewritten.original_range(&range);
    // What is missing at the end is looked for behind the last thing that is there.
    let end = source.text.trim_end().len();
    let range = if range.start >= end { end..end + 1 } else { range };
    let detail = detail(error);
    let help = if detail.contains("end of input") || detail.contains("unexpected end") {
        "a `{{`, `{%` or `{#` is not closed, or an `{% end… %}` is missing"
    } else if detail.contains("unknown statement") || detail.contains("unknown") {
        "statements are if, for, set, macro, include, import, from, call, with, filter, raw and their ends"
    } else {
        ""
    };
    source.diagnostic(place(&source.text, &range), "", message, help.to_owned())
}

fn detail(error: &Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

impl Scene<'_> {
    /// What `error` says.
    pub(super) fn diagnostic(&self, error: &Error, main: &Source) -> Diagnostic {
        let mistake = self.files.mistake.lock().unwrap_or_else(PoisonError::into_inner).take();
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
        let mut found = mistake.unwrap_or_else(|| self.innermost(inner, main));
        for error in outer.iter().rev() {
            let Some((source, range)) = self.whereabouts(error) else { continue };
            let at = place(&source.text, &range);
            if !found.help.is_empty() {
                found.help.push('\n');
            }
            let _ = write!(found.help, "included at {}:{}:{}", source.label, at.line, at.column);
        }
        found
    }

    /// The file and the range of the original text that `error` is about.
    fn whereabouts(&self, error: &Error) -> Option<(Source, Range<usize>)> {
        let name = error.name()?;
        let file = self.files.find(name)?;
        let (rewritten, _) = self.rewritten.get(name)?;
        let source = Source::file(&file.path, file.text.clone());
        let range = error.range()?;
        let said = rewritten.text.get(range.clone()).unwrap_or_default();
        let start = rewritten.original(range.start);
        // A guard speaks for the tag behind it.
        if said.contains(GUARD)
            || rewritten.text.get(..range.start).is_some_and(|t| t.ends_with(&format!("do {GUARD}")))
        {
            let piece = file.pieces.iter().find(|p| p.range.start == start && p.kind != Kind::Literal);
            return Some((source, piece.map_or(start..start + 1, |p| p.range.clone())));
        }
        Some((source, rewritten.original_range(&range)))
    }

    fn innermost(&self, error: &Error, main: &Source) -> Diagnostic {
        let Some((source, range)) = self.whereabouts(error) else {
            let (message, help) = self.words(error, "");
            return main.diagnostic_whole(message, help);
        };
        let said = source.text.get(range.clone()).unwrap_or_default();
        if let Some((name, at, help)) = self.undefined(error, &range) {
            return source.diagnostic(place(&source.text, &at), "", format!("`{name}` is not defined"), help);
        }
        let (message, help) = self.words(error, said);
        let culprit = match error.kind() {
            ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
                name_in(error).and_then(|name| word(said, &name))
            }
            _ => None,
        };
        let range = culprit.map_or(range.clone(), |w| range.start + w.start..range.start + w.end);
        source.diagnostic(place(&source.text, &range), "", message, help)
    }

    /// The variable that is missing, if that is what is wrong, and what to do.
    fn undefined(&self, error: &Error, range: &Range<usize>) -> Option<(String, Range<usize>, String)> {
        let is = error.kind() == ErrorKind::UndefinedError
            || error.detail().is_some_and(|d| d.contains("undefined") || d.contains("is unknown"));
        if !is || matches!(error.kind(), ErrorKind::UnknownFilter | ErrorKind::UnknownTest) {
            return None;
        }
        let name = error.name()?;
        let file = self.files.find(name)?;
        let said = file.text.get(range.clone()).unwrap_or_default();
        let (i, piece) =
            file.pieces.iter().enumerate().find(|(_, p)| p.range.start <= range.start && range.start < p.range.end)?;
        let (names, known) = self.guards.undefined(self.rewritten.get(name)?.1 + i).unwrap_or_default();
        // A filter's error is at the filter, behind what it is applied to.
        let before = piece.range.start..range.end;
        let in_tag = file.text.get(before.clone()).unwrap_or_default();
        let missing = names.iter().find(|n| word(said, n).is_some());
        let missing = missing.or_else(|| {
            names.iter().filter(|n| word(in_tag, n).is_some()).max_by_key(|n| word(in_tag, n).map(|w| w.start))
        });
        let Some(missing) = missing else {
            if error.kind() != ErrorKind::UndefinedError {
                return None;
            }
            let help = "nothing of that name is there; `is defined` asks, `| default(…)` gives a value";
            return Some((short(said), range.clone(), help.to_owned()));
        };
        if error.kind() == ErrorKind::UnknownFunction {
            return None;
        }
        let others =
            known.iter().chain(self.given).map(String::as_str).filter(|k| k != missing && *k != GUARD && *k != ONE);
        let mut help = String::new();
        if let Some(near) = nearest(missing, others) {
            help = format!("did you mean `{near}`?\n");
        }
        if self.given.contains(missing) {
            help.push_str("it was given, but here it is an argument that the call leaves out");
        } else {
            let _ = write!(help, "give it with `--var {missing}=VALUE`, or a default: `{missing} | default(…)`");
        }
        let at = word(said, missing).map(|w| range.start + w.start..range.start + w.end);
        let at = at.or_else(|| word(in_tag, missing).map(|w| before.start + w.start..before.start + w.end));
        Some((missing.clone(), at.unwrap_or(range.clone()), help))
    }

    fn words(&self, error: &Error, said: &str) -> (String, String) {
        let meant = |kind: &str, names: Vec<&str>| {
            let name = name_in(error).unwrap_or_else(|| said.to_owned());
            let help = match nearest(&name, names.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", list(&names, "and")),
            };
            (format!("there is no {kind} `{}`", short(&name)), help)
        };
        let all = |a: &[&'static str], b: &[&'static str]| {
            let mut names = [a, b].concat();
            names.sort_unstable();
            names.dedup();
            names
        };
        let text = detail(error);
        match error.kind() {
            ErrorKind::UnknownFilter => meant("filter", all(builtins::FILTERS, &functions::FILTERS)),
            ErrorKind::UnknownTest => meant("test", builtins::TESTS.to_vec()),
            ErrorKind::UnknownFunction => meant("function or macro", functions::FUNCTIONS.to_vec()),
            ErrorKind::OutOfFuel => (
                format!("the template does not come to an end: more than {} instructions", guard::MAX_FUEL),
                "a loop runs too often".to_owned(),
            ),
            ErrorKind::TemplateNotFound => {
                let name = name_in(error).unwrap_or_default();
                let names = self.files.names();
                let help = "files are looked for in the template's own folder and in templates/";
                let help = match nearest(&name, names.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?\n{help}"),
                    None => help.to_owned(),
                };
                (format!("there is no file `{}`", short(&name)), help)
            }
            ErrorKind::UndefinedError => ("a value is not defined".to_owned(), String::new()),
            _ if text.contains("recursion limit") => {
                ("macros or includes call each other without an end".to_owned(), String::new())
            }
            _ => {
                let (message, help) = text.split_once('\n').unwrap_or((&text, ""));
                (message.to_owned(), help.to_owned())
            }
        }
    }
}

/// The name that an error is about: quoted in its detail, or the word before `is unknown`.
fn name_in(error: &Error) -> Option<String> {
    let detail = error.detail()?;
    if let Some((_, rest)) = detail.split_once('"') {
        return rest.split('"').next().map(str::to_owned);
    }
    let before = detail.split(" is unknown").next().filter(|b| b.len() < detail.len())?;
    before.rsplit(' ').next().map(str::to_owned)
}

/// Where `name` stands in `text` as a word.
fn word(text: &str, name: &str) -> Option<Range<usize>> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name).map(|(i, _)| i..i + name.len()).find(|r| {
        !text[..r.start].ends_with(part) && !text[..r.start].ends_with('.') && !text[r.end..].starts_with(part)
    })
}
