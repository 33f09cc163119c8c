//! `runner export-metrics`: writes metrics of runs for other programs.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::common::RunsFolderArgs;
use super::completions::runs_completer;
use super::exit::{Exit, refuse};
use super::output::{print_result, print_to_stderr};
use runner_report::export::{TimedRecord, export_csv, export_parquet, export_tensorboard};
use runner_spec::format::{bytes, count, printable};
use runner_store::catalog;

/// Write the metrics of runs for other programs: TensorBoard, CSV, Parquet.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportMetricsArgs {
    /// The runs: directories, ids, or beginnings of ids.
    #[arg(required = true, value_name = "RUN", add = runs_completer())]
    pub run_names: Vec<String>,
    /// Write event files for TensorBoard: one folder for each run under DIR.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Write all runs to one CSV file, with a row for each step and each evaluation.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Write all runs to one Parquet file, with the same rows as the CSV file.
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Replace files that are there.
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub root: RunsFolderArgs,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// A file that was written: a line of the output.
#[derive(Debug, Serialize)]
struct WrittenMetrics {
    kind: &'static str,
    path: PathBuf,
    /// Rows, or events of TensorBoard.
    rows: u64,
    bytes: u64,
}

/// # Errors
/// If there is no such run, a file is there already, or one cannot be read or written.
pub(crate) fn run(args: &ExportMetricsArgs) -> anyhow::Result<Exit> {
    if args.tensorboard.is_none() && args.csv.is_none() && args.parquet.is_none() {
        refuse!("nothing to write: give --tensorboard DIR, --csv FILE or --parquet FILE");
    }
    let root = args.root.root();
    let mut runs: Vec<TimedRecord> = Vec::new();
    for path in catalog::resolve_all(&root, &args.run_names)? {
        let record = TimedRecord::open(&path)?;
        if runs.iter().any(|other| other.id == record.id) {
            refuse!("two of the runs are called {}", printable(&record.id));
        }
        if let Some(problem) = &record.problem {
            print_to_stderr(&format!("warning: {problem}"));
        }
        runs.push(record);
    }
    let mut written = Vec::new();
    let mut note = |kind, path, rows, bytes| written.push(WrittenMetrics { kind, path, rows, bytes });
    if let Some(dir) = &args.tensorboard {
        for run in &runs {
            let (path, events, size) = export_tensorboard(run, dir, args.force)?;
            note("tensorboard", path, events, size);
        }
    }
    if let Some(path) = &args.csv {
        let (rows, size) = export_csv(&runs, path, args.force)?;
        note("csv", path.clone(), rows, size);
    }
    if let Some(path) = &args.parquet {
        let (rows, size) = export_parquet(&runs, path, args.force)?;
        note("parquet", path.clone(), rows, size);
    }
    print_result(args.json, &written, || {
        let line = |WrittenMetrics { kind, path, rows, bytes: size }: &WrittenMetrics| {
            let what = if *kind == "tensorboard" { "events" } else { "rows" };
            format!("{}: {} {what}, {}\n", printable(&path.display().to_string()), count(*rows), bytes(*size))
        };
        written.iter().map(line).collect()
    })
}
