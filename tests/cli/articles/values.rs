//! The keys of the shipped files have the values of their sources, or the fixture says why they do not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Articles, ResolvedKey, SourceValue, articles, fixture, is_equal, resolved, yaml};

/// The problems of the `resolved` keys of `file`, one sentence each.
fn problems(file: &str, resolved: &[ResolvedKey], articles: &Articles) -> Vec<String> {
    let mut problems = Vec::new();
    let Some(values) = articles.files.get(file) else { return vec![format!("{file} has no values in the fixture")] };
    let is_undetermined = |key: &str| {
        let is_in =
            |section: &String| key.strip_prefix(section.as_str()).is_some_and(|k| k.is_empty() || k.starts_with('.'));
        articles.undetermined.iter().any(is_in)
    };
    for ResolvedKey { key, value, is_default } in resolved {
        let is_absent = *is_default && value.is_null();
        if !values.contains_key(key) && !is_undetermined(key) && !is_absent {
            problems.push(format!("{file}: {key} is {value}, and the fixture lacks the key"));
        }
    }
    let sources: BTreeSet<&String> =
        articles.documents.iter().chain(&articles.elsewhere).map(|source| &source.name).collect();
    for (key, value) in values {
        let SourceValue { origin, source, here, why, .. } = value;
        if !sources.contains(origin) {
            problems.push(format!("{file}: {key} comes from {origin}, which is not a source"));
        }
        match resolved.iter().find(|resolved| resolved.key == *key).map(|resolved| &resolved.value) {
            None => problems.push(format!("{file} has no key {key}, which the fixture lists")),
            Some(value) if !is_equal(value, here) => {
                problems.push(format!("{file}: {key} is {value}, and the fixture says {here}"));
            }
            Some(_) => {}
        }
        match (value.departs(), why) {
            (true, None) => problems.push(format!("{file}: {key} is {here}, {origin} has {source}: why?")),
            (false, Some(_)) => problems.push(format!("{file}: {key} departs from nothing")),
            _ => {}
        }
    }
    problems
}

#[test]
fn full_size_files_have_the_values_of_their_sources_or_a_reason() {
    let articles = articles(&fixture());
    let found: Vec<String> =
        articles.files.keys().flat_map(|file| problems(file, &resolved(file, &[]), &articles)).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert_eq!(articles.repeated, Vec::<String>::new(), "keys with two sources");
    let used: BTreeSet<&String> =
        articles.files.values().flat_map(BTreeMap::values).map(|value| &value.origin).collect();
    let named: BTreeSet<&String> =
        articles.documents.iter().chain(&articles.elsewhere).map(|source| &source.name).collect();
    assert_eq!(used, named, "every source has a value");
}

/// A changed value, a key that the fixture lacks, a key that the file lacks and a departure without a reason are each reported.
#[test]
fn departures_are_not_unseen() {
    let with = |changed: &dyn Fn(&mut BTreeMap<String, SourceValue>)| {
        let mut articles = articles(&fixture());
        changed(articles.files.get_mut("llama-ddp.yaml").unwrap());
        problems("llama-ddp.yaml", &resolved("llama-ddp.yaml", &[]), &articles)
    };
    let only =
        |found: Vec<String>, words: &str| assert!(matches!(&found[..], [one] if one.contains(words)), "{found:?}");
    only(with(&|values| _ = values.remove("batch.sequences")), "batch.sequences is 256, and the fixture lacks the key");
    let from = |origin: &str, value: Value| SourceValue::new(origin, None, &value);
    let document = |value: Value| from("DP article", value);
    only(
        with(&|values| _ = values.insert("batch.sequences".into(), document(64.into()))),
        "batch.sequences is 256, and the fixture",
    );
    only(with(&|values| _ = values.insert("batch.size".into(), document(64.into()))), "has no key batch.size");
    only(with(&|values| _ = values.insert("batch.sequences".into(), from("hearsay", 256.into()))), "is not a source");
    let sequences = |entry: &str| with(&|values| _ = values.insert("batch.sequences".into(), document(yaml(entry))));
    only(sequences("{source: 64, here: 256}"), "why?");
    only(sequences("{source: 256, here: 256, why: x}"), "departs from nothing");
    let twice =
        fixture().replace("      parallel.bucket_mb: 25\n", "      parallel.bucket_mb: 25\n      parallel.mode: ddp\n");
    assert_eq!(articles(&twice).repeated, ["parallel.mode: DP article and PyTorch's defaults"]);
    assert_eq!(with(&|_| {}), Vec::<String>::new());
}
