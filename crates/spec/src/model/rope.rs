//! Rotary positions (Su et al. 2021): pairs of a head's dimensions are turned by angles that grow with the position.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A change of the frequencies, by which a model reads longer rows than those it was pretrained on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(extend("x-has-default" = true))]
pub enum RopeScaling {
    /// The frequencies stay as they are.
    None {},
    /// All frequencies are divided by a factor (Chen et al. 2023).
    Linear {
        #[schemars(range(min = 1, max = 1e6))]
        factor: f64,
    },
    /// Low frequencies are divided by the factor, and high ones stay (Llama 3.1, Grattafiori et al. 2024).
    Llama3 {
        #[schemars(range(min = 1, max = 1e6))]
        factor: f64,
        /// A frequency that turns fewer times than this within `original_context` is divided by the factor.
        #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
        low_freq_factor: f64,
        /// A frequency that turns more times than this within `original_context` stays.
        #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
        high_freq_factor: f64,
        /// The context of the pretraining, in tokens.
        #[schemars(range(min = 1, max = 16_777_216))]
        original_context: usize,
    },
    /// Low frequencies are divided by the factor, high ones stay, and queries and keys grow (Peng et al. 2023).
    Yarn {
        #[schemars(range(min = 1, max = 1e6))]
        factor: f64,
        /// The context of the pretraining, in tokens.
        #[schemars(range(min = 1, max = 16_777_216))]
        original_context: usize,
        /// A dimension that turns more times than this within `original_context` keeps its frequency.
        #[serde(default = "beta_fast")]
        #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
        beta_fast: f64,
        /// A dimension that turns fewer times than this has its frequency divided.
        #[serde(default = "beta_slow")]
        #[schemars(range(max = 1e6), extend("exclusiveMinimum" = 0))]
        beta_slow: f64,
        /// Factor on rotated queries and keys. Default: 0.1·ln(factor) + 1.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schemars(range(max = 100), extend("exclusiveMinimum" = 0))]
        attention_factor: Option<f64>,
    },
}

impl Default for RopeScaling {
    fn default() -> Self {
        Self::None {}
    }
}

fn beta_fast() -> f64 {
    32.0
}

fn beta_slow() -> f64 {
    1.0
}

/// The rotation of a layer's queries and keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rotary {
    /// Elements of a head.
    pub head_dim: usize,
    /// The rotated ones, a head's first.
    pub dims: usize,
    pub theta: f64,
    pub scaling: RopeScaling,
    /// The longest row.
    pub context_length: usize,
}

impl Rotary {
    /// The angles from one position to the next of each pair of dimensions, `dims / 2` of them, from high to low.
    pub fn frequencies(&self) -> Vec<f64> {
        let dims = self.dims as f64;
        let frequency = |pair: usize| self.theta.powf(-2.0 * pair as f64 / dims);
        (0..self.dims / 2).map(|pair| self.scaled(pair as f64, frequency(pair))).collect()
    }

    /// The factor on cosines and sines.
    pub fn factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { factor, attention_factor, .. } => {
                attention_factor.unwrap_or_else(|| if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 })
            }
            RopeScaling::None {} | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }

    fn scaled(&self, pair: f64, frequency: f64) -> f64 {
        match self.scaling {
            RopeScaling::None {} => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let turns = original_context as f64 * frequency / std::f64::consts::TAU;
                let kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
                // The pair that turns `turns` times within the original context.
                let pair_of = |turns: f64| {
                    let length = original_context as f64 / (turns * std::f64::consts::TAU);
                    self.dims as f64 * length.ln() / (2.0 * self.theta.ln())
                };
                let low = pair_of(beta_fast).floor().max(0.0);
                let high = pair_of(beta_slow).ceil().min(self.dims as f64 - 1.0);
                let divided = ((pair - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                divided * frequency / factor + (1.0 - divided) * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rotary(scaling: RopeScaling) -> Rotary {
        Rotary { head_dim: 64, dims: 64, theta: 500_000.0, scaling, context_length: 131_072 }
    }

    #[test]
    fn llama3_divides_low_frequencies_and_keeps_high_ones() {
        let scaling =
            RopeScaling::Llama3 { factor: 32.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192 };
        let (plain, scaled) = (rotary(RopeScaling::None {}).frequencies(), rotary(scaling).frequencies());
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[31], plain[31] / 32.0);
        let between = scaled.iter().zip(&plain).filter(|(s, p)| *s < *p && **s > *p / 32.0).count();
        assert_eq!(between, 3);
        assert_eq!(rotary(scaling).factor(), 1.0);
    }

    #[test]
    fn yarn_divides_low_frequencies_and_grows_queries_and_keys() {
        let scaling = RopeScaling::Yarn {
            factor: 8.0,
            original_context: 8192,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
        };
        let (plain, scaled) = (rotary(RopeScaling::None {}).frequencies(), rotary(scaling).frequencies());
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[31], plain[31] / 8.0);
        assert!((rotary(scaling).factor() - 1.207_944_154_167_983_5).abs() < 1e-15);
    }

    #[test]
    fn linear_divides_all_frequencies() {
        let (plain, scaled) =
            (rotary(RopeScaling::None {}).frequencies(), rotary(RopeScaling::Linear { factor: 4.0 }).frequencies());
        assert!(scaled.iter().zip(&plain).all(|(s, p)| *s == p / 4.0));
    }
}
