//! The shipped full-size files beside the values of the articles that they reproduce, which are in `tests/fixtures/articles.yaml`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use runner_config::LoadOptions;
use runner_template::source::Source;
use runner_template::tree;
use serde_json::{Map, Value};

use crate::sandbox::repository_path;

/// The values of all articles.
struct Articles {
    /// Keys, and sections of keys, that no article determines, unless a file lists them.
    undetermined: Vec<String>,
    /// For each file its keys. A value stands for itself if the article and the file agree; otherwise it is a mapping of `article`, `here`
    /// and `departure`, a sentence of docs/systems.md.
    files: BTreeMap<String, Map<String, Value>>,
}

fn yaml(text: &str) -> Value {
    let (tree, mistakes) = tree::parse(&Source::file(Path::new("values"), text.to_owned()));
    assert!(mistakes.is_empty(), "{text}: {mistakes:?}");
    tree.map_or(Value::Null, |tree| tree.to_json(&mut |_| panic!("{text}")).unwrap())
}

fn articles(text: &str) -> Articles {
    let Value::Object(mut file) = yaml(text) else { panic!("a mapping") };
    let undetermined = serde_json::from_value(file.remove("undetermined").unwrap()).unwrap();
    let mut files: BTreeMap<String, Map<String, Value>> =
        serde_json::from_value(file.remove("files").unwrap()).unwrap();
    for values in files.values_mut() {
        let shared = values.remove("group").map(|group| file["groups"][group.as_str().unwrap()].clone());
        for (key, value) in shared.as_ref().and_then(Value::as_object).into_iter().flatten() {
            values.entry(key).or_insert(value.clone());
        }
    }
    Articles { undetermined, files }
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
    for (key, entry) in values {
        let part = |name: &str| entry.get(name);
        let (article, here) = (part("article").unwrap_or(entry), part("here").unwrap_or(entry));
        match resolved.iter().find(|resolved| resolved.key == *key).map(|resolved| &resolved.value) {
            None => problems.push(format!("{file} has no key {key}, which the table lists")),
            Some(value) if !is_equal(value, here) => {
                problems.push(format!("{file}: {key} is {value}, and the table says {here}"));
            }
            Some(_) => {}
        }
        let departure = part("departure").and_then(Value::as_str);
        let is_documented = departure.is_some_and(|sentence| section.contains(sentence));
        match (is_equal(article, here), departure) {
            (false, None) => problems.push(format!("{file}: {key} is {here}, the article has {article}: no departure")),
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
fn full_size_files_have_the_values_of_the_articles_or_a_departure() {
    let (articles, page) = (articles(TABLE), page());
    let found: Vec<String> =
        articles.files.keys().flat_map(|file| problems(file, &resolved(file), &articles, &page)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
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
    let with = |changed: &dyn Fn(&mut Map<String, Value>)| {
        let mut articles = articles(TABLE);
        changed(articles.files.get_mut("llama-ddp.yaml").unwrap());
        problems("llama-ddp.yaml", &resolved("llama-ddp.yaml"), &articles, &page)
    };
    let only =
        |found: Vec<String>, words: &str| assert!(matches!(&found[..], [one] if one.contains(words)), "{found:?}");
    only(with(&|values| _ = values.remove("batch.sequences")), "batch.sequences is 256, and the table lacks the key");
    only(
        with(&|values| _ = values.insert("batch.sequences".into(), 64.into())),
        "batch.sequences is 256, and the table",
    );
    only(with(&|values| _ = values.insert("batch.size".into(), 64.into())), "has no key batch.size");
    let differing = |departure: &str| format!("{{article: 64, here: 256{departure}}}");
    let sequences = |entry: String| with(&|values| _ = values.insert("batch.sequences".into(), yaml(&entry)));
    only(sequences(differing("")), "no departure");
    only(sequences(differing(", departure: The batch is a whole zoo.")), "lacks the sentence");
    only(sequences("{article: 256, here: 256, departure: x}".to_owned()), "departs from nothing");
    assert_eq!(with(&|_| {}), Vec::<String>::new());
}
