//! What a ladder's results say: the fitted scaling law, how well it predicts the largest rungs without them, predictions where these checks
//! support them, whether the rules are tuned, the best size for a budget, and the compute that another ladder needs for the same loss.

mod findings;
mod forecast;
mod optimum;
mod recorded;
mod scale;
mod support;
mod tuning;

use std::collections::BTreeMap;

use runner_plan::comparability::find_incomparable;
use runner_plan::forecast::cost::ModelSize;
use runner_spec::measure::LossSample;
use runner_spec::philox::Philox;
use runner_stats::{LawFit, NoFit, Prediction, ScaledLoss, rungs_needed};

use crate::points::tune_of;
use crate::record::{PlannedPoint, SweepRecord};
use crate::results::{PointStatus, ResultsRow, SweepResults};
use crate::spec::{Budget, BudgetKind};
use crate::summary::ReadSweep;
pub use findings::{
    ComputeMultiple, CurvePoint, FittedTerm, HeldOutRung, LadderComparison, LadderFit, LadderOutcome, LadderPrediction,
    LeftOutRung, RungLoss, SizeOptimum, TunedFactor, TunedOptimum, TunedRung, TuningDrift,
};
pub use recorded::{CheckedForecast, FORECASTS, RecordedForecast, check, count_forecasts, record_forecasts};
pub use scale::{LadderTarget, Scale};

/// The largest squared correlation of ln N and ln D at which L(N, D) is fitted.
const MAX_SQUARED_CORRELATION: f64 = 0.9;
/// The factor by which the tokens of rungs of one size differ if they differ by more than rounding.
const DIFFERENT_TOKENS: f64 = 1.1;
/// Rungs with a budget of FLOPs cost the same up to this factor: a larger one would change the loss by as much as sizes do.
const SAME_FLOPS: f64 = 1.05;
/// The number of points of [`LadderFit::curve`].
const CURVE_POINTS: usize = 33;
/// The names of the exponents in formulas.
const EXPONENT_NAMES: [&str; 2] = ["a", "b"];

/// A finished run of a ladder.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LadderRun {
    parameters: f64,
    tokens: f64,
    flops: f64,
    loss: f64,
}

impl LadderRun {
    /// Runs of a rung have the same parameters and tokens.
    fn rung(&self) -> [u64; 2] {
        [self.parameters.to_bits(), self.tokens.to_bits()]
    }
}

/// The runs of a ladder that have a result.
#[derive(Debug, Clone)]
pub struct LadderResults {
    metric: String,
    id: String,
    runs: Vec<LadderRun>,
    /// Runs with a factor other than 1. The law ignores them. The loss is NaN without a result.
    tuned: Vec<(f64, LadderRun)>,
    /// The budget of FLOPs of each rung, if they keep it.
    budget: Option<f64>,
    counts_layers: bool,
    /// Tokens of the training data of the largest rung, if they are known.
    epoch_tokens: Option<f64>,
    measured_on: Option<LossSample>,
    /// Points without a result, and those among them that diverged.
    missing: usize,
    diverged: usize,
}

/// The lowest and the highest of `values`, which are positive.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0), |(low, high), x| (low.min(x), high.max(x)))
}

fn fit(runs: &[LadderRun], scales: &[Scale], purpose: &str) -> Result<LawFit, String> {
    if let ([scale], true) = (scales, rungs(runs).len() >= rungs_needed(1)) {
        let (low, high) = range(runs.iter().map(|run| scale.of(run)));
        if high < scale.least_span() * low {
            return Err(format!(
                "a law over {} needs rungs whose largest has at least {} times those of the smallest, got {:.2} times",
                scale.name(),
                scale.least_span(),
                high / low
            ));
        }
    }
    let scaled =
        |run: &LadderRun| ScaledLoss { scale: scales.iter().map(|scale| scale.of(run)).collect(), loss: run.loss };
    let losses: Vec<ScaledLoss> = runs.iter().map(scaled).collect();
    LawFit::new(&losses, Philox::new(0, purpose)).map_err(|error| match error {
        NoFit::TooFewRungs { rungs, needed } => {
            format!("a law of {} parameters needs at least {needed} rungs with a result, got {rungs}", needed - 1)
        }
        NoFit::NotPositive => "a law needs positive losses".to_owned(),
    })
}

