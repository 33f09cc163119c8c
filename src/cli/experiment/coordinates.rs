//! `runner coordinates`: how the size of activations depends on the width or the depth of a model.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::Args;
use serde::Serialize;

use crate::cli::common::ExperimentArgs;
use crate::cli::terminal::exit::{CommandError, Exit, Result, refuse};
use crate::cli::terminal::output::{print_result, print_to_stderr};
use runner_config::{ExperimentFile, LayerFile};
use runner_report::table::{Align, table};
use runner_spec::event::{TraceLine, TracedTensor};
use runner_spec::experiment::{Family, Model};
use runner_spec::format::counted;
use runner_threads::process;

/// Show how the outputs of layers grow with the width or the depth of a model: the coordinate check of μP.
///
/// The command trains models of several sizes for some steps, and shows the root mean square of each block's output in the last of them,
/// before its update. The slope is the exponent of the size: 0 if the output does not depend on it, 1 if it doubles with the size. Heads keep their width,
/// and `d_ff` keeps its ratio to `d_model`. The models are trained in the system's folder for temporary files, without samples and tasks, and
/// removed; no run is recorded.
#[derive(Debug, Args)]
pub(crate) struct CoordinatesArgs {
    #[command(flatten)]
    experiment: ExperimentArgs,
    /// Values of `model.d_model`, separated by commas.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', conflicts_with = "layers")]
    widths: Vec<usize>,
    /// Values of `model.layers`, separated by commas.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',')]
    layers: Vec<usize>,
    /// Steps to train. The last step, before its update, gives the outputs.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// The outputs of models that differ in one key.
#[derive(Debug, Serialize)]
struct Coordinates {
    /// `model.d_model` or `model.layers`.
    key: &'static str,
    values: Vec<usize>,
    steps: u64,
    outputs: Vec<OutputSizes>,
}

/// One output of all models.
#[derive(Debug, Serialize)]
struct OutputSizes {
    name: String,
    /// The root mean square for each value of the key; `None` where it is not finite.
    rms: Vec<Option<f64>>,
    /// The exponent of the key's value, by least squares.
    slope: Option<f64>,
}

/// Trains the models and compares their outputs.
///
/// # Errors
/// Mistakes of the experiment at one of the sizes; a training that fails.
pub(crate) fn run(args: &CoordinatesArgs) -> Result<Exit> {
    let (key, values) =
        if args.layers.is_empty() { ("model.d_model", &args.widths) } else { ("model.layers", &args.layers) };
    if values.is_empty() {
        refuse!("give `--widths`, several values of model.d_model, or `--layers`")
    }
    if values.len() < 2 || values.contains(&0) || values.iter().enumerate().any(|(i, v)| values[..i].contains(v)) {
        refuse!("give at least two different values above 0, separated by commas")
    }
    let file = ExperimentFile::read(&args.experiment.file)?;
    let loaded = ExperimentArgs::load_file(&file, &args.experiment.options()?)?;
    let model = &loaded.experiment.model;
    if let Some(steps) = loaded.experiment.train.steps.filter(|steps| *steps < args.steps) {
        refuse!("--steps {} is more than the {steps} steps of the run; use at most {steps}", args.steps)
    }
    let mut models = Vec::new();
    for &value in values {
        let (layers, sets) = if key == "model.d_model" {
            (model.layers, sets_of_width(model, value)?)
        } else {
            (value, vec![format!("{key}={value}")])
        };
        // Mistakes are reported before anything is trained.
        let mut options = args.experiment.options()?;
        options.sets.extend(sets.iter().cloned());
        ExperimentArgs::load_file(&file, &options)?;
        models.push((value, layers, sets));
    }
    let folder = TemporaryFolder::new()?;
    let mut sizes: Vec<BTreeMap<Place, (String, Option<f64>)>> = Vec::new();
    for (value, layers, sets) in models {
        print_to_stderr(&format!("{key} {value}: training {}", counted(args.steps, "step")));
        let runs = folder.0.join(value.to_string());
        train(args, &sets, &runs)?;
        let last_layer_only = key == "model.layers";
        let found = outputs(&runs, args.steps, layers, last_layer_only)?;
        if found.is_empty() {
            refuse!("the run has fewer than {} steps; use a smaller `--steps`", args.steps)
        }
        sizes.push(found);
        // A checkpoint of the largest model may be large.
        let _ = fs::remove_dir_all(&runs);
    }
    let outputs = sizes[0].iter().map(|(place, (name, _))| {
        let rms: Vec<Option<f64>> = sizes.iter().map(|outputs| outputs.get(place).and_then(|(_, rms)| *rms)).collect();
        OutputSizes { name: name.clone(), slope: slope(values, &rms), rms }
    });
    let found = Coordinates { key, values: values.clone(), steps: args.steps, outputs: outputs.collect() };
    print_result(args.json, &found, || text(&found))
}

/// A folder that is removed at the end.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Result<Self> {
        let name = format!("runner-coordinates-{}-{}", std::process::id(), process::monotonic_milliseconds());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).map_err(|e| CommandError::failure(format!("cannot create {}: {e}", path.display())))?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A folder that cannot be removed stays among the system's temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The settings of `model` at another width, with heads of the same width.
