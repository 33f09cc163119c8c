//! Polynomials by least squares, and parabolas of ln L over ln x. The vertex of such a parabola is the x with the lowest loss: the best size for a
//! budget of FLOPs (Hoffmann et al. 2022, "Training compute-optimal large language models", approach 2), or the best factor on a learning rate.

use runner_spec::philox::Philox;

use crate::levenberg_marquardt::solve;
use crate::noise::{Noise, SumsOfSquares, number_rungs};
use crate::quantile::middle;
use crate::sample::Interval;
use crate::scaling_law::{DRAWS, Prediction, ScaledLoss};

/// A polynomial by least squares.
#[derive(Debug, Clone)]
pub(crate) struct Polynomial {
    /// The mean of x, from which the powers count.
    center: f64,
    /// From the lowest power to the highest.
    pub(crate) coefficients: Vec<f64>,
    /// The variance of the coefficient of the highest power, divided by the variance of y.
    pub(crate) inverse: f64,
    pub(crate) sum_of_squares: f64,
}

impl Polynomial {
    pub(crate) fn fit(x: &[f64], y: &[f64], degree: usize) -> Option<Self> {
        let center = x.iter().sum::<f64>() / x.len() as f64;
        let powers = |x: f64| -> Vec<f64> { (0..=degree).map(|k| (x - center).powi(k as i32)).collect() };
        let n = degree + 1;
        let (mut matrix, mut right) = (vec![vec![0.0; n]; n], vec![0.0; n]);
        for (x, y) in x.iter().zip(y) {
            let row = powers(*x);
            for a in 0..n {
                right[a] += row[a] * y;
                for b in 0..n {
                    matrix[a][b] += row[a] * row[b];
                }
            }
        }
        let coefficients = solve(matrix.clone(), right)?;
        let mut unit = vec![0.0; n];
        unit[degree] = 1.0;
        let inverse = solve(matrix, unit)?[degree];
        let mut fit = Self { center, coefficients, inverse, sum_of_squares: 0.0 };
        fit.sum_of_squares = x.iter().zip(y).map(|(x, y)| (y - fit.at(*x)).powi(2)).sum();
        Some(fit)
    }

    fn at(&self, x: f64) -> f64 {
        self.coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * (x - self.center) + coefficient)
    }

    /// The x of a parabola's lowest value; infinite if it has none.
    fn vertex(&self) -> f64 {
        match self.coefficients.as_slice() {
            [_, slope, bend] if *bend > 0.0 => self.center - slope / (2.0 * bend),
            coefficients => -coefficients[1].signum() * f64::INFINITY,
        }
    }

    /// The x from `low` to `high` with the lowest value of a parabola.
    fn lowest_in(&self, low: f64, high: f64) -> f64 {
        match self.vertex() {
            vertex if vertex.is_finite() => vertex.clamp(low, high),
            _ if self.at(low) < self.at(high) => low,
            _ => high,
        }
    }

    /// How far a parabola whose vertex is moved to `vertex` lies above its lowest value at `x`.
    fn above_vertex(&self, vertex: f64, x: f64) -> f64 {
        let bend = self.coefficients[2];
        if bend > 0.0 { bend * (x - vertex).powi(2) } else { f64::INFINITY }
    }
}

/// A parabola of ln L over ln x, and parabolas that were fitted to draws of its losses, as laws are in [`LawFit`](crate::LawFit).
#[derive(Debug, Clone)]
pub struct ParabolaFit {
    /// Degrees of freedom of the noise, and its standard deviation as a share of the loss.
    pub freedom: usize,
    pub noise: f64,
    /// True if rungs deviate from the parabola by more than runs of a rung deviate from each other. Then it is the noise of rungs.
    pub has_lack_of_fit: bool,
    /// The smallest and the largest x.
    range: Interval,
    parabola: Polynomial,
    draws: Vec<Polynomial>,
}

/// Why the losses do not show which x is the best.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NoVertex {
    /// The parabola does not bend upwards.
    NotConvex,
    /// The lowest loss is below the smallest x, or above the largest one.
    Below,
    Above,
    /// The interval of 95% reaches beyond them.
    NotDetermined(Interval),
}

