//! The shipped full-size files beside the values that they reproduce, which are in `tests/fixtures/articles.yaml` under the names of their
//! sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use runner_config::LoadOptions;
use runner_yaml::source::Source;
use runner_yaml::tree::{self, ParsedYaml};
use serde_json::{Map, Value};

use crate::sandbox::repository_path;

/// The values of all sources.
struct Articles {
    /// The names of the documents that the systems come from.
    documents: BTreeSet<String>,
    /// The names of the sources of values that the documents lack.
    elsewhere: BTreeSet<String>,
    /// Keys, and sections of keys, that no source determines, unless a file lists them.
    undetermined: Vec<String>,
    /// For each file its keys.
    files: BTreeMap<String, BTreeMap<String, SourceValue>>,
    /// Keys that a source lists for a file after another source.
    repeated: Vec<String>,
}

struct SourceValue {
    /// The name of the document, or of the source elsewhere.
    origin: String,
    /// Stands for itself if the source and the file agree; otherwise it is a mapping of `source`, `here` and `departure`, a sentence of
    /// docs/systems.md.
    value: Value,
}

fn yaml(text: &str) -> Value {
    let ParsedYaml { root: tree, mistakes, .. } = tree::parse(Source::file(Path::new("values"), text.to_owned()));
    assert!(mistakes.is_empty(), "{text}: {mistakes:?}");
    tree.map_or(Value::Null, |tree| tree.to_json(&mut |_| panic!("{text}")).unwrap())
}

fn articles(text: &str) -> Articles {
    let Value::Object(mut table) = yaml(text) else { panic!("a mapping") };
    let mut names = |key: &str| {
        let names: BTreeMap<String, String> = serde_json::from_value(table.remove(key).unwrap()).unwrap();
        names.into_keys().collect()
    };
    let (documents, elsewhere) = (names("documents"), names("elsewhere"));
    let undetermined = serde_json::from_value(table.remove("undetermined").unwrap()).unwrap();
    let sections: BTreeMap<String, Map<String, Value>> =
        serde_json::from_value(table.remove("files").unwrap()).unwrap();
    let mut repeated = Vec::new();
    let mut files = BTreeMap::new();
    for (file, mut section) in sections {
        let shared = section.remove("group").map(|group| table["groups"][group.as_str().unwrap()].clone());
        let mut values = flat(&section, &mut repeated);
        if let Some(Value::Object(shared)) = &shared {
            for (key, value) in flat(shared, &mut repeated) {
                values.entry(key).or_insert(value);
            }
        }
        files.insert(file, values);
    }
    Articles { documents, elsewhere, undetermined, files, repeated }
}

/// The values of a file or group, which its sections list by source.
fn flat(sections: &Map<String, Value>, repeated: &mut Vec<String>) -> BTreeMap<String, SourceValue> {
    let mut values = BTreeMap::new();
    for (origin, section) in sections {
        for (key, value) in section.as_object().unwrap() {
            let value = SourceValue { origin: origin.clone(), value: value.clone() };
            if let Some(earlier) = values.insert(key.clone(), value) {
                repeated.push(format!("{key}: {} and {origin}", earlier.origin));
            }
        }
    }
    values
}

/// A key of a resolved file.
struct ResolvedKey {
    key: String,
    value: Value,
    /// True if neither the file nor a preset gives the value.
    is_default: bool,
}

/// True if two values are equal; numbers are equal in any form.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_equal(a, b)),
        _ => a == b,
    }
}