impl LadderResults {
    /// The runs of the ladder of `record` that did all their steps and have a finite loss.
    ///
    /// # Errors
    /// If the losses do not compare.
    pub fn new(record: &SweepRecord, results: &SweepResults) -> Result<Self, String> {
        if let Some(reason) = &results.incomparable {
            return Err(format!("the losses of the rungs do not compare: {reason}"));
        }
        let run = |row: &ResultsRow| {
            let point = record.point(row.point)?;
            let is_result = |loss: &f64| loss.is_finite() && row.status == PointStatus::Done && !row.diverged;
            let loss = row.objective.filter(is_result).unwrap_or(f64::NAN);
            let ModelSize { parameters, flops_per_step } = point.counted_size();
            let flops = flops_per_step * point.steps as f64;
            Some((
                tune_of(&point.values),
                LadderRun { parameters: parameters as f64, tokens: point.tokens(), flops, loss },
            ))
        };
        let distinct = results.rows.iter().filter(|row| row.status != PointStatus::Duplicate);
        let (own, tuned): (Vec<&ResultsRow>, Vec<&ResultsRow>) = distinct.partition(|row| tune_of(&row.values) == 1.0);
        let runs = own.iter().filter_map(|row| run(row)).map(|(_, run)| run);
        let mut runs: Vec<LadderRun> = runs.filter(|run| run.loss.is_finite()).collect();
        runs.sort_by(|a, b| a.flops.total_cmp(&b.flops).then(a.loss.total_cmp(&b.loss)));
        let points = || own.iter().filter_map(|row| record.point(row.point));
        let (low, high) = range(points().map(PlannedPoint::flops));
        let is_budget = |budget: &Budget| budget.kind == BudgetKind::Flops && high <= SAME_FLOPS * low;
        let largest = points().max_by(|a, b| a.flops().total_cmp(&b.flops()));
        Ok(Self {
            metric: record.objective.metric.key().into_owned(),
            id: record.id.clone(),
            missing: own.len() - runs.len(),
            diverged: own.iter().filter(|row| row.diverged).count(),
            runs,
            tuned: tuned.iter().filter_map(|row| run(row)).collect(),
            budget: record.budget.filter(is_budget).map(|_| high),
            counts_layers: record.counts_layers(),
            epoch_tokens: largest.filter(|point| point.epochs > 0.0).map(|point| point.tokens() / point.epochs),
            measured_on: results.measured_on(),
        })
    }

    /// What the results show: the law, or the best size for the budget of FLOPs.
    ///
    /// # Errors
    /// If they show neither, or a target does not fit.
    pub fn outcome(&self, targets: &[LadderTarget]) -> Result<LadderOutcome, String> {
        let Some(flops) = self.shared_flops() else {
            return Ok(LadderOutcome { fit: Some(self.fit(targets)?), ..LadderOutcome::default() });
        };
        if !targets.is_empty() {
            return Err("the rungs of this ladder cost the same FLOPs, so they show the best size for these, and no law for a target".to_owned());
        }
        Ok(LadderOutcome { optimum: Some(self.optimum(flops)?), ..LadderOutcome::default() })
    }

    /// The epochs of `tokens`, if the size of the training data is known.
    fn epochs(&self, tokens: f64) -> Option<f64> {
        self.epoch_tokens.map(|of_data| tokens / of_data)
    }

