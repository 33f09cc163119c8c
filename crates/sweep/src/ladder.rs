//! What a ladder's results say: the fitted scaling law, how well it predicts the largest rung without it, predictions, and the compute
//! that another ladder needs for the same loss.

use std::collections::BTreeMap;

use runner_compare::comparability::find_incomparable;
use runner_spec::philox::Philox;
use runner_stats::{Interval, LawFit, NoFit, Prediction, ScaleMultiple, ScaledLoss, rungs_needed};
use serde::Serialize;

use crate::progress::SweepProgress;
use crate::record::SweepRecord;
use crate::results::{PointStatus, SweepResults};

/// The largest squared correlation of ln N and ln D at which L(N, D) is fitted.
const MAX_SQUARED_CORRELATION: f64 = 0.9;
/// The factor by which the tokens of rungs of one size differ if they differ by more than rounding.
const DIFFERENT_TOKENS: f64 = 1.1;
/// The share of the range of the rungs' losses above which a predicted interval is too wide to be a strong check.
const MAX_SHARE_OF_RANGE: f64 = 0.5;

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

/// What a loss depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    Flops,
    Parameters,
    Tokens,
}

impl Scale {
    const ALL: [Self; 3] = [Self::Flops, Self::Parameters, Self::Tokens];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Flops => "flops",
            Self::Parameters => "parameters",
            Self::Tokens => "tokens",
        }
    }

    /// The symbol in formulas.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Flops => "C",
            Self::Parameters => "N",
            Self::Tokens => "D",
        }
    }

    /// The smallest factor between the largest and the smallest rung at which a law over this scale alone is fitted. At a fixed ratio of
    /// tokens to parameters, FLOPs grow with the square of either.
    fn least_span(self) -> f64 {
        match self {
            Self::Flops => 4.0,
            Self::Parameters | Self::Tokens => 2.0,
        }
    }

    fn of(self, run: &LadderRun) -> f64 {
        match self {
            Self::Flops => run.flops,
            Self::Parameters => run.parameters,
            Self::Tokens => run.tokens,
        }
    }
}

/// A scale at which a loss is predicted.
#[derive(Debug, Clone, PartialEq)]
pub struct LadderTarget(Vec<(Scale, f64)>);

impl LadderTarget {
    /// Reads `flops=1e18`, or `parameters=1e9,tokens=2e10`.
    ///
    /// # Errors
    /// The rule for targets.
    pub fn parse(text: &str) -> Result<Self, String> {
        let rule = "must be flops=X, parameters=X or tokens=X, or several separated by commas, with positive numbers";
        let part = |part: &str| {
            let (name, value) = part.split_once('=')?;
            let scale = Scale::ALL.into_iter().find(|scale| scale.name() == name.trim())?;
            let value: f64 = value.trim().parse().ok()?;
            (value.is_finite() && value > 0.0).then_some((scale, value))
        };
        let parts: Option<Vec<(Scale, f64)>> = text.split(',').map(part).collect();
        let parts = parts.ok_or(rule)?;
        let is_repeated = parts.iter().enumerate().any(|(i, (scale, _))| parts[..i].iter().any(|(s, _)| s == scale));
        if is_repeated { Err(rule.to_owned()) } else { Ok(Self(parts)) }
    }
}

/// The runs of a ladder that have a result.
#[derive(Debug, Clone)]
pub struct LadderResults {
    metric: &'static str,
    id: String,
    runs: Vec<LadderRun>,
    /// Points without a result.
    missing: usize,
}

/// The results of a ladder, judged.
#[derive(Debug, Clone, Serialize)]
pub struct LadderFit {
    pub metric: &'static str,
    /// The formula of the fitted law: `L(C) = E + A·C^-a`.
    pub formula: &'static str,
    pub irreducible: FittedValue,
    pub terms: Vec<FittedTerm>,
    pub runs: usize,
    pub rungs: usize,
    /// The number of points that have no result.
    pub missing: usize,
    /// Degrees of freedom of the noise from which intervals follow.
    pub degrees_of_freedom: usize,
    /// The standard deviation of the noise, as a share of the loss.
    pub noise: f64,
    /// True if rungs deviate from the law by more than their seeds do; the noise is then that of rungs.
    pub lack_of_fit: bool,
    /// Why L(N, D) was not fitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_parameters_and_tokens: Option<String>,
    pub held_out: Result<HeldOutRung, String>,
    pub predictions: Vec<LadderPrediction>,
}

