//! The earlier run of a file that has changed since: which keys make the file a new run, and how to continue the earlier run instead.

use std::path::Path;

use runner_compare::plan_facts::describe_changed_data;
use runner_compare::settings::{self, DATA_POSITION, SettingDifference, SettingGroup};
use runner_compare::stored_plan;
use runner_config::Loaded;
use runner_record::catalog::{self, ListedRun, ListedStatus};
use runner_record::checkpoint;
use runner_record::manifest::{DataHashes, RunOrigin};
use runner_record::run_dir::{self, CHECKPOINTS, RESOLVED};
use runner_spec::diagnostic::short;
use runner_spec::experiment::{Experiment, Train};
use runner_spec::format::{count, setting_text, shell_word};
use runner_spec::plan::Plan;

use crate::fork::checkpoint_problems;

/// The largest number of runs that are compared with a file.
const MAX_COMPARED_RUNS: usize = 100;

/// The largest number of keys that are listed.
const MAX_LISTED_KEYS: usize = 8;

/// An earlier run under the name of a file.
struct EarlierRun {
    listed: ListedRun,
    /// The settings in which the file differs from it.
    changes: Vec<SettingDifference>,
}

/// Describes how the experiment `loaded`, whose `plan` has no run in `root`, differs from the run of the same name that shares most of its
/// settings, and how to continue that run instead: lines for a person, none if there is no such run. `name_run` gives the name by which
/// commands find a run.
pub(crate) fn describe_earlier_run(
    root: &Path,
    loaded: &Loaded,
    plan: &Plan,
    name_run: impl Fn(&ListedRun) -> String,
) -> Vec<String> {
    let Some(earlier) = find_earlier_run(root, &loaded.experiment) else { return Vec::new() };
    let EarlierRun { listed: run, changes } = earlier;
    // A plan that cannot be read only makes the description shorter.
    let Some(theirs) = stored_plan::read(&run.path).ok() else { return Vec::new() };
    let name = name_run(&run);
    let id = format!("{} ({} of {} steps)", run.id, count(run.step), count(run.steps));
    let mut lines = Vec::new();
    if changes.is_empty() {
        lines.push(match run.origin {
            Some(RunOrigin::Fork { step, .. }) if step.is_some() || theirs.hash == plan.hash => {
                format!("{id}, a fork, has the settings of this file")
            }
            _ => format!("{id} has these settings, but {}", describe_changed_inputs(&run.path, plan)),
        });
    } else {
        lines.push(format!("a new run starts, because this file differs from {id}:"));
        let listed = changes.iter().take(MAX_LISTED_KEYS);
        lines.extend(listed.map(|change| format!("  {}", describe_change(change, loaded))));
        if let Some(more) = changes.len().checked_sub(MAX_LISTED_KEYS).filter(|more| *more > 0) {
            lines.push(format!("  and {more} more keys; `runner diff {name} {}` lists them", loaded.path.display()));
        }
    }
    lines.extend(describe_continuation(&run, &name, &changes, &theirs, loaded, plan));
    lines.into_iter().map(|line| format!("run    {line}")).collect()
}

/// The newest run of those in `root` with the name of `experiment` that differ from it in the fewest settings. A fork with its settings counts
/// under any name. Points of sweeps and reproductions do not count: no file of theirs has changed.
fn find_earlier_run(root: &Path, experiment: &Experiment) -> Option<EarlierRun> {
    // Runs that cannot be read have no part in this description.
    let listed = catalog::list(root).ok()?;
    let has_its_name = |run: &ListedRun| run.name.as_ref() == Some(&experiment.name);
    let is_run_of_file = |run: &ListedRun| {
        (has_its_name(run) || matches!(run.origin, Some(RunOrigin::Fork { .. })))
            && run.sweep.is_none()
            && !matches!(run.origin, Some(RunOrigin::Reproduction { .. }))
    };
    let compared = listed.into_iter().rev().filter(is_run_of_file).take(MAX_COMPARED_RUNS).filter_map(|listed| {
        let theirs = runner_config::load_resolved(&listed.path.join(RESOLVED)).ok()?.experiment;
        let mut changes = settings::changes(&theirs, experiment);
        changes.retain(|change| change.group != SettingGroup::Bookkeeping && change.key != DATA_POSITION);
        (has_its_name(&listed) || changes.is_empty()).then_some(EarlierRun { listed, changes })
    });
    compared.min_by_key(|run| run.changes.len())
}

