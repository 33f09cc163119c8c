//! `runner runs`: lists and shows recorded runs.

use std::fmt::Write as _;
use std::path::Path;

use clap::{Args, Subcommand};

use super::common::RootArgs;
use super::exit::Exit;
use super::output::{print, print_json};
use crate::report::format::printable;
use crate::report::run::page;
use crate::report::summary::runs_table;
use crate::store::run_dir::{self, CHECKPOINTS};
use crate::store::{ancestry, catalog, checkpoint};

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RunsArgs {
    #[command(subcommand)]
    pub command: Option<RunsCommand>,
    #[command(flatten)]
    pub list: ListArgs,
}

#[derive(Debug, Clone, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum RunsCommand {
    /// List the runs: id, status, steps, validation loss, speed, start. This is what `runner runs` alone does.
    List(ListArgs),
    /// Show one run: what ran, where, how far, and how well.
    Show(ShowArgs),
}

#[derive(Debug, Clone, Args)]
pub struct ShowArgs {
    /// A run directory, a run's id, or the beginning of an id that no other run shares.
    pub run: String,
    #[command(flatten)]
    pub root: RootArgs,
    /// Print JSON: `run`, `manifest`, `summary`, the steps of the checkpoints, and the runs that it comes from.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If there is no such run, or the folder cannot be read.
pub fn run(args: &RunsArgs) -> anyhow::Result<Exit> {
    match &args.command {
        None => list(&args.list),
        Some(RunsCommand::List(args)) => list(args),
        Some(RunsCommand::Show(args)) => show(args),
    }
}

fn list(args: &ListArgs) -> anyhow::Result<Exit> {
    let root = args.root.root();
    let runs = catalog::list(&root)?;
    if args.json {
        print_json(&runs)?;
    } else if runs.is_empty() {
        print(&format!("no runs in {} yet: runner apply FILE starts one\n", root.display()))?;
    } else {
        print(&runs_table(&runs))?;
    }
    Ok(Exit::Done)
}

fn show(args: &ShowArgs) -> anyhow::Result<Exit> {
    let path = catalog::resolve(&args.root.root(), &args.run)?;
    let listed = catalog::describe(&path);
    let manifest = run_dir::manifest(&path)?;
    let summary = run_dir::summary(&path)?;
    let checkpoints = checkpoint::steps(&path.join(CHECKPOINTS));
    let ancestors = ancestry::ancestors(path.parent().unwrap_or(Path::new(".")), &manifest);
    if args.json {
        print_json(&serde_json::json!({
            "run": listed, "manifest": manifest, "summary": summary, "checkpoints": checkpoints, "ancestors": ancestors,
        }))?;
    } else {
        // An older summary says nothing true of a run that went on since.
        let summary = summary.filter(|s| s.status == manifest.status);
        let mut page = page(&listed, &manifest, summary.as_ref(), &checkpoints);
        for ancestor in &ancestors {
            let _ = writeln!(page, "  {:12}{}", "ancestor", printable(&ancestor.words()));
        }
        print(&page)?;
    }
    Ok(Exit::Done)
}
