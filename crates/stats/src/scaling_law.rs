//! Scaling laws L = E + Σ A·x^−α: over compute, or over parameters and tokens (Hoffmann et al. 2022, "Training compute-optimal large
//! language models", approach 3), fitted to the losses of a ladder of runs.
//!
//! The fit minimizes the Huber loss of ln L̂ − ln L from many starting points. Intervals come from a parametric bootstrap: in each draw the
//! scale of the noise is drawn from what the residuals say about it, new losses are drawn around the fitted law, and the law is fitted
//! to them. Resampling the few rungs of a ladder would leave too few different ones.

use runner_spec::philox::Philox;
use serde::{Deserialize, Serialize};

use crate::levenberg_marquardt::{Residuals, minimize};
use crate::noise::{Noise, SumsOfSquares, number_rungs};
use crate::quantile::middle;
use crate::sample::Interval;

/// The least residual of ln L from which on the Huber loss is linear, as in Hoffmann et al.
const LEAST_HUBER_DELTA: f64 = 1e-3;
/// The same residual in standard deviations of normal noise: the fit then has 95% of the efficiency of least squares (Huber 1964, "Robust estimation of a
/// location parameter"). With less, it drops whole rungs as outliers.
const HUBER_DEVIATIONS: f64 = 1.345;
/// Fits to drawn losses.
pub(crate) const DRAWS: u32 = 500;
/// The largest share of draws in which a loss may be out of reach while its multiple of compute still has an interval. Each such draw is
/// then beyond an end of the middle 95%.
const MAX_SHARE_NOT_REACHED: f64 = 0.025;
/// The share of the largest loss below which the irreducible loss, or a term at the smallest scale, counts as 0, its bound.
const NEGLIGIBLE_SHARE: f64 = 1e-3;
/// The bounds of an exponent α.
const EXPONENTS: (f64, f64) = (1e-3, 3.0);
/// The exponents from which a term starts, each with the share of what is above the irreducible loss that the term has at the smallest
/// scale. The steep ones find the minima in which a term matters at the smallest rungs only.
const START_TERMS: [(f64, f64); 6] = [(0.05, 1.0), (0.2, 1.0), (0.5, 1.0), (1.0, 1.0), (2.5, 1.0), (2.5, 0.01)];
/// The shares of the smallest loss at which the irreducible loss starts.
const START_SHARES: [f64; 3] = [0.1, 0.5, 0.9];

/// The loss of a run, and what it depends on: its FLOPs, or its parameters and its tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct ScaledLoss {
    /// Positive; one number, or two.
    pub scale: Vec<f64>,
    /// Positive.
    pub loss: f64,
}

/// A law L = E + Σ A·x^−α.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ScalingLaw {
    /// E, the loss that no scale goes below.
    pub irreducible: f64,
    /// A term for each number of the scale.
    pub terms: Vec<PowerTerm>,
}

/// The term A·x^−α.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PowerTerm {
    pub coefficient: f64,
    pub exponent: f64,
}

/// Why the exponent of a term is not an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ExponentBound {
    /// The exponent is the smallest that is fitted: the loss falls more slowly than any power.
    Lower,
    /// The exponent is the largest that is fitted: the term matters at the smallest rungs only.
    Upper,
    /// The term is 0: the loss does not fall with this scale, and any exponent gives the same law.
    NoTerm,
}

impl ExponentBound {
    /// The bound of the exponent that equals `value`, if one does.
    fn at(value: f64) -> Option<Self> {
        match value {
            _ if value <= EXPONENTS.0 => Some(Self::Lower),
            _ if value >= EXPONENTS.1 => Some(Self::Upper),
            _ => None,
        }
    }
}

/// A law, fitted to runs, and laws fitted to draws of their losses.
#[derive(Debug, Clone)]
pub struct LawFit {
    pub law: ScalingLaw,
    /// True if the irreducible loss is at its bound, 0, and so not an estimate.
    pub is_irreducible_zero: bool,
    /// For each term, why its exponent is not an estimate; `None` if it is one.
    pub exponent_bounds: Vec<Option<ExponentBound>>,
    /// Runs, and rungs: different scales.
    pub runs: usize,
    pub rungs: usize,
    /// Degrees of freedom of the noise.
    pub freedom: usize,
    /// The standard deviation of the noise of a run, as a share of its loss.
    pub noise: f64,
    /// True if rungs deviate from the law by more than runs of a rung deviate from each other. Then the noise is that of rungs.
    pub has_lack_of_fit: bool,
    draws: Vec<Draw>,
}

