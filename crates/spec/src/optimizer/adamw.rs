//! AdamW.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Decays, Optimizer, OptimizerDescription, beta_mistakes};
use crate::diagnostic::KeyMistake;
use crate::format::scientific;
use crate::serde_defaults::is_default;

/// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdamW {
    /// Peak learning rate.
    #[schemars(range(max = 10_000), extend("exclusiveMinimum" = 0))]
    pub lr: f64,
    /// Decay rates of the two moments, in [0, 1).
    pub betas: [f64; 2],
    /// Added to the denominator.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub eps: f64,
    /// Decoupled weight decay, scaled by the learning rate.
    #[schemars(range(min = 0, max = 10_000))]
    pub weight_decay: f64,
    /// The parameters that decay: tensors of two or more dimensions (`matrices`), or biases and gains too (`all`).
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if)]
    pub decays: Decays,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { lr: 6e-4, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, decays: Decays::Matrices }
    }
}

impl OptimizerDescription for AdamW {
    /// The means of gradients and of their squares.
    fn moments(&self) -> usize {
        2
    }

    fn decays(&self) -> Decays {
        self.decays
    }

    fn weight_decay(&self) -> Option<f64> {
        Some(self.weight_decay)
    }

    fn with_decay(&self, weight_decay: f64) -> Option<Optimizer> {
        Some(Optimizer::Adamw(Self { weight_decay, ..*self }))
    }

    fn describe(&self) -> String {
        let Self { betas: [beta1, beta2], eps, weight_decay, decays, .. } = self;
        let (eps, decayed) = (scientific(*eps), decays.describe());
        format!("betas {beta1} and {beta2}, eps {eps}, weight decay {weight_decay}{decayed}")
    }

    fn mistakes(&self, section: &str) -> Vec<KeyMistake> {
        beta_mistakes(section, self.betas, "common values are [0.9, 0.95] and [0.9, 0.999]")
    }
}

/// Plans and their hashes name the optimizer `adam_w`, and each beta.
pub(super) fn to_plan(mut optimizer: Value) -> Value {
    let Some(mut keys) = optimizer.as_object_mut().and_then(|map| map.remove("adamw")) else { return optimizer };
    if let Some(Value::Array(betas)) = keys.as_object_mut().and_then(|map| map.remove("betas")) {
        for (name, beta) in ["beta1", "beta2"].into_iter().zip(betas) {
            keys[name] = beta;
        }
    }
    json!({ "adam_w": keys })
}

/// The inverse of [`to_plan`].
pub(super) fn from_plan(mut optimizer: Value) -> Value {
    let Some(mut keys) = optimizer.as_object_mut().and_then(|map| map.remove("adam_w")) else { return optimizer };
    if let Some(map) = keys.as_object_mut() {
        let betas = ["beta1", "beta2"].map(|beta| map.remove(beta));
        map.insert("betas".to_owned(), json!(betas));
    }
    json!({ "adamw": keys })
}
