//! Muon.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AdamW, Decays, Optimizer, OptimizerDescription};
use crate::diagnostic::KeyMistake;
use crate::model::{ParamRole, ParamSpec};
use crate::serde_defaults::is_default;

/// Momentum whose direction is made orthogonal, for the matrices of layers (Jordan et al. 2024). `adamw` updates the embeddings, the head,
/// biases and gains.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Muon {
    /// Peak learning rate of matrices.
    #[schemars(range(max = 10_000), extend("exclusiveMinimum" = 0))]
    pub lr: f64,
    /// Decay rate of the mean of gradients.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub momentum: f64,
    /// If true, the direction is the mean after one more update with the same gradient (Nesterov).
    pub nesterov: bool,
    /// Newton–Schulz iterations.
    #[schemars(range(min = 1, max = 100))]
    pub iterations: u32,
    /// Factor on the learning rate of a matrix [out, in]: √max(1, out/in) (`original`), 0.2·√max(out, in), with which updates are as
    /// large as AdamW's (`match_rms_adamw`), or √(out/in) (`spectral_unclamped`).
    pub scale: MuonScale,
    /// Decoupled weight decay of matrices, scaled by the learning rate.
    #[schemars(range(min = 0, max = 10_000))]
    pub weight_decay: f64,
    /// If true, decay only the weights that the update moves towards zero.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if)]
    pub cautious_decay: bool,
    /// The optimizer of all other parameters. Its learning rate follows the same schedule.
    pub adamw: AdamW,
}

/// The factor on the learning rate of a matrix, by its shape.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum MuonScale {
    #[default]
    Original,
    MatchRmsAdamw,
    SpectralUnclamped,
}

impl MuonScale {
    /// The factor for a matrix `[rows, cols]`, as in `torch.optim.Muon`.
    pub fn factor(self, [rows, cols]: [usize; 2]) -> f64 {
        let (rows, cols) = (rows as f64, cols as f64);
        match self {
            Self::Original => (rows / cols).max(1.0).sqrt(),
            Self::MatchRmsAdamw => 0.2 * rows.max(cols).sqrt(),
            Self::SpectralUnclamped => (rows / cols).sqrt(),
        }
    }
}

impl Default for Muon {
    fn default() -> Self {
        Self {
            lr: 0.02,
            momentum: 0.95,
            nesterov: true,
            iterations: 5,
            scale: MuonScale::Original,
            weight_decay: 0.0,
            cautious_decay: false,
            adamw: AdamW::default(),
        }
    }
}

impl Muon {
    /// True if Muon itself updates `parameter` in a model of `layers` layers: matrices of layers that multiply activations.
    pub(super) fn orthogonalizes(parameter: &ParamSpec, layers: usize) -> bool {
        let multiplies = parameter.role == ParamRole::Weight && parameter.shape.len() == 2;
        multiplies && (1..=layers).contains(&parameter.block)
    }

    /// The learning rate of `adamw`, as a multiple of the other one.
    pub(super) fn adamw_lr_scale(&self) -> f64 {
        self.adamw.lr / self.lr
    }

    /// FLOPs of making the direction of a matrix orthogonal: with n its smaller and k its larger side, each iteration multiplies the matrix
    /// with its transpose (2n²k), the result with itself (2n³), and the polynomial of that with the matrix (2n²k).
    pub fn flops(&self, [rows, cols]: [usize; 2]) -> f64 {
        let (n, k) = (rows.min(cols) as f64, rows.max(cols) as f64);
        f64::from(self.iterations) * (4.0 * n * n * k + 2.0 * n * n * n)
    }
}

impl OptimizerDescription for Muon {
    /// As many as AdamW. The matrices of layers have the first one only.
    fn moments(&self) -> usize {
        self.adamw.moments()
    }

    fn decays(&self) -> Decays {
        self.adamw.decays
    }

    fn weight_decay(&self) -> Option<f64> {
        Some(self.weight_decay)
    }

    fn with_decay(&self, weight_decay: f64) -> Option<Optimizer> {
        Some(Optimizer::Muon(Self { weight_decay, ..*self }))
    }

    fn describe(&self) -> String {
        let Self { momentum, nesterov, iterations, scale, weight_decay, cautious_decay, adamw, .. } = self;
        let nesterov = if *nesterov { " (Nesterov)" } else { "" };
        let cautious = if *cautious_decay { " (cautious)" } else { "" };
        let scale: &str = scale.into();
        format!(
            "momentum {momentum}{nesterov}, {iterations} iterations, scale {scale}, weight decay {weight_decay}{cautious}; adamw, {}",
            adamw.describe()
        )
    }

    fn mistakes(&self, section: &str) -> Vec<KeyMistake> {
        self.adamw.mistakes(&format!("{section}.adamw"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: an orthogonal matrix [n, k] with n ≤ k has entries of root mean square 1/√k, so 0.2·√k makes them 0.2, which is AdamW's.
    #[test]
    fn scales_follow_the_shape() {
        let all = [MuonScale::Original, MuonScale::MatchRmsAdamw, MuonScale::SpectralUnclamped];
        let factors = |shape| all.map(|scale| scale.factor(shape));
        assert_eq!(factors([64, 16]), [2.0, 1.6, 2.0]);
        assert_eq!(factors([16, 64]), [1.0, 1.6, 0.5]);
        assert_eq!(factors([4, 4]), [1.0, 0.4, 1.0]);
    }

    /// By hand, for 3 × 2: 3·2·2 products of [2, 3] with its transpose, 2·2·2, and 2·2·3; each is two operations, and there are 5 iterations.
    #[test]
    fn flops_count_the_three_products() {
        for shape in [[3, 2], [2, 3]] {
            assert_eq!(Muon::default().flops(shape), 5.0 * 2.0 * (12.0 + 8.0 + 12.0));
        }
    }
}
