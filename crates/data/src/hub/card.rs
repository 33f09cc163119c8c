//! The card of a dataset (README.md): the YAML at its top, of which `datasets` takes the configurations.

use runner_files::BYTE_ORDER_MARK;
use runner_yaml::document::{self, Value};

use super::error::quoted;
use super::patterns::is_split_name;

/// Characters that the name of a configuration must not have.
const FORBIDDEN_IN_NAMES: [char; 8] = ['<', '>', ':', '/', '\\', '|', '?', '*'];
/// Settings of a configuration that change its rows, and that are not read.
const ROW_SETTINGS: [&str; 5] = ["field", "filters", "encoding", "encoding_errors", "on_bad_files"];

/// A configuration of `configs`.
#[derive(Debug, PartialEq)]
pub(super) struct Config {
    pub(super) name: String,
    is_default: bool,
    pub(super) folder: Option<String>,
    /// Splits and their patterns. Without them, the names of folders and files decide.
    pub(super) files: Option<Vec<(String, Vec<String>)>>,
    /// A setting that changes the rows, if there is one.
    pub(super) row_setting: Option<&'static str>,
}

/// Reads the configurations in the card `text`. A text that does not begin with YAML has none.
///
/// # Errors
/// If `datasets` refuses it, or it cannot be read here.
pub(super) fn read_configs(text: &str) -> Result<Vec<Config>, String> {
    let Some(yaml) = front_matter(text) else { return Ok(Vec::new()) };
    let mut head: Value = document::from_str(yaml).map_err(|error| format!("cannot read its YAML: {error}"))?;
    head.apply_merge().map_err(|error| format!("cannot read its YAML: {error}"))?;
    if !matches!(head, Value::Mapping(_) | Value::Null) {
        return Err("the YAML at its top must be a mapping".to_owned());
    }
    let mut configs: Vec<Config> = Vec::new();
    if let Some(listed) = head.get("configs").filter(|listed| !listed.is_null()) {
        let Value::Sequence(items) = listed else { return Err("`configs` must be a list".to_owned()) };
        for item in items {
            let config = Config::parse(item)?;
            match configs.iter_mut().find(|other| other.name == config.name) {
                Some(earlier) => *earlier = config,
                None => configs.push(config),
            }
        }
        let name = configs.first().map(|config| config.name.as_str());
        let is_first = |item: &&Value| item.get("config_name").and_then(Value::as_str) == name;
        let first = items.iter().rev().find(is_first);
        if first.and_then(|first| first.get("data_files")) == Some(&Value::Null) {
            return Err(format!("`data_files` of configuration `{}` is empty", quoted(name.unwrap_or_default())));
        }
    }
    Ok(configs)
}

/// The configuration that is read if none is named: the only one, `default`, or the one that is marked.
///
/// # Errors
/// If there are several.
pub(super) fn default_config(configs: &[Config]) -> Result<Option<&str>, String> {
    let is_default = |config: &&Config| configs.len() == 1 || config.name == "default" || config.is_default;
    let mut defaults = configs.iter().filter(is_default).map(|config| config.name.as_str());
    match (defaults.next(), defaults.next()) {
        (Some(first), Some(second)) => {
            Err(format!("it has two default configurations, `{}` and `{}`", quoted(first), quoted(second)))
        }
        (first, _) => Ok(first),
    }
}

impl Config {
    fn parse(item: &Value) -> Result<Self, String> {
        let Some(name) = item.get("config_name") else {
            return Err("each item of `configs` must have a `config_name`".to_owned());
        };
        let name = name.as_str().filter(|name| !name.is_empty()).ok_or("a `config_name` must be a text")?.to_owned();
        let wrong = |what: &str| format!("configuration `{}`: {what}", quoted(&name));
        if name.contains(FORBIDDEN_IN_NAMES) {
            return Err(wrong("its name must not contain any of `<>:/\\|?*`"));
        }
        let given = |key: &str| item.get(key).filter(|value| !value.is_null());
        let text =
            |folder: &Value| folder.as_str().map(str::to_owned).ok_or_else(|| wrong("`data_dir` must be a text"));
        let folder = given("data_dir").map(text).transpose()?.filter(|folder| !folder.is_empty());
        let files = given("data_files").map(parse_files).transpose().map_err(|what| wrong(&what))?;
        let is_set =
            |key: &&str| given(key).is_some_and(|value| !(*key == "encoding" && value.as_str() == Some("utf-8")));
        let row_setting = ROW_SETTINGS.into_iter().find(is_set);
        let is_default = item.get("default").and_then(Value::as_bool) == Some(true);
        Ok(Self { name, is_default, folder, files, row_setting })
    }
}

/// The splits and patterns of `data_files`: one pattern, a list of patterns, or a list of splits.
fn parse_files(files: &Value) -> Result<Vec<(String, Vec<String>)>, String> {
    const FORM: &str = "`data_files` must be a path, a list of paths, or a list of items with `split` and `path`";
    let texts = |value: &Value| match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Sequence(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        _ => None,
    };
    if let Some(patterns) = texts(files) {
        return Ok(vec![("train".to_owned(), patterns)]);
    }
    let Value::Sequence(items) = files else { return Err(FORM.to_owned()) };
    let mut splits: Vec<(String, Vec<String>)> = Vec::new();
    for item in items {
        let Value::Mapping(entries) = item else { return Err(FORM.to_owned()) };
        let split = item.get("split").and_then(Value::as_str);
        let (2, Some(split), Some(path)) = (entries.len(), split, item.get("path").and_then(texts)) else {
            return Err(FORM.to_owned());
        };
        if !is_split_name(split) {
            return Err(format!("the name of split `{}` must be letters, digits, `_` and `.`", quoted(split)));
        }
        if splits.iter().any(|(other, _)| other == split) {
            return Err(format!("split `{}` is listed twice", quoted(split)));
        }
        splits.push((split.to_owned(), path));
    }
    Ok(splits)
}

/// The YAML between the first line `---`, which only blanks may precede, and the next one.
fn front_matter(text: &str) -> Option<&str> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text).trim_start().strip_prefix("---")?;
    let rest = ["\r\n", "\n", "\r"].iter().find_map(|end| text.strip_prefix(end))?;
    let is_end = |at: usize| {
        let after = rest[at + 3..].trim_start_matches([' ', '\t']);
        rest[..at].ends_with(['\r', '\n']) && (after.is_empty() || after.starts_with('\n') || after.starts_with("\r\n"))
    };
    // A longer line of dashes is not the end, nor is a part of it.
    rest.match_indices("---").map(|(at, _)| at).find(|&at| is_end(at)).map(|at| &rest[..at])
}