/// A law that was fitted to drawn losses, and the noise that they were drawn with.
#[derive(Debug, Clone)]
struct Draw {
    law: ScalingLaw,
    noise: f64,
}

/// A predicted value with its interval of 95%.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    pub value: f64,
    pub interval: Interval,
}

/// The scale at which a law reaches a loss, as a multiple of the scale at which another law does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ScaleMultiple {
    /// `None` if one of the fitted laws never reaches the loss.
    pub value: Option<f64>,
    /// The interval of 95%; `None` if one of the laws does not reach the loss in more than 2.5% of the draws.
    pub interval: Option<Interval>,
    pub draws: usize,
    /// Draws in which one of the laws does not reach the loss.
    pub not_reached: usize,
}

/// Why no law is fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoFit {
    /// A law needs more rungs than it has parameters.
    TooFewRungs { rungs: usize, needed: usize },
    /// A loss or a scale is not a positive number.
    NotPositive,
}

impl ScalingLaw {
    /// The loss at `scale`.
    #[must_use]
    pub fn loss(&self, scale: &[f64]) -> f64 {
        let terms = self.terms.iter().zip(scale).map(|(term, x)| term.coefficient * x.powf(-term.exponent));
        self.irreducible + terms.sum::<f64>()
    }

    /// The scale at which a law of one term reaches `loss`; infinite if it never does.
    #[must_use]
    pub fn scale_at(&self, loss: f64) -> f64 {
        match self.terms.as_slice() {
            [term] if loss > self.irreducible => {
                ((loss - self.irreducible) / term.coefficient).powf(-1.0 / term.exponent)
            }
            _ => f64::INFINITY,
        }
    }
}

/// The number of parameters of a law over `scales` numbers.
fn parameter_count(scales: usize) -> usize {
    1 + 2 * scales
}

/// The fewest rungs that a law over `scales` numbers is fitted to.
#[must_use]
pub fn rungs_needed(scales: usize) -> usize {
    parameter_count(scales) + 1
}

/// The residuals ln L̂ − ln L as functions of ln E, and of ln A and α at scales relative to their geometric means.
struct LogLosses {
    /// ln of relative scales, for each run.
    scales: Vec<Vec<f64>>,
    log_losses: Vec<f64>,
}

impl LogLosses {
    /// ln L̂ of run `i`, and its derivatives.
    fn predict(&self, i: usize, parameters: &[f64], derivatives: &mut [f64]) -> f64 {
        let exponents = |k: usize| parameters[1 + 2 * k] - parameters[2 + 2 * k] * self.scales[i][k];
        let terms = self.scales[i].len();
        let largest = (0..terms).map(exponents).fold(parameters[0], f64::max);
        let sum = (parameters[0] - largest).exp() + (0..terms).map(|k| (exponents(k) - largest).exp()).sum::<f64>();
        let log_loss = largest + sum.ln();
        derivatives[0] = (parameters[0] - log_loss).exp();
        for k in 0..terms {
            let share = (exponents(k) - log_loss).exp();
            derivatives[1 + 2 * k] = share;
            derivatives[2 + 2 * k] = -share * self.scales[i][k];
        }
        log_loss
    }

    /// The ln of the value below which a part of the law counts as 0.
    fn log_negligible(&self) -> f64 {
        self.log_losses.iter().copied().fold(f64::NEG_INFINITY, f64::max) + NEGLIGIBLE_SHARE.ln()
    }

    fn is_irreducible_zero(&self, parameters: &[f64]) -> bool {
        parameters[0] <= self.log_negligible()
    }

    /// The ln of the smallest relative scale of term `k`.
    fn smallest_scale(&self, k: usize) -> f64 {
        self.scales.iter().map(|scale| scale[k]).fold(f64::INFINITY, f64::min)
    }

    /// Why the exponent of term `k` is not an estimate, if it is not.
    fn exponent_bound(&self, parameters: &[f64], k: usize) -> Option<ExponentBound> {
        let (log_coefficient, exponent) = (parameters[1 + 2 * k], parameters[2 + 2 * k]);
        if log_coefficient - exponent * self.smallest_scale(k) <= self.log_negligible() {
            return Some(ExponentBound::NoTerm);
        }
        ExponentBound::at(exponent)
    }

