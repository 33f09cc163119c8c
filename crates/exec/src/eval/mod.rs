//! Evaluation of a model on its own: validation loss, multiple choice, samples.

pub mod batches;
pub mod choice;
pub mod loss;
pub mod sample;
mod text_stream;

pub use batches::{Batches, indices_of_replica, run_all_batches, run_batches};
pub use choice::{ChoiceBatches, ChoiceScore, ScoredItem};
pub use loss::{LossBatches, ValidationLoss};
pub use sample::{ChunkDecoder, Continuation, Drawn, TokenFeed, continue_prompt, cut_prompt, generate};

use std::time::Instant;

use crate::device;
use crate::error::ExecError;
use runner_compute::model::{Model, Params};
use runner_spec::error::{Classified, ErrorKind};
use runner_spec::event::EvalMetrics;
use runner_spec::experiment::Precision;
use runner_spec::model::ModelSpec;
use runner_spec::program::{Device, Program};

/// An error in an evaluation.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Kernel(#[from] candle_core::Error),
    #[error(transparent)]
    Data(#[from] runner_data::DataError),
    #[error(transparent)]
    Peer(#[from] runner_comm::CommError),
    #[error("{0}")]
    Request(String),
    #[error("the {0} is not finite")]
    NotFinite(&'static str),
}

impl Classified for EvalError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Data(error) => error.kind(),
            Self::Request(_) => ErrorKind::Request,
            Self::Kernel(_) | Self::Peer(_) | Self::NotFinite(_) => ErrorKind::Failure,
        }
    }
}

/// Measures the loss and the multiple-choice score of the model of `step`, where their batches are given. `run` is called for each of the
/// two: it runs all batches through the model, and returns the numbers in which they are recorded.
///
/// # Errors
/// Those of `run`, or if a result is not finite.
pub fn evaluate<E: From<EvalError>>(
    step: u64,
    loss: Option<LossBatches<'_>>,
    choice: Option<ChoiceBatches<'_>>,
    run: impl Fn(&dyn Batches) -> Result<Vec<f64>, E>,
) -> Result<EvalMetrics, E> {
    let started = Instant::now();
    let mut metrics = EvalMetrics { step, ..EvalMetrics::default() };
    if let Some(batches) = loss {
        let result = batches.finish(&run(&batches)?)?;
        metrics.val_loss = Some(result.loss);
        metrics.val_perplexity = Some(result.perplexity());
        metrics.val_bits_per_byte = result.bits_per_byte();
    }
    if let Some(batches) = choice {
        let score = batches.finish(&run(&batches)?)?;
        metrics.hellaswag_acc = Some(score.acc());
        metrics.hellaswag_acc_norm = Some(score.acc_norm());
        metrics.hellaswag_acc_norm_chars = Some(score.acc_norm_chars());
        metrics.hellaswag_n = Some(score.items as u64);
        metrics.hellaswag_cut = (score.cut > 0).then_some(score.cut as u64);
    }
    metrics.eval_ms = started.elapsed().as_secs_f64() * 1e3;
    Ok(metrics)
}

/// A whole model to compute with, without training.
#[derive(Debug, Clone)]
pub struct InferenceSettings {
    pub spec: ModelSpec,
    pub precision: Precision,
}

impl From<&Program> for InferenceSettings {
    fn from(program: &Program) -> Self {
        Self { spec: program.model.clone(), precision: program.precision }
    }
}

impl InferenceSettings {
    /// The model on `device`, for the calling thread, with the weights that its forward reads. `weights` are f32, on the CPU.
    ///
    /// # Errors
    /// If this build or this machine has no such device, or the device has too little memory.
    pub fn open(&self, weights: Params, device: Device) -> Result<(Model, Params), ExecError> {
        let device = device::open(device, self.precision)?;
        let (layout, all) = (weights.layout, device::move_to_device(&weights.flat, &device)?);
        let blocks = 0..self.spec.block_count();
        // Only dropout reads the seed.
        let model = Model::new(&self.spec, layout.clone(), blocks, 0, &all)?;
        Ok((model, device::weights_to_read(self.precision, &layout, all)?))
    }
}