    /// What the losses are fitted over: parameters and tokens if these vary independently, else FLOPs, with the reason.
    ///
    /// # Errors
    /// If parameters and tokens vary independently, so that FLOPs do not determine the loss, but not enough for L(N, D).
    fn scales(&self) -> Result<(Vec<Scale>, Option<String>), String> {
        let both = [Scale::Parameters, Scale::Tokens];
        let rungs: Vec<[f64; 2]> =
            rungs(&self.runs).into_iter().map(|rung| both.map(|scale| scale.of(&rung[0]).ln())).collect();
        let (found, needed) = (rungs.len(), rungs_needed(2));
        let correlation = squared_correlation(&rungs);
        let is_independent = correlation <= MAX_SQUARED_CORRELATION;
        if is_independent && found >= needed {
            return Ok((both.to_vec(), None));
        }
        if found >= rungs_needed(1) && (is_independent || has_several_ratios(&rungs)) {
            let rule = "parameters and tokens vary independently, so FLOPs do not determine the loss";
            return Err(if is_independent {
                format!(
                    "{rule}, and L(N, D) needs at least {needed} rungs with a result, got {found}; add sizes to `dial`, or values to \
                     `tokens_per_parameter`"
                )
            } else {
                format!(
                    "{rule}, and L(N, D) needs a squared correlation of ln N and ln D of at most {MAX_SQUARED_CORRELATION}, got \
                     {correlation:.2}; add values to `tokens_per_parameter` that are further apart, or use one"
                )
            });
        }
        let reason = if is_independent || found < needed {
            format!("L(N, D) has {} parameters and needs at least {needed} rungs, got {found}", needed - 1)
        } else {
            format!(
                "L(N, D) needs parameters and tokens that vary independently, but the squared correlation of ln N and ln D is \
                 {correlation:.2}, above {MAX_SQUARED_CORRELATION}"
            )
        };
        Ok((vec![Scale::Flops], Some(reason)))
    }

    /// The lowest and the highest mean loss of rungs.
    fn losses(&self) -> (f64, f64) {
        range(rungs(&self.runs).into_iter().map(|rung| mean_loss(&rung)))
    }

    /// Fits the law, holds the largest rungs out, and predicts `targets`.
    ///
    /// # Errors
    /// If there are too few rungs, no law describes their losses, or a target does not fit the law.
    pub fn fit(&self, targets: &[LadderTarget]) -> Result<LadderFit, String> {
        let (scales, why_not) = self.scales()?;
        let fitted = fit(&self.runs, &scales, "ladder")?;
        if scales == [Scale::Flops]
            && let Some(reason) = support::contradiction(&self.runs)
        {
            return Err(reason);
        }
        let terms = scales.iter().zip(&fitted.law.terms).enumerate().map(|(k, (scale, term))| {
            let interval = fitted.interval_of(|law| law.terms.get(k).map_or(f64::NAN, |term| term.exponent));
            FittedTerm {
                scale: *scale,
                coefficient: term.coefficient,
                exponent: Prediction { value: term.exponent, interval },
                bound: fitted.exponent_bounds.get(k).copied().flatten(),
            }
        });
        let default = [self.default_target(&scales)?];
        let targets = if targets.is_empty() { &default } else { targets };
        let (checks, why_no_more_checks) = self.checks(&scales);
        let tuned = tuning::tuned_rungs(&self.runs, &self.tuned, (fitted.noise, fitted.freedom));
        let unsupported = support::unsupported_law(&self.runs, &scales, &fitted, self.diverged)
            .or_else(|| tuning::describe_off(&tuned));
        let predict = |target| {
            let prediction = self.predict(target, &scales, &fitted, unsupported.as_ref(), &checks)?;
            let drift = prediction.loss.and_then(|_| tuning::drift(&tuned, prediction.flops));
            Ok::<_, String>(LadderPrediction { drift, ..prediction })
        };
        let predictions: Vec<LadderPrediction> = targets.iter().map(predict).collect::<Result<_, _>>()?;
        let exponents = EXPONENT_NAMES.into_iter().zip(fitted.exponent_bounds.iter().map(Option::is_some));
        let at_bound = [("E", fitted.is_irreducible_zero)].into_iter().chain(exponents);
        Ok(LadderFit {
            metric: self.metric.clone(),
            formula: if scales.len() == 2 { "L(N, D) = E + A·N^-a + B·D^-b" } else { "L(C) = E + A·C^-a" },
            irreducible: Prediction {
                value: fitted.law.irreducible,
                interval: fitted.interval_of(|law| law.irreducible),
            },
            terms: terms.collect(),
            runs: fitted.runs,
            rungs: fitted.rungs,
            missing: self.missing,
            diverged: self.diverged,
            degrees_of_freedom: fitted.freedom,
            noise: fitted.noise,
            lack_of_fit: fitted.has_lack_of_fit,
            why_not_parameters_and_tokens: why_not,
            measured_on: self.measured_on,
            why_not_held_out: checks.is_empty().then_some(why_no_more_checks),
            held_out: checks,
            at_bound: at_bound.filter(|(_, is_at_bound)| *is_at_bound).map(|(name, _)| name).collect(),
            measured: self.measured(&scales, &fitted),
            curve: if scales == [Scale::Flops] { self.curve(&fitted, &predictions) } else { Vec::new() },
            counts_layers: self.counts_layers,
            tuning: tuned.into_iter().map(|(rung, _)| rung).collect(),
            predictions,
        })
    }