impl ParabolaFit {
    /// Fits a parabola to `runs`, whose scale is x. `noise` is the standard deviation of ln L with its degrees of freedom; without it, the residuals give
    /// both. Draws come from `stream`. `None` if there are fewer than three rungs, a loss is not positive, or nothing shows the noise.
    #[must_use]
    pub fn new(runs: &[ScaledLoss], noise: Option<(f64, usize)>, stream: Philox) -> Option<Self> {
        let x: Vec<f64> = runs.iter().map(|run| run.scale[0].ln()).collect();
        let y: Vec<f64> = runs.iter().map(|run| run.loss.ln()).collect();
        let rung_of_run = number_rungs(runs);
        if rung_of_run.iter().max().is_none_or(|last| *last < 2) || !y.iter().all(|y| y.is_finite()) {
            return None;
        }
        let parabola = Polynomial::fit(&x, &y, 2)?;
        let fitted: Vec<f64> = x.iter().map(|x| parabola.at(*x)).collect();
        let residuals: Vec<f64> = y.iter().zip(&fitted).map(|(y, fitted)| y - fitted).collect();
        let sums = SumsOfSquares::new(&residuals, &rung_of_run, 3);
        let noise = match noise {
            Some((sd, freedom)) => Noise { sd, freedom, is_of_rungs: false },
            None => Noise::new(&sums, sums.lack_of_fit_p()),
        };
        if noise.freedom == 0 {
            return None;
        }
        let draw = |number: u32| {
            let (drawn, _) = noise.draw(stream, number, &rung_of_run);
            let drawn: Vec<f64> = fitted.iter().zip(drawn).map(|(fitted, noise)| fitted + noise).collect();
            Polynomial::fit(&x, &drawn, 2)
        };
        let draws = (0..DRAWS).filter_map(draw).collect();
        let ends = |end: fn(f64, f64) -> f64, start: f64| x.iter().copied().fold(start, end).exp();
        let range = Interval { low: ends(f64::min, f64::INFINITY), high: ends(f64::max, f64::NEG_INFINITY) };
        Some(Self {
            freedom: noise.freedom,
            noise: noise.sd,
            has_lack_of_fit: noise.is_of_rungs,
            range,
            parabola,
            draws,
        })
    }

    /// The x with the lowest loss.
    ///
    /// # Errors
    /// If the losses do not show it.
    pub fn vertex(&self) -> Result<Prediction, NoVertex> {
        let value = self.parabola.vertex().exp();
        let interval = middle(self.draws.iter().map(|draw| draw.vertex().exp()).collect());
        let Interval { low, high } = self.range;
        match value {
            _ if self.parabola.coefficients[2] <= 0.0 => Err(NoVertex::NotConvex),
            _ if value < low => Err(NoVertex::Below),
            _ if value > high => Err(NoVertex::Above),
            _ if interval.low < low || interval.high > high => Err(NoVertex::NotDetermined(interval)),
            _ => Ok(Prediction { value, interval }),
        }
    }

    /// The x with the lowest loss among all x from the smallest to the largest one, this loss, and how far the loss at x = 1 is above it, as a share of it.
    #[must_use]
    pub fn best_in_range(&self) -> [Prediction; 3] {
        let Interval { low, high } = self.range;
        let best = |parabola: &Polynomial| {
            let x = parabola.lowest_in(low.ln(), high.ln());
            [x.exp(), parabola.at(x).exp(), (parabola.at(0.0) - parabola.at(x)).exp_m1()]
        };
        let (values, drawn) = (best(&self.parabola), self.draws.iter().map(best).collect::<Vec<_>>());
        let interval = |k: usize| middle(drawn.iter().map(|values| values[k]).collect());
        let mut found = [0, 1, 2].map(|k| Prediction { value: values[k], interval: interval(k) });
        found[2].interval.low *= f64::from(u8::from(!found[0].interval.contains(1.0)));
        found
    }

    /// Moves the vertex `steps` times as far as from `base` to this parabola, on a logarithmic scale. Returns its x, and how far the loss at x = 1 then is
    /// above the lowest one, as a share of it.
    #[must_use]
    pub fn extrapolate(&self, base: &Self, steps: f64) -> (Prediction, Prediction) {
        let both = |(own, base): (&Polynomial, &Polynomial)| {
            let at = own.vertex() + steps * (own.vertex() - base.vertex());
            (at.exp(), own.above_vertex(at, 0.0).exp_m1())
        };
        let (vertices, costs) = self.draws.iter().zip(&base.draws).map(both).unzip();
        let (value, cost) = both((&self.parabola, &base.parabola));
        let (interval, mut of_cost) = (middle(vertices), middle(costs));
        // The least cost is 0 where 1 may be the best.
        if interval.contains(1.0) {
            of_cost.low = 0.0;
        }
        (Prediction { value, interval }, Prediction { value: cost, interval: of_cost })
    }
}
