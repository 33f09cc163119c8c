//! Lion.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decays, Optimizer, OptimizerDescription, beta_mistakes};
use crate::diagnostic::KeyMistake;

/// Steps of one size along the sign of a mean of gradients, with decoupled weight decay (Chen et al. 2023). Its learning rate is usually 3
/// to 10 times smaller than AdamW's, and its weight decay as much larger.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lion {
    /// Peak learning rate.
    #[schemars(range(max = 10_000), extend("exclusiveMinimum" = 0))]
    pub lr: f64,
    /// The weight of the moment in the update's direction, and the moment's decay rate, in [0, 1).
    pub betas: [f64; 2],
    /// Decoupled weight decay, scaled by the learning rate.
    #[schemars(range(min = 0, max = 10_000))]
    pub weight_decay: f64,
    /// The parameters that decay: tensors of two or more dimensions (`matrices`), or biases and gains too (`all`).
    pub decays: Decays,
}

impl Default for Lion {
    /// Those of the authors' implementation.
    fn default() -> Self {
        Self { lr: 1e-4, betas: [0.9, 0.99], weight_decay: 0.0, decays: Decays::Matrices }
    }
}

impl OptimizerDescription for Lion {
    /// The mean of gradients.
    fn moments(&self) -> usize {
        1
    }

    fn decays(&self) -> Decays {
        self.decays
    }

    fn weight_decay(&self) -> Option<f64> {
        Some(self.weight_decay)
    }

    fn with_decay(&self, weight_decay: f64) -> Option<Optimizer> {
        Some(Optimizer::Lion(Self { weight_decay, ..*self }))
    }

    fn describe(&self) -> String {
        let Self { betas: [beta1, beta2], weight_decay, decays, .. } = self;
        format!("betas {beta1} and {beta2}, weight decay {weight_decay}{}", decays.describe())
    }

    fn mistakes(&self, section: &str) -> Vec<KeyMistake> {
        beta_mistakes(section, self.betas, "common values are [0.9, 0.99] and [0.95, 0.98]")
    }
}
