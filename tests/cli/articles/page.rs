//! The tables of docs/systems.md, which are generated from the fixture.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::{Articles, Behaviour, SourceName, SourceValue, Stage, Topic, articles, fixture, resolved};
use crate::sandbox::repository_path;
use runner_spec::format::{count, setting_text};

const BEGIN: &str = "<!-- table: ";
const END: &str = "<!-- end of table -->";

/// `page` with each table between its marks as `table` gives it by its name.
fn filled(page: &str, table: &mut dyn FnMut(&str) -> String) -> String {
    let mut parts = page.split(BEGIN);
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once(" -->\n").unwrap();
        let (_, rest) = rest.split_once(END).unwrap_or_else(|| panic!("the table of {name} has no end"));
        filled += &[BEGIN, name, " -->\n\n", &table(name), "\n", END, rest].concat();
    }
    filled
}

/// The names of the page's tables.
fn table_names(page: &str) -> Vec<&str> {
    page.split(BEGIN).skip(1).filter_map(|part| part.split_once(" -->")).map(|(name, _)| name).collect()
}

/// A table of one of these names: `sources`, `stages`, `values of FILE, FILE`, `values of GROUP`, `behaviours of NAME`. Values of a group
/// that has its own table are left out of the tables of files.
fn table(name: &str, articles: &Articles, own_tables: &BTreeSet<&str>) -> String {
    match name.split_once(" of ") {
        None if name == "sources" => source_table(articles),
        None if name == "stages" => stage_table(articles),
        Some(("behaviours", name)) => behaviour_table(&articles.behaviours[name]),
        Some(("values", name)) if articles.groups.contains_key(name) => group_table(name, articles),
        Some(("values", names)) => file_table(&names.split(", ").collect::<Vec<_>>(), articles, own_tables),
        _ => panic!("no table is called {name}"),
    }
}

fn group_table(group: &str, articles: &Articles) -> String {
    let is_in_group = |value: &SourceValue| value.group.as_deref() == Some(group);
    let (file, _) = articles.files.iter().find(|(_, values)| values.values().any(is_in_group)).unwrap();
    value_table(&[(group, articles.groups[group].clone())], &order_of_keys(std::slice::from_ref(file)))
}

fn file_table(names: &[&str], articles: &Articles, own_tables: &BTreeSet<&str>) -> String {
    let files: Vec<String> = names.iter().map(|name| format!("{name}.yaml")).collect();
    let is_listed = |value: &SourceValue| !value.group.as_deref().is_some_and(|group| own_tables.contains(group));
    let values = |file: &String| {
        let listed = articles.files[file].iter().filter(|(_, value)| is_listed(value));
        listed.map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    let systems: Vec<_> = names.iter().zip(&files).map(|(&name, file)| (name, values(file))).collect();
    value_table(&systems, &order_of_keys(&files))
}

/// The keys of all files. A key that a file lacks stands behind the one before it in another file.
fn order_of_keys(files: &[String]) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    for file in files {
        let mut next = 0;
        for key in resolved(file, &[]) {
            let place = order.iter().position(|known| *known == key.key);
            if place.is_none() {
                order.insert(next, key.key);
            }
            next = place.unwrap_or(next) + 1;
        }
    }
    order
}

/// A row for each key, or several where systems differ, which then name the systems.
fn value_table(systems: &[(&str, BTreeMap<String, SourceValue>)], order: &[String]) -> String {
    let mut rows = vec![row(&["key", "the source", "here"]), row(&["---"; 3])];
    for key in order {
        let mut cells: Vec<((String, String), Vec<&str>)> = Vec::new();
        for (system, values) in systems {
            let Some(value) = values.get(key) else { continue };
            let pair = (source_cell(value), here_cell(value));
            match cells.iter_mut().find(|(cells, _)| *cells == pair) {
                Some((_, names)) => names.push(system),
                None => cells.push((pair, vec![system])),
            }
        }
        for ((source, here), names) in cells {
            let suffix = if names.len() == systems.len() { String::new() } else { format!(", {}", names.join(", ")) };
            rows.push(row(&[&format!("`{key}`{suffix}"), &source, &here]));
        }
    }
    rows.concat()
}

fn source_cell(SourceValue { origin, source, note, .. }: &SourceValue) -> String {
    match note {
        Some(note) => format!("{} ({origin}: {note})", value_text(source)),
        None => format!("{} ({origin})", value_text(source)),
    }
}

fn here_cell(value: &SourceValue) -> String {
    match &value.why {
        Some(why) => format!("{}: {why}", value_text(&value.here)),
        None => "equal".to_owned(),
    }
}

fn value_text(value: &Value) -> String {
    if value.is_null() { "none".to_owned() } else { format!("`{}`", plain_text(value)) }
}

fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(plain_text).collect::<Vec<_>>().join(", ")),
        other => setting_text(other),
    }
}

fn behaviour_table(topics: &[Topic]) -> String {
    let mut rows = vec![row(&["the source", "here", ""]), row(&["---"; 3])];
    for topic in topics {
        if let Some(name) = &topic.topic {
            rows.push(row(&[&format!("**{name}**"), "", ""]));
        }
        rows.extend(topic.rows.iter().map(|behaviour| row(&[&behaviour.source, &behaviour.here, &outcome(behaviour)])));
    }
    rows.concat()
}

fn outcome(Behaviour { source, equal, differs, wrong, .. }: &Behaviour) -> String {
    match (equal, differs, wrong) {
        (None, None, None) => "equal".to_owned(),
        (Some(remark), None, None) => format!("equal: {remark}"),
        (None, Some(what), None) => format!("differs: {what}"),
        (None, None, Some(why)) => format!("**the source is wrong**: {why}"),
        _ => panic!("two outcomes: {source}"),
    }
}

