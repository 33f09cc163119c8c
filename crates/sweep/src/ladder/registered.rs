//! Forecasts that were stored before their runs were trained, and how these runs turned out.

use std::collections::BTreeMap;

use runner_compare::run_record::RunRecord;
use runner_plan::MeasurementBasis;
use runner_plan::comparability::find_incomparable;
use runner_record::lines::{LineFile, for_each_record};
use runner_record::manifest::RunStatus;
use runner_record::{RecordError, time};
use runner_spec::measure::Measure;
use runner_spec::plan::Plan;
use runner_stats::Prediction;
use serde::{Deserialize, Serialize};

use super::{LadderFit, Scale};
use crate::spec::{MeasurementChoice, Objective};
use crate::summary::ReadSweep;

/// The file in a ladder's folder: a line for each forecast.
const FORECASTS: &str = "forecasts.jsonl";
/// A run is that of a forecast if each scale of its target differs by at most this factor: steps and widths are whole numbers.
const SAME_SCALE: f64 = 1.05;

/// A forecast as it was made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RegisteredForecast {
    /// When, in UTC.
    pub made: String,
    /// The id of the ladder, and what its rungs measured.
    pub ladder: String,
    pub metric: String,
    pub rungs: usize,
    pub runs: usize,
    pub target: BTreeMap<String, f64>,
    pub loss: Prediction,
    /// The FLOPs of the target's run, also as a multiple of the largest rung's.
    pub flops: f64,
    pub extrapolation: f64,
    /// BLAKE3 of the line with an empty hash.
    pub hash: String,
}

/// A registered forecast beside the run that it was for.
#[derive(Debug, Clone, Serialize)]
pub struct CheckedForecast {
    pub forecast: RegisteredForecast,
    /// False if the line has changed since it was written.
    pub is_intact: bool,
    pub run: String,
    /// When the run started, and whether that was after the forecast.
    pub started: String,
    pub is_registered_before: bool,
    pub measured: f64,
    pub is_in_interval: bool,
    /// The forecast as a share of the measured loss, less 1.
    pub error: f64,
}

impl RegisteredForecast {
    fn hash_of(&self) -> Result<String, serde_json::Error> {
        let line = serde_json::to_vec(&Self { hash: String::new(), ..self.clone() })?;
        Ok(blake3::hash(&line).to_hex().to_string())
    }
}

/// Stores the supported forecasts of `fit`, which is that of `ladder`.
///
/// # Errors
/// If none is supported, or the file cannot be written.
pub fn register(ladder: &ReadSweep, fit: &LadderFit) -> Result<Vec<RegisteredForecast>, RecordError> {
    let path = ladder.path.join(FORECASTS);
    let made = time::now();
    let forecasts = fit.predictions.iter().filter_map(|prediction| {
        let mut forecast = RegisteredForecast {
            made: made.clone(),
            ladder: ladder.record.id.clone(),
            metric: fit.metric.clone(),
            rungs: fit.rungs,
            runs: fit.runs,
            target: prediction.target.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
            loss: prediction.loss?,
            flops: prediction.flops,
            extrapolation: prediction.extrapolation,
            hash: String::new(),
        };
        forecast.hash = forecast.hash_of().ok()?;
        Some(forecast)
    });
    let forecasts: Vec<RegisteredForecast> = forecasts.collect();
    let mut file = LineFile::append(&path)?;
    forecasts.iter().try_for_each(|forecast| file.write(forecast))?;
    file.sync()?;
    Ok(forecasts)
}

/// The registered forecasts of `ladder` for runs of the size of `run`, whose plan is `plan`, beside what it measured; the oldest first.
///
/// # Errors
/// If the run has no result, or none that compares with the ladder's; if no forecast is for it, or the file cannot be read.
pub fn check(ladder: &ReadSweep, run: &RunRecord, plan: &Plan) -> Result<Vec<CheckedForecast>, String> {
    let (id, objective) = (&run.manifest.id, &ladder.record.objective);
    let measured = measured(run, objective).ok_or_else(|| format!("{id} has no {} yet", objective.label()))?;
    let basis = MeasurementBasis::of_plan(plan);
    let rung =
        ladder.progress.points.iter().flatten().find_map(|point| Some((point.id.clone(), point.basis.as_ref()?)));
    if let Some(reason) =
        find_incomparable(rung.into_iter().chain([(id.clone(), &basis)]), &objective.metric.quantity())
    {
        return Err(format!("{} does not compare: {reason}", objective.label()));
    }
    let steps = plan.totals.steps as f64;
    let scale = |scale: Scale| match scale {
        Scale::Parameters => plan.totals.parameters as f64,
        Scale::Tokens => plan.totals.tokens_per_step as f64 * steps,
        Scale::Flops => plan.totals.flops_per_step * steps,
    };
    let is_for_it = |forecast: &RegisteredForecast| {
        let given = |of: &Scale| forecast.target.get(of.name()).map(|value| (scale(*of) / value).ln().abs());
        Scale::ALL.iter().filter_map(given).all(|away| away <= SAME_SCALE.ln())
    };
    let (mut all, path) = (Vec::new(), ladder.path.join(FORECASTS));
    for_each_record(&path, &mut |forecast: RegisteredForecast| all.push(forecast))
        .map_err(|error| error.to_string())?;
    let found: Vec<CheckedForecast> = all
        .iter()
        .filter(|forecast| is_for_it(forecast))
        .map(|forecast| CheckedForecast {
            is_intact: forecast.hash_of().is_ok_and(|hash| hash == forecast.hash),
            run: id.clone(),
            started: run.manifest.started.clone(),
            is_registered_before: forecast.made < run.manifest.started,
            measured,
            is_in_interval: forecast.loss.interval.contains(measured),
            error: forecast.loss.value / measured - 1.0,
            forecast: forecast.clone(),
        })
        .collect();
    if found.is_empty() {
        let [parameters, tokens, flops] = [Scale::Parameters, Scale::Tokens, Scale::Flops].map(scale);
        return Err(format!(
            "none of the {} forecasts that {} has stored is for {id}, which has {parameters:.3e} parameters, {tokens:.3e} tokens and \
             {flops:.3e} FLOPs; `--record` stores one",
            all.len(),
            ladder.record.id
        ));
    }
    Ok(found)
}

/// The result of a run as a ladder's rungs are judged; `None` if it is not finished, or the number is not finite.
fn measured(run: &RunRecord, objective: &Objective) -> Option<f64> {
    run.summary.as_ref().filter(|summary| summary.status == RunStatus::Done)?;
    let (figures, metric) = (run.figures(), &objective.metric);
    let value = if *metric == Measure::TRAIN_LOSS {
        figures.train_loss
    } else if *metric == Measure::VAL_LOSS && objective.at == MeasurementChoice::Best {
        figures.best_val_loss
    } else {
        figures.evaluated.get(metric)
    };
    value.filter(|value| value.is_finite())
}
