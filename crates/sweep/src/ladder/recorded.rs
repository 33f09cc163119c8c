//! Forecasts that were stored before their runs were trained, and how these runs turned out.

use std::collections::BTreeMap;
use std::path::Path;

use runner_compare::run_record::RunRecord;
use runner_plan::MeasurementBasis;
use runner_plan::comparability::find_incomparable;
use runner_plan::forecast::cost::ModelSize;
use runner_record::lines::{LineFile, describe_damaged_lines, for_each_record};
use runner_record::manifest::RunStatus;
use runner_record::metrics::MetricLine;
use runner_record::{RecordError, time};
use runner_spec::format::counted;
use runner_spec::measure::Measure;
use runner_spec::plan::Plan;
use runner_stats::{Interval, Prediction};
use serde::{Deserialize, Serialize};

use super::{LadderFit, Scale};
use crate::spec::{Goal, MeasurementChoice, Objective};
use crate::summary::ReadSweep;

/// The file in a ladder's folder: a line for each forecast.
pub const FORECASTS: &str = "forecasts.jsonl";
/// A forecast is for a run if their scales differ by at most these factors: the first for scales that the target gives, because steps and widths
/// are whole numbers, the second for scales that follow from how the rungs grow.
const SAME_SCALE: f64 = 1.05;
const GROWN_SCALE: f64 = 1.2;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedForecast {
    /// When, in UTC.
    pub made: String,
    /// The id of the ladder.
    pub ladder: String,
    /// What its rungs measured, as results name it.
    pub objective: String,
    pub rungs: usize,
    pub runs: usize,
    pub target: BTreeMap<String, f64>,
    /// The expected loss, and the interval of the loss of one run.
    pub loss: Prediction,
    pub measurement: Interval,
    pub parameters: f64,
    pub tokens: f64,
    pub flops: f64,
    /// Its FLOPs as a multiple of the largest rung's.
    pub extrapolation: f64,
    /// BLAKE3 of the line with an empty hash.
    pub hash: String,
}

/// A recorded forecast, and what its run measured.
#[derive(Debug, Clone, Serialize)]
pub struct CheckedForecast {
    pub forecast: RecordedForecast,
    /// False if the line does not have its hash. Who changes a line can change its hash, too: only a hash that somebody else holds is proof.
    pub has_its_hash: bool,
    pub run: String,
    pub started: String,
    /// Whether it says that it was made before the run started; `None` if it does not have its hash, or no such time.
    pub is_recorded_before: Option<bool>,
    pub measured: f64,
    /// Of the loss of one run.
    pub is_in_interval: bool,
    /// The forecast as a share of the measured loss, less 1.
    pub error: f64,
}

impl RecordedForecast {
    fn hash_of(&self) -> Result<String, serde_json::Error> {
        let line = serde_json::to_vec(&Self { hash: String::new(), ..self.clone() })?;
        Ok(blake3::hash(&line).to_hex().to_string())
    }

    /// True for a run with these scales.
    fn is_for(&self, scale: impl Fn(Scale) -> f64) -> bool {
        let own = |of: Scale| match of {
            Scale::Parameters => self.parameters,
            Scale::Tokens => self.tokens,
            Scale::Flops => self.flops,
        };
        let is_near = |of: &Scale| {
            let factor = if self.target.contains_key(of.name()) { SAME_SCALE } else { GROWN_SCALE };
            (scale(*of) / own(*of)).ln().abs() <= factor.ln()
        };
        Scale::ALL.iter().all(is_near)
    }
}

/// Stores the supported forecasts of `fit`, the fit of `ladder`, if there are any.
///
/// # Errors
/// If the file cannot be written.
pub fn record_forecasts(ladder: &ReadSweep, fit: &LadderFit) -> Result<Vec<RecordedForecast>, RecordError> {
    let made = time::now();
    let forecasts = fit.predictions.iter().filter_map(|prediction| {
        let mut forecast = RecordedForecast {
            made: made.clone(),
            ladder: ladder.record.id.clone(),
            objective: ladder.record.objective.label(),
            rungs: fit.rungs,
            runs: fit.runs,
            target: prediction.target.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            loss: prediction.loss?,
            measurement: prediction.measurement?,
            parameters: prediction.parameters,
            tokens: prediction.tokens,
            flops: prediction.flops,
            extrapolation: prediction.extrapolation,
            hash: String::new(),
        };
        forecast.hash = forecast.hash_of().ok()?;
        Some(forecast)
    });
    let forecasts: Vec<RecordedForecast> = forecasts.collect();
    if !forecasts.is_empty() {
        let mut file = LineFile::append(&ladder.path.join(FORECASTS))?;
        forecasts.iter().try_for_each(|forecast| file.write(forecast))?;
        file.sync()?;
    }
    Ok(forecasts)
}

