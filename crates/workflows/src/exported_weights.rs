//! The weights of a checkpoint as a folder for `transformers`.

use std::path::Path;

use runner_inputs::{Host, RunEvent, RunObserver, starting_folder};
use runner_record::run_dir::CHECKPOINTS;
use runner_record::{CheckpointChoice, checkpoint};
use runner_spec::data::NO_SEPARATOR_WARNING;
use runner_spec::error::Result;
use runner_spec::model::layout::ParamLayout;
use runner_weights::{Dtype, HfExport, WeightsError, WrittenFiles, describe_lost_template};

use crate::opened_run::OpenedRun;

/// How weights are written.
#[derive(Debug, Clone, Copy)]
pub struct HfOptions {
    pub dtype: Dtype,
    /// The most bytes of a file with more than one tensor.
    pub shard_bytes: u64,
    /// True to leave out rows of the vocabulary beyond the tokens of the tokenizer.
    pub trims_vocabulary: bool,
}

impl Default for HfOptions {
    fn default() -> Self {
        Self { dtype: Dtype::F32, shard_bytes: 5_000_000_000, trims_vocabulary: false }
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
    /// If there is no such checkpoint, it is damaged, `transformers` has no such model, or files are there or cannot be written.
    pub fn export_hf(
        &self,
        which: CheckpointChoice,
        options: HfOptions,
        to: &Path,
        force: bool,
        host: &Host,
        observer: &mut dyn RunObserver,
    ) -> Result<WrittenFiles> {
        let spec = &self.program()?.model;
        let layout = self.whole_layout()?;
        let tokenizer = self.tokenizer(&host.pool()?, host, observer)?;
        let rows = &self.experiment.data.layout;
        if tokenizer.joins_documents(rows, self.plan.data.train.documents) {
            observer.observe(&RunEvent::Warning(NO_SEPARATOR_WARNING));
        }
        let tokens = if options.trims_vocabulary { self.plan.data.tokenizer_vocab } else { spec.vocab_size };
        let export = HfExport {
            spec,
            layout: &layout,
            dtype: options.dtype,
            shard_bytes: options.shard_bytes,
            vocab_size: tokens.clamp(1, spec.vocab_size),
            tokenizer: tokenizer.to_hf(rows, spec.context_length),
            special: tokenizer.special_tokens(rows).0,
        };
        let source = &mut |sink: WeightSink<'_>| self.stream_weights(which, &layout, sink);
        let mut written = export.write(to, force, source)?;
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
}