/// A fitted value with its interval of 95%.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FittedValue {
    pub value: f64,
    pub interval: Interval,
}

/// The exponent of a term.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FittedTerm {
    pub scale: Scale,
    pub coefficient: f64,
    pub exponent: FittedValue,
}

/// The largest rung, predicted by a law that was fitted without it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct HeldOutRung {
    pub flops: f64,
    pub parameters: f64,
    pub tokens: f64,
    /// Its FLOPs as a multiple of those of the largest rung that was fitted.
    pub extrapolation: f64,
    pub runs: usize,
    /// The geometric mean of its runs.
    pub measured: f64,
    /// The predicted measurement, with its interval of 95%.
    pub predicted: FittedValue,
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
    /// The expected loss, with its interval of 95%.
    pub loss: FittedValue,
    /// The run of the target. What the target does not give follows from how the rungs grow.
    pub parameters: f64,
    pub tokens: f64,
    pub flops: f64,
    /// Its FLOPs as a multiple of those of the largest rung.
    pub extrapolation: f64,
}

/// How much compute one ladder needs for the loss of another.
#[derive(Debug, Clone, Serialize)]
pub struct LadderComparison {
    pub metric: &'static str,
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

impl From<Prediction> for FittedValue {
    fn from(Prediction { value, interval }: Prediction) -> Self {
        Self { value, interval }
    }
}

fn stream(purpose: &str) -> Philox {
    Philox::new(0, purpose)
}

fn fit(runs: &[LadderRun], scales: &[Scale], purpose: &str) -> Result<LawFit, String> {
    if let ([scale], true) = (scales, count_rungs(runs) >= rungs_needed(1)) {
        let (low, high) = runs
            .iter()
            .map(|run| scale.of(run))
            .fold((f64::INFINITY, 0.0_f64), |(low, high), x| (low.min(x), high.max(x)));
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
    LawFit::new(&runs.iter().map(scaled).collect::<Vec<_>>(), stream(purpose)).map_err(|error| match error {
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
        let run = |row: &crate::ResultsRow| {
            let point = record.point(row.point)?;
            let loss =
                row.objective.filter(|loss| loss.is_finite() && row.status == PointStatus::Done && !row.diverged)?;
            Some(LadderRun { parameters: point.parameters as f64, tokens: point.tokens(), flops: point.flops(), loss })
        };
        let distinct = || results.rows.iter().filter(|row| row.status != PointStatus::Duplicate);
        let mut runs: Vec<LadderRun> = distinct().filter_map(run).collect();
        runs.sort_by(|a, b| a.flops.total_cmp(&b.flops).then(a.loss.total_cmp(&b.loss)));
        let missing = distinct().count() - runs.len();
        Ok(Self { metric: record.objective.metric.name(), id: record.id.clone(), runs, missing })
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
        let means = rungs(&self.runs).into_iter().map(|rung| mean_loss(&rung));
        means.fold((f64::INFINITY, 0.0), |(low, high), loss| (low.min(loss), high.max(loss)))
    }

    /// Fits the law, holds the largest rung out, and predicts `targets`.
    ///
    /// # Errors
    /// If there are too few rungs, or a target does not fit the law.
    pub fn fit(&self, targets: &[LadderTarget]) -> Result<LadderFit, String> {
        let (scales, why_not) = self.scales()?;
        let fitted = fit(&self.runs, &scales, "ladder")?;
        let terms = scales.iter().zip(&fitted.law.terms).enumerate().map(|(k, (scale, term))| FittedTerm {
            scale: *scale,
            coefficient: term.coefficient,
            exponent: FittedValue {
                value: term.exponent,
                interval: fitted.interval_of(|law| law.terms.get(k).map_or(f64::NAN, |term| term.exponent)),
            },
        });
        Ok(LadderFit {
            metric: self.metric,
            formula: if scales.len() == 2 { "L(N, D) = E + A·N^-a + B·D^-b" } else { "L(C) = E + A·C^-a" },
            irreducible: FittedValue {
                value: fitted.law.irreducible,
                interval: fitted.interval_of(|law| law.irreducible),
            },
            terms: terms.collect(),
            runs: fitted.runs,
            rungs: fitted.rungs,
            missing: self.missing,
            degrees_of_freedom: fitted.freedom,
            noise: fitted.noise,
            lack_of_fit: fitted.has_lack_of_fit,
            why_not_parameters_and_tokens: why_not,
            held_out: self.hold_out(&scales),
            predictions: targets
                .iter()
                .map(|target| self.predict(target, &scales, &fitted))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Predicts the rung with the most FLOPs from the others.
    fn hold_out(&self, scales: &[Scale]) -> Result<HeldOutRung, String> {
        let largest = self.runs.last().ok_or("there are no results")?;
        let (held_out, others): (Vec<LadderRun>, Vec<LadderRun>) =
            self.runs.iter().partition(|run| run.rung() == largest.rung());
        let below = others.last().map_or(f64::NAN, |run| run.flops);
        let fitted = fit(&others, scales, "ladder without its largest rung")
            .map_err(|error| format!("the largest rung is not held out: without it, {error}"))?;
        let scale: Vec<f64> = scales.iter().map(|scale| scale.of(largest)).collect();
        let predicted = fitted.predict_measurement(&scale, held_out.len(), stream("measurement of the largest rung"));
        let measured = mean_loss(&held_out);
        let (low, high) = self.losses();
        Ok(HeldOutRung {
            flops: largest.flops,
            parameters: largest.parameters,
            tokens: largest.tokens,
            extrapolation: largest.flops / below,
            runs: held_out.len(),
            measured,
            predicted: predicted.into(),
            is_in_interval: predicted.interval.contains(measured),
            range_of_losses: high - low,
            is_strong: 2.0 * predicted.interval.half_width() <= MAX_SHARE_OF_RANGE * (high - low),
        })
    }

    fn predict(&self, target: &LadderTarget, scales: &[Scale], fitted: &LawFit) -> Result<LadderPrediction, String> {
        let LadderTarget(given) = target;
        let value_of = |scale: &Scale| given.iter().find(|(known, _)| known == scale).map(|(_, value)| *value);
        let loss = match (scales, given.as_slice()) {
            ([_, _], _) => {
                let both: Option<Vec<f64>> = scales.iter().map(value_of).collect();
                match both.filter(|both| both.len() == given.len()) {
                    Some(scale) => fitted.predict(&scale),
                    None => {
                        return Err(
                            "this ladder fits L(N, D), so a target gives both: `--target parameters=X,tokens=X`"
                                .to_owned(),
                        );
                    }
                }
            }
            // Along the ladder, each scale determines the others.
            (_, [(scale, value)]) => fit(&self.runs, &[*scale], "ladder")?.predict(&[*value]),
            _ => {
                return Err("this ladder varies parameters and tokens together, so a target gives one of flops, parameters and tokens".to_owned());
            }
        };
        let [parameters, tokens, flops] = self.run_at(given);
        let largest = self.runs.last().map_or(f64::NAN, |run| run.flops);
        let target = given.iter().map(|(scale, value)| (scale.name(), *value)).collect();
        Ok(LadderPrediction { target, loss: loss.into(), parameters, tokens, flops, extrapolation: flops / largest })
    }

    /// Parameters, tokens and FLOPs of a run with the `given` scales: the largest rung, grown as the rungs grow. FLOPs that are not given
    /// are proportional to parameters times tokens.
    fn run_at(&self, given: &[(Scale, f64)]) -> [f64; 3] {
        let Some(largest) = self.runs.last() else { return [f64::NAN; 3] };
        let value_of = |scale: Scale| given.iter().find(|(known, _)| *known == scale).map(|(_, value)| *value);
        let grown = |scale: Scale| {
            let (from, value) = given.first().copied().unwrap_or((scale, scale.of(largest)));
            let pairs: Vec<[f64; 2]> = self.runs.iter().map(|run| [from.of(run).ln(), scale.of(run).ln()]).collect();
            scale.of(largest) * (value / from.of(largest)).powf(slope(&pairs))
        };
        let [parameters, tokens] =
            [Scale::Parameters, Scale::Tokens].map(|scale| value_of(scale).unwrap_or_else(|| grown(scale)));
        let proportional = largest.flops * (parameters / largest.parameters) * (tokens / largest.tokens);
        [parameters, tokens, value_of(Scale::Flops).unwrap_or(proportional)]
    }

    /// The compute of this ladder as a multiple of that of `base`, at the highest and the lowest loss that both measured.
    ///
    /// # Errors
    /// If the ladders measure different things, have no loss in common, or are not fitted over FLOPs.
    pub fn compare(&self, base: &Self) -> Result<LadderComparison, String> {
        if self.metric != base.metric {
            return Err(format!("{} measures {}, but {} measures {}", self.id, self.metric, base.id, base.metric));
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
            fit(&ladder.runs, &[Scale::Flops], purpose).map_err(|error| format!("{}: {error}", ladder.id))
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
            metric: self.metric,
            base: base.id.clone(),
            other: self.id.clone(),
            multiples: vec![multiple(high), multiple(low)],
        })
    }
}

/// The reason why the losses of two ladders do not compare, if they do not.
#[must_use]
pub fn find_incomparable_ladders(
    a: (&SweepRecord, &SweepProgress),
    b: (&SweepRecord, &SweepProgress),
) -> Option<String> {
    let bases = [a, b].into_iter().flat_map(|(record, progress)| {
        let runs = record.points.iter().zip(&progress.points);
        runs.filter_map(|(point, run)| {
            Some((format!("point {} of {}", point.index, record.id), run.as_ref()?.basis.as_ref()?))
        })
    });
    find_incomparable(bases, a.0.objective.metric.quantity()?)
}

/// The runs of each rung: those with the same parameters and tokens.
fn rungs(runs: &[LadderRun]) -> Vec<Vec<LadderRun>> {
    let mut rungs: BTreeMap<[u64; 2], Vec<LadderRun>> = BTreeMap::new();
    for run in runs {
        rungs.entry(run.rung()).or_default().push(*run);
    }
    rungs.into_values().collect()
}

fn count_rungs(runs: &[LadderRun]) -> usize {
    rungs(runs).len()
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
mod tests {
    use super::*;
    use crate::testing::sweep;
    use crate::{PointStatus, ResultsRow};

    /// A ladder of `rungs` (parameters, tokens), with two runs of each at a law of N and D, within a thousandth of it.
    fn ladder(id: &str, rungs: &[(f64, f64)], factor: f64) -> (SweepRecord, SweepResults) {
        let mut record = sweep();
        let (template, mut points, mut rows) = (record.points[0].clone(), Vec::new(), Vec::new());
        for (rung, (parameters, tokens)) in rungs.iter().enumerate() {
            for seed in 0..2 {
                let index = points.len() + 1;
                let mut point = template.clone();
                (point.index, point.parameters, point.steps) = (index, *parameters as u64, *tokens as u64);
                (point.tokens_per_step, point.flops_per_step) = (1, 6.0 * parameters * factor);
                points.push(point);
                let noise = 1.0 + 1e-3 * [0.9, -1.1, 0.4, -0.2, 1.3, -0.8, 0.1, -0.6][(rung * 3 + seed * 5) % 8];
                let loss = (1.5 + 30.0 * parameters.powf(-0.4) + 20.0 * tokens.powf(-0.3)) * noise;
                rows.push(ResultsRow {
                    point: index,
                    values: Vec::new(),
                    status: PointStatus::Done,
                    steps: point_steps(*tokens),
                    objective: Some(loss),
                    diverged: false,
                    run: None,
                    seconds: None,
                    val_bits_per_byte: None,
                    tokens_per_second: None,
                    mfu: None,
                });
            }
        }
        (record.points, record.is_ladder, record.early_stop) = (points, true, None);
        id.clone_into(&mut record.id);
        let results = SweepResults::new(record.objective, rows, None);
        (record, results)
    }

    fn point_steps(tokens: f64) -> u64 {
        tokens as u64
    }

    fn results_of(ladder: &(SweepRecord, SweepResults)) -> LadderResults {
        LadderResults::new(&ladder.0, &ladder.1).unwrap()
    }

    fn along_one_ratio() -> Vec<(f64, f64)> {
        (0..6).map(|i| 1e4 * 2_f64.powi(i)).map(|n| (n, 20.0 * n)).collect()
    }

    #[test]
    fn a_law_of_compute_predicts_the_largest_rung() {
        let ladder = ladder("a", &along_one_ratio(), 1.0);
        let targets = ["flops=1e13", "parameters=1e6"].map(|text| LadderTarget::parse(text).unwrap());
        let fit = results_of(&ladder).fit(&targets).unwrap();
        assert_eq!((fit.formula, fit.runs, fit.rungs, fit.missing), ("L(C) = E + A·C^-a", 12, 6, 0));
        assert!(fit.why_not_parameters_and_tokens.clone().unwrap().contains("vary independently"), "{fit:?}");
        let held_out = fit.held_out.clone().unwrap();
        assert!(held_out.is_in_interval && (held_out.extrapolation - 4.0).abs() < 1e-9, "{held_out:?}");
        assert_eq!((held_out.runs, held_out.parameters), (2, 320_000.0));
        assert!(held_out.is_strong, "{held_out:?}");
        // 1e6 parameters are 3.125 times those of the largest rung, with as many times its tokens.
        let by_parameters = &fit.predictions[1];
        assert!((by_parameters.extrapolation / 3.125_f64.powi(2) - 1.0).abs() < 1e-9, "{by_parameters:?}");
        assert!((by_parameters.tokens / 2e7 - 1.0).abs() < 1e-9, "{by_parameters:?}");
        assert!((fit.predictions[0].parameters / (1e13_f64 / 120.0).sqrt() - 1.0).abs() < 1e-9, "{fit:?}");
        let truth = 1.5 + 30.0 * 1e6_f64.powf(-0.4) + 20.0 * 2e7_f64.powf(-0.3);
        assert!(by_parameters.loss.interval.contains(truth), "{by_parameters:?} {truth}");
        let both = [LadderTarget::parse("parameters=1e6,tokens=1e7").unwrap()];
        assert!(results_of(&ladder).fit(&both).unwrap_err().contains("together"));
    }

    #[test]
    fn independent_parameters_and_tokens_give_both_exponents() {
        let rungs: Vec<(f64, f64)> =
            [1e4, 4e4, 1.6e5, 6.4e5].iter().flat_map(|n| [5.0, 20.0, 80.0].map(|ratio| (*n, ratio * n))).collect();
        let ladder = ladder("a", &rungs, 1.0);
        let target = [LadderTarget::parse("parameters=2e6, tokens=4e7").unwrap()];
        let fit = results_of(&ladder).fit(&target).unwrap();
        assert_eq!((fit.formula, fit.terms.len()), ("L(N, D) = E + A·N^-a + B·D^-b", 2));
        for (term, truth) in fit.terms.iter().zip([0.4, 0.3]) {
            assert!(term.exponent.interval.contains(truth), "{term:?}");
        }
        assert!(results_of(&ladder).fit(&[LadderTarget::parse("flops=1e15").unwrap()]).unwrap_err().contains("both"));
        let error = results_of(&ladder).compare(&results_of(&ladder)).unwrap_err();
        assert!(error.contains("independently"), "{error}");
    }

    #[test]
    fn few_rungs_are_refused_with_the_number_needed() {
        let three = ladder("a", &along_one_ratio()[..3], 1.0);
        let error = results_of(&three).fit(&[]).unwrap_err();
        assert_eq!(error, "a law of 3 parameters needs at least 4 rungs with a result, got 3");
        let four = results_of(&ladder("a", &along_one_ratio()[..4], 1.0)).fit(&[]).unwrap();
        assert!(four.held_out.unwrap_err().contains("not held out"));
        assert!(four.why_not_parameters_and_tokens.unwrap().contains("at least 6 rungs, got 4"));
    }

    #[test]
    fn flops_that_hardly_vary_are_refused() {
        let constant: Vec<(f64, f64)> = (0..6).map(|i| 1e4 * 2_f64.powi(i)).map(|n| (n, 1e10 / n)).collect();
        let error = results_of(&ladder("a", &constant, 1.0)).fit(&[]).unwrap_err();
        assert!(error.contains("a law over flops needs rungs") && error.contains("got 1.00 times"), "{error}");
        // Tokens that do not vary cannot be a target.
        let tokens: Vec<(f64, f64)> = (0..6).map(|i| (1e4 * 2_f64.powi(i), 1e6)).collect();
        let results = results_of(&ladder("a", &tokens, 1.0));
        let fit = results.fit(&[LadderTarget::parse("parameters=1e6").unwrap()]).unwrap();
        assert!((fit.predictions[0].tokens - 1e6).abs() < 1e-3, "{fit:?}");
        let error = results.fit(&[LadderTarget::parse("tokens=1e7").unwrap()]).unwrap_err();
        assert!(error.contains("a law over tokens needs rungs"), "{error}");
    }

    #[test]
    fn flops_that_do_not_determine_the_loss_are_refused() {
        let pairs = |sizes: &[f64], ratios: &[f64]| -> Vec<(f64, f64)> {
            sizes.iter().flat_map(|n| ratios.iter().map(|ratio| (*n, ratio * n)).collect::<Vec<_>>()).collect()
        };
        let few = pairs(&[1e4, 4e4], &[5.0, 80.0]);
        let error = results_of(&ladder("a", &few, 1.0)).fit(&[]).unwrap_err();
        assert!(error.contains("L(N, D) needs at least 6 rungs with a result, got 4; add sizes"), "{error}");
        let close = pairs(&[1e4, 4e4, 1.6e5, 6.4e5], &[10.0, 20.0]);
        let error = results_of(&ladder("a", &close, 1.0)).fit(&[]).unwrap_err();
        assert!(error.contains("FLOPs do not determine the loss") && error.contains("further apart"), "{error}");
    }

    #[test]
    fn a_cheaper_ladder_needs_less_compute() {
        let (a, b) = (ladder("a", &along_one_ratio(), 1.0), ladder("b", &along_one_ratio(), 0.8));
        let comparison = results_of(&b).compare(&results_of(&a)).unwrap();
        assert_eq!((comparison.base.as_str(), comparison.other.as_str()), ("a", "b"));
        for ComputeMultiple { multiple, .. } in &comparison.multiples {
            assert!((multiple.value.unwrap() - 0.8).abs() < 0.01, "{multiple:?}");
            assert!(multiple.interval.unwrap().contains(0.8), "{multiple:?}");
        }
        let small = ladder("c", &along_one_ratio()[..4], 1.0);
        let far: Vec<(f64, f64)> = along_one_ratio().iter().map(|(n, d)| (n * 1e3, d * 1e3)).collect();
        let error = results_of(&ladder("d", &far, 1.0)).compare(&results_of(&small)).unwrap_err();
        assert!(error.contains("have no val_loss in common"), "{error}");
    }

    #[test]
    fn targets_are_positive_numbers_of_known_scales() {
        for text in ["", "x=1", "flops", "flops=0", "flops=nan", "flops=1,flops=2", "flops=1e400"] {
            assert!(LadderTarget::parse(text).is_err(), "{text}");
        }
    }
}