    fn measured(&self, scales: &[Scale], fitted: &LawFit) -> Vec<RungLoss> {
        let rung = |runs: Vec<LadderRun>| {
            let LadderRun { parameters, tokens, flops, .. } = *runs.first()?;
            let (lowest, highest) = range(runs.iter().map(|run| run.loss));
            Some(RungLoss {
                parameters,
                tokens,
                flops,
                runs: runs.len(),
                loss: mean_loss(&runs),
                lowest,
                highest,
                law: fitted.predict(&scales.iter().map(|scale| scale.of(&runs[0])).collect::<Vec<_>>()),
            })
        };
        rungs(&self.runs).into_iter().filter_map(rung).collect()
    }

    fn curve(&self, fitted: &LawFit, predictions: &[LadderPrediction]) -> Vec<CurvePoint> {
        let predicted = predictions.iter().filter(|prediction| prediction.loss.is_some()).map(|p| p.flops);
        let flops = self.runs.iter().map(|run| run.flops).chain(predicted);
        let (low, high) = range(flops);
        let at = |i: usize| low * (high / low).powf(i as f64 / (CURVE_POINTS - 1) as f64);
        (0..CURVE_POINTS).map(|i| CurvePoint { flops: at(i), loss: fitted.predict(&[at(i)]) }).collect()
    }

    /// The compute of this ladder as a multiple of that of `base`, at the highest and the lowest loss that both measured.
    ///
    /// # Errors
    /// If the ladders measure different things, have no loss in common, or are not fitted over FLOPs.
    pub fn compare(&self, base: &Self) -> Result<LadderComparison, String> {
        if self.metric != base.metric {
            return Err(format!("{} measures {}, but {} measures {}", self.id, self.metric, base.id, base.metric));
        }
        if self.counts_layers != base.counts_layers {
            return Err(format!("{} and {} count FLOPs differently (`ladder.count`)", self.id, base.id));
        }
        for ladder in [self, base] {
            let (scales, _) = ladder.scales().map_err(|error| format!("{}: {error}", ladder.id))?;
            if scales.len() == 2 {
                return Err(format!(
                    "{} varies parameters and tokens independently, so its runs of the same compute differ; compare ladders with one \
                     ratio of tokens to parameters",
                    ladder.id
                ));
            }
        }
        let of = |ladder: &Self, purpose: &str| {
            let fitted = fit(&ladder.runs, &[Scale::Flops], purpose);
            let fitted = fitted.and_then(|fitted| support::contradiction(&ladder.runs).map_or(Ok(fitted), Err));
            fitted.map_err(|error| format!("{}: {error}", ladder.id))
        };
        let (own, other) = (of(self, "compared ladder")?, of(base, "base of comparison")?);
        let ((own_low, own_high), (base_low, base_high)) = (self.losses(), base.losses());
        let (low, high) = (own_low.max(base_low), own_high.min(base_high));
        if low >= high {
            return Err(format!(
                "the ladders have no {} in common: {} measured {own_low:.4} to {own_high:.4}, {} {base_low:.4} to {base_high:.4}",
                self.metric, self.id, base.id
            ));
        }
        let multiple = |loss: f64| ComputeMultiple { loss, multiple: own.scale_multiple(&other, loss) };
        Ok(LadderComparison {
            metric: self.metric.clone(),
            base: base.id.clone(),
            other: self.id.clone(),
            multiples: vec![multiple(high), multiple(low)],
        })
    }
}

