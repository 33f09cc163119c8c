//! The events that the executor emits. The recorder and the reporter consume them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::forecast::Activity;
use crate::measure::{Measure, Measured};

/// One optimizer step. Times are milliseconds of wall clock.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Steps done, counting from 1.
    pub step: u64,
    /// Passes over the training rows that are done after the step: 1.25 says that a quarter of the second pass is read.
    pub epoch: f64,
    /// Mean negative log-likelihood per valid token of the global batch, in nats.
    pub loss: f64,
    pub lr: f64,
    /// The learning rate of each group of parameters, where there are several rates.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lr_by_group: BTreeMap<String, f64>,
    /// Global L2 norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Valid tokens in this step's global batch.
    pub tokens: u64,
    pub tokens_per_second: f64,
    /// Model FLOPs utilization; `None` if the device's peak is unknown.
    pub mfu: Option<f64>,
    pub step_ms: f64,
    pub data_ms: f64,
    pub forward_ms: f64,
    pub backward_ms: f64,
    pub optimizer_ms: f64,
    /// Time in communication, with copies and waits: the mean over ranks. `None` if there is one rank.
    pub comm_ms: Option<f64>,
}

/// One evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub step: u64,
    #[serde(flatten)]
    pub measured: Measured,
    /// The time that it took. The record leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval_ms: Option<f64>,
}

impl Evaluation {
    #[must_use]
    pub fn new(step: u64) -> Self {
        Self { step, ..Self::default() }
    }

    /// An evaluation of nothing but the validation loss.
    #[must_use]
    pub fn of_loss(step: u64, val_loss: f64) -> Self {
        Self { measured: Measured::default().with(Measure::VAL_LOSS, val_loss), ..Self::new(step) }
    }

    #[must_use]
    pub fn val_loss(&self) -> Option<f64> {
        self.measured.val_loss()
    }
}

/// The results of an evaluation by row and by item: a line of `rows.jsonl`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluatedRows {
    pub step: u64,
    /// The summed loss of each validation row in nats, and its tokens; empty if the loss was not due.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<f32>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<u32>,
    /// For each task a digit for each item: the sum of 1 if `acc` counts it as right, 2 for `acc_norm`, and 4 for `acc_norm_chars`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub items: BTreeMap<String, String>,
}

/// One continuation of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampleText {
    pub step: u64,
    pub prompt: String,
    #[serde(default)]
    pub index: usize,
    pub text: String,
}

/// One event of a run. Events come in the order in which they happen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Training is about to start after `step` of `steps` steps.
    Start { step: u64, steps: u64 },
    /// A step is done.
    Step(StepMetrics),
    /// An evaluation is done.
    Eval(Evaluation),
    /// The rows and items of the evaluation before this event.
    Rows(EvaluatedRows),
    /// A prompt was continued.
    Sample(SampleText),
    /// The checkpoint of `step` is saved. The code that saves it emits this event, not the executor.
    Saved { step: u64 },
    /// Something that a reader should know and that does not stop the run.
    Warning(String),
    /// The activity of each rank during one step. Only some steps are watched.
    Watched(WatchedStep),
}

/// The error of an observer. It stops the run.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The run ended while the observer waited for another rank: that rank's own error says more.
    #[error(transparent)]
    Aborted(Box<dyn std::error::Error + Send + Sync>),
    /// The observer itself failed.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// The lowest validation loss so far.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct BestValidation {
    pub step: u64,
    pub val_loss: f64,
}

/// The activity of all ranks during one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchedStep {
    /// Steps done, counting from 1.
    pub step: u64,
    /// The latest end of a span, in seconds.
    pub end: f64,
    /// Spans in the order of ranks, and for each rank in the order of time.
    pub spans: Vec<WatchedSpan>,
    /// One for each process, under the first rank in it.
    #[serde(default)]
    pub memory: Vec<WatchedMemory>,
}

/// One activity of a rank. Times are seconds since the first rank began the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WatchedSpan {
    pub rank: usize,
    /// `None` for sending and receiving, most of which is waiting.
    pub what: Option<Activity>,
    pub mb: Option<usize>,
    pub chunk: usize,
    pub start: f64,
    pub end: f64,
}

/// Bytes that a process held during the step: its buffers, and the peak of its other allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedMemory {
    pub rank: usize,
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// The peak of activations, workspace and messages: bytes that the step allocated beyond those at its beginning.
    /// `None` if allocations are not counted.
    pub step: Option<u64>,
    /// The driver's figures for a GPU; `None` on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<WatchedDevice>,
}

/// Bytes of a GPU. All but `reserved` and `peak` are sums over all of its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedDevice {
    /// Bytes that this process's pool holds for tensors, used or not.
    pub reserved: u64,
    /// Bytes that are not free, with contexts, code and libraries.
    pub used: u64,
    pub total: u64,
    /// The peak of this process's tensors during the step, with those that were there at its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
}

/// One line of `trace.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TraceLine {
    /// The step, counting from 1. Outputs and gradients are of its forward and backward, parameters are those after its update.
    pub step: u64,
    #[serde(rename = "kind")]
    pub what: TracedTensor,
    /// The entry of the model's block list: 0 is the embedding, 1 … layers the layers, layers + 1 the head.
    pub block: usize,
    /// The name of a parameter, or the description of an output.
    pub name: String,
    /// The first 16 hexadecimal digits of BLAKE3 over the little-endian bytes.
    pub hash: String,
    /// The root mean square of an output's elements, which is absent if it is not finite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rms: Option<f64>,
}

/// The tensors of a trace, in the order in which a step computes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TracedTensor {
    Output,
    Gradient,
    Parameter,
}

impl TraceLine {
    /// A key that sorts lines by the order of computation: outputs forwards, gradients backwards, then the updated parameters.
    pub fn order(&self) -> (u64, TracedTensor, Reverse<usize>, usize, &str) {
        let (back, forth) = match self.what {
            TracedTensor::Gradient => (Reverse(self.block), 0),
            TracedTensor::Output | TracedTensor::Parameter => (Reverse(0), self.block),
        };
        (self.step, self.what, back, forth, &self.name)
    }
}
