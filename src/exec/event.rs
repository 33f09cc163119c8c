//! What the executor tells the outside: typed events, consumed by the recorder and the reporter.

use serde::{Deserialize, Serialize};

use crate::exec::state::TrainState;
use crate::exec::watch::WatchedStep;

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
    pub index: usize,
    pub text: String,
}

/// What happens in a run, in order.
#[derive(Debug)]
pub enum Event<'a> {
    /// The loop is about to start at `step` of `steps`.
    Start {
        step: u64,
        steps: u64,
    },
    Step(StepMetrics),
    Eval(EvalMetrics),
    Sample(SampleText),
    /// A good moment to save `state`; an error from the observer stops the run.
    Checkpoint {
        state: &'a TrainState,
    },
    /// The checkpoint of `step` is in place. Not of the executor: who commits what several ranks wrote says so.
    Saved {
        step: u64,
    },
    Warning(String),
    /// Of one step among many: when each rank did what.
    Watched(WatchedStep),
}

/// Consumes events. An error stops the run and is returned by it.
pub trait Observer {
    /// # Errors
    /// Whatever keeps the observer from doing its part, such as a full disk.
    fn observe(&mut self, event: &Event<'_>) -> Result<(), ObserveError>;
}

/// Why an observer gave up.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ObserveError(#[from] pub Box<dyn std::error::Error + Send + Sync>);
