//! Why an experiment cannot be planned, in the experiment file's vocabulary and with the arithmetic that failed.

use crate::check::CheckError;
use runner_spec::cluster::NoGpuReason;

/// Mistakes in the request, except `Check` and `Json`, which are the planner's own (see `is_request`).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error(
        "model.vocab_size is {given}, but the tokenizer produces {tokenizer} ids (0 to {}): take at least {tokenizer}, \
         or leave the key out", tokenizer - 1
    )]
    VocabularyTooSmall { given: usize, tokenizer: usize },
    #[error(
        "data.layout: rows of {length} tokens do not fit model.context_length {context}: shorten the layout's length \
         to {context}, or raise the context length"
    )]
    LongerThanContext { length: usize, context: usize },
    #[error(
        "data.train has {rows} rows of {length} tokens ({tokens} tokens in the source), one batch needs \
         batch.sequences = {sequences}: take at most {rows} sequences, a shorter length, or more data"
    )]
    ShorterThanOneBatch { rows: u64, length: usize, tokens: u64, sequences: usize },
    #[error("{key}: {arithmetic} = {steps:.3} steps, and a run needs at least 1: take at least {key}: {least}")]
    NoSteps { key: &'static str, arithmetic: String, steps: f64, least: String },
    #[error("train needs exactly one of steps, epochs and tokens; {given} are given")]
    HowLong { given: usize },
    #[error(
        "schedule.warmup.steps is {warmup}, longer than the run of {steps} steps{}: take at most {steps}",
        if from.is_empty() { String::new() } else { format!(" ({from})") }
    )]
    WarmupTooLong { warmup: u64, steps: u64, from: String },
    #[error("device: {wanted} is not on this machine, which has {has}")]
    NoDevice { wanted: &'static str, has: String },
    #[error("{key}: {wanted} is asked for, and {}", no_gpu(why))]
    NoGpuReason { key: &'static str, wanted: String, why: NoGpuReason },
    #[error("eval.hellaswag is set, but no items of it were prepared")]
    NoChoiceItems,
    #[error("{key}: {message}")]
    Value { key: &'static str, message: String },
    #[error("the planned program is not a right one (a bug in the planner): {0}")]
    Check(#[from] CheckError),
    #[error("the plan cannot be written as JSON (a bug in the planner): {0}")]
    Json(String),
}

/// Why there is none, and what to do.
fn no_gpu(why: &NoGpuReason) -> String {
    match why {
        NoGpuReason::NotBuilt => {
            "this program was built without CUDA: build it with `make cuda`, or take device: cpu".to_owned()
        }
        NoGpuReason::Missing(what) => format!("no GPU can be used here: {what}; device: cpu needs none"),
    }
}

impl PlanError {
    /// Whether the request was wrong (exit code 2) rather than the planner (1).
    #[must_use]
    pub fn is_request(&self) -> bool {
        !matches!(self, Self::Check(_) | Self::Json(_))
    }

    /// `message` about the value of `key`.
    pub fn value(key: &'static str, message: impl Into<String>) -> Self {
        Self::Value { key, message: message.into() }
    }
}