/// The section of docs/systems.md whose heading names `system`, with single blanks.
fn section(page: &str, system: &str) -> Option<String> {
    let named = |section: &&str| {
        let heading = section.lines().next().unwrap_or_default();
        heading.split(", ").any(|name| name == system)
    };
    let section = page.split("\n## ").skip(1).find(named)?;
    Some(section.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The problems of the `resolved` keys of `file`, one sentence each.
fn problems(file: &str, resolved: &[ResolvedKey], articles: &Articles, page: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let Some(values) = articles.files.get(file) else { return vec![format!("{file} has no values in the table")] };
    let Some(section) = section(page, file.trim_end_matches(".yaml")) else {
        return vec![format!("docs/systems.md has no section on {file}")];
    };
    let is_undetermined = |key: &str| {
        let is_in =
            |section: &String| key.strip_prefix(section.as_str()).is_some_and(|k| k.is_empty() || k.starts_with('.'));
        articles.undetermined.iter().any(is_in)
    };
    for ResolvedKey { key, value, is_default } in resolved {
        let is_absent = *is_default && value.is_null();
        if !values.contains_key(key) && !is_undetermined(key) && !is_absent {
            problems.push(format!("{file}: {key} is {value}, and the table lacks the key"));
        }
    }
    for (key, SourceValue { origin, value: entry }) in values {
        if !articles.documents.contains(origin) && !articles.elsewhere.contains(origin) {
            problems.push(format!("{file}: {key} comes from {origin}, which is not a source"));
        }
        let part = |name: &str| entry.get(name);
        let (source, here) = (part("source").unwrap_or(entry), part("here").unwrap_or(entry));
        match resolved.iter().find(|resolved| resolved.key == *key).map(|resolved| &resolved.value) {
            None => problems.push(format!("{file} has no key {key}, which the table lists")),
            Some(value) if !is_equal(value, here) => {
                problems.push(format!("{file}: {key} is {value}, and the table says {here}"));
            }
            Some(_) => {}
        }
        let departure = part("departure").and_then(Value::as_str);
        let is_documented = departure.is_some_and(|sentence| section.contains(sentence));
        match (is_equal(source, here), departure) {
            (false, None) => problems.push(format!("{file}: {key} is {here}, {origin} has {source}: no departure")),
            (false, Some(sentence)) if !is_documented => {
                problems.push(format!("{file}: {key}: docs/systems.md lacks the sentence: {sentence}"));
            }
            (true, Some(_)) => problems.push(format!("{file}: {key} departs from nothing")),
            _ => {}
        }
    }
    problems
}

/// The resolved keys of a file in `experiments/`, with paths relative to this folder.
fn resolved(file: &str) -> Vec<ResolvedKey> {
    let folder = repository_path("experiments");
    let options = LoadOptions { allows_absent_files: true, ..LoadOptions::default() };
    let loaded = runner_config::load(&folder.join(file), &options).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    let document = yaml(&runner_config::to_yaml(&loaded.experiment).replace(&format!("{}/", folder.display()), ""));
    let key = |origin: runner_config::Origin| {
        let value = origin.key.split('.').fold(&document, |value, key| &value[key]).clone();
        ResolvedKey { value, is_default: origin.source.starts_with("default"), key: origin.key }
    };
    loaded.origins.into_iter().map(key).collect()
}

fn page() -> String {
    fs::read_to_string(repository_path("docs/systems.md")).unwrap()
}

const TABLE: &str = include_str!("../fixtures/articles.yaml");

#[test]
fn full_size_files_have_the_values_of_their_sources_or_a_departure() {
    let (articles, page) = (articles(TABLE), page());
    let found: Vec<String> =
        articles.files.keys().flat_map(|file| problems(file, &resolved(file), &articles, &page)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(articles.repeated, Vec::<String>::new(), "keys with two sources");
    let used: BTreeSet<&String> =
        articles.files.values().flat_map(BTreeMap::values).map(|value| &value.origin).collect();
    let named: BTreeSet<&String> = articles.documents.union(&articles.elsewhere).collect();
    assert_eq!(used, named, "every source has a value");
    let headings = page.lines().filter_map(|line| line.strip_prefix("## ")).flat_map(|heading| heading.split(", "));
    let systems: BTreeSet<String> =
        headings.map(|name| format!("{name}.yaml")).filter(|file| is_shipped(file)).collect();
    let listed: BTreeSet<String> = articles.files.into_keys().collect();
    assert_eq!(listed, systems, "the systems of docs/systems.md");
}

fn is_shipped(file: &str) -> bool {
    repository_path("experiments").join(file).is_file()
}

/// A changed value, a key that the table lacks, a key that the file lacks and a sentence that the page lacks are each reported.
#[test]
fn departures_are_not_unseen() {
    let page = page();
    let with = |changed: &dyn Fn(&mut BTreeMap<String, SourceValue>)| {
        let mut articles = articles(TABLE);
        changed(articles.files.get_mut("llama-ddp.yaml").unwrap());
        problems("llama-ddp.yaml", &resolved("llama-ddp.yaml"), &articles, &page)
    };
    let only =
        |found: Vec<String>, words: &str| assert!(matches!(&found[..], [one] if one.contains(words)), "{found:?}");
    only(with(&|values| _ = values.remove("batch.sequences")), "batch.sequences is 256, and the table lacks the key");
    let from = |origin: &str, value: Value| SourceValue { origin: origin.to_owned(), value };
    let document = |value: Value| from("mastery-data-parallel", value);
    only(
        with(&|values| _ = values.insert("batch.sequences".into(), document(64.into()))),
        "batch.sequences is 256, and the table",
    );
    only(with(&|values| _ = values.insert("batch.size".into(), document(64.into()))), "has no key batch.size");
    only(with(&|values| _ = values.insert("batch.sequences".into(), from("hearsay", 256.into()))), "is not a source");
    let differing = |departure: &str| format!("{{source: 64, here: 256{departure}}}");
    let sequences = |entry: String| with(&|values| _ = values.insert("batch.sequences".into(), document(yaml(&entry))));
    only(sequences(differing("")), "no departure");
    only(sequences(differing(", departure: The batch is a whole zoo.")), "lacks the sentence");
    only(sequences("{source: 256, here: 256, departure: x}".to_owned()), "departs from nothing");
    let twice =
        TABLE.replace("      parallel.bucket_mb: 25\n", "      parallel.bucket_mb: 25\n      parallel.mode: ddp\n");
    assert_eq!(articles(&twice).repeated, ["parallel.mode: mastery-data-parallel and pytorch-defaults"]);
    assert_eq!(with(&|_| {}), Vec::<String>::new());
}