fn sets_of_width(model: &Model, width: usize) -> Result<Vec<String>> {
    let scaled = |key: &str, value: usize| {
        let product = value.checked_mul(width).filter(|product| product.is_multiple_of(model.d_model));
        match product.map(|product| product / model.d_model) {
            Some(scaled) if scaled > 0 => Ok(format!("model.{key}={scaled}")),
            _ => refuse!("`{key}: {value}` of a width of {} cannot be scaled to a width of {width}", model.d_model),
        }
    };
    let mut sets = vec![format!("model.d_model={width}"), scaled("heads", model.heads)?, scaled("d_ff", model.d_ff)?];
    if model.family == Family::Llama {
        sets.push(scaled("kv_heads", model.kv_heads)?);
    }
    Ok(sets)
}

/// Trains the experiment with these settings in a process, with a trace, in the folder `runs`.
fn train(args: &CoordinatesArgs, sets: &[String], runs: &Path) -> Result<()> {
    let start_error = |e: std::io::Error| CommandError::failure(format!("cannot start a process: {e}"));
    let mut command = process::own_command().map_err(start_error)?;
    command.arg("apply").arg(&args.experiment.file).args(&args.experiment.overlays);
    for LayerFile { key, path } in &args.experiment.set_file.files {
        command.arg("--set-file").arg(format!("{key}={}", path.display()));
    }
    command.args(["--trace", "--quiet", "--until-step"]);
    command.arg(args.steps.to_string());
    for set in args.experiment.set.iter().chain(sets) {
        command.args(["--set", set]);
    }
    for key in ["eval.samples", "eval.hellaswag", "eval.tasks", "log.mlflow"] {
        command.args(["--set", &format!("{key}=null")]);
    }
    for var in &args.experiment.template.var {
        command.args(["--var", var]);
    }
    for file in &args.experiment.template.vars {
        command.arg("--vars").arg(file);
    }
    command.env("RUNNER_RUNS", runs).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    process::terminate_at_end_of_thread(&mut command);
    let output = command.output().map_err(start_error)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = said.lines().collect();
        let from = lines.iter().position(|line| line.starts_with("error: ")).unwrap_or(0);
        let error = lines[from..].join("\n");
        let error = error.strip_prefix("error: ").unwrap_or(&error);
        return Err(CommandError::failure(format!("with {}: {error}", sets.join(" "))));
    }
    Ok(())
}

/// The order of an output among others: the embedding, the layers, the losses.
type Place = usize;

/// The outputs of the run in `runs` in step `steps`, of a model of `layers` layers.
fn outputs(
    runs: &Path,
    steps: u64,
    layers: usize,
    last_layer_only: bool,
) -> Result<BTreeMap<Place, (String, Option<f64>)>> {
    let failure =
        |e: std::io::Error| CommandError::failure(format!("cannot read the trace in {}: {e}", runs.display()));
    let mut text = String::new();
    for entry in fs::read_dir(runs).map_err(failure)? {
        let trace = entry.map_err(failure)?.path().join("trace.jsonl");
        if trace.is_file() {
            text = fs::read_to_string(&trace).map_err(failure)?;
        }
    }
    let lines = text.lines().filter_map(|line| serde_json::from_str::<TraceLine>(line).ok());
    let last = lines.filter(|line| line.what == TracedTensor::Output && line.step == steps);
    let placed = last.filter_map(|line| match line.block {
        block if last_layer_only && (1..layers).contains(&block) => None,
        block if last_layer_only && block == layers => Some((1, ("output of the last layer".to_owned(), line.rms))),
        block if block > layers => Some((usize::MAX, (line.name, line.rms))),
        block => Some((block, (line.name, line.rms))),
    });
    Ok(placed.collect())
}

/// The slope of ln(rms) over ln(value).
fn slope(values: &[usize], rms: &[Option<f64>]) -> Option<f64> {
    let points: Vec<(f64, f64)> = values
        .iter()
        .zip(rms)
        .map(|(value, rms)| Some(((*value as f64).ln(), rms.filter(|rms| *rms > 0.0)?.ln())))
        .collect::<Option<_>>()?;
    let n = points.len() as f64;
    let [x, y] = [|p: &(f64, f64)| p.0, |p: &(f64, f64)| p.1].map(|of| points.iter().map(of).sum::<f64>() / n);
    let products: f64 = points.iter().map(|p| (p.0 - x) * (p.1 - y)).sum();
    Some(products / points.iter().map(|p| (p.0 - x).powi(2)).sum::<f64>())
}

fn text(found: &Coordinates) -> String {
    let heads: Vec<String> = found.values.iter().map(usize::to_string).collect();
    let mut columns = vec![(found.key, Align::Left)];
    columns.extend(heads.iter().map(|head| (head.as_str(), Align::Right)));
    columns.push(("slope", Align::Right));
    let row = |output: &OutputSizes| {
        let number = |rms: &Option<f64>| rms.map_or_else(|| "not finite".to_owned(), |rms| format!("{rms:.4}"));
        let slope = output.slope.map_or_else(|| "—".to_owned(), |slope| format!("{slope:.2}"));
        [output.name.clone()].into_iter().chain(output.rms.iter().map(number)).chain([slope]).collect()
    };
    let rows: Vec<Vec<String>> = found.outputs.iter().map(row).collect();
    let updates = counted(found.steps - 1, "update");
    format!("root mean square in step {}, after {updates}\n{}", found.steps, table(&columns, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_exponents() {
        let of = |rms: [f64; 3]| slope(&[8, 16, 32], &rms.map(Some)).unwrap();
        assert!((of([1.0, 2.0, 4.0]) - 1.0).abs() < 1e-12 && of([3.0; 3]).abs() < 1e-12);
        assert!((of([4.0, 2.0, 1.0]) + 1.0).abs() < 1e-12);
        assert_eq!(slope(&[8, 16], &[Some(1.0), None]), None);
    }
}
