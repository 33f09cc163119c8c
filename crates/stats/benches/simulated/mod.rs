//! Simulated sweeps of settings whose true means are known, judged by the product's rule.

use runner_spec::philox::Philox;
use runner_stats::{Decision, Outcome, Rule, Standing, decide};

/// The distribution of a result around its setting's mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Noise {
    Normal,
    /// Student's t with 3 degrees of freedom.
    HeavyTails,
    /// Exponential: right-skewed.
    Skewed,
    /// Normal, and one result in ten is five standard deviations worse.
    Spikes,
}

/// A sweep: the mean of each setting, and the scale and distribution of its noise.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) settings: Vec<(f64, f64, Noise)>,
    pub(crate) seeds: usize,
    /// The correlation of the results of one seed.
    pub(crate) correlation: f64,
}

/// How often the rule claimed what is false or true, as shares of the trials.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Claims {
    /// A setting was called the best, and a different setting has as good a mean.
    pub(crate) wrong_best: f64,
    /// Some setting was called worse, and its mean is as good as the leader's.
    pub(crate) wrong_worse: f64,
    /// A setting was called the best, and is.
    pub(crate) right_best: f64,
}

impl Noise {
    /// A value with the mean 0 and, except for the heavy tails, the standard deviation 1.
    fn draw(self, z: [f64; 4]) -> f64 {
        match self {
            Self::Normal => z[0],
            Self::HeavyTails => z[0] / ((z[1] * z[1] + z[2] * z[2] + z[3] * z[3]) / 3.0).sqrt(),
            // Half the sum of two squared normals is exponential.
            Self::Skewed => f64::midpoint(z[0] * z[0], z[1] * z[1]) - 1.0,
            // A normal above 1.2816 has the probability 0.1. The mean of the spikes is taken off.
            Self::Spikes => z[0] + if z[1] > 1.2816 { 5.0 } else { 0.0 } - 0.5,
        }
    }
}

impl Case {
    pub(crate) fn claims(&self, stream: Philox, trials: u64, rule: &Rule) -> Claims {
        let mut claims = Claims::default();
        let means: Vec<f64> = self.settings.iter().map(|(mean, ..)| *mean).collect();
        for trial in 0..trials {
            let results = self.results(stream, trial);
            let Decision { outcome, order, standings, .. } = decide(&results, rule);
            let leader = order[0];
            let is_as_good = |i: usize| i != leader && means[i] <= means[leader];
            let share = 1.0 / trials as f64;
            if outcome == Outcome::Best {
                let is_wrong = (0..means.len()).any(is_as_good);
                *(if is_wrong { &mut claims.wrong_best } else { &mut claims.right_best }) += share;
            }
            if (0..means.len()).any(|i| standings[i] == Standing::Worse && is_as_good(i)) {
                claims.wrong_worse += share;
            }
        }
        claims
    }

    fn results(&self, stream: Philox, trial: u64) -> Vec<Vec<(usize, f64)>> {
        let draws_per_seed = self.settings.len() as u64 + 1;
        let draw =
            |seed: usize, at: u64| stream.normals((trial * self.seeds as u64 + seed as u64) * draws_per_seed + at);
        let (shared, own) = (self.correlation.sqrt(), (1.0 - self.correlation).sqrt());
        (self.settings.iter().zip(1..))
            .map(|((mean, scale, noise), at)| {
                let value = |seed| mean + scale * (own * noise.draw(draw(seed, at)) + shared * draw(seed, 0)[0]);
                (0..self.seeds).map(|seed| (seed, value(seed))).collect()
            })
            .collect()
    }
}

/// The rule of sweeps without a smallest difference.
pub(crate) const RULE: Rule =
    Rule { is_less_better: true, confidence: 0.95, smallest_difference: None, picked_from: None };

/// The cases in which some setting is as good as the best one.
pub(crate) fn cases_without_best() -> Vec<Case> {
    use Noise::{HeavyTails, Normal, Skewed, Spikes};
    let tied = |k: usize, noise| vec![(0.0, 1.0, noise); k];
    let tied_pair = |k: usize, noise| (0..k).map(|i| (if i < 2 { 0.0 } else { 20.0 }, 1.0, noise)).collect::<Vec<_>>();
    let mut cases = Vec::new();
    for seeds in [3, 5, 8] {
        let mut add = |name, settings, correlation| cases.push(Case { name, settings, seeds, correlation });
        for (noise, names) in [
            (Normal, ["2 tied", "4 tied", "8 tied", "2 tied, 6 far"]),
            (HeavyTails, ["2 tied, t(3)", "4 tied, t(3)", "8 tied, t(3)", "2 tied, 6 far, t(3)"]),
            (Skewed, ["2 tied, skewed", "4 tied, skewed", "8 tied, skewed", "2 tied, 6 far, skewed"]),
            (Spikes, ["2 tied, spikes", "4 tied, spikes", "8 tied, spikes", "2 tied, 6 far, spikes"]),
        ] {
            for (name, settings) in
                names.into_iter().zip([tied(2, noise), tied(4, noise), tied(8, noise), tied_pair(8, noise)])
            {
                add(name, settings, 0.0);
            }
        }
        add("4 tied, seeds correlate 0.9", tied(4, Normal), 0.9);
        add("4 tied, one 10 times as noisy", [tied(3, Normal), vec![(0.0, 10.0, Normal)]].concat(), 0.0);
        add("4 tied, variances 16:1", [tied(2, Normal), vec![(0.0, 4.0, Normal); 2]].concat(), 0.0);
        add("a quiet and a skewed one", vec![(0.0, 0.05, Normal), (0.0, 1.0, Skewed)], 0.0);
    }
    cases
}
