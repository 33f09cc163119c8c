//! Stochastic gradient descent.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Decays, Optimizer, OptimizerDescription};

/// Stochastic gradient descent, with or without momentum.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sgd {
    /// Peak learning rate.
    #[schemars(range(max = 10_000), extend("exclusiveMinimum" = 0))]
    pub lr: f64,
    /// Momentum: the fraction of the last update that is kept.
    #[serde(default)]
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub momentum: f64,
}

impl OptimizerDescription for Sgd {
    /// The sum of gradients, if there is momentum.
    fn moments(&self) -> usize {
        usize::from(self.momentum != 0.0)
    }

    /// It has no weight decay: the groups are named as for other optimizers by default.
    fn decays(&self) -> Decays {
        Decays::Matrices
    }

    fn weight_decay(&self) -> Option<f64> {
        None
    }

    fn with_decay(&self, _: f64) -> Option<Optimizer> {
        None
    }

    fn describe(&self) -> String {
        format!("momentum {}", self.momentum)
    }
}