/// Why the run in the folder `path`, which has all settings of `plan`, has another plan.
fn describe_changed_inputs(path: &Path, plan: &Plan) -> String {
    let recorded = run_dir::read_manifest(path).ok();
    let changed = recorded.map(|manifest| manifest.data.differing_parts(&DataHashes::from(&plan.data)));
    changed
        .and_then(|parts| describe_changed_data(&parts))
        .unwrap_or_else(|| "the program or the devices plan it differently now".to_owned())
}

/// A changed key with both values and its place.
fn describe_change(change: &SettingDifference, loaded: &Loaded) -> String {
    let key = &change.key;
    let below = |other: &str| other.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('.'));
    let own = || loaded.origins.iter().filter(|origin| origin.key == *key || below(&origin.key));
    let source = own().find(|origin| origin.source != "default").or_else(|| own().next());
    let source = source.map_or_else(String::new, |origin| format!(" ({})", origin.source));
    let text = |value: &Option<serde_json::Value>| {
        value.as_ref().map_or_else(|| "the default".to_owned(), |value| short(&setting_text(value)))
    };
    let is = match &change.b {
        None => own().next().map_or_else(|| text(&None), |origin| short(&origin.value)),
        given => text(given),
    };
    format!("{key} is {is}{source}, was {}", text(&change.a))
}

/// How to continue the run `listed` instead, under the name `name`, with or without `changes`; or why it cannot be continued with them.
fn describe_continuation(
    listed: &ListedRun,
    name: &str,
    changes: &[SettingDifference],
    theirs: &Plan,
    loaded: &Loaded,
    plan: &Plan,
) -> Vec<String> {
    let mut lines = Vec::new();
    let is_fork = changes.is_empty() && matches!(listed.origin, Some(RunOrigin::Fork { step: Some(_), .. }));
    let latest = checkpoint::newest_step(&listed.path.join(CHECKPOINTS));
    if let Some(latest) = latest.filter(|latest| *latest < plan.totals.steps && !is_fork) {
        let problems: Vec<String> = checkpoint_problems(theirs, plan).into_iter().map(|(what, _)| what).collect();
        lines.push(if problems.is_empty() {
            let command = fork_command(name, changes, loaded);
            format!("to continue {} from step {} instead: `{command}`", listed.id, count(latest))
        } else {
            format!("{} cannot continue with this file: {}", listed.id, problems.join("; "))
        });
    }
    let is_unfinished = matches!(listed.status, ListedStatus::Interrupted | ListedStatus::Failed);
    // With equal settings, the data, the program or the devices have changed, and a resume refuses that.
    let has_same_data = DataHashes::from(&theirs.data) == DataHashes::from(&plan.data);
    if is_unfinished && has_same_data && (is_fork || !changes.is_empty()) {
        let how = if is_fork { "to continue it instead" } else { "to continue it unchanged" };
        lines.push(format!("{how}: `runner resume {name}`"));
    }
    lines
}

/// The command that continues the run `name` with `changes`.
fn fork_command(name: &str, changes: &[SettingDifference], loaded: &Loaded) -> String {
    let given = |key: &str| loaded.origins.iter().find(|origin| origin.key == key).map(|origin| origin.value.clone());
    let sets = changes.iter().filter_map(|SettingDifference { key, b, .. }| {
        let value = match b {
            // Another key gives the length.
            Some(serde_json::Value::Null) if Train::LENGTH_KEYS.contains(&key.as_str()) => return None,
            Some(value @ (serde_json::Value::Object(_) | serde_json::Value::Array(_))) => value.to_string(),
            Some(value) => setting_text(value),
            None => given(key).unwrap_or_else(|| "null".to_owned()),
        };
        Some(format!(" --set {}", shell_word(&format!("{key}={value}"))))
    });
    let sets = if changes.len() > MAX_LISTED_KEYS { " --set KEY=VALUE".to_owned() } else { sets.collect() };
    format!("runner fork {name} --from latest{sets}")
}
