//! `runner compare`: shows several runs in a table.

use clap::Args;

use crate::cli::common::RunsFolderArgs;
use crate::cli::runs::run_groups::read_run;
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::exit::{CommandError, Exit, Result};
use crate::cli::terminal::output::{print_result, print_to_stderr, table_width};
use runner_report::comparison;
use runner_spec::format::printable;

/// Show several runs in a table: the settings in which they differ, and their losses, speed and memory.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Sort the runs by a column, best first: `val_loss`, `tokens_per_second`, or a key such as `train.steps`; -KEY reverses the order.
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    pub sort: Option<String>,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// # Errors
/// If a run is not there or cannot be read.
pub(crate) fn run(args: &CompareArgs) -> Result<Exit> {
    let root = args.root.root();
    let paths = args.selection.resolve(&root)?;
    let runs = paths.iter().map(|path| read_run(path)).collect::<Result<Vec<_>>>()?;
    for problem in runs.iter().flat_map(|run| &run.record.problems) {
        print_to_stderr(&printable(&format!("warning: {problem}")));
    }
    let mut table = comparison::compare(&runs);
    if let Some(key) = &args.sort {
        let known = table.sort_keys().join(", ");
        table = table
            .sorted(key)
            .ok_or_else(|| CommandError::request(format!("--sort: unknown column `{key}`; the columns are {known}")))?;
    }
    print_result(args.json, &table, || table.text(table_width()))
}
