//! `runner export-metrics`: writes metrics of runs for other programs.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use crate::cli::common::{RunsFolderArgs, ThreadArgs, host_without_runs};
use crate::cli::runs::selection::SelectionArgs;
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr};
use runner_compare::stored_plan::resolved_experiment;
use runner_mlflow::{MlflowError, Upload};
use runner_record::RunLock;
use runner_record::timed_metrics::TimedRecord;
use runner_report::export::{export_csv, export_tensorboard};
use runner_spec::experiment::Mlflow;
use runner_spec::format::{bytes, count, printable};
use runner_workflows::tracking::{describe, describe_privacy, server_of_experiment};

/// Write the metrics of runs for other programs: TensorBoard, CSV; or send them to MLflow.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExportMetricsArgs {
    #[command(flatten)]
    pub selection: SelectionArgs,
    /// Write event files for TensorBoard: one folder for each run under DIR.
    #[arg(long, value_name = "DIR")]
    pub tensorboard: Option<PathBuf>,
    /// Write all runs to one CSV file, with a row for each step and each evaluation.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Send metrics and parameters to the MLflow server at this address; what it already has is not sent again.
    #[arg(long, value_name = "URI", value_parser = parse_uri)]
    pub mlflow: Option<String>,
    /// The experiment on the MLflow server [default: that of the run's file, or the run's name].
    #[arg(long, value_name = "NAME", requires = "mlflow")]
    pub mlflow_experiment: Option<String>,
    /// Replace existing files.
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
    /// Rows, or events of TensorBoard; for MLflow the rows that were sent.
    rows: u64,
    /// Bytes of the file; 0 for MLflow.
    bytes: u64,
}

/// # Errors
/// If there is no such run, a file is there already, or one cannot be read or written.
pub(crate) fn run(args: &ExportMetricsArgs) -> Result<Exit> {
    if args.tensorboard.is_none() && args.csv.is_none() && args.mlflow.is_none() {
        refuse!("nothing to write; use `--tensorboard DIR`, `--csv FILE` or `--mlflow URI`");
    }
    let root = args.root.root();
    let mut runs: Vec<TimedRecord> = Vec::new();
    let paths = args.selection.resolve(&root)?;
    for path in &paths {
        let record = TimedRecord::open(path)?;
        if runs.iter().any(|other| other.id == record.id) {
            refuse!("two of the runs are called {}", printable(&record.id));
        }
        for problem in &record.problems {
            print_to_stderr(&printable(&format!("warning: {problem}")));
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
    if let Some(uri) = &args.mlflow {
        for path in paths {
            let rows = send_to_mlflow(&path, uri, args.mlflow_experiment.as_deref())?;
            note("mlflow", path, rows, 0);
        }
    }
    print_result(args.json, &written, || {
        let line = |WrittenMetrics { kind, path, rows, bytes: size }: &WrittenMetrics| {
            let (path, rows) = (printable(&path.display().to_string()), count(*rows));
            match *kind {
                "mlflow" => format!("{path}: {rows} rows sent\n"),
                "tensorboard" => format!("{path}: {rows} events, {}\n", bytes(*size)),
                _ => format!("{path}: {rows} rows, {}\n", bytes(*size)),
            }
        };
        written.iter().map(line).collect()
    })
}

/// Sends what the server lacks of the run in `path`. Returns the number of lines.
fn send_to_mlflow(path: &Path, uri: &str, experiment: Option<&str>) -> Result<u64> {
    // A process that works on the run sends it itself.
    let _lock = RunLock::take(path)?;
    let host = host_without_runs(ThreadArgs { threads: None })?;
    let resolved = resolved_experiment(path)?;
    let of_file = resolved.log.mlflow.and_then(|mlflow| mlflow.experiment);
    let mlflow = Mlflow { uri: uri.to_owned(), experiment: experiment.map(str::to_owned).or(of_file) };
    let failed = |error: MlflowError| CommandError::failure(describe(uri, &error));
    let mut upload = Upload::new(path, &server_of_experiment(&mlflow, &resolved.name, &host, true));
    let rows = upload.send_new(None).map_err(failed)?.count;
    upload.send_status().map_err(failed)?;
    if let Some(warning) = describe_privacy(path, uri) {
        print_to_stderr(&format!("warning: {warning}"));
    }
    Ok(rows)
}

/// The address of a server.
fn parse_uri(text: &str) -> Result<String, String> {
    Mlflow::uri_problem(text).map_or_else(|| Ok(text.to_owned()), |problem| Err(format!("the address {problem}")))
}