    /// The sums of squares of the residuals of the fit `parameters`. A parameter at a bound does not count as one of the law.
    fn sums_of_squares(&self, parameters: &[f64], rung_of_run: &[usize]) -> SumsOfSquares {
        let mut unused = vec![0.0; parameters.len()];
        let residuals: Vec<f64> = (0..self.count()).map(|i| self.residual(i, parameters, &mut unused)).collect();
        SumsOfSquares::new(&residuals, rung_of_run, self.free_parameters(parameters))
    }

    /// The number of parameters that are not at a bound. A term that is 0 has none.
    fn free_parameters(&self, parameters: &[f64]) -> usize {
        let of_term = |k| match self.exponent_bound(parameters, k) {
            None => 2,
            Some(ExponentBound::Lower | ExponentBound::Upper) => 1,
            Some(ExponentBound::NoTerm) => 0,
        };
        usize::from(!self.is_irreducible_zero(parameters)) + (0..parameters.len() / 2).map(of_term).sum::<usize>()
    }
}

impl Residuals for LogLosses {
    fn count(&self) -> usize {
        self.log_losses.len()
    }

    fn residual(&self, i: usize, parameters: &[f64], derivatives: &mut [f64]) -> f64 {
        self.predict(i, parameters, derivatives) - self.log_losses[i]
    }

    fn bounds(&self, parameter: usize) -> (f64, f64) {
        match parameter {
            0 => (-12.0, 6.0),
            odd if odd % 2 == 1 => (-40.0, 40.0),
            _ => EXPONENTS,
        }
    }
}

impl LawFit {
    /// Fits a law to `runs`, whose scales have the same length. Draws come from `stream`, and depend on nothing else.
    ///
    /// # Errors
    /// If there are too few rungs, or numbers that are not positive.
    pub fn new(runs: &[ScaledLoss], stream: Philox) -> Result<Self, NoFit> {
        let is_positive = |x: &f64| x.is_finite() && *x > 0.0;
        if !runs.iter().all(|run| is_positive(&run.loss) && run.scale.iter().all(is_positive)) {
            return Err(NoFit::NotPositive);
        }
        let rung_of_run = number_rungs(runs);
        let rungs = rung_of_run.iter().max().map_or(0, |last| last + 1);
        let terms = runs.first().map_or(1, |run| run.scale.len());
        let needed = rungs_needed(terms);
        if rungs < needed {
            return Err(NoFit::TooFewRungs { rungs, needed });
        }
        let references: Vec<f64> = (0..terms)
            .map(|k| (runs.iter().map(|run| run.scale[k].ln()).sum::<f64>() / runs.len() as f64).exp())
            .collect();
        let relative = |run: &ScaledLoss| run.scale.iter().zip(&references).map(|(x, r)| (x / r).ln()).collect();
        let mut losses = LogLosses {
            scales: runs.iter().map(relative).collect(),
            log_losses: runs.iter().map(|run| run.loss.ln()).collect(),
        };
        let delta = huber_delta(&losses.log_losses, &rung_of_run);
        let best = fit_from(&losses, delta, &starts(&losses, terms));
        // The test of lack of fit assumes least squares.
        let least_squares = fit_from(&losses, f64::INFINITY, std::slice::from_ref(&best));
        let lack_of_fit_p = losses.sums_of_squares(&least_squares, &rung_of_run).lack_of_fit_p();
        let noise = Noise::new(&losses.sums_of_squares(&best, &rung_of_run), lack_of_fit_p);
        let is_irreducible_zero = losses.is_irreducible_zero(&best);
        let exponent_bounds = (0..terms).map(|k| losses.exponent_bound(&best, k)).collect();
        let mut unused = vec![0.0; best.len()];
        let fitted: Vec<f64> = (0..runs.len()).map(|i| losses.predict(i, &best, &mut unused)).collect();
        let draw = |number: u32| {
            let (drawn, sd) = noise.draw(stream, number, &rung_of_run);
            losses.log_losses = fitted.iter().zip(drawn).map(|(fitted, noise)| fitted + noise).collect();
            Draw { law: law(&fit_from(&losses, delta, std::slice::from_ref(&best)), &references), noise: sd }
        };
        let draws = (0..DRAWS).map(draw).collect();
        Ok(Self {
            law: law(&best, &references),
            is_irreducible_zero,
            exponent_bounds,
            runs: runs.len(),
            rungs,
            freedom: noise.freedom,
            noise: noise.sd,
            has_lack_of_fit: noise.is_of_rungs,
            draws,
        })
    }

    /// The expected loss at `scale`.
    #[must_use]
    pub fn predict(&self, scale: &[f64]) -> Prediction {
        let drawn = self.draws.iter().map(|draw| draw.law.loss(scale)).collect();
        Prediction { value: self.law.loss(scale), interval: middle(drawn) }
    }

