//! `runner runs rm`: removes runs, once it has shown what would go and was told to.

use clap::Args;

use super::common::RootArgs;
use super::confirm::confirmed;
use super::exit::{Exit, RequestError};
use super::output::{complain, print, print_json};
use runner_lab::remove;
use runner_spec::format::{bytes, printable};
use runner_store::StoreError;
use runner_store::catalog;
use runner_store::catalog::{ListedRun, ListedStatus};

/// Remove runs: shows what would go, and asks.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct RmArgs {
    /// Run directories, ids, or beginnings of ids that no other run shares.
    #[arg(required = true, value_name = "RUN")]
    pub runs_given: Vec<String>,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
    /// Remove the checkpoints only, of runs that are done; metrics, samples, log and summary stay.
    #[arg(long)]
    pub keep_record: bool,
    /// Remove runs of a sweep that is not finished, too.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, a process works on one, a sweep needs one, nobody said yes, or the file system refuses.
pub(crate) fn run(args: &RmArgs) -> anyhow::Result<Exit> {
    let root = args.root.root();
    let mut paths = catalog::resolve_all(&root, &args.runs_given)?;
    paths.sort();
    // Everything is looked at before anything is removed.
    let mut going: Vec<(ListedRun, u64)> = Vec::new();
    let mut freed = remove::FreedBytes::default();
    for path in &paths {
        remove::check(&root, path)?;
        let listed = catalog::describe(path);
        refuse(args, &listed)?;
        let what = if args.keep_record { path.join(runner_store::run_dir::CHECKPOINTS) } else { path.clone() };
        going.push((listed, freed.add(&what)));
    }
    let all = catalog::list(&root)?;
    let total: u64 = going.iter().map(|(_, bytes)| bytes).sum();
    let line =
        |(run, size): &(ListedRun, u64)| format!("{}  {}  {}", printable(&run.id), run.status.as_str(), bytes(*size));
    let lines: Vec<String> = going.iter().map(line).collect();
    for (run, _) in &going {
        let others = remove::descendants(&all, &run.id);
        let others: Vec<&str> =
            others.iter().filter(|o| !going.iter().any(|(r, _)| r.id == o.id)).map(|o| o.id.as_str()).collect();
        if !others.is_empty() {
            complain(&printable(&format!("warning: {} is where {} came from", run.id, others.join(", "))));
        }
    }
    if !args.yes {
        complain(&lines.join("\n"));
        let what = if args.keep_record { "the checkpoints of " } else { "" };
        let count = if going.len() == 1 { "this run".to_owned() } else { format!("these {} runs", going.len()) };
        if !confirmed(&format!("remove {what}{count}, {}?", bytes(total)))? {
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
        removed.map_err(|error| worked_on(error, run))?;
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

fn refuse(args: &RmArgs, run: &ListedRun) -> Result<(), RequestError> {
    let id = printable(&run.id);
    if run.status == ListedStatus::Running {
        return Err(RequestError(format!("run {id} is being worked on by another process: stop it first")));
    }
    if args.keep_record && run.status != ListedStatus::Done {
        let why = "without checkpoints it would start over, and its record with it";
        return Err(RequestError(format!(
            "run {id} is {}: {why}; --keep-record is for runs that are done",
            run.status.as_str()
        )));
    }
    match &run.sweep {
        Some(point) if !args.force && remove::sweep_goes_on(&args.root.root(), &point.id) => {
            let sweep = printable(&point.id);
            Err(RequestError(format!(
                "run {id} is point {} of the sweep {sweep}, which is not finished and needs it; --force removes it all the same",
                point.point
            )))
        }
        _ => Ok(()),
    }
}

/// The lock's own words are for someone who wants to train.
fn worked_on(error: StoreError, run: &ListedRun) -> anyhow::Error {
    match error {
        StoreError::Locked { holder, .. } => RequestError(format!(
            "run {} is being worked on by another process{holder}: stop it first",
            printable(&run.id)
        ))
        .into(),
        other => other.into(),
    }
}
