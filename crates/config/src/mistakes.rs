//! The mistakes of an experiment, collected while its layers are read.

use runner_spec::diagnostic::{Diagnostic, MAX_DIAGNOSTICS};

/// The mistakes that were found so far, and the keys that they are about.
#[derive(Debug, Default)]
pub(crate) struct Mistakes {
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Files that are missing and may be.
    pub(crate) absent_files: Vec<Diagnostic>,
    /// Keys with a mistake. Mistakes that follow from them are not reported.
    poisoned: Vec<String>,
}

impl Mistakes {
    /// True if no further mistake is collected.
    pub(crate) fn is_full(&self) -> bool {
        self.diagnostics.len() >= MAX_DIAGNOSTICS
    }

    /// Reports nothing that follows from `path`.
    pub(crate) fn poison(&mut self, path: impl Into<String>) {
        self.poisoned.push(path.into());
    }

    /// True if there is a mistake at `path`, in it, or around it.
    pub(crate) fn is_poisoned(&self, path: &str) -> bool {
        let is_within = |inner: &str, outer: &str| {
            outer.is_empty() || inner == outer || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'))
        };
        self.poisoned.iter().any(|poisoned| is_within(poisoned, path) || is_within(path, poisoned))
    }
}
