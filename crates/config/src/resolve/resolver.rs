//! The context in which the sections of an experiment are resolved, and the mistakes found in them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::layers::{Layers, Location};
use crate::mistakes::Mistakes;
use crate::overrides::LoadOptions;
use runner_spec::diagnostic::Diagnostic;
use runner_weights::DescribedModel;

/// The context in which sections are resolved, and the mistakes found in them.
pub(crate) struct Resolver<'l> {
    pub(crate) layers: &'l Layers,
    pub(crate) options: &'l LoadOptions<'l>,
    /// Folder of the experiment file, absolute.
    pub(crate) base: PathBuf,
    pub(crate) mistakes: Mistakes,
    /// Origins of values that no layer gives as they are, by key.
    pub(crate) notes: BTreeMap<Cow<'static, str>, String>,
    /// The description of the initial weights, if the model must match it.
    pub(crate) weights: Option<DescribedModel>,
}

impl Resolver<'_> {
    /// The folder that the path of `key` starts from: that of the file that gives it, or else that of the experiment.
    pub(crate) fn folder_of(&self, key: &str) -> &Path {
        self.layers.folder_of(key).unwrap_or(&self.base)
    }

    /// Records where the value of `key` comes from.
    pub(crate) fn note(&mut self, key: impl Into<Cow<'static, str>>, origin: String) {
        self.notes.insert(key.into(), origin);
    }

    /// Reports a mistake that lies between `keys`, at the one of them that the highest layer gives. Does nothing if a
    /// mistake in one of them is known already.
    pub(crate) fn error(&mut self, keys: &[&str], message: impl Into<String>, help: impl Into<String>) {
        if self.mistakes.is_full() || keys.iter().any(|key| self.mistakes.is_poisoned(key)) {
            return;
        }
        let mistake = self.diagnose(keys, message, help);
        self.mistakes.diagnostics.extend(mistake);
    }

    /// The diagnostic of what lies between `keys`, at the one of them that the highest layer gives; `None` if no layer gives one.
    pub(crate) fn diagnose(
        &self,
        keys: &[&str],
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Option<Diagnostic> {
        let mut best: Option<(&str, Location)> = None;
        for key in keys {
            let Some(found) = self.layers.locate(key) else { continue };
            let rank = |l: &Location| (l.is_key, l.layer);
            if best.as_ref().is_none_or(|(_, b)| found.is_key && rank(&found) > rank(b)) {
                best = Some((key, found));
            }
        }
        let (key, at) = best?;
        let place = at.is_key.then(|| self.layers.value_place(key)).flatten().unwrap_or(at.place);
        Some(at.source.diagnostic(place, key, message.into(), help.into()))
    }

    /// Reports a mistake as [`Resolver::error`] does. Returns `None`: the section cannot be resolved.
    pub(crate) fn refuse<T>(
        &mut self,
        keys: &[&str],
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Option<T> {
        self.error(keys, message, help);
        None
    }

    /// True if a layer gives `key`, and gives it as `null`.
    pub(crate) fn given_as_null(&self, key: &str) -> bool {
        !self.given(key) && self.layers.origin(key, true).is_some()
    }

    /// True if a layer gives `key` a value.
    pub(crate) fn given(&self, key: &str) -> bool {
        self.layers.origin(key, false).is_some()
    }
}
