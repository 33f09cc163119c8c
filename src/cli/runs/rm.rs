//! `runner runs rm`: removes runs after it showed them and a person confirmed.

use clap::Args;
use serde_json::json;

use crate::cli::common::RunsFolderArgs;
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::confirm::confirmed;
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr};
use runner_files::FreedBytes;
use runner_housekeeping::remove;
use runner_record::RecordError;
use runner_record::catalog;
use runner_record::catalog::{ListedRun, ListedStatus};
use runner_spec::format::{bytes, counted, printable};
use runner_sweep::describe_points;
use runner_sweep::needed_runs::{CountedRuns, sweeps_of_runs};

/// Remove runs, after showing them and asking.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct RmArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Remove without asking.
    #[arg(long, short)]
    pub yes: bool,
    /// Remove only the checkpoints of runs that are done; metrics, samples, log and summary stay.
    #[arg(long)]
    pub keep_record: bool,
    /// Also remove runs of a sweep that is not finished yet.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, a process works on one, a sweep needs one, nobody can confirm, or a file cannot be removed.
pub(crate) fn run(args: &RmArgs) -> Result<Exit> {
    let root = args.root.root();
    let mut paths = args.selection.resolve(&root)?;
    paths.sort();
    // All runs are checked before any is removed.
    let mut going: Vec<(ListedRun, u64)> = Vec::new();
    let mut freed = FreedBytes::default();
    for path in &paths {
        if args.keep_record {
            remove::check_checkpoints(&root, path)?;
        } else {
            remove::check(&root, path)?;
        }
        let listed = catalog::describe(path);
        check_removable(args, &listed)?;
        let what = if args.keep_record { path.join(runner_record::run_dir::CHECKPOINTS) } else { path.clone() };
        going.push((listed, freed.add(&what)));
    }
    let runs: Vec<&ListedRun> = going.iter().map(|(run, _)| run).collect();
    check_sweeps(args, &sweeps_of_runs(&root, &runs))?;
    let all = catalog::list(&root)?;
    let total: u64 = going.iter().map(|(_, bytes)| bytes).sum();
    let line =
        |(run, size): &(ListedRun, u64)| format!("{}  {}  {}", printable(&run.id), run.status.name(), bytes(*size));
    let lines: Vec<String> = going.iter().map(line).collect();
    for (run, _) in &going {
        let others = remove::descendants(&all, &run.id);
        let others: Vec<&str> =
            others.iter().filter(|o| !going.iter().any(|(r, _)| r.id == o.id)).map(|o| o.id.as_str()).collect();
        if !others.is_empty() {
            let verb = if others.len() == 1 { "was" } else { "were" };
            print_to_stderr(&printable(&format!("warning: {} {verb} made from {}", others.join(", "), run.id)));
        }
    }
    if !args.yes {
        print_to_stderr(&lines.join("\n"));
        let what = if args.keep_record { "the checkpoints of " } else { "" };
        let runs = counted(going.len() as u64, "run");
        if !confirmed(&format!("remove {what}{runs}, {}?", bytes(total)))? {
            print_to_stderr("nothing was removed");
            return Ok(Exit::Done);
        }
    }
    for (run, _) in &going {
        let removed = if args.keep_record {
            remove::remove_checkpoints(&root, &run.path)
        } else {
            remove::remove(&root, &run.path)
        };
        removed.map_err(|error| reword_locked(error, run))?;
    }
    let row = |(run, bytes): &(ListedRun, u64)| {
        let path = run.path.to_string_lossy();
        json!({"id": run.id, "path": path, "status": run.status, "bytes": bytes})
    };
    let rows: Vec<_> = going.iter().map(row).collect();
    print_result(args.json, &json!({"removed": rows, "bytes": total}), || {
        let what = if args.keep_record { "removed the checkpoints of" } else { "removed" };
        format!("{what} {}\n", lines.join(&format!("\n{what} ")))
    })
}

/// # Errors
/// If `run` is being worked on, or is not done with `--keep-record`.
fn check_removable(args: &RmArgs, run: &ListedRun) -> Result<()> {
    let id = printable(&run.id);
    if run.status == ListedStatus::Running {
        refuse!("another process is working on run {id}; stop it first");
    }
    if args.keep_record && run.status != ListedStatus::Done {
        let why = "without checkpoints it would start from scratch";
        refuse!("--keep-record is only for runs that are done; run {id} is {}, and {why}", run.status.name());
    }
    Ok(())
}

/// Warns of the `sweeps` whose points lose their runs.
///
/// # Errors
/// If a sweep that is not finished needs one of the runs, unless `--force` is given.
fn check_sweeps(args: &RmArgs, sweeps: &[CountedRuns]) -> Result<()> {
    for CountedRuns { sweep, is_finished, points } in sweeps {
        let sweep = printable(sweep);
        if !is_finished && !args.force {
            let (run, point) = &points[0];
            let (run, needs) =
                (printable(run), "which is not finished and needs it; use `--force` to remove it anyway");
            refuse!("run {run} is point {point} of the sweep {sweep}, {needs}");
        }
        if args.keep_record {
            continue;
        }
        let numbers: Vec<usize> = points.iter().map(|(_, point)| *point).collect();
        let described = describe_points(&numbers, usize::MAX);
        let (lost, them) = if points.len() == 1 { ("its result", "it") } else { ("their results", "them") };
        print_to_stderr(&format!(
            "warning: the sweep {sweep} needs {described}: it loses {lost}, and `runner sweep {sweep}` trains {them} again"
        ));
    }
    Ok(())
}

/// Rewords the lock's error, which is written for training.
fn reword_locked(error: RecordError, run: &ListedRun) -> CommandError {
    let RecordError::Locked { holder, .. } = error else { return error.into() };
    let id = printable(&run.id);
    CommandError::request(format!("another process{holder} is working on run {id}; stop it first"))
}
