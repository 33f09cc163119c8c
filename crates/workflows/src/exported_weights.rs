//! The weights of a checkpoint as a folder for `transformers`.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;

use runner_compute::model::Params;
use runner_executor::ExecError;
use runner_executor::eval::open_model;
use runner_inputs::{Host, RunEvent, RunObserver, starting_folder};
use runner_record::run_dir::CHECKPOINTS;
use runner_record::{CheckpointChoice, checkpoint};
use runner_spec::data::NO_SEPARATOR_WARNING;
use runner_spec::error::{CommandError, Result};
use runner_spec::experiment::Precision;
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::{ModelSpec, parameters};
use runner_spec::program::Device;
use runner_weights::{Dtype, HfExport, OpenedWeights, WeightsError, WrittenFiles, describe_lost_template};

use crate::evaluated_model::read_weights;
use crate::opened_run::OpenedRun;

/// How weights are written.
#[derive(Debug, Clone, Copy)]
pub struct HfOptions {
    pub dtype: Dtype,
    /// The most bytes of a file with more than one tensor.
    pub shard_bytes: u64,
    /// True to leave out rows of the vocabulary beyond the tokens of the tokenizer.
    pub trims_vocabulary: bool,
    /// True to compare the logits of the written folder with the run's.
    pub compares_logits: bool,
}

impl Default for HfOptions {
    fn default() -> Self {
        Self { dtype: Dtype::F32, shard_bytes: 5_000_000_000, trims_vocabulary: false, compares_logits: true }
    }
}

/// Receives the offset and the bytes of a piece of the weights.
pub type WeightSink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), WeightsError>;

impl OpenedRun {
    /// Passes the weights of a checkpoint to `sink`. Returns the checkpoint's step.
    ///
    /// # Errors
    /// If there is no such checkpoint, or it is damaged; those of `sink`.
    pub fn stream_weights(&self, which: CheckpointChoice, layout: &ParamLayout, sink: WeightSink<'_>) -> Result<u64> {
        let folder = self.path.join(CHECKPOINTS);
        let mut pass_on = |place, bytes: &[u8]| Ok(sink(place, bytes)?);
        Ok(checkpoint::stream_weights(&folder, which, layout, &mut pass_on)?)
    }

    /// Writes the weights of a checkpoint and the tokenizer to the folder `to`, as `transformers` reads them. With `force`, replaces files that
    /// are there. The same weights and `options` give the same bytes.
    ///
    /// # Errors
    /// If there is no such checkpoint, it is damaged, `transformers` has no such model, files are there or cannot be written, or the folder's
    /// logits differ from the run's.
    pub fn export_hf(
        &self,
        which: CheckpointChoice,
        options: HfOptions,
        to: &Path,
        force: bool,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<WrittenFiles> {
        let spec = self.model(which)?;
        let layout = self.whole_layout()?;
        let tokenizer = self.tokenizer(&host.pool()?, host, observer)?;
        let rows = &self.experiment.data.layout;
        if tokenizer.joins_documents(rows, self.plan.data.train.documents) {
            observer.observe(&RunEvent::Warning(NO_SEPARATOR_WARNING));
        }
        let tokens = if options.trims_vocabulary { self.plan.data.tokenizer_vocab } else { spec.vocab_size };
        let export = HfExport {
            spec: &spec,
            layout: &layout,
            dtype: options.dtype,
            shard_bytes: options.shard_bytes,
            vocab_size: tokens.clamp(1, spec.vocab_size),
            tokenizer: tokenizer.to_hf(rows, spec.context_length),
            special: tokenizer.special_tokens(rows).0,
        };
        let source = &mut |sink: WeightSink<'_>| self.stream_weights(which, &layout, sink);
        let pool = host.pool()?;
        let mut written = export.write(to, force, source, &mut |folder| {
            let compare = || self.compare_logits(which, folder, export.vocab_size, options.dtype);
            if options.compares_logits { pool.install(compare).map(Some) } else { Ok(None) }
        })?;
        if let Some(folder) = starting_folder(&self.experiment, host)? {
            if folder.is_dir() {
                written.notes.extend(describe_lost_template(&folder, to));
            } else {
                let folder = folder.display();
                written.notes.push(format!(
                    "{folder}, from which the run started, is missing, so the export may lack its chat template"
                ));
            }
        }
        Ok(written)
    }

    /// The largest difference between logits of the run and of the folder `exported`, relative to the largest logit, for rows of ids below
    /// `vocab_size`. Both models compute in f32 on the CPU, one after the other.
    ///
    /// # Errors
    /// If weights cannot be read, or rounding to `dtype` does not explain the difference.
    fn compare_logits(&self, which: CheckpointChoice, exported: &Path, vocab_size: usize, dtype: Dtype) -> Result<f64> {
        /// Rows, and their tokens at most.
        const ROWS: usize = 2;
        const LENGTH: usize = 64;
        let spec = self.model(which)?;
        let layout = Arc::new(ParamLayout::new(parameters(&spec)));
        let (flat, _) = self.weights(which, &layout)?;
        let length = LENGTH.min(spec.context_length);
        // Ids from all over the vocabulary, the same each time.
        let ids: Vec<u32> = (0..ROWS * length).map(|n| (n * 7919 % vocab_size) as u32).collect();
        let logits = |spec: &ModelSpec, layout: &Arc<ParamLayout>, flat: Tensor| -> Result<Vec<f32>> {
            let params = Params::new(layout.clone(), flat);
            let (model, weights) = open_model(spec, Precision::Fp32, params, Device::Cpu)?;
            let compute = || {
                let mb = model.micro_batch(&ids, Vec::new(), length)?;
                model.logits(&weights, &mb)?.narrow(1, 0, vocab_size)?.flatten_all()?.to_vec1()
            };
            Ok(compute().map_err(ExecError::from)?)
        };
        let ours = logits(&spec, &layout, flat)?;
        let opened = OpenedWeights::open(exported)?;
        let spec = &opened.described.spec;
        let layout = Arc::new(ParamLayout::new(parameters(spec)));
        let flat = Tensor::from_vec(read_weights(&opened, &layout)?, layout.total, &candle_core::Device::Cpu);
        let theirs = logits(spec, &layout, flat.map_err(ExecError::from)?)?;
        let largest = ours.iter().fold(f32::MIN_POSITIVE, |most, v| most.max(v.abs()));
        let differences = ours.iter().zip(&theirs).map(|(a, b)| f64::from((a - b).abs() / largest));
        let difference = differences.fold(0.0, |most, v| if v.is_nan() { v } else { v.max(most) });
        let limit = match dtype {
            Dtype::F32 => 1e-5,
            Dtype::F16 => 1e-2,
            Dtype::Bf16 => 5e-2,
        };
        if difference <= limit {
            return Ok(difference);
        }
        Err(CommandError::failure(format!(
            "the logits of the exported model differ from the run's by {difference:.1e} of the largest one, which rounding to {} does not \
             explain (at most {limit:.0e}); nothing was written; please report this, with the run's resolved.yaml",
            dtype.name()
        )))
    }
}