    /// The mean loss that `runs` new runs at `scale` would measure.
    #[must_use]
    pub fn predict_measurement(&self, scale: &[f64], runs: usize, stream: Philox) -> Prediction {
        let share = if self.has_lack_of_fit { 1.0 } else { 1.0 / (runs.max(1) as f64).sqrt() };
        let measured = |(i, draw): (usize, &Draw)| {
            let [normal, ..] = stream.normals(i as u64);
            draw.law.loss(scale) * (draw.noise * share * normal).exp()
        };
        let drawn = self.draws.iter().enumerate().map(measured).collect();
        Prediction { value: self.law.loss(scale), interval: middle(drawn) }
    }

    /// The interval of a value of the law.
    #[must_use]
    pub fn interval_of(&self, value: impl Fn(&ScalingLaw) -> f64) -> Interval {
        middle(self.draws.iter().map(|draw| value(&draw.law)).collect())
    }

    /// The scale at which this law reaches `loss`, as a multiple of the scale at which `base` does. Both have one term.
    #[must_use]
    pub fn scale_multiple(&self, base: &Self, loss: f64) -> ScaleMultiple {
        let multiple = |a: &ScalingLaw, b: &ScalingLaw| a.scale_at(loss) / b.scale_at(loss);
        let is_reached = |multiple: &f64| multiple.is_finite() && *multiple > 0.0;
        let drawn: Vec<f64> = self.draws.iter().zip(&base.draws).map(|(a, b)| multiple(&a.law, &b.law)).collect();
        let draws = drawn.len();
        let not_reached = drawn.iter().filter(|multiple| !is_reached(multiple)).count();
        let has_interval = not_reached as f64 <= MAX_SHARE_NOT_REACHED * draws as f64;
        // 0 and infinity stay, as the ends of the order; NaN is neither.
        let ordered = || drawn.into_iter().filter(|multiple| !multiple.is_nan()).collect();
        ScaleMultiple {
            value: Some(multiple(&self.law, &base.law)).filter(is_reached),
            interval: has_interval.then(|| middle(ordered())),
            draws,
            not_reached,
        }
    }
}

/// The residual from which on the Huber loss is linear: by the standard deviation of runs of a rung, if there are several.
fn huber_delta(log_losses: &[f64], rung_of_run: &[usize]) -> f64 {
    let SumsOfSquares { within, run_freedom, .. } = SumsOfSquares::new(log_losses, rung_of_run, 0);
    LEAST_HUBER_DELTA.max(HUBER_DEVIATIONS * (within / run_freedom.max(1) as f64).sqrt())
}

/// The law whose parameters are relative to `references`.
fn law(parameters: &[f64], references: &[f64]) -> ScalingLaw {
    let term = |(k, reference): (usize, &f64)| {
        let exponent = parameters[2 + 2 * k];
        PowerTerm { coefficient: (parameters[1 + 2 * k] + exponent * reference.ln()).exp(), exponent }
    };
    ScalingLaw { irreducible: parameters[0].exp(), terms: references.iter().enumerate().map(term).collect() }
}

/// Parameters from which the fit starts: the terms share what is above the irreducible loss.
fn starts(losses: &LogLosses, terms: usize) -> Vec<Vec<f64>> {
    let smallest = losses.log_losses.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = losses.log_losses.iter().sum::<f64>() / losses.log_losses.len() as f64;
    let mut starts = Vec::new();
    for share in START_SHARES {
        let irreducible = smallest.exp() * share;
        let above = ((mean.exp() - irreducible) / terms as f64).max(1e-6).ln();
        for combination in 0..START_TERMS.len().pow(terms as u32) {
            let mut start = vec![irreducible.ln()];
            for k in 0..terms {
                let (exponent, share) = START_TERMS[combination / START_TERMS.len().pow(k as u32) % START_TERMS.len()];
                start.extend([above + share.ln() + exponent * losses.smallest_scale(k), exponent]);
            }
            starts.push(start);
        }
    }
    starts
}

/// The best fit from `starts`, by the Huber loss that is quadratic up to `delta`.
fn fit_from(losses: &LogLosses, delta: f64, starts: &[Vec<f64>]) -> Vec<f64> {
    let fits = starts.iter().map(|start| minimize(losses, delta, start));
    fits.min_by(|a, b| a.cost.total_cmp(&b.cost)).map_or_else(Vec::new, |fit| fit.parameters)
}
