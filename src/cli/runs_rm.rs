//! `runner runs rm`: removes runs after it showed them and a person confirmed.

use clap::Args;

use super::common::RunsFolderArgs;
use super::confirm::confirmed;
use super::exit::{Exit, RequestError};
use super::output::{complain, print, print_json};
use runner_lab::remove;
use runner_spec::format::{bytes, counted, printable};
use runner_store::StoreError;
use runner_store::catalog;
use runner_store::catalog::{ListedRun, ListedStatus};

/// Remove runs, after showing them and asking.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct RmArgs {
    /// The runs: directories, ids, or beginnings of ids.
    #[arg(required = true, value_name = "RUN")]
    pub runs_given: Vec<String>,
    /// Remove without asking.
    #[arg(long, short)]
    pub yes: bool,
    /// Remove only the checkpoints of runs that are done; metrics, samples, log and summary stay.
    #[arg(long)]
    pub keep_record: bool,
    /// Also remove runs of a sweep that is not finished.
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
pub(crate) fn run(args: &RmArgs) -> anyhow::Result<Exit> {
    let root = args.root.root();
    let mut paths = catalog::resolve_all(&root, &args.runs_given)?;
    paths.sort();
    // All runs are checked before any is removed.
    let mut going: Vec<(ListedRun, u64)> = Vec::new();
    let mut freed = remove::FreedBytes::default();
    for path in &paths {
        remove::check(&root, path)?;
        let listed = catalog::describe(path);
        check_removable(args, &listed)?;
        let what = if args.keep_record { path.join(runner_store::run_dir::CHECKPOINTS) } else { path.clone() };
        going.push((listed, freed.add(&what)));
    }
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
            complain(&printable(&format!("warning: {} {verb} made from {}", others.join(", "), run.id)));
        }
    }
    if !args.yes {
        complain(&lines.join("\n"));
        let what = if args.keep_record { "the checkpoints of " } else { "" };
        let runs = counted(going.len() as u64, "run");
        if !confirmed(&format!("remove {what}{runs}, {}?", bytes(total)))? {
            complain("nothing was removed");
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
    if args.json {
        let rows: Vec<_> = going
            .iter()
            .map(|(run, bytes)| serde_json::json!({"id": run.id, "path": run.path, "status": run.status, "bytes": bytes}))
            .collect();
        print_json(&serde_json::json!({"removed": rows, "bytes": total}))?;
    } else {
        let what = if args.keep_record { "removed the checkpoints of" } else { "removed" };
        print(&format!("{what} {}\n", lines.join(&format!("\n{what} "))))?;
    }
    Ok(Exit::Done)
}

/// # Errors
/// If `run` is being worked on, is not done with `--keep-record`, or belongs to an unfinished sweep without `--force`.
fn check_removable(args: &RmArgs, run: &ListedRun) -> Result<(), RequestError> {
    let id = printable(&run.id);
    if run.status == ListedStatus::Running {
        return Err(RequestError(format!("run {id} is being worked on by another process: stop it first")));
    }
    if args.keep_record && run.status != ListedStatus::Done {
        let why = "without checkpoints it would start again from step 0";
        return Err(RequestError(format!(
            "run {id} is {}: {why}; --keep-record is for runs that are done",
            run.status.name()
        )));
    }
    match &run.sweep {
        Some(point) if !args.force && remove::is_sweep_unfinished(&args.root.root(), &point.id) => {
            let sweep = printable(&point.id);
            Err(RequestError(format!(
                "run {id} is point {} of the sweep {sweep}, which is not finished and needs it; --force removes it anyway",
                point.point
            )))
        }
        _ => Ok(()),
    }
}

/// Rewords the lock's error, which is written for training.
fn reword_locked(error: StoreError, run: &ListedRun) -> anyhow::Error {
    match error {
        StoreError::Locked { holder, .. } => RequestError(format!(
            "run {} is being worked on by another process{holder}: stop it first",
            printable(&run.id)
        ))
        .into(),
        other => other.into(),
    }
}
