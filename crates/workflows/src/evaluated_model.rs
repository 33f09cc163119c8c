//! A model to evaluate or to sample from: that of a run's checkpoint, or weights of another program.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Tensor;

use crate::opened_run::{OpenedRun, device_for_reading};
use runner_compute::model::{Model, Params};
use runner_data::{ModelTokenizer, TextTokenizer, load_tokenizer};
use runner_executor::ExecError;
use runner_executor::eval::open_model;
use runner_inputs::{Host, RunEvent, RunObserver, foreign_tokenizer};
use runner_record::CheckpointChoice;
use runner_spec::diagnostic::list;
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::{DeviceChoice, Precision, Tokenizer};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, parameters};
use runner_spec::program::Device;
use runner_weights::OpenedWeights;

/// A model to evaluate or to sample from. Its weights are not read yet.
#[derive(Debug)]
pub struct EvaluatedModel {
    pub spec: ModelSpec,
    pub precision: Precision,
    origin: ModelOrigin,
}

#[derive(Debug)]
enum ModelOrigin {
    Checkpoint(Box<OpenedRun>, CheckpointChoice),
    /// The path is that of the folder or file.
    Weights(Box<OpenedWeights>, PathBuf),
}

impl EvaluatedModel {
    /// The model of a checkpoint of `run`. `precision` replaces that of the run.
    ///
    /// # Errors
    /// If the run's plan is damaged.
    pub fn of_run(run: OpenedRun, which: CheckpointChoice, precision: Option<Precision>) -> Result<Self> {
        let program = run.program()?;
        let (spec, precision) = (run.model(which)?, precision.unwrap_or(program.precision));
        Ok(Self { spec, precision, origin: ModelOrigin::Checkpoint(Box::new(run), which) })
    }

    /// The model of the weights at `path`, a Hugging Face folder or a state dict of PyTorch.
    ///
    /// # Errors
    /// If there are no weights, they are a state dict that lacks sizes or the head, or they are of a model that cannot be computed here.
    pub fn of_weights(path: &Path, precision: Option<Precision>) -> Result<Self> {
        let weights = OpenedWeights::open(path)?;
        if weights.lacks_head() {
            return Err(CommandError::request(format!(
                "{}: this state dict has no head; put the model's `config.json` beside the file, whose `tie_word_embeddings` shows whether \
                 the head is the embedding",
                path.display()
            )));
        }
        let unknown = ["heads", "context_length"].into_iter().filter(|key| !weights.described.gives(key));
        let unknown: Vec<&str> = unknown.collect();
        if !unknown.is_empty() {
            return Err(CommandError::request(format!(
                "{}: this state dict does not record {} of its model; put the model's `config.json` beside the file, or use nanoGPT's \
                 checkpoint with `model_args`",
                path.display(),
                list(&unknown, "and")
            )));
        }
        let (spec, precision) = (weights.described.spec.clone(), precision.unwrap_or_default());
        Ok(Self { spec, precision, origin: ModelOrigin::Weights(Box::new(weights), path.to_owned()) })
    }

    /// # Errors
    /// If attention sees what follows a token: such a model has no `what`, since it has learned to see the words that it is to predict.
    pub fn check_mask(&self, what: &str) -> Result<()> {
        if !self.spec.options.mask.sees_ahead() {
            return Ok(());
        }
        Err(CommandError::request(format!(
            "the model was trained with `model.causal: false`, so it sees the words to predict and has no {what}"
        )))
    }

    /// The run that the model is of, if it is of a run.
    pub fn run(&self) -> Option<&OpenedRun> {
        match &self.origin {
            ModelOrigin::Checkpoint(run, _) => Some(run),
            ModelOrigin::Weights(..) => None,
        }
    }

