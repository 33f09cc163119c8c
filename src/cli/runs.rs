//! `runner runs`: lists, shows, tags and removes recorded runs.

pub(crate) mod compare;
pub(crate) mod diff;
pub(crate) mod export_metrics;
pub(crate) mod gc;
pub(crate) mod report;
pub(crate) mod rm;
pub(crate) mod run_groups;
pub(crate) mod tag;

use std::path::Path;
use std::slice;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use glob::Pattern;

use crate::cli::common::RunsFolderArgs;
use crate::cli::machine::completions::{runs_completer, sweeps_completer};
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr, table_width};
use runner_housekeeping::select;
use runner_record::catalog::{ListedRun, ListedStatus};
use runner_record::record_check::{describe_changed_descriptions, find_damage_of_metrics};
use runner_record::run_dir;
use runner_record::run_dir::CHECKPOINTS;
use runner_record::{RecordError, ancestry, catalog, checkpoint, time};
use runner_report::run_page::run_page;
use runner_report::runs_table::runs_table;
use runner_spec::diagnostic::nearest;
use runner_spec::format::printable;
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
    /// Only runs with one of these statuses, separated by commas: running, pending, requeued (both wait for a scheduler), done,
    /// interrupted, stopped (also "stopped early"), failed, broken.
    #[arg(long, value_name = "STATUS", value_delimiter = ',')]
    pub status: Vec<String>,
    /// Only runs whose id or experiment name matches the pattern, such as 'gpt2-*'.
    #[arg(long, value_name = "GLOB")]
    pub name: Option<String>,
    /// Only runs with this tag; given several times, only runs with all these tags.
    #[arg(long, value_name = "TAG")]
    pub tag: Vec<String>,
    /// Only runs of this sweep: its id or name, a prefix of its id, or its folder.
    #[arg(long, value_name = "SWEEP", add = sweeps_completer())]
    pub sweep: Option<String>,
    /// Only runs that started since then: an age (90s, 30m, 12h, 7d, 2w) or a date in UTC (2026-01-31).
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Only runs for which this expression is true: 'val_loss < 3 and step >= 100'.
    #[arg(long = "where", value_name = "EXPR")]
    pub filter: Option<String>,
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
    /// List the runs: id, status, steps, validation loss, speed, start. `runner runs` alone does the same.
    List(ListArgs),
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
        Some(RunsCommand::List(args)) => list(args),
        Some(RunsCommand::Show(args)) => show(args),
        Some(RunsCommand::Tag(args)) => tag::run(args),
        Some(RunsCommand::Rm(args)) => rm::run(args),
    }
}

fn list(args: &ListArgs) -> Result<Exit> {
    let root = args.root.root();
    let mut runs = catalog::list(&root)?;
    let filter = RunFilter::new(args, &root, &runs)?;
    stopped_points::mark_stopped(&root, &mut runs);
    mark_queued(&root, &mut runs);
    let all = runs.len();
    runs.retain(|run| filter.accepts(run));
    if let Some(expression) = &args.filter {
        select::keep_where(&mut runs, expression)?;
    }
    let limit = args.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    if let Some(key) = &args.sort {
        select::sort(&mut runs, key)?;
        runs.truncate(limit);
    } else {
        select::keep_newest(&mut runs, limit);
    }
    print_result(args.json, &runs, || match (all, runs.len()) {
        (0, _) => format!("no runs in {} yet; start one with `runner apply FILE`\n", root.display()),
        (_, 0) => format!("none of the {all} runs in {} matches\n", root.display()),
        _ => runs_table(&runs, table_width()),
    })
}

/// Gives `runs` in the folder `root` the status that they have by a scheduler's queue. Warns if the queue cannot be read.
fn mark_queued(root: &Path, runs: &mut [ListedRun]) {
    if let Err(error) = runner_batch_jobs::mark_queued(root, runs) {
        print_to_stderr(&printable(&format!("warning: skipped the queue of jobs: {error}")));
    }
}

/// The filters of the list, except for `--where`.
struct RunFilter<'a> {
    args: &'a ListArgs,
    status: Vec<ListedStatus>,
    name: Option<Pattern>,
    /// The id of a sweep.
    sweep: Option<String>,
    /// Seconds since 1970.
    since: Option<f64>,
}

impl<'a> RunFilter<'a> {
    fn new(args: &'a ListArgs, root: &Path, runs: &[ListedRun]) -> Result<Self> {
        let mut statuses = Vec::new();
        for status in args.status.iter().map(|status| status.trim()) {
            let found = ListedStatus::ALL.into_iter().find(|s| s.name() == status || s.description() == status);
            if let Some(found) = found {
                statuses.push(found);
            } else {
                let known: Vec<&str> = ListedStatus::ALL.iter().map(|s| s.name()).collect();
                let help = nearest(status, known.iter().copied())
                    .map_or_else(|| format!("use {}", known.join(", ")), |near| format!("did you mean `{near}`?"));
                refuse!("--status: unknown status `{}`; {help}", status.escape_default());
            }
        }
        let pattern = |text: &String| {
            Pattern::new(text)
                .map_err(|error| CommandError::request(format!("--name {}: {error}", text.escape_default())))
        };
        let name = args.name.as_ref().map(pattern).transpose()?;
        let since = args.since.as_deref().map(parse_since).transpose()?;
        let sweep = args.sweep.as_deref().map(|wanted| sweep_id(root, wanted, runs)).transpose()?;
        Ok(Self { args, status: statuses, name, sweep, since })
    }

    fn accepts(&self, run: &ListedRun) -> bool {
        let Self { args, status, name, sweep, since } = self;
        let started = || run.started.as_deref().and_then(time::parse);
        (status.is_empty() || status.contains(&run.status))
            && name.as_ref().is_none_or(|p| p.matches(&run.id) || run.name.as_ref().is_some_and(|n| p.matches(n)))
            && args.tag.iter().all(|tag| run.tags.contains(tag))
            && sweep.as_ref().is_none_or(|id| run.sweep.as_ref().is_some_and(|s| s.id == *id))
            && since.is_none_or(|since| started().is_some_and(|started| started >= since))
    }
}

/// The id of the sweep that `wanted` names. `runs` still record the id of a sweep whose folder was removed.
fn sweep_id(root: &Path, wanted: &str, runs: &[ListedRun]) -> Result<String, RecordError> {
    if runs.iter().any(|run| run.sweep.as_ref().is_some_and(|sweep| sweep.id == wanted)) {
        return Ok(wanted.to_owned());
    }
    Ok(sweep_dir::read_record(&sweep_dir::resolve_one(root, wanted)?)?.id)
}

/// Parses an age or a date as a time in seconds since 1970.
fn parse_since(text: &str) -> Result<f64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let moment = time::parse_span(text).map(|age| (now.as_secs_f64() - age.as_secs_f64()).max(0.0));
    moment.or_else(|| time::parse(text)).ok_or_else(|| {
        let help = "an age such as 90s, 30m, 12h, 7d or 2w, or a date such as 2026-01-31 or 2026-01-31T09:30";
        CommandError::request(format!("--since must be {help}, got {}", text.escape_default()))
    })
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
