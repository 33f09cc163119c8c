//! The noise of ln L: how far runs, or their rungs, are from a curve that was fitted to them.

use runner_spec::philox::Philox;

use crate::scaling_law::ScaledLoss;
use crate::students_t::{f_tail, two_sided_p};

/// The level of the test whether rungs deviate from the curve by more than their runs do from each other.
const LACK_OF_FIT_LEVEL: f64 = 0.05;

/// The one-sided p-value of the t test of a difference of means with the standard error `error`; 1 unless the difference is positive.
#[must_use]
pub fn one_sided_p(difference: f64, error: f64, freedom: usize) -> f64 {
    if difference > 0.0 && freedom > 0 { two_sided_p(difference / error, freedom as f64) / 2.0 } else { 1.0 }
}

/// The number of each run's rung. Runs of one rung have the same scale.
pub(crate) fn number_rungs(runs: &[ScaledLoss]) -> Vec<usize> {
    let mut scales: Vec<&[f64]> = Vec::new();
    let mut numbers = Vec::new();
    for ScaledLoss { scale, .. } in runs {
        let number = scales.iter().position(|known| known == scale).unwrap_or(scales.len());
        if number == scales.len() {
            scales.push(scale);
        }
        numbers.push(number);
    }
    numbers
}

/// Sums of squared residuals of ln L, and their degrees of freedom.
pub(crate) struct SumsOfSquares {
    /// Of the means of rungs, each counted once.
    of_means: f64,
    /// Of the means of rungs, each counted for every run.
    of_rungs: f64,
    /// Of runs around the means of their rungs.
    pub(crate) within: f64,
    rung_freedom: usize,
    pub(crate) run_freedom: usize,
}

impl SumsOfSquares {
    /// Sums of the `residuals` of a curve with this many parameters.
    pub(crate) fn new(residuals: &[f64], rung_of_run: &[usize], parameters: usize) -> Self {
        let rungs = rung_of_run.iter().max().map_or(0, |last| last + 1);
        let mut members = vec![Vec::new(); rungs];
        for (residual, rung) in residuals.iter().zip(rung_of_run) {
            members[*rung].push(*residual);
        }
        let (mut of_means, mut of_rungs, mut within) = (0.0, 0.0, 0.0);
        for rung in &members {
            let mean = rung.iter().sum::<f64>() / rung.len() as f64;
            of_means += mean * mean;
            of_rungs += rung.len() as f64 * mean * mean;
            within += rung.iter().map(|residual| (residual - mean).powi(2)).sum::<f64>();
        }
        let rung_freedom = rungs - parameters;
        Self { of_means, of_rungs, within, rung_freedom, run_freedom: residuals.len() - rungs }
    }

    /// The probability that rungs which follow the curve deviate from it by this much: the tail of the F distribution.
    pub(crate) fn lack_of_fit_p(&self) -> f64 {
        if self.run_freedom == 0 || self.rung_freedom == 0 || self.of_rungs == 0.0 {
            return 1.0;
        }
        let (a, b) = (self.rung_freedom as f64, self.run_freedom as f64);
        f_tail(self.of_rungs / a / (self.within / b), a, b)
    }
}

/// The noise of ln L.
pub(crate) struct Noise {
    /// The standard deviation of a run's, or of a rung's.
    pub(crate) sd: f64,
    pub(crate) freedom: usize,
    pub(crate) is_of_rungs: bool,
}

impl Noise {
    /// Estimates the noise from residuals. It is the noise of rungs if these deviate from the curve by more than runs explain.
    pub(crate) fn new(residuals: &SumsOfSquares, lack_of_fit_p: f64) -> Self {
        let SumsOfSquares { of_means, of_rungs, within, rung_freedom: a, run_freedom: b } = *residuals;
        if lack_of_fit_p < LACK_OF_FIT_LEVEL {
            return Self { sd: (of_means / a as f64).sqrt(), freedom: a, is_of_rungs: true };
        }
        Self { sd: ((of_rungs + within) / (a + b) as f64).sqrt(), freedom: a + b, is_of_rungs: false }
    }

    /// The noise of each run in a draw, and its standard deviation: s·√(ν/χ²) for ν degrees of freedom.
    pub(crate) fn draw(&self, stream: Philox, number: u32, rung_of_run: &[usize]) -> (Vec<f64>, f64) {
        let blocks = (self.freedom + rung_of_run.len()).div_ceil(4) as u64;
        let mut normals = (0..blocks).flat_map(|block| stream.normals(u64::from(number) << 32 | block));
        let chi_squared: f64 = normals.by_ref().take(self.freedom).map(|normal| normal * normal).sum();
        let sd = self.sd * (self.freedom as f64 / chi_squared).sqrt();
        let own: Vec<f64> = normals.map(|normal| sd * normal).collect();
        let noise = |(run, rung): (usize, &usize)| own[if self.is_of_rungs { *rung } else { run }];
        (rung_of_run.iter().enumerate().map(noise).collect(), sd)
    }
}
