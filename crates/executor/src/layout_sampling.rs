//! Samples under any layout of ranks: replicas divide the batches of continuations among them. In a pipeline the first stage draws the
//! tokens, and the other stages run each feed that it announces.

use candle_core::{DType, Device, Tensor};

use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use crate::eval::{ChunkDecoder, Continuation, TokenFeed, continue_prompt};
use runner_compute::kernels::on_host;
use runner_data::ModelTokenizer;
use runner_spec::event::SampleText;
use runner_spec::topology::Lane;

/// Numbers in the announcement of a feed: 1 if there is one, batch, start, capacity, tokens of each row.
const ANNOUNCEMENT_LENGTH: usize = 5;

/// Continues the program's prompts. Returns the samples of all ranks, in the order of prompts and of their continuations.
pub(super) fn sample(
    context: RankContext<'_>,
    trainer: &Trainer,
    tokenizer: &ModelTokenizer,
) -> Result<Vec<SampleText>, ExecError> {
    let program = context.program;
    let Some(spec) = &program.eval.samples else { return Ok(Vec::new()) };
    let mut pipeline = PipelineDecoder::new(context, trainer);
    let mut all: Vec<(usize, Vec<Continuation>)> = Vec::new();
    if context.stage == 0 {
        for (index, batch) in spec.batches().enumerate().skip(context.replica).step_by(program.mesh.replicas) {
            let extend = &mut |feed: &TokenFeed| pipeline.extend(feed);
            all.push((index, continue_prompt(extend, &program.model, tokenizer, spec, &batch)?));
        }
        pipeline.announce(None)?;
    } else {
        pipeline.follow()?;
    }
    if !context.is_alone() {
        all = context.gather_values(&all)?.concat();
        all.sort_by_key(|(batch, _)| *batch);
    }
    let step = trainer.state.step;
    let continuations = all.into_iter().flat_map(|(_, continuations)| continuations);
    Ok(continuations.map(|c| SampleText { step, prompt: c.prompt, index: c.index, text: c.text }).collect())
}

/// The model over all stages of a replica, on one of its ranks.
struct PipelineDecoder<'a> {
    context: RankContext<'a>,
    chunks: Vec<ChunkDecoder<'a>>,
    dtype: DType,
}

impl<'a> PipelineDecoder<'a> {
    fn new(context: RankContext<'a>, trainer: &'a Trainer) -> Self {
        let chunks = trainer.models.iter().map(|model| ChunkDecoder::new(model, &trainer.weights)).collect();
        Self { context, chunks, dtype: trainer.weights.activation_dtype() }
    }

    /// Announces the next feed, of `n` tokens a row, to the next stage; `None`: there is no other feed.
    fn announce(&self, feed: Option<(&TokenFeed, usize)>) -> Result<(), ExecError> {
        let next_stage = self.context.stage + 1;
        if next_stage == self.context.program.mesh.stages {
            return Ok(());
        }
        let header = match feed {
            Some((feed, n)) => [1, feed.batch as u32, feed.start as u32, feed.capacity as u32, n as u32],
            None => [0; ANNOUNCEMENT_LENGTH],
        };
        let send = |numbers: &[u32]| {
            let numbers = Tensor::from_slice(numbers, numbers.len(), &Device::Cpu)?;
            self.context.send(next_stage, Lane::Activation, &numbers)
        };
        send(&header)?;
        feed.map_or(Ok(()), |(feed, _)| send(&feed.ids))
    }

    /// Runs one feed through this rank's chunks. The first stage gets the logits.
    fn run(&mut self, feed: &TokenFeed, n: usize) -> Result<Option<Tensor>, ExecError> {
        self.context.monitor.heartbeat();
        let (model, stages) = (&self.context.program.model, self.context.program.mesh.stages);
        let is_whole_model = stages * self.chunks.len() == 1;
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            let shape = [feed.batch * n, model.width_to(chunk.first_block())];
            let input = self.context.receive_chunk_input(index, self.dtype, &shape)?;
            let output = chunk.extend(feed, input)?;
            if is_whole_model {
                return Ok(Some(output));
            }
            // The output of the last part is the logits, which go to the first stage.
            self.context.send_chunk_output(index, &output)?;
        }
        if self.context.stage > 0 {
            return Ok(None);
        }
        let shape = [feed.batch, model.vocab_size];
        Ok(Some(self.context.receive(stages - 1, Lane::Activation, self.dtype, &shape)?))
    }

    /// Runs the feeds that the first stage announces, until it announces the end.
    fn follow(&mut self) -> Result<(), ExecError> {
        loop {
            let previous_stage = self.context.stage - 1;
            let header = self.context.receive(previous_stage, Lane::Activation, DType::U32, &[ANNOUNCEMENT_LENGTH])?;
            let header = on_host(&header)?.to_vec1::<u32>()?;
            let [1, batch, start, capacity, n] = header[..] else { return self.announce(None) };
            let [batch, start, capacity, n] = [batch, start, capacity, n].map(|x| x as usize);
            let ids = self.context.receive(previous_stage, Lane::Activation, DType::U32, &[batch * n])?;
            let feed = TokenFeed { ids: on_host(&ids)?.to_vec1::<u32>()?, batch, start, capacity };
            self.announce(Some((&feed, n)))?;
            self.run(&feed, n)?;
        }
    }

    /// Runs one feed through all stages, and returns the logits.
    fn extend(&mut self, feed: &TokenFeed) -> Result<Tensor, ExecError> {
        let n = feed.ids.len() / feed.batch.max(1);
        self.announce(Some((feed, n)))?;
        let logits = self.run(feed, n)?;
        logits.ok_or_else(|| ExecError::Program("only the first stage draws tokens".into()))
    }
}
