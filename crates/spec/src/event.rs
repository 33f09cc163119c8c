//! What the executor tells the outside: typed events, consumed by the recorder and the reporter.

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::forecast::Activity;

/// One optimizer step. Times are milliseconds of wall clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepMetrics {
    /// Steps done, counting from 1.
    pub step: u64,
    /// Mean negative log-likelihood per valid token of the global batch, in nats.
    pub loss: f64,
    pub lr: f64,
    /// Global L2 norm of the gradients before clipping.
    pub grad_norm: f64,
    /// Valid tokens in this step's global batch.
    pub tokens: u64,
    pub tokens_per_second: f64,
    /// Model FLOPs utilization; `None` where the device's peak is not known.
    pub mfu: Option<f64>,
    pub step_ms: f64,
    pub data_ms: f64,
    pub forward_ms: f64,
    pub backward_ms: f64,
    pub optimizer_ms: f64,
    /// In communication, copies and waits included: the mean over ranks. `None` where there is one rank.
    pub comm_ms: Option<f64>,
}

/// One evaluation; a field is `None` where that part is not configured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvalMetrics {
    pub step: u64,
    pub val_loss: Option<f64>,
    pub val_perplexity: Option<f64>,
    pub hellaswag_acc: Option<f64>,
    pub hellaswag_acc_norm: Option<f64>,
    pub hellaswag_n: Option<u64>,
    pub eval_ms: f64,
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

/// What happens in a run, in order.
#[derive(Debug)]
pub enum Event {
    /// The loop is about to start at `step` of `steps`.
    Start {
        step: u64,
        steps: u64,
    },
    Step(StepMetrics),
    Eval(EvalMetrics),
    Sample(SampleText),
    /// The checkpoint of `step` is in place. Emitted by whoever saved it, not by the executor.
    Saved {
        step: u64,
    },
    Warning(String),
    /// Of one step among many: when each rank did what.
    Watched(WatchedStep),
}

/// Why an observer gave up.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ObserveError(#[from] pub Box<dyn std::error::Error + Send + Sync>);

#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Best {
    pub step: u64,
    pub val_loss: f64,
}

/// One step as it went, of all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WatchedStep {
    /// Which step it was, counting from 1.
    pub step: u64,
    /// The latest end of a span, in seconds.
    pub end: f64,
    /// By rank, and of each rank in the order of time.
    pub spans: Vec<WatchedSpan>,
    /// One for each process, by the first rank in it.
    #[serde(default)]
    pub memory: Vec<WatchedMemory>,
}

/// One thing a rank did, in seconds from the moment the first rank began the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WatchedSpan {
    pub rank: usize,
    /// `None`: sending and receiving, which is waiting for the most part.
    pub what: Option<Activity>,
    pub mb: Option<usize>,
    pub chunk: usize,
    pub start: f64,
    pub end: f64,
}

/// Bytes that a process held in the step: its buffers, and beside them the most that was allocated at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedMemory {
    pub rank: usize,
    pub weights: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// Activations, workspace and messages at their peak: what the step allocated over what was there when it began.
    /// `None` where allocations are not counted.
    pub step: Option<u64>,
    /// Of a GPU, what its driver says besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<WatchedDevice>,
}

/// Bytes of a GPU, of all its processes, but for `reserved`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedDevice {
    /// What this process's pool holds for tensors, used or not.
    pub reserved: u64,
    /// What is not free: contexts, code and libraries too.
    pub used: u64,
    pub total: u64,
    /// The most that this process's tensors took at once in the step, those included that were there when it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<u64>,
}

/// One line of `trace.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceLine {
    /// Steps done, counting from 1.
    pub step: u64,
    #[serde(rename = "kind")]
    pub what: Traced,
    /// Of the model's block list: 0 the embedding, 1 … layers, layers + 1 the head.
    pub block: usize,
    /// Of a parameter its own; of an output in words.
    pub name: String,
    /// The first 16 hexadecimal digits of BLAKE3 over the little-endian bytes.
    pub hash: String,
}

/// In the order in which a step computes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Traced {
    Output,
    Gradient,
    Parameter,
}

impl TraceLine {
    /// Sorts by the order of computation: outputs forwards, gradients backwards, then the updated parameters.
    #[must_use]
    pub fn order(&self) -> (u64, Traced, Reverse<usize>, usize, &str) {
        let (back, forth) = match self.what {
            Traced::Gradient => (Reverse(self.block), 0),
            Traced::Output | Traced::Parameter => (Reverse(0), self.block),
        };
        (self.step, self.what, back, forth, &self.name)
    }
}
