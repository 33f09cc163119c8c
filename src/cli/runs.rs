//! `runner runs`: lists, shows, tags and removes recorded runs.

pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod export_metrics;
pub(crate) mod gc;
pub(crate) mod report;
pub(crate) mod rm;
pub(crate) mod run_groups;
pub(crate) mod selection;
pub(crate) mod tag;
pub(crate) mod watch;

use std::path::Path;
use std::slice;

use clap::{Args, Subcommand};

use crate::cli::common::RunsFolderArgs;
use crate::cli::machine::completions::runs_completer;
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::exit::{Exit, Result};
use crate::cli::terminal::output::{print_result, print_to_stderr, table_width};
use runner_compare::stored_plan;
use runner_housekeeping::select;
use runner_plan::comparability::{ComparableRuns, MeasurementBasis, group_comparable};
use runner_record::catalog::ListedRun;
use runner_record::record_check::{describe_changed_descriptions, find_damage_of_metrics};
use runner_record::run_dir;
use runner_record::run_dir::CHECKPOINTS;
use runner_record::{ancestry, catalog, checkpoint};
use runner_report::run_page::run_page;
use runner_report::runs_table::runs_table;
use runner_spec::format::printable;
use runner_spec::measure::Measure;
use runner_sweep::stopped_points;
use runner_sweep::sweep_dir;

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    pub command: Option<RunsCommand>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Sort by a field, from low to high; -FIELD sorts from high to low [default: started].
    #[arg(long, value_name = "FIELD", allow_hyphen_values = true)]
    pub sort: Option<String>,
    /// Show only the N newest runs, the newest last; with --sort, the first N of that order.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum RunsCommand {
    /// Show one run: its experiment, machine, progress and results.
    Show(ShowArgs),
    Tag(tag::TagArgs),
    Rm(rm::RmArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ShowArgs {
    /// The run: its directory, its id, or a prefix of its id.
    #[arg(add = runs_completer())]
    pub run: String,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON: `run`, `manifest`, `summary`, `checkpoints` (steps), and `ancestors` (the runs that this one was made from).
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, or the folder cannot be read.
pub(crate) fn run(args: &RunsArgs) -> Result<Exit> {
    match &args.command {
        None => list(&args.list),
        Some(RunsCommand::Show(args)) => show(args),
        Some(RunsCommand::Tag(args)) => tag::run(args),
        Some(RunsCommand::Rm(args)) => rm::run(args),
    }
}

fn list(args: &ListArgs) -> Result<Exit> {
    let root = args.root.root();
    let mut runs = args.selection.list(&root)?;
    let limit = args.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    if let Some(key) = &args.sort {
        select::sort(&mut runs, key)?;
        runs.truncate(limit);
        if let Some(warning) = describe_incomparable(&runs, key.trim_start_matches('-')) {
            print_to_stderr(&printable(&format!("warning: {warning}")));
        }
    } else {
        select::keep_newest(&mut runs, limit);
    }
    print_result(args.json, &runs, || match runs.len() {
        0 if args.selection.is_empty() => {
            format!("no runs in {} yet; start one with `runner apply FILE`\n", root.display())
        }
        0 => format!("no run in {} matches\n", root.display()),
        _ => runs_table(&runs, table_width()),
    })
}

/// The warning that the measure `key`, by which `runs` are sorted, does not compare between all of them. Runs whose plan cannot be read are
/// left out.
fn describe_incomparable(runs: &[ListedRun], key: &str) -> Option<String> {
    /// Names of a group that are shown.
    const SHOWN: usize = 4;
    let measure = match key {
        "loss" => Measure::TRAIN_LOSS,
        "best_val_loss" => Measure::VAL_LOSS,
        _ => Measure::of_key(key).filter(Measure::is_evaluated)?,
    };
    let basis = |run: &ListedRun| Some(MeasurementBasis::of_plan(&stored_plan::read(&run.path).ok()?));
    let bases: Vec<_> = runs.iter().filter_map(|run| Some((run.id.clone(), basis(run)?))).collect();
    let groups = group_comparable(bases.iter().map(|(id, basis)| (id.clone(), basis)), &measure.quantity());
    let reason = groups.iter().find_map(|group| group.reason.as_deref())?;
    let names = |group: &ComparableRuns| match group.names.len().saturating_sub(SHOWN) {
        0 => group.names.join(", "),
        more => format!("{} and {more} more", group.names[..SHOWN].join(", ")),
    };
    let groups: Vec<String> = groups.iter().map(names).collect();
    Some(format!(
        "`{key}` is not comparable between all of these runs: {reason}; it is comparable within each of these groups: {}",
        groups.join(" | ")
    ))
}

/// Gives `runs` in the folder `root` the status that they have by a scheduler's queue. Warns if the queue cannot be read.
pub(crate) fn mark_queued(root: &Path, runs: &mut [ListedRun]) {
    if let Err(error) = runner_batch_jobs::mark_queued(root, runs) {
        print_to_stderr(&printable(&format!("warning: skipped the queue of jobs: {error}")));
    }
}

fn show(args: &ShowArgs) -> Result<Exit> {
    let path = catalog::resolve(&args.root.root(), &args.run)?;
    let mut listed = stopped_points::describe(&path);
    mark_queued(path.parent().unwrap_or(Path::new(".")), slice::from_mut(&mut listed));
    let manifest = run_dir::read_manifest(&path)?;
    let summary = run_dir::read_summary(&path).unwrap_or_else(|unreadable| {
        print_to_stderr(&printable(&format!("warning: skipped: {unreadable}")));
        None
    });
    let current = summary.as_ref().filter(|s| s.is_current(manifest.status));
    let problem = find_damage_of_metrics(&path, &manifest, current);
    if let Some(problem) = problem.unwrap_or_else(|error| Some(error.to_string())) {
        print_to_stderr(&format!("warning: {problem}"));
    }
    if let Some(warning) = describe_changed_descriptions(&path, &manifest) {
        print_to_stderr(&printable(&format!("warning: {warning}")));
    }
    let checkpoints = checkpoint::saved_steps(&path.join(CHECKPOINTS))?;
    let ancestors = ancestry::ancestors(path.parent().unwrap_or(Path::new(".")), &manifest);
    let json = serde_json::json!({
        "run": listed, "manifest": manifest, "summary": summary, "checkpoints": checkpoints, "ancestors": ancestors,
    });
    let root = path.parent().unwrap_or(Path::new("."));
    let point = manifest.sweep.as_ref().and_then(|point| sweep_dir::values_of_point(root, point));
    print_result(args.json, &json, || run_page(&listed, &manifest, current, &checkpoints, &ancestors, point.as_deref()))
}