    /// The model's tokenizer: that of the run, or `named`, which is in files of this machine, or else the one beside the weights. Weights
    /// without a tokenizer know ids alone.
    ///
    /// # Errors
    /// If the tokenizer cannot be read, or has more tokens than the model.
    pub fn tokenizer(
        &self,
        named: Option<&Tokenizer>,
        pool: &rayon::ThreadPool,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<ModelTokenizer> {
        let rows = self.spec.vocab_size;
        let (path, given) = match &self.origin {
            ModelOrigin::Checkpoint(run, _) => {
                let own = run.tokenizer(pool, host, observer)?;
                match named {
                    None => return Ok(ModelTokenizer::of_rows(own, &run.experiment.data.layout)),
                    Some(_) if own.knows_text() => {
                        let has = "the run already has the tokenizer with which it was trained";
                        return Err(CommandError::request(format!("--tokenizer: {has}; omit the flag")));
                    }
                    Some(named) => (&run.path, Some(named.clone())),
                }
            }
            ModelOrigin::Weights(weights, path) => {
                if let Some(warning) = weights.described.assumptions(|_| false) {
                    observer.observe(&RunEvent::Warning(&warning));
                }
                (path, named.cloned().or_else(|| weights.described.tokenizer()))
            }
        };
        let Some(tokenizer) = given else { return Ok(ModelTokenizer::of_weights(TextTokenizer::ids(rows))) };
        let tokenizer = load_tokenizer(&tokenizer)?;
        let tokens = tokenizer.vocab_size();
        if tokens > rows {
            let path = path.display();
            return Err(CommandError::request(format!(
                "the tokenizer has {tokens} tokens, but the model of {path} has {rows}; use `--tokenizer` to name \
                 the tokenizer that the model was trained with"
            )));
        }
        Ok(match &self.origin {
            ModelOrigin::Checkpoint(run, _) => ModelTokenizer::of_rows(tokenizer, &run.experiment.data.layout),
            ModelOrigin::Weights(weights, _) => {
                if let Some(warning) = foreign_tokenizer(weights, &tokenizer, "--tokenizer") {
                    observer.observe(&RunEvent::Warning(&warning));
                }
                ModelTokenizer::of_weights(tokenizer)
            }
        })
    }

    /// The device that `choice` means for reading this model, in a process with `threads` threads. Notes about the choice go to `notes`.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device(&self, choice: DeviceChoice, threads: usize, notes: &mut Vec<String>) -> Result<Device> {
        match &self.origin {
            ModelOrigin::Checkpoint(run, _) => run.device(choice, threads, notes),
            ModelOrigin::Weights(..) => device_for_reading(choice, Device::Cpu, threads, notes),
        }
    }

    /// The model on `device`, for the calling thread; the weights that its forward reads; and the step of its checkpoint.
    ///
    /// # Errors
    /// If the weights cannot be read, the device cannot be opened, or its memory is short.
    pub fn load(&self, device: Device) -> Result<(Model, Params, Option<u64>)> {
        // The layout is the whole model's, whatever the ranks of a run hold of it.
        let layout = Arc::new(ParamLayout::new(parameters(&self.spec)));
        let (flat, step) = match &self.origin {
            ModelOrigin::Checkpoint(run, which) => {
                let (flat, step) = run.weights(*which, &layout)?;
                (flat, Some(step))
            }
            ModelOrigin::Weights(weights, _) => {
                let flat = Tensor::from_vec(read_weights(weights, &layout)?, layout.total, &candle_core::Device::Cpu);
                (flat.map_err(ExecError::from)?, None)
            }
        };
        let (model, weights) = open_model(&self.spec, self.precision, Params::new(layout, flat), device)?;
        Ok((model, weights, step))
    }
}

/// The numbers of `weights`, as f32 in the order of `layout`.
pub(crate) fn read_weights(weights: &OpenedWeights, layout: &ParamLayout) -> Result<Vec<f32>> {
    let mut values = vec![0.0_f32; layout.total];
    for entry in &layout.entries {
        weights.read(&entry.spec.name, &entry.spec.shape, &mut values[entry.range()])?;
    }
    Ok(values)
}
