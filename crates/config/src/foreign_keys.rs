//! The keys of other trainers: nanoGPT, Hugging Face, Lightning and litgpt, torchtitan, llm.c, axolotl. The error for such a key names
//! runner's own key. The table is `foreign_keys.yaml`.
#![expect(clippy::expect_used, reason = "foreign_keys.yaml is part of the program, and tests read all of it")]

use std::sync::LazyLock;

use serde::Deserialize;

/// The content of `foreign_keys.yaml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ForeignNames {
    keys: Vec<Counterpart>,
    values: Vec<Counterpart>,
}

/// This program's counterpart of a key that other trainers have, or of a value of such a key.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Counterpart {
    /// The spellings of other trainers, separated by blanks.
    names: String,
    /// The key of this program that corresponds to it, if any.
    pub(crate) key: Option<String>,
    /// Says what a user must know, or what there is instead. Empty if nothing differs.
    note: String,
    /// True if a value means something else under `key`.
    differs: bool,
}

static FOREIGN_NAMES: LazyLock<ForeignNames> = LazyLock::new(|| {
    runner_yaml::document::from_str(include_str!("foreign_keys.yaml")).expect("foreign_keys.yaml is a table")
});

impl Counterpart {
    fn has_name(&self, name: &str) -> bool {
        self.names.split_whitespace().any(|known| known == name)
    }

    /// The key under which a value means the same.
    pub(crate) fn equivalent_key(&self) -> Option<&str> {
        self.key.as_deref().filter(|_| !self.differs)
    }

    /// Says what to write instead of `name`; `own` is this program's key in the current section.
    pub(crate) fn help(&self, name: &str, own: Option<&str>) -> String {
        match (own, self.note.as_str()) {
            (None, note) => note.to_owned(),
            (Some(own), "") => format!("`{name}` is `{own}` here"),
            (Some(own), note) => format!("`{name}` is `{own}` here; {note}"),
        }
    }
}

/// The counterpart of `key` in the section `path`; `None` if no other trainer has this key.
pub(crate) fn find_counterpart(path: &str, key: &str) -> Option<&'static Counterpart> {
    let plain = key.to_ascii_lowercase().replace('-', "_");
    let find = |name: &str| FOREIGN_NAMES.keys.iter().find(|counterpart| counterpart.has_name(name));
    find(&format!("{path}.{plain}")).or_else(|| find(&plain))
}

/// Says what to write instead of `value` for this program's key `path`; `None` if no other trainer has this value.
pub(crate) fn counterpart_of_value(path: &str, value: &str) -> Option<&'static str> {
    let plain = value.to_ascii_lowercase();
    let is_meant =
        |counterpart: &&Counterpart| counterpart.key.as_deref() == Some(path) && counterpart.has_name(&plain);
    FOREIGN_NAMES.values.iter().find(is_meant).map(|counterpart| counterpart.note.as_str())
}

#[cfg(test)]
mod tests;
