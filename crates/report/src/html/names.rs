//! The names of the page's runs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::sweep::SweepTable;
use runner_compare::run_names::{RunSettings, describe_differences, describe_settings, run_name, shortest_name};

/// The names of the runs with these ids and settings: what distinguishes each, or its id if nothing does. The values of a point name
/// its run. If two runs would have the same name, it contains their ids.
pub(super) fn name_shown_runs(
    ids: &[&str],
    settings: &[Option<RunSettings>],
    sweep: Option<&SweepTable>,
) -> Vec<String> {
    let described: Vec<String> = if let Some(table) = sweep {
        ids.iter().map(|id| describe_point(table, id)).collect()
    } else {
        let mut readable = describe_differences(&settings.iter().flatten().collect::<Vec<_>>()).into_iter();
        settings.iter().map(|settings| settings.as_ref().and_then(|_| readable.next()).unwrap_or_default()).collect()
    };
    let mut uses: BTreeMap<&str, usize> = BTreeMap::new();
    for text in &described {
        *uses.entry(text).or_default() += 1;
    }
    let name = |(id, text): (&&str, &String)| match uses[text.as_str()] {
        _ if text.is_empty() => (*id).to_owned(),
        1 => text.clone(),
        _ => run_name(text, id),
    };
    ids.iter().zip(&described).map(name).collect()
}

fn describe_point(table: &SweepTable, id: &str) -> String {
    let Some(row) = table.rows.iter().find(|row| row.run.as_deref() == Some(id)) else { return String::new() };
    let names: BTreeSet<String> = table.parameters.iter().cloned().collect();
    let heads: Vec<String> = row.values.iter().map(|(name, _)| shortest_name(name, &names, &[])).collect();
    let pairs: Vec<(&str, &Value)> =
        heads.iter().zip(&row.values).map(|(head, (_, value))| (head.as_str(), value)).collect();
    describe_settings(&pairs)
}

#[cfg(test)]
mod tests {
    use super::super::settings::settings_of;
    use super::*;

    #[test]
    fn runs_have_short_names_that_differ() {
        let file = |lr: f64, seed: u64| format!("name: a{seed}\nseed: {seed}\noptimizer: {{adamw: {{lr: {lr}}}}}\n");
        let (a, b, c) = (file(0.1, 1), file(0.2, 1), file(0.2, 2));
        let names = |runs: &[(&str, Option<&str>)]| {
            let (ids, files): (Vec<&str>, Vec<Option<&str>>) = runs.iter().copied().unzip();
            name_shown_runs(&ids, &files.into_iter().map(settings_of).collect::<Vec<_>>(), None)
        };
        assert_eq!(names(&[("x-1", Some(&a)), ("x-2", Some(&b))]), ["lr 0.1", "lr 0.2"]);
        assert_eq!(
            names(&[("x-1", Some(&a)), ("x-2", Some(&b)), ("x-3", Some(&c)), ("x-4", Some(&c)), ("x-5", None)]),
            ["lr 0.1, seed 1", "lr 0.2, seed 1", "lr 0.2, seed 2 (x-3)", "lr 0.2, seed 2 (x-4)", "x-5"]
        );
        assert_eq!(names(&[("x-1", Some(&a))]), ["x-1"]);
    }
}
