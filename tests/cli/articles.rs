//! The systems of docs/systems.md beside their sources. `tests/fixtures/articles.yaml` has what each source does. The shipped files are
//! compared with it, and the tables of the page are generated from it.

mod page;
mod stages;
mod values;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use runner_config::LoadOptions;
use runner_yaml::source::Source;
use runner_yaml::tree::{self, ParsedYaml};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::sandbox::repository_path;

/// Read when a test runs, so that a changed fixture needs no build.
fn fixture() -> String {
    fs::read_to_string(repository_path("tests/fixtures/articles.yaml")).unwrap()
}

/// The fixture as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fixture {
    documents: Vec<SourceName>,
    elsewhere: Vec<SourceName>,
    undetermined: Vec<String>,
    groups: BTreeMap<String, Map<String, Value>>,
    files: BTreeMap<String, Map<String, Value>>,
    stages: Vec<Stage>,
    forecasts: Vec<RowForecast>,
    behaviours: BTreeMap<String, Vec<Topic>>,
}

/// What the sources of all systems do.
#[derive(Debug)]
struct Articles {
    /// The documents that the systems come from.
    documents: Vec<SourceName>,
    /// The sources of values that the documents lack.
    elsewhere: Vec<SourceName>,
    /// Keys, and sections of keys, that no source determines, unless a file lists them.
    undetermined: Vec<String>,
    /// For each file its keys.
    files: BTreeMap<String, BTreeMap<String, SourceValue>>,
    /// For each group of files its keys.
    groups: BTreeMap<String, BTreeMap<String, SourceValue>>,
    /// Keys that a source lists for a file after another source.
    repeated: Vec<String>,
    /// Forecasts that rows of the page give.
    forecasts: Vec<RowForecast>,
    stages: Vec<Stage>,
    /// What the sources do beside the values of keys, by the name of the page's table.
    behaviours: BTreeMap<String, Vec<Topic>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceName {
    name: String,
    is: String,
}

#[derive(Debug, Clone)]
struct SourceValue {
    /// The name of the document, or of the source elsewhere.
    origin: String,
    /// The group that lists the key for the file.
    group: Option<String>,
    source: Value,
    here: Value,
    /// Why `here` is not the source's value.
    why: Option<String>,
    /// How the source says it.
    note: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Topic {
    topic: Option<String>,
    rows: Vec<Behaviour>,
}

/// Something that a source does, and what does it here. Without an outcome it is equal.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Behaviour {
    source: String,
    here: String,
    /// A remark on what is equal.
    equal: Option<String>,
    /// What differs, and why.
    differs: Option<String>,
    /// Why the source is wrong.
    wrong: Option<String>,
}

/// A stage of build-nanogpt.yaml.j2.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stage {
    change: String,
    /// The keys that differ from the stage before, with their values; null for a key that is gone.
    keys: BTreeMap<String, Value>,
    #[serde(default)]
    logged: Vec<LoggedTime>,
    /// Milliseconds a step, by device.
    forecast_ms: BTreeMap<String, u64>,
}

/// The forecast of a file's step that a row of the page gives.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowForecast {
    file: String,
    cluster: String,
    ms: u64,
}

/// A time that the write-up logs: the median of its steps without the first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoggedTime {
    with: Option<String>,
    ms: u64,
}

fn yaml(text: &str) -> Value {
    let ParsedYaml { root: tree, mistakes, .. } = tree::parse(Source::file(Path::new("fixture"), text.to_owned()));
    assert!(mistakes.is_empty(), "{mistakes:?}");
    tree.map_or(Value::Null, |tree| tree.to_json(&mut |_| panic!("{text}")).unwrap())
}

fn articles(text: &str) -> Articles {
    let fixture: Fixture = serde_json::from_value(yaml(text)).unwrap();
    let mut repeated = Vec::new();
    let mut flat = |sections: &Map<String, Value>, group: Option<&str>| {
        let mut values: BTreeMap<String, SourceValue> = BTreeMap::new();
        for (origin, section) in sections {
            for (key, entry) in section.as_object().unwrap() {
                let value = SourceValue::new(origin, group, entry);
                if let Some(earlier) = values.insert(key.clone(), value) {
                    repeated.push(format!("{key}: {} and {origin}", earlier.origin));
                }
            }
        }
        values
    };
    let groups: BTreeMap<_, _> =
        fixture.groups.iter().map(|(name, sections)| (name.clone(), flat(sections, Some(name)))).collect();
    let mut files = BTreeMap::new();
    for (file, mut sections) in fixture.files {
        let group = sections.remove("group");
        let mut values = flat(&sections, None);
        if let Some(group) = group {
            for (key, value) in &groups[group.as_str().unwrap()] {
                values.entry(key.clone()).or_insert_with(|| value.clone());
            }
        }
        files.insert(file, values);
    }
    let Fixture { documents, elsewhere, undetermined, stages, forecasts, behaviours, .. } = fixture;
    Articles { documents, elsewhere, undetermined, files, groups, repeated, forecasts, stages, behaviours }
}

impl SourceValue {
    /// An entry stands for itself if it has no `source`.
    fn new(origin: &str, group: Option<&str>, entry: &Value) -> Self {
        let known = ["source", "here", "why", "note"];
        let parts = entry.as_object().filter(|parts| parts.contains_key("source"));
        let unknown = parts.and_then(|parts| parts.keys().find(|part| !known.contains(&part.as_str())));
        assert_eq!(unknown, None, "{entry}");
        let part = |name: &str| entry.get("source").and_then(|_| entry.get(name));
        let text = |name: &str| part(name).map(|text| text.as_str().unwrap().to_owned());
        let source = part("source").unwrap_or(entry).clone();
        Self {
            origin: origin.to_owned(),
            group: group.map(str::to_owned),
            here: part("here").unwrap_or(&source).clone(),
            source,
            why: text("why"),
            note: text("note"),
        }
    }

    fn departs(&self) -> bool {
        !is_equal(&self.source, &self.here)
    }
}

/// True if two values are equal; numbers are equal in any form.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b)),
        _ => a == b,
    }
}

/// A key of a resolved file.
struct ResolvedKey {
    key: String,
    value: Value,
    /// True if neither the file nor a preset gives the value.
    is_default: bool,
}

/// The resolved keys of a file in `experiments/` in their order, with paths relative to this folder. `variables` are those of a template.
fn resolved(file: &str, variables: &[String]) -> Vec<ResolvedKey> {
    let folder = repository_path("experiments");
    let template = runner_template::variables(variables, &[]).unwrap();
    let options = LoadOptions { allows_absent_files: true, template, ..LoadOptions::default() };
    let loaded = runner_config::load(&folder.join(file), &options).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let document = yaml(&runner_config::to_yaml(&loaded.experiment).replace(&format!("{}/", folder.display()), ""));
    let key = |origin: runner_config::Origin| {
        let value = origin.key.split('.').fold(&document, |value, key| &value[key]).clone();
        ResolvedKey { value, is_default: origin.source.starts_with("default"), key: origin.key }
    };
    loaded.origins.into_iter().map(key).collect()
}
