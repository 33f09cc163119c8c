//! Errors as values: each has a kind, which is set where the error arises, and commands have one type for all of them.
//!
//! An error's `Display` is its whole text, with that of its cause, so it is printed alone. `source()` gives the cause to code that asks for it.

use std::any::Any;
use std::error::Error;
use std::fmt::{self, Display};
use std::io;

/// What an error means for whoever made the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request must change: its file, its flags, or the files and addresses that they name.
    Request,
    /// The request is wrong for now: another process works on the run.
    Busy,
    /// The machine, or a run that had started, failed.
    Failure,
}

/// An error with a kind.
pub trait Classified: Any + Error + Send + Sync {
    fn kind(&self) -> ErrorKind;

    /// The text of an error that has its own layout, such as mistakes with their places in a file, with ANSI colours if asked for.
    fn report(&self, _color: bool) -> Option<String> {
        None
    }
}

impl Classified for io::Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Failure
    }
}

impl Classified for serde_json::Error {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Failure
    }
}

/// An error that is a message with a kind, for code whose callers only pass it on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct PlainError {
    pub kind: ErrorKind,
    pub text: String,
}

impl PlainError {
    pub fn request(text: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Request, text: text.into() }
    }

    pub fn failure(text: impl Into<String>) -> Self {
        Self { kind: ErrorKind::Failure, text: text.into() }
    }
}

/// The text, for an error that says more.
impl From<PlainError> for String {
    fn from(error: PlainError) -> Self {
        error.text
    }
}

impl Classified for PlainError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// The error of a command: a cause, what was attempted, and what to do next.
#[derive(Debug)]
pub struct CommandError {
    cause: Box<dyn Classified>,
    /// What was attempted, innermost first.
    context: Vec<String>,
    /// What to do next.
    hints: Vec<String>,
}

impl CommandError {
    /// A wrong request.
    pub fn request(text: impl Into<String>) -> Self {
        PlainError::request(text).into()
    }

    /// A failure of the machine or of a run.
    pub fn failure(text: impl Into<String>) -> Self {
        PlainError::failure(text).into()
    }

    /// For `map_err`: an error of the operating system; `action` says what was attempted, such as `reading resolved.yaml`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::from(error).context(action)
    }

    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.cause.kind()
    }

    /// The kind and the text.
    #[must_use]
    pub fn into_plain(self) -> PlainError {
        PlainError { kind: self.kind(), text: self.to_string() }
    }

    /// Adds what was attempted, such as `reading plan.json`, which the text states before the cause.
    #[must_use]
    pub fn context(mut self, what: impl Into<String>) -> Self {
        self.context.push(what.into());
        self
    }

    /// `self`, with advice.
    #[must_use]
    pub fn hint(mut self, advice: impl Into<String>) -> Self {
        self.hints.push(advice.into());
        self
    }

    /// The cause, if it is an `E`.
    #[must_use]
    pub fn cause<E: Error + 'static>(&self) -> Option<&E> {
        let cause: &(dyn Error + 'static) = &*self.cause;
        cause.downcast_ref()
    }

    /// The cause, if it is an `E`.
    pub fn cause_mut<E: Classified>(&mut self) -> Option<&mut E> {
        let cause: &mut dyn Any = &mut *self.cause;
        cause.downcast_mut()
    }

    /// The text for a person after `label`: what was attempted, the cause, and the hints. A cause with a report starts on a new line,
    /// and needs no label if nothing precedes it.
    #[must_use]
    pub fn render(&self, label: &str, color: bool) -> String {
        let Some(report) = self.cause.report(color) else { return format!("{label} {self}") };
        let mut text = report;
        if !self.context.is_empty() {
            text = format!("{label} {}:\n{text}", self.attempted().collect::<Vec<_>>().join(": "));
        }
        [text].iter().chain(&self.hints).map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    fn attempted(&self) -> impl Iterator<Item = &str> {
        self.context.iter().rev().map(String::as_str)
    }
}

impl Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.attempted().try_for_each(|what| write!(f, "{what}: "))?;
        self.cause.fmt(f)?;
        self.hints.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

impl Error for CommandError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

impl<E: Classified> From<E> for CommandError {
    fn from(cause: E) -> Self {
        Self { cause: Box::new(cause), context: Vec::new(), hints: Vec::new() }
    }
}

/// The result of a command or of a part of it, unless it names a different error.
pub type Result<T, E = CommandError> = std::result::Result<T, E>;

/// Adds what was attempted to an error.
pub trait Context<T> {
    /// # Errors
    /// The error of `self`, while `what` was attempted.
    fn context(self, what: impl Into<String>) -> Result<T, CommandError>;
}

impl<T, E: Into<CommandError>> Context<T> for Result<T, E> {
    fn context(self, what: impl Into<String>) -> Result<T, CommandError> {
        self.map_err(|error| error.into().context(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnostic::ConfigError;

    #[test]
    fn shows_the_attempt_then_the_cause_then_the_hints() {
        let error =
            CommandError::io("reading a")(io::Error::other("gone")).context("no run").hint("wait").hint("retry");
        assert_eq!(error.to_string(), "no run: reading a: gone; wait; retry");
        assert_eq!(error.render("error:", false), format!("error: {error}"));
        assert_eq!(error.kind(), ErrorKind::Failure);
        assert!(error.cause::<io::Error>().is_some() && error.cause::<ConfigError>().is_none());
    }

    #[test]
    fn mistakes_keep_their_layout_and_follow_the_attempt() {
        let mistakes = || CommandError::from(ConfigError::new(Vec::new()));
        let shown = ConfigError::new(Vec::new()).render(false);
        assert_eq!(mistakes().render("error:", false), shown);
        let within = mistakes().context("other.yaml");
        assert_eq!(within.render("error:", false), format!("error: other.yaml:\n{shown}"));
        assert_eq!(within.kind(), ErrorKind::Request);
        let hinted = mistakes().hint("wait").hint("retry");
        assert_eq!(hinted.render("error:", false), format!("{shown}\nwait\nretry"));
    }
}