/// The reason why the losses of two ladders do not compare, if they do not.
#[must_use]
pub fn find_incomparable_ladders(a: &ReadSweep, b: &ReadSweep) -> Option<String> {
    let bases = [a, b].into_iter().flat_map(|ReadSweep { record, progress, .. }| {
        let runs = record.points.iter().zip(&progress.points);
        runs.filter_map(|(point, run)| {
            Some((format!("point {} of {}", point.index, record.id), run.as_ref()?.basis.as_ref()?))
        })
    });
    find_incomparable(bases, &a.record.objective.metric.quantity())
}

/// The runs of each rung, those with the same parameters and tokens, in the order of their FLOPs.
fn rungs(runs: &[LadderRun]) -> Vec<Vec<LadderRun>> {
    let mut rungs: BTreeMap<[u64; 2], Vec<LadderRun>> = BTreeMap::new();
    for run in runs {
        rungs.entry(run.rung()).or_default().push(*run);
    }
    let mut rungs: Vec<Vec<LadderRun>> = rungs.into_values().collect();
    rungs.sort_by(|a, b| a[0].flops.total_cmp(&b[0].flops));
    rungs
}

/// The geometric mean of the losses of runs.
fn mean_loss(runs: &[LadderRun]) -> f64 {
    (runs.iter().map(|run| run.loss.ln()).sum::<f64>() / runs.len() as f64).exp()
}

/// True if models of one size are trained on different numbers of tokens, and sizes differ. `rungs` are pairs of ln N and ln D.
fn has_several_ratios(rungs: &[[f64; 2]]) -> bool {
    let has_sizes = rungs.iter().any(|rung| rung[0] != rungs[0][0]);
    let differ = |a: &[f64; 2], b: &[f64; 2]| a[0] == b[0] && (a[1] - b[1]).abs() > DIFFERENT_TOKENS.ln();
    has_sizes && rungs.iter().any(|a| rungs.iter().any(|b| differ(a, b)))
}

/// The sums of products of deviations from the means: of the first numbers, of both, and of the second ones.
fn deviations(pairs: &[[f64; 2]]) -> [f64; 3] {
    let mean = |k: usize| pairs.iter().map(|pair| pair[k]).sum::<f64>() / pairs.len() as f64;
    let means = [mean(0), mean(1)];
    [(0, 0), (0, 1), (1, 1)]
        .map(|(a, b)| pairs.iter().map(|pair| (pair[a] - means[a]) * (pair[b] - means[b])).sum::<f64>())
}

/// The squared correlation of pairs; 1 if one of the numbers does not vary, which cannot be fitted either.
fn squared_correlation(pairs: &[[f64; 2]]) -> f64 {
    let [first, product, second] = deviations(pairs);
    let scale = first * second;
    if scale > 0.0 { product.powi(2) / scale } else { 1.0 }
}

/// The slope of the second numbers over the first ones, by least squares; 0 if the first do not vary.
fn slope(pairs: &[[f64; 2]]) -> f64 {
    let [first, product, _] = deviations(pairs);
    if first > 0.0 { product / first } else { 0.0 }
}

#[cfg(test)]
mod tests;
