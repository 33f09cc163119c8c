//! The settings that were read from nanoGPT's config.py.

#![expect(clippy::expect_used, reason = "NANOGPT_DEFAULTS is part of the program, and a test reads it")]

use serde_json::{Map, Value, json};

use crate::foreign_keys::{Counterpart, find_counterpart};

/// The defaults of nanoGPT's train.py, for the settings that a config.py leaves out.
const NANOGPT_DEFAULTS: &str = r#"{
    "eval_interval": 2000, "log_interval": 1, "eval_iters": 200, "dataset": "openwebtext", "gradient_accumulation_steps": 40,
    "batch_size": 12, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": false,
    "learning_rate": 6e-4, "max_iters": 600000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0, "decay_lr": true,
    "warmup_iters": 2000, "lr_decay_iters": 600000, "min_lr": 6e-5
}"#;

/// The settings of a configuration.
#[derive(Debug, Default)]
pub(super) struct Settings {
    values: Vec<Setting>,
    unread: Vec<UnreadStatement>,
}

#[derive(Debug)]
struct Setting {
    key: String,
    value: Value,
    /// True if the configuration leaves the setting out.
    is_default: bool,
}

/// A statement of a configuration that could not be read.
#[derive(Debug)]
pub(super) struct UnreadStatement {
    /// Its line, from 1.
    pub(super) line: usize,
    pub(super) text: String,
    /// The names that it assigns, without those that are assigned again. If there are none, it may assign any.
    pub(super) names: Vec<String>,
}

/// True if a name is a setting of nanoGPT, or of another trainer: copies of nanoGPT have more.
pub(super) fn is_setting(name: &str) -> bool {
    nanogpt_defaults().contains_key(name) || name == "device" || counterpart(name).is_some()
}

/// The counterpart of a name of Python, in which capitals make another name.
fn counterpart(name: &str) -> Option<&'static Counterpart> {
    find_counterpart("", name).filter(|_| !name.contains(char::is_uppercase))
}

/// True if an experiment has a key for what the setting `name` says.
pub(super) fn changes_training(name: &str) -> bool {
    let has_key = || counterpart(name).is_some_and(|counterpart| counterpart.key.is_some());
    nanogpt_defaults().contains_key(name) || name == "device" || has_key()
}

fn nanogpt_defaults() -> Map<String, Value> {
    serde_json::from_str(NANOGPT_DEFAULTS).expect("NANOGPT_DEFAULTS is JSON")
}

impl Settings {
    /// Adds a setting, or replaces the one of the same name.
    pub(super) fn insert(&mut self, key: &str, value: Value) {
        self.forget(key);
        self.values.push(Setting { key: key.to_owned(), value, is_default: false });
    }

    /// Adds the statement `text`, which assigns `names`, or if there are none, any name.
    pub(super) fn insert_unread(&mut self, line: usize, text: &str, names: Vec<String>) {
        for name in &names {
            self.forget(name);
        }
        self.unread.push(UnreadStatement { line, text: text.to_owned(), names });
    }

    /// Forgets what was assigned to `name` before.
    fn forget(&mut self, name: &str) {
        self.values.retain(|setting| setting.key != name);
        self.unread.retain_mut(|statement| {
            let assigned_any = statement.names.is_empty();
            statement.names.retain(|assigned| assigned != name);
            assigned_any || !statement.names.is_empty()
        });
    }

    /// Adds the defaults of nanoGPT for the settings that are missing.
    pub(super) fn add_nanogpt_defaults(&mut self) {
        for (key, value) in nanogpt_defaults() {
            if self.get(&key).is_none() {
                self.values.push(Setting { key, value, is_default: true });
            }
        }
    }

    /// True if a setting of a known trainer was read, or could not be read.
    pub(super) fn has_known_name(&self) -> bool {
        let unread = self.unread.iter().flat_map(|statement| &statement.names);
        self.values.iter().map(|setting| &setting.key).chain(unread).any(|name| is_setting(name))
    }

    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        Some(&self.values[self.position(key)?].value)
    }

    /// The name of a setting for a comment, which marks defaults.
    fn label(&self, setting: &Setting) -> String {
        let is_assigned = |statement: &&UnreadStatement| statement.names.contains(&setting.key);
        match self.unread.iter().find(is_assigned) {
            _ if !setting.is_default => setting.key.clone(),
            Some(UnreadStatement { line, .. }) => {
                format!("{} (nanoGPT's default; line {line} was skipped)", setting.key)
            }
            None => format!("{} (nanoGPT's default)", setting.key),
        }
    }

    fn position(&self, key: &str) -> Option<usize> {
        self.values.iter().position(|setting| setting.key == key)
    }

    /// Removes the setting `key`. Returns its name for a comment, and its value.
    pub(super) fn take(&mut self, key: &str) -> Option<(String, Value)> {
        let at = self.position(key)?;
        let label = self.label(&self.values[at]);
        Some((label, self.values.remove(at).value))
    }

    /// Removes the setting `key` if it is a number.
    pub(super) fn take_number(&mut self, key: &str) -> Option<(String, f64)> {
        let number = self.get(key)?.as_f64()?;
        Some((self.take(key)?.0, number))
    }

    /// The settings that were not taken, with their keys, their names for comments and their values, and the statements that could not
    /// be read.
    pub(super) fn into_rest(self) -> (Vec<(String, String, Value)>, Vec<UnreadStatement>) {
        let labels: Vec<String> = self.values.iter().map(|setting| self.label(setting)).collect();
        let rest = self.values.into_iter().zip(labels).map(|(setting, label)| (setting.key, label, setting.value));
        (rest.collect(), self.unread)
    }
}

/// A whole number, as it stands in a file.
pub(super) fn integer(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

/// A setting and its value, on one line.
pub(super) fn show(key: &str, value: &Value) -> String {
    format!("{key} = {value}")
}
