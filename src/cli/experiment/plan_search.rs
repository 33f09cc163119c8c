//! `runner plan --search`: the layout with the shortest forecast on this machine or a cluster, and the file that has it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::cli::experiment::plan::{PlanArgs, PlanData};
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::{print_result, print_to_stderr, write_file};
use runner_config::{LoadOptions, Loaded, from_str, to_yaml};
use runner_plan::search::{Layout, SearchProgress, search_reported};
use runner_report::plan::render_search;
use runner_spec::cluster::ClusterFacts;
use runner_spec::experiment::{AutoOr, EvalLoss, Experiment, Parallel, Pipeline};
use runner_spec::format::{choice_name, count, counted, duration, json_value};
use runner_yaml::edit::set_value;

/// A search says how far it is each time so much time has passed.
const NOTICED_TIME: Duration = Duration::from_secs(5);

/// Flags of `runner plan` for the search.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct SearchArgs {
    /// Compare every layout that fits: mode, replicas, stages, schedule, micro-batch, recomputation and sharding. Shows those with the
    /// shortest forecasts, and those that need less memory or send less.
    #[arg(long, conflicts_with_all = ["price", "timeline", "rank", "program"])]
    pub search: bool,
    /// Write the file with the layout of the shortest forecast.
    #[arg(long, value_name = "OUT.yaml", requires = "search")]
    pub write: Option<PathBuf>,
    /// Replace the file that `--write` names.
    #[arg(long, requires = "write")]
    pub force: bool,
}

/// Searches, shows the result, and writes the layout with the shortest forecast if `args` ask for it.
///
/// # Errors
/// Those of [`search`]; a file that cannot be written.
pub(crate) fn run(args: &PlanArgs, loaded: &Loaded, data: &PlanData, cluster: &ClusterFacts) -> Result<Exit> {
    let experiment = &loaded.experiment;
    let (started, next) = (Instant::now(), Cell::new(NOTICED_TIME));
    let report = |progress: SearchProgress| {
        let elapsed = started.elapsed();
        if elapsed > next.get() {
            next.set(elapsed + NOTICED_TIME);
            let SearchProgress { layouts, simulated } = progress;
            let (layouts, simulated) = (counted(layouts as u64, "layout"), count(simulated as u64));
            print_to_stderr(&format!(
                "searching: {layouts} compared, {simulated} of them simulated, in {}",
                duration(elapsed)
            ));
        }
    };
    let result = search_reported(experiment, &data.facts, cluster, &report)?;
    for line in data.warning.iter().map(|warning| format!("warning: {warning}\n")) {
        print_to_stderr(&line);
    }
    let exit = print_result(args.json, &result, || render_search(&result))?;
    if let (Some(path), Some(shortest)) = (&args.search.write, result.shortest_forecasts.first()) {
        let (text, keeps_comments) = file_with_layout(&loaded.text, experiment, &shortest.layout, path);
        write_file(path, text.as_bytes(), args.search.force)?;
        let (file, from) = (path.display(), loaded.path.display());
        let layout = "the layout of the shortest forecast";
        let how = if keeps_comments {
            format!("{from} with {layout} and its comments")
        } else {
            format!("all settings of {from} with {layout}, without its comments")
        };
        print_to_stderr(&format!("wrote {file}: {how}\n"));
    }
    Ok(exit)
}

/// The text of an experiment file at `path` that is `experiment` with `layout`, and whether it has the comments of `text`, which it is from. Flags, variables of the
/// environment and paths that start from a different folder need every setting to be written.
fn file_with_layout(text: &str, experiment: &Experiment, layout: &Layout, path: &Path) -> (String, bool) {
    let changed = layout.apply(experiment);
    let reads_as_wanted = |text: &String| {
        let options =
            LoadOptions { allows_absent_files: true, allows_absent_initial_inputs: true, ..LoadOptions::default() };
        let read = from_str(text, path, &options).map(|read| read.experiment);
        read.is_ok_and(|read| Experiment { name: changed.name.clone(), ..read } == changed)
    };
    let edited = edit_layout(text, experiment, &changed).filter(reads_as_wanted);
    edited.map_or_else(|| (to_yaml(&changed), false), |text| (text, true))
}

/// `text`, the file of `experiment`, with the layout of `changed`; `None` if its form cannot be edited.
fn edit_layout(text: &str, experiment: &Experiment, changed: &Experiment) -> Option<String> {
    let mut text = text.to_owned();
    if changed.parallel != experiment.parallel {
        text = set_value(&text, "parallel", &parallel_in_one_line(&changed.parallel))?;
    }
    text = set_value(&text, "batch.micro_batch", &changed.batch.micro_batch.to_string())?;
    if changed.train.recompute != experiment.train.recompute {
        text = set_value(&text, "train.recompute", &choice_name(&changed.train.recompute))?;
    }
    if let (Some(EvalLoss::Batches(_)), Some(EvalLoss::Rows(rows))) = (experiment.eval.loss, changed.eval.loss) {
        text = set_value(&text, "eval.loss", &format!("{{rows: {rows}}}"))?;
    }
    Some(text)
}

/// The section `parallel` of a file on one line, without keys that have their defaults.
fn parallel_in_one_line(parallel: &Parallel) -> String {
    let Parallel { mode, replicas, shard, pipeline, bucket_mb, devices, max_restarts } = parallel;
    let default = Parallel::single();
    let mut keys = vec![format!("mode: {}", choice_name(mode))];
    keys.extend((*replicas > 1).then(|| format!("replicas: {replicas}")));
    keys.extend(shard.map(|state| format!("shard: {}", choice_name(&state))));
    if let Some(Pipeline { stages, partition, schedule, chunks, .. }) = pipeline {
        let mut inner = vec![format!("stages: {stages}"), format!("schedule: {}", choice_name(schedule))];
        inner.extend((*chunks > 1).then(|| format!("chunks: {chunks}")));
        if let AutoOr::Given(counts) = partition {
            inner.push(format!("partition: {counts:?}"));
        }
        keys.push(format!("pipeline: {{{}}}", inner.join(", ")));
    }
    keys.extend((*bucket_mb != default.bucket_mb).then(|| format!("bucket_mb: {bucket_mb}")));
    if let AutoOr::Given(devices) = devices {
        let names: Vec<String> = devices.iter().map(|device| json_value(&device.to_string()).to_string()).collect();
        keys.push(format!("devices: [{}]", names.join(", ")));
    }
    keys.extend((*max_restarts > 0).then(|| format!("max_restarts: {max_restarts}")));
    format!("{{{}}}", keys.join(", "))
}