fn source_table(articles: &Articles) -> String {
    let rows =
        |sources: &[SourceName]| -> String { sources.iter().map(|source| row(&[&source.name, &source.is])).collect() };
    let head = row(&["source", "what it is"]) + &row(&["---"; 2]);
    head + &rows(&articles.documents) + &rows(&articles.elsewhere)
}

fn stage_table(articles: &Articles) -> String {
    let head = ["stage", "change", "keys", "write-up, A100: ms a step", "forecast, A100", "forecast, H100"];
    let mut rows = vec![row(&head), row(&["---"; 6])];
    for (index, Stage { change, keys, logged, forecast_ms }) in articles.stages.iter().enumerate() {
        let is_shown = |(key, value): &(&String, &Value)| !value.is_null() && !articles.undetermined.contains(key);
        let keys = keys.iter().filter(is_shown).map(|(key, value)| format!("`{key}: {}`", plain_text(value)));
        let times = logged.iter().map(|time| match &time.with {
            Some(with) => format!("with {with} {}", count(time.ms)),
            None => count(time.ms),
        });
        let forecast = |device: &str| count(forecast_ms[device]);
        rows.push(row(&[
            &(index + 1).to_string(),
            change,
            &keys.collect::<Vec<_>>().join(", "),
            &times.collect::<Vec<_>>().join("; "),
            &forecast("A100"),
            &forecast("H100"),
        ]));
    }
    rows.concat()
}

fn row<T: AsRef<str>>(cells: &[T]) -> String {
    let cells = cells.iter().map(|cell| match cell.as_ref() {
        "" => " |".to_owned(),
        cell => format!(" {} |", cell.replace('|', "\\|")),
    });
    format!("|{}\n", cells.collect::<String>())
}

/// The page with its tables, which must be all that the fixture has, each once.
fn generated(page: &str, articles: &Articles) -> String {
    let names = table_names(page);
    let of = |kind: &'static str| names.iter().filter_map(move |name| name.strip_prefix(kind)?.strip_prefix(" of "));
    let mut values: Vec<&str> = of("values").flat_map(|names| names.split(", ")).collect();
    values.retain(|name| !articles.groups.contains_key(*name));
    values.sort_unstable();
    let mut files: Vec<&str> = articles.files.keys().map(|file| file.trim_end_matches(".yaml")).collect();
    files.sort_unstable();
    assert_eq!(values, files, "the files of the tables of values");
    let mut behaviours: Vec<&str> = of("behaviours").collect();
    behaviours.sort_unstable();
    assert_eq!(behaviours, articles.behaviours.keys().collect::<Vec<_>>(), "the tables of behaviours");
    for name in ["sources", "stages"] {
        assert_eq!(names.iter().filter(|known| **known == name).count(), 1, "the table {name}");
    }
    let own_tables: BTreeSet<&str> = of("values").filter(|name| articles.groups.contains_key(*name)).collect();
    filled(page, &mut |name| table(name, articles, &own_tables))
}

#[test]
fn the_tables_of_the_page_are_current() {
    let path = repository_path("docs/systems.md");
    let page = fs::read_to_string(&path).unwrap();
    let current = generated(&page, &articles(&fixture()));
    if std::env::var_os("UPDATE_PAGES").is_some() {
        fs::write(&path, &current).unwrap();
        return;
    }
    let differing = page.lines().zip(current.lines()).find(|(is, should)| is != should);
    assert!(
        page == current,
        "docs/systems.md is not what tests/fixtures/articles.yaml says: {differing:?}; \
         regenerate it: UPDATE_PAGES=1 cargo test --test cli articles"
    );
}

/// A key that all systems share has one row, and one that differs has a row for each value.
#[test]
fn systems_share_rows() {
    let value = |origin: &str, text: &str| SourceValue::new(origin, None, &super::yaml(text));
    let values = |pairs: &[(&str, SourceValue)]| pairs.iter().map(|(key, v)| ((*key).to_owned(), v.clone())).collect();
    let shared = ("seed", value("paper", "{source: 1, note: as in the code}"));
    let first = values(&[shared.clone(), ("batch", value("paper", "64"))]);
    let second = values(&[shared, ("batch", value("blog", "{source: null, here: 1e-5, why: a|b}"))]);
    let third = values(&[("batch", value("paper", "64")), ("text", value("blog", "[it's, 2]"))]);
    let order = ["seed", "batch", "text"].map(str::to_owned);
    assert_eq!(
        value_table(&[("a", first), ("b", second), ("c", third)], &order),
        "| key | the source | here |\n\
         | --- | --- | --- |\n\
         | `seed`, a, b | `1` (paper: as in the code) | equal |\n\
         | `batch`, a, c | `64` (paper) | equal |\n\
         | `batch`, b | none (blog) | `1e-5`: a\\|b |\n\
         | `text`, c | `[it's, 2]` (blog) | equal |\n"
    );
}

#[test]
fn a_table_is_replaced_between_its_marks() {
    let page =
        "# P\n<!-- table: x -->\nold\n<!-- end of table -->\nrest\n<!-- table: y of z -->\n<!-- end of table -->";
    let mut names = Vec::new();
    let mut table = |name: &str| {
        names.push(name.to_owned());
        "new\n".to_owned()
    };
    let once = filled(page, &mut table);
    assert_eq!(
        once,
        "# P\n<!-- table: x -->\n\nnew\n\n<!-- end of table -->\nrest\n<!-- table: y of z -->\n\nnew\n\n<!-- end of table -->"
    );
    assert_eq!(filled(&once, &mut table), once);
    assert_eq!(names, ["x", "y of z", "x", "y of z"]);
}