/// The number of forecasts that the ladder in the folder `path` keeps, readable or not.
///
/// # Errors
/// If there is a file of forecasts that cannot be read.
pub fn count_forecasts(path: &Path) -> Result<usize, RecordError> {
    let path = path.join(FORECASTS);
    match std::fs::read(&path) {
        Ok(text) => Ok(text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(RecordError::io("reading", &path)(error)),
    }
}

/// Compares the recorded forecasts of `ladder` for runs of the size of `run` with its result, the oldest first. `plan` is the plan of the run. The
/// second value is a warning of lines that cannot be read.
///
/// # Errors
/// If the run has no result, or none that compares with the ladder's; if no forecast is for it, or the file cannot be read.
pub fn check(
    ladder: &ReadSweep,
    run: &RunRecord,
    plan: &Plan,
) -> Result<(Vec<CheckedForecast>, Option<String>), String> {
    let (id, objective) = (&run.manifest.id, &ladder.record.objective);
    let measured =
        measured(run, objective).ok_or_else(|| format!("{id} is not done, or has no {}", objective.label()))?;
    let basis = MeasurementBasis::of_plan(plan);
    let mut rungs = ladder.progress.points.iter().flatten();
    let rung = rungs.find_map(|point| Some((point.id.clone(), point.basis.as_ref()?)));
    let both = rung.into_iter().chain([(id.clone(), &basis)]);
    if let Some(reason) = find_incomparable(both, &objective.metric.quantity()) {
        return Err(format!("{} does not compare: {reason}", objective.label()));
    }
    let (totals, steps) = (&plan.totals, plan.totals.steps as f64);
    let layers = ladder.record.counts_layers().then(|| ModelSize::of_layers(plan)).flatten();
    let flops = layers.map_or_else(|| totals.pace.flops_after(totals.steps), |size| size.flops_per_step * steps);
    let parameters = layers.map_or(totals.parameters, |size| size.parameters);
    let scale = |scale: Scale| match scale {
        Scale::Parameters => parameters as f64,
        Scale::Tokens => totals.pace.tokens_after(totals.steps),
        Scale::Flops => flops,
    };
    let (mut all, path) = (Vec::new(), ladder.path.join(FORECASTS));
    let read = for_each_record(&path, &mut |forecast: RecordedForecast| all.push(forecast));
    let warning = describe_damaged_lines(&path, read.map_err(|error| error.to_string())?.damaged);
    let checked = |forecast: &RecordedForecast| {
        let has_its_hash = forecast.hash_of().is_ok_and(|hash| hash == forecast.hash);
        let times = time::parse(&forecast.made).zip(time::parse(&run.manifest.started));
        CheckedForecast {
            has_its_hash,
            run: id.clone(),
            started: run.manifest.started.clone(),
            is_recorded_before: times.filter(|_| has_its_hash).map(|(made, started)| made < started),
            measured,
            is_in_interval: forecast.measurement.contains(measured),
            error: forecast.loss.value / measured - 1.0,
            forecast: forecast.clone(),
        }
    };
    let found: Vec<CheckedForecast> = all.iter().filter(|forecast| forecast.is_for(scale)).map(checked).collect();
    if found.is_empty() {
        let [parameters, tokens, flops] = [Scale::Parameters, Scale::Tokens, Scale::Flops].map(scale);
        let what = if ladder.record.counts_layers() { ", in its layers" } else { "" };
        let warning = warning.map_or_else(String::new, |warning| format!("; {warning}"));
        return Err(format!(
            "{} of {}, and none for {id}, which has {parameters:.3e} parameters, {tokens:.3e} tokens and {flops:.3e} FLOPs{what}{warning}",
            counted(all.len() as u64, "recorded forecast"),
            ladder.record.id
        ));
    }
    Ok((found, warning))
}

/// The result of a run as a ladder's rungs are judged; `None` if it is not finished, or the number is not finite.
fn measured(run: &RunRecord, objective: &Objective) -> Option<f64> {
    run.summary.as_ref().filter(|summary| summary.status == RunStatus::Done)?;
    let metric = &objective.metric;
    let of_line = |line: &MetricLine| match line {
        MetricLine::Train(step) if *metric == Measure::TRAIN_LOSS => step.loss,
        MetricLine::Train(_) => None,
        MetricLine::Eval(evaluation) => evaluation.measured.get(metric),
    };
    let mut values = run.lines.iter().filter_map(of_line).filter(|value| value.is_finite());
    match (objective.at, Goal::of(metric)) {
        (MeasurementChoice::Last, _) => values.next_back(),
        (MeasurementChoice::Best, Goal::Minimize) => values.min_by(f64::total_cmp),
        (MeasurementChoice::Best, Goal::Maximize) => values.max_by(f64::total_cmp),
    }
}
