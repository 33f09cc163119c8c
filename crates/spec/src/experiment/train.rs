//! The section `train`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TrainStage;
use crate::model::parts::Recompute;
use crate::optimizer::GroupOptions;
use crate::serde_defaults::is_default;
use crate::transfer::Transfer;

/// The length of the training: one of `steps`, `epochs`, `tokens`, `flops` and `tokens_per_parameter`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("x-exclusive" = ["steps", "epochs", "tokens", "flops", "tokens_per_parameter"]))]
pub struct Train {
    /// Optimizer steps. Default: 1000, unless the length is given in another way.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000u64))]
    pub steps: Option<u64>,
    /// Number of epochs: how often the training data is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub epochs: Option<f64>,
    /// Tokens to train on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000_000_000u64))]
    pub tokens: Option<u64>,
    /// FLOPs to train with: 6·N + 12·L·d·T per token, as for MFU.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(max = 1e30), extend("exclusiveMinimum" = 0))]
    pub flops: Option<f64>,
    /// Tokens to train on for each of the model's parameters, embeddings included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(max = 1e9), extend("exclusiveMinimum" = 0))]
    pub tokens_per_parameter: Option<f64>,
    /// Global L2 norm to which gradients are clipped; `null` leaves them as they are.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub clip_norm: Option<f64>,
    /// Settings of parameters whose names match a pattern.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub groups: Vec<GroupOptions>,
    /// The base model, usually smaller, for which the optimizer's settings and the initial weights were tuned.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub transfer: Option<Transfer>,
    /// The part of a layer's forward that its backward recomputes instead of keeping it: nothing, attention's part, or all but
    /// the layer's input. Less memory, more work, the same numbers.
    #[serde(skip_serializing_if = "is_default")]
    #[schemars(!skip_serializing_if)]
    pub recompute: Recompute,
    /// Stages before the last one, each with its own batch, row length or windows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub stages: Vec<TrainStage>,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            steps: None,
            epochs: None,
            tokens: None,
            flops: None,
            tokens_per_parameter: None,
            clip_norm: Some(1.0),
            groups: Vec::new(),
            transfer: None,
            recompute: Recompute::None,
            stages: Vec::new(),
        }
    }
}

/// The length of the training as a file gives it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum TrainLength {
    Steps(u64),
    Epochs(f64),
    Tokens(u64),
    Flops(f64),
    TokensPerParameter(f64),
}

impl Train {
    /// The keys that give the length of the training. An experiment has one of them.
    pub const LENGTH_KEYS: [&str; 5] =
        ["train.steps", "train.epochs", "train.tokens", "train.flops", "train.tokens_per_parameter"];

    /// The length of the training.
    ///
    /// # Errors
    /// The number of lengths that are given, if it is not one.
    pub fn length(&self) -> Result<TrainLength, usize> {
        let given = [
            self.steps.map(TrainLength::Steps),
            self.epochs.map(TrainLength::Epochs),
            self.tokens.map(TrainLength::Tokens),
            self.flops.map(TrainLength::Flops),
            self.tokens_per_parameter.map(TrainLength::TokensPerParameter),
        ];
        let mut lengths = given.into_iter().flatten();
        match (lengths.next(), lengths.count()) {
            (Some(length), 0) => Ok(length),
            (first, others) => Err(usize::from(first.is_some()) + others),
        }
    }

    /// Replaces the length of the training.
    pub fn set_steps(&mut self, steps: u64) {
        let Self { clip_norm, groups, transfer, recompute, stages, .. } = std::mem::take(self);
        *self = Self { clip_norm, groups, transfer, recompute, stages, steps: Some(steps), ..Self::default() };
    }
}

impl TrainLength {
    /// The key and its value, such as `train.tokens 10000`.
    pub fn describe(self) -> String {
        match self {
            Self::Steps(steps) => format!("train.steps {steps}"),
            Self::Epochs(epochs) => format!("train.epochs {epochs}"),
            Self::Tokens(tokens) => format!("train.tokens {tokens}"),
            Self::Flops(flops) => format!("train.flops {flops:e}"),
            Self::TokensPerParameter(ratio) => format!("train.tokens_per_parameter {ratio}"),
        }
    }
}
