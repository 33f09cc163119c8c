//! What a ladder's results show, as data.

use std::collections::BTreeMap;

use runner_spec::measure::LossSample;
use runner_stats::{ExponentBound, Interval, Prediction, ScaleMultiple};
use serde::Serialize;

use super::{LadderResults, Scale};
use crate::record::SweepRecord;
use crate::results::SweepResults;

/// The results of a ladder, judged.
#[derive(Debug, Clone, Serialize)]
pub struct LadderFit {
    pub metric: String,
    /// The formula of the fitted law: `L(C) = E + A·C^-a`.
    pub formula: &'static str,
    pub irreducible: Prediction,
    pub terms: Vec<FittedTerm>,
    /// The parameters of the law that are at a bound of the fit, and so not estimates: `E`, `a`, `b`.
    pub at_bound: Vec<&'static str>,
    pub runs: usize,
    pub rungs: usize,
    /// The number of points that have no result, and of those among them that diverged.
    pub missing: usize,
    pub diverged: usize,
    /// Degrees of freedom of the noise from which intervals follow.
    pub degrees_of_freedom: usize,
    /// The standard deviation of the noise, as a share of the loss.
    pub noise: f64,
    /// True if rungs deviate from the law by more than their seeds do; the noise is then that of rungs.
    pub lack_of_fit: bool,
    /// Why L(N, D) was not fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_parameters_and_tokens: Option<String>,
    /// The validation rows of the losses, with the largest standard error over them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<LossSample>,
    /// The rung with the most FLOPs, predicted from the others, from these without the next one, and so on.
    pub held_out: Vec<HeldOutRung>,
    /// Why the list is empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_held_out: Option<String>,
    /// The losses at the targets. The default target has ten times the FLOPs of the largest rung.
    pub predictions: Vec<LadderPrediction>,
    /// The rungs, by their FLOPs.
    pub measured: Vec<RungLoss>,
    /// True if N and C count only the layers, without embeddings and head.
    pub counts_layers: bool,
    /// The rungs at which `tune` varies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuning: Vec<TunedRung>,
    /// The law L(C) from the smallest rung to the largest supported prediction; empty for L(N, D), where FLOPs do not determine the loss.
    pub curve: Vec<CurvePoint>,
}

/// The law of a ladder, or the best size if all rungs cost the same, or why there is neither.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LadderOutcome {
    pub fit: Option<LadderFit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum: Option<SizeOptimum>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_fit: Option<String>,
}

impl LadderOutcome {
    /// What the results of the ladder `record` show; `None` if it is a sweep.
    #[must_use]
    pub fn new(record: &SweepRecord, results: &SweepResults) -> Option<Self> {
        let found = record.is_ladder.then(|| LadderResults::new(record, results)?.outcome(&[]))?;
        Some(found.unwrap_or_else(|reason| Self { no_fit: Some(reason), ..Self::default() }))
    }
}

/// The size with the lowest loss for FLOPs that all rungs cost.
#[derive(Debug, Clone, Serialize)]
pub struct SizeOptimum {
    pub metric: String,
    pub flops: f64,
    /// With its interval of 95%.
    pub parameters: Prediction,
    pub tokens: f64,
    /// Epochs of the training data, if its size is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    pub loss: Prediction,
    pub runs: usize,
    pub rungs: usize,
    pub missing: usize,
    pub degrees_of_freedom: usize,
    pub noise: f64,
    /// True if rungs deviate from the parabola by more than their seeds explain; `noise` is then the noise of a rung.
    pub lack_of_fit: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<LossSample>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tuning: Vec<TunedRung>,
}

/// A rung that was trained with several factors of `tune`.
#[derive(Debug, Clone, Serialize)]
pub struct TunedRung {
    pub parameters: f64,
    pub tokens: f64,
    pub flops: f64,
    /// The smallest first.
    pub factors: Vec<TunedFactor>,
    /// The factor with the lowest loss, and the p-value of the test whether it is better than 1.
    pub best: f64,
    pub p: f64,
    /// True if another factor is better than 1 by more than seeds explain.
    pub is_off: bool,
    /// The best factor from the smallest to the largest, by a parabola through ln factor; `None` if fewer than three have a result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum: Option<TunedOptimum>,
    /// Why the losses do not determine it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undetermined: Option<String>,
}

