//! The settings that were read from another trainer's configuration.

#![expect(clippy::expect_used, reason = "NANOGPT_DEFAULTS is part of the program, and a test reads it")]

use serde_json::{Map, Number, Value, json};

use crate::check::join;
use crate::foreign_keys::{Counterpart, find_counterpart};
use runner_yaml::scalar;

/// The defaults of nanoGPT's train.py, for the settings that a config.py leaves out.
const NANOGPT_DEFAULTS: &str = r#"{
    "eval_interval": 2000, "log_interval": 1, "eval_iters": 200, "dataset": "openwebtext", "gradient_accumulation_steps": 40,
    "batch_size": 12, "block_size": 1024, "n_layer": 12, "n_head": 12, "n_embd": 768, "dropout": 0.0, "bias": false,
    "learning_rate": 6e-4, "max_iters": 600000, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "grad_clip": 1.0, "decay_lr": true,
    "warmup_iters": 2000, "lr_decay_iters": 600000, "min_lr": 6e-5
}"#;

/// The settings of a configuration. Nested keys are joined by dots.
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

/// True if a name is a setting of nanoGPT, or of another trainer.
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
    /// The leaves of a nested configuration, which is YAML.
    pub(super) fn flatten(value: &Value) -> Self {
        let mut settings = Self::default();
        if let Value::Object(map) = value {
            settings.add(map, "");
        }
        settings
    }

    fn add(&mut self, map: &Map<String, Value>, parent: &str) {
        for (key, value) in map {
            let path = join(parent, key);
            match value {
                Value::Object(inner) => self.add(inner, &path),
                // Null leaves a key at its default, but for clipping and litgpt's warmup, which it turns off.
                Value::Null if !["max_norm", "lr_warmup_steps"].contains(&key.as_str()) => {}
                _ => self.insert(&path, read_yaml_1_1(value.clone())),
            }
        }
    }

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
        self.values.iter().find(|setting| setting.key == key).map(|setting| &setting.value)
    }

    /// The place of the first of the settings `keys` that is there. A key matches the last part of a nested one.
    fn position(&self, keys: &[&str]) -> Option<usize> {
        let matches =
            |key: &str, wanted: &str| key == wanted || key.strip_suffix(wanted).is_some_and(|k| k.ends_with('.'));
        keys.iter().find_map(|wanted| self.values.iter().position(|setting| matches(&setting.key, wanted)))
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

    /// Removes the first of the settings `keys` that is there. A key matches the last part of a nested one. Returns the name for a
    /// comment, and the value.
    pub(super) fn take(&mut self, keys: &[&str]) -> Option<(String, Value)> {
        self.take_at(self.position(keys)?)
    }

    fn take_at(&mut self, at: usize) -> Option<(String, Value)> {
        let label = self.label(self.values.get(at)?);
        Some((label, self.values.remove(at).value))
    }

    /// Removes the setting `key` if it is null, and returns its name for a comment.
    pub(super) fn take_null(&mut self, key: &str) -> Option<String> {
        let at = self.position(&[key])?;
        self.values[at].value.is_null().then(|| self.take_at(at)).flatten().map(|(label, _)| label)
    }

    /// Removes the first of the settings `keys` that is there, if it is a number.
    pub(super) fn take_number(&mut self, keys: &[&str]) -> Option<(String, f64)> {
        let at = self.position(keys)?;
        let number = self.values[at].value.as_f64()?;
        Some((self.take_at(at)?.0, number))
    }

    /// Removes the settings whose keys are nested in `section`, with their keys.
    pub(super) fn take_section(&mut self, section: &str) -> Vec<(String, Value)> {
        let is_inside = |setting: &mut Setting| setting.key.strip_prefix(section).is_some_and(|k| k.starts_with('.'));
        self.values.extract_if(.., is_inside).map(|setting| (setting.key, setting.value)).collect()
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

/// `value` as PyYAML and the checks of types behind it read it: `yes` and `off` are truth values, and `500_000`, `1e-4` and `"512"` are
/// numbers. So are the items of a list if all of them are numbers.
fn read_yaml_1_1(value: Value) -> Value {
    match value {
        Value::String(text) => read_text(&text).unwrap_or(Value::String(text)),
        Value::Array(items) => {
            let numbers: Option<Vec<Value>> =
                items.iter().map(|item| Some(read_yaml_1_1(item.clone())).filter(Value::is_number)).collect();
            Value::Array(numbers.unwrap_or(items))
        }
        other => other,
    }
}

fn read_text(text: &str) -> Option<Value> {
    match text {
        "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => return Some(Value::Bool(true)),
        "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => return Some(Value::Bool(false)),
        _ => {}
    }
    // A whole number that begins with 0 is octal.
    let digits = text.trim_start_matches(['+', '-']);
    if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|b| matches!(b, b'0'..=b'7' | b'_')) {
        let number = i64::from_str_radix(&digits.replace('_', ""), 8).ok()?;
        return Some(json!(if text.starts_with('-') { -number } else { number }));
    }
    let number = scalar::number(text)?;
    let whole = number.integer.and_then(|integer| i64::try_from(integer).ok()).map(Number::from);
    // A float stays one, as `1.0` of a share does.
    let is_written_whole = !digits.contains(['.', 'e', 'E']) || digits.starts_with("0x");
    Some(Value::Number(whole.filter(|_| is_written_whole).or_else(|| Number::from_f64(number.float))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values on the right are those of `yaml.safe_load`, and for texts of numbers those that pydantic makes of them.
    #[test]
    fn scalars_are_those_of_pyyaml() {
        for (text, value) in [
            ("500_000", json!(500_000)),
            ("512", json!(512)),
            ("1_000.5", json!(1000.5)),
            ("1e-4", json!(1e-4)),
            ("2.0", json!(2.0)),
            ("1e3", json!(1000.0)),
            ("010", json!(8)),
            ("-0_17", json!(-15)),
            ("0", json!(0)),
            ("0x1F", json!(31)),
            ("0x1E", json!(30)),
            ("yes", json!(true)),
            ("Off", json!(false)),
        ] {
            assert_eq!(read_yaml_1_1(json!(text)), value, "{text}");
        }
        for text in ["", "y", "none", "auto", "1:30", "500k", "_1", ".inf", "cosine"] {
            assert_eq!(read_yaml_1_1(json!(text)), json!(text));
        }
        assert_eq!(read_yaml_1_1(json!(["0.9", 0.95])), json!([0.9, 0.95]));
        assert_eq!(read_yaml_1_1(json!(["0.9", "x"])), json!(["0.9", "x"]));
    }
}
