//! `runner compare`: shows several runs in a table, and draws their curves.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::common::{RunsFolderArgs, word_parser};
use crate::cli::machine::completions::runs_completer;
use crate::cli::runs::run_groups::{find_sweep, read_run, runs_of_sweep};
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{
    check_picture_path, check_replaceable, print_result, print_to_stderr, table_width, write_file,
};
use runner_compare::curves::{Curve, CurveAxis, CurveMetric, curve_points};
use runner_record::catalog;
use runner_report::comparison::{self, RunToCompare};
use runner_report::svg::draw_curves;
use runner_spec::format::printable;

/// Show several runs in a table: the settings in which they differ, and their losses, speed and memory.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompareArgs {
    /// The runs: directories, ids, or prefixes of ids. A sweep stands for the runs of its points.
    #[arg(required = true, value_name = "RUN", add = runs_completer())]
    pub run_names: Vec<String>,
    /// Also draw the curves of all runs into this SVG file.
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Replace FILE.svg if it exists.
    #[arg(long, requires = "plot")]
    pub force: bool,
    /// The metric to draw: `loss`, `lr`, `grad_norm`, `tokens_per_second`, `mfu`, `val_loss`, `val_perplexity`, `val_bits_per_byte`, or a
    /// score of a task, such as `hellaswag_acc_norm`.
    #[arg(long, value_name = "METRIC", default_value = "loss", requires = "plot", value_parser = parse_metric)]
    pub metric: CurveMetric,
    /// The horizontal axis of the curves.
    #[arg(long = "x", value_name = "step|tokens", default_value = "step", requires = "plot",
          value_parser = word_parser::<CurveAxis>(CurveAxis::ALL.map(CurveAxis::name)))]
    pub over: CurveAxis,
    /// Smooth the curves: draw the mean of the last N values.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "plot", value_parser = clap::value_parser!(u32).range(1..))]
    pub smooth: u32,
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
/// If a run is not there or cannot be read, or the picture cannot be written.
pub(crate) fn run(args: &CompareArgs) -> Result<Exit> {
    if let Some(path) = &args.plot {
        check_picture_path("--plot", path)?;
        check_replaceable(path, args.force)?;
    }
    let root = args.root.root();
    let mut names: Vec<String> = Vec::new();
    for wanted in &args.run_names {
        match find_sweep(&root, wanted)? {
            Some(folder) => names.extend(runs_of_sweep(&folder)?.iter().map(|run| run.to_string_lossy().into_owned())),
            None => names.push(wanted.clone()),
        }
    }
    if names.is_empty() {
        refuse!("no run of {} has started yet", args.run_names.join(" and "));
    }
    let paths = catalog::resolve_all(&root, &names)?;
    let runs = paths.iter().map(|path| read_run(path)).collect::<Result<Vec<_>>>()?;
    for problem in runs.iter().flat_map(|run| &run.record.problems) {
        print_to_stderr(&printable(&format!("warning: {problem}")));
    }
    let mut table = comparison::compare(&runs);
    let names: Vec<String> = table.runs.iter().map(|run| run.name.clone()).collect();
    if let Some(key) = &args.sort {
        let known = table.sort_keys().join(", ");
        table = table
            .sorted(key)
            .ok_or_else(|| CommandError::request(format!("--sort: unknown column `{key}`; the columns are {known}")))?;
    }
    if let Some(path) = &args.plot {
        draw(args, &runs, &names, path)?;
    }
    print_result(args.json, &table, || {
        let plotted =
            |path: &PathBuf| format!("{} over {} is in {}\n", args.metric.name(), args.over.name(), path.display());
        table.text(table_width()) + &args.plot.as_ref().map(plotted).unwrap_or_default()
    })
}

fn parse_metric(name: &str) -> std::result::Result<CurveMetric, String> {
    CurveMetric::new(name).ok_or_else(|| {
        format!("the metrics are {}, and scores of tasks, such as hellaswag_acc_norm", CurveMetric::names().join(", "))
    })
}

fn draw(args: &CompareArgs, runs: &[RunToCompare], names: &[String], path: &Path) -> Result<()> {
    let all = runs.iter().zip(names).map(|(run, name)| {
        let points = curve_points(&run.record, &args.metric, args.over, args.smooth as usize);
        Curve { label: name.clone(), points }
    });
    let curves: Vec<Curve> = all.filter(|c| c.points.iter().any(|(_, y)| y.is_finite())).collect();
    if curves.is_empty() {
        refuse!("--metric {}: none of the runs has this metric", args.metric.name());
    }
    let metric = match args.smooth {
        0 | 1 => args.metric.name().to_owned(),
        n => format!("{}, mean of {n}", args.metric.name()),
    };
    let title = format!("{} of {} run{}", args.metric.name(), curves.len(), if curves.len() == 1 { "" } else { "s" });
    let picture = draw_curves(&curves, &title, &metric, args.over);
    write_file(path, picture.as_bytes(), args.force)
}