/// What a rung measured with a factor.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TunedFactor {
    pub factor: f64,
    pub runs: usize,
    /// The geometric mean of its runs; `None` unless all have a result.
    pub loss: Option<f64>,
}

/// The best factor of a rung.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TunedOptimum {
    pub factor: Prediction,
    pub loss: Prediction,
    /// How far the loss of factor 1 is above that, as a share of it.
    pub cost: Prediction,
}

/// The best factor at a target, if it moves on as it moved from the smallest tuned rung to the largest one.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TuningDrift {
    pub factor: Prediction,
    /// How far the loss of factor 1 would then be above the lowest one, as a share of it.
    pub cost: Prediction,
}

/// A rung and the loss that the law gives it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct RungLoss {
    pub parameters: f64,
    pub tokens: f64,
    pub flops: f64,
    pub runs: usize,
    /// The geometric mean of its runs.
    pub loss: f64,
    pub lowest: f64,
    pub highest: f64,
    /// The expected loss, with its interval of 95%.
    pub law: Prediction,
}

/// A point of the fitted law.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct CurvePoint {
    pub flops: f64,
    #[serde(flatten)]
    pub loss: Prediction,
}

/// The exponent of a term.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FittedTerm {
    pub scale: Scale,
    pub coefficient: f64,
    pub exponent: Prediction,
    /// Why the exponent is not an estimate; `None` if it is one.
    pub bound: Option<ExponentBound>,
}

/// The largest rung, predicted by a law that was fitted without it, and perhaps without the next ones.
#[derive(Debug, Clone, Serialize)]
pub struct HeldOutRung {
    pub flops: f64,
    pub parameters: f64,
    pub tokens: f64,
    /// Its FLOPs as a multiple of those of the largest rung that was fitted.
    pub extrapolation: f64,
    /// The number of rungs that were fitted.
    pub rungs_left: usize,
    pub runs: usize,
    /// The geometric mean of its runs.
    pub measured: f64,
    /// The predicted measurement, with its interval of 95%.
    pub predicted: Prediction,
    pub is_in_interval: bool,
    /// The highest mean loss of a rung, less the lowest.
    pub range_of_losses: f64,
    /// False if the interval is wider than half of that range: it would contain almost any loss.
    pub is_strong: bool,
}

/// A predicted loss.
#[derive(Debug, Clone, Serialize)]
pub struct LadderPrediction {
    pub target: BTreeMap<&'static str, f64>,
    /// The expected loss, with its interval of 95%; `None` if the rungs do not support a forecast.
    pub loss: Option<Prediction>,
    /// Where the loss of one run will lie, also with 95%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measurement: Option<Interval>,
    /// Of L(N, D) and a target that gives only FLOPs: the parameters with the lowest loss for them, with their interval of 95%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum: Option<Prediction>,
    /// Of a tuned ladder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<TuningDrift>,
    /// Why the rungs support no forecast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_supported: Option<String>,
    /// The loss by the laws that are fitted without one rung each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<LeftOutRung>,
    /// The run of the target. What the target does not give follows from how the rungs grow.
    pub parameters: f64,
    pub tokens: f64,
    pub flops: f64,
    /// Epochs of the training data that its run needs, if the size of the data is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<f64>,
    /// Its FLOPs as a multiple of the largest rung's.
    pub extrapolation: f64,
}

/// A rung, and the loss at a target by the law of the others.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct LeftOutRung {
    pub parameters: f64,
    pub tokens: f64,
    pub loss: f64,
}

/// How much compute one ladder needs for the loss of another.
#[derive(Debug, Clone, Serialize)]
pub struct LadderComparison {
    pub metric: String,
    /// The ladder whose compute is 1.
    pub base: String,
    pub other: String,
    /// From the highest to the lowest loss that both measured.
    pub multiples: Vec<ComputeMultiple>,
}

/// The compute of a ladder as a multiple of another's, at the same loss.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ComputeMultiple {
    pub loss: f64,
    pub multiple: ScaleMultiple,
}
