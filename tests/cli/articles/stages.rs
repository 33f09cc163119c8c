//! The stages of build-nanogpt.yaml.j2: what each changes, and what the planner forecasts. The forecasts that other rows give.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{RowForecast, articles, fixture, is_equal, resolved};
use crate::sandbox::{Sandbox, repository_path};
use runner_spec::format::count;

const TEMPLATE: &str = "build-nanogpt.yaml.j2";

/// The file without samples that the first stage is.
const START: &str = "gpt2-fineweb-start.yaml";

/// The keys and values of a file, without its name, which says the stage.
fn keys_of(file: &str, variables: &[String]) -> BTreeMap<String, Value> {
    resolved(file, variables).into_iter().filter(|key| key.key != "name").map(|key| (key.key, key.value)).collect()
}

/// The keys whose values differ, with those of `after`.
fn changes(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    let value = |keys: &BTreeMap<String, Value>, key: &String| keys.get(key).cloned().unwrap_or(Value::Null);
    let all = before.keys().chain(after.keys());
    all.filter(|key| !is_equal(&value(before, key), &value(after, key)))
        .map(|key| (key.clone(), value(after, key)))
        .collect()
}

#[test]
fn a_stage_changes_the_keys_that_the_fixture_lists() {
    let mut wrong = Vec::new();
    let mut before = keys_of(START, &[]);
    for (index, stage) in articles(&fixture()).stages.iter().enumerate() {
        let number = index + 1;
        let after = keys_of(TEMPLATE, &[format!("stage={number}")]);
        let found = changes(&before, &after);
        let is_same = found.len() == stage.keys.len()
            && found.iter().all(|(key, value)| stage.keys.get(key).is_some_and(|listed| is_equal(listed, value)));
        if !is_same {
            wrong.push(format!("stage {number} changes {found:?}, and the fixture lists {:?}", stage.keys));
        }
        before = after;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn forecasts_of_stages_are_the_planners() {
    let sandbox = Sandbox::new();
    let template = repository_path("experiments").join(TEMPLATE).display().to_string();
    for (index, stage) in articles(&fixture()).stages.iter().enumerate() {
        let number = index + 1;
        assert_eq!(stage.forecast_ms.keys().collect::<Vec<_>>(), ["A100", "H100"], "stage {number}");
        for (device, &listed) in &stage.forecast_ms {
            let (variable, cluster) = (format!("stage={number}"), format!("1x8x{device}"));
            let line = ["plan", &template, "--var", &variable, "--rows", "330", "--cluster", &cluster, "--json"];
            let seconds = sandbox.json_of(&line)["forecast"]["step_seconds"].as_f64().unwrap();
            assert_eq!(format!("{:.0}", seconds * 1e3), listed.to_string(), "stage {number} on {device}");
        }
    }
}

#[test]
fn forecasts_in_rows_are_the_planners() {
    let sandbox = Sandbox::new();
    let articles = articles(&fixture());
    let rows = articles.behaviours.values().flatten().flat_map(|topic| &topic.rows);
    let texts: String = rows.map(|row| row.here.as_str()).collect();
    for RowForecast { file, cluster, ms } in &articles.forecasts {
        let path = repository_path("experiments").join(file).display().to_string();
        let plan = sandbox.json_of(&["plan", &path, "--rows", "100000", "--cluster", cluster, "--json"]);
        let seconds = plan["forecast"]["step_seconds"].as_f64().unwrap();
        assert_eq!((seconds * 1e3).round() as u64, *ms, "{file} on {cluster}");
        assert!(texts.contains(&count(*ms)), "no row has the {ms} ms of {file} on {cluster}");
    }
}

/// The small form needs no files, and changes from stage to stage like the full size. One stage of two ranks trains.
#[test]
fn the_small_form_has_the_stages_of_the_full_size() {
    let sandbox = Sandbox::new();
    let template = repository_path("experiments").join(TEMPLATE).display().to_string();
    let sizes = ["model.vocab_size"];
    let mut before: Option<[BTreeMap<String, Value>; 2]> = None;
    for number in 1..=articles(&fixture()).stages.len() {
        let stage = format!("stage={number}");
        let forms = [
            keys_of(TEMPLATE, std::slice::from_ref(&stage)),
            keys_of(TEMPLATE, &[stage.clone(), "tiny=true".to_owned()]),
        ];
        if let Some(before) = &before {
            let [full, tiny] = [0, 1].map(|form| {
                let mut changed = changes(&before[form], &forms[form]);
                changed.retain(|key, _| !sizes.contains(&key.as_str()));
                changed
            });
            assert_eq!(full, tiny, "stage {number}");
        }
        before = Some(forms);
    }
    let train = ["apply", &template, "--var", "stage=9", "--var", "tiny=true", "--set", "train.steps=12", "--quiet"];
    sandbox.expect(0, &train);
    let losses: Vec<f64> =
        sandbox.only_run().metrics_of("train").iter().map(|line| line["loss"].as_f64().unwrap()).collect();
    assert!(losses.len() == 12 && losses[11] < losses[0], "{losses:?}");
}
