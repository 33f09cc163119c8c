//! Samples under any layout: prompts are divided among replicas; in a pipeline the first stage leads, and the others follow
//! feed by feed.

use candle_core::{DType, Device, Tensor};

use super::error::ExecError;
use super::peers::{Links, Monitor};
use super::rank::Rank;
use crate::eval::decode::{Decoder, Feed, StageDecoder};
use crate::eval::sample::{Continuation, continue_prompt};
use crate::eval::{EvalError, share};
use runner_compute::kernels::on_host;
use runner_spec::event::{Event, SampleText};
use runner_spec::topology::Lane;

/// What the first stage tells the others of a feed: whether there is one, batch, start, capacity, tokens of each row.
const HEADER: usize = 5;

impl Rank<'_> {
    pub(super) fn sample(&mut self) -> Result<(), ExecError> {
        let Some(spec) = &self.program.eval.samples else { return Ok(()) };
        let mut pipeline = Pipeline::new(self);
        let mut mine: Vec<(usize, Vec<Continuation>)> = Vec::new();
        if self.links.stage == 0 {
            for p in share(spec.prompts.len(), self.links.replica, self.links.mesh.replicas) {
                let tokenizer = self.resources.tokenizer;
                mine.push((p, continue_prompt(&mut pipeline, &self.program.model, tokenizer, spec, p)?));
            }
            pipeline.tell(None)?;
        } else {
            pipeline.follow()?;
        }
        let mut all = mine;
        if self.links.mesh.world_size() > 1 {
            let json = |e: serde_json::Error| ExecError::Program(format!("samples as JSON: {e}"));
            let bytes = serde_json::to_vec(&all).map_err(json)?;
            all = Vec::new();
            for theirs in self.links.gather(&bytes)? {
                all.extend(serde_json::from_slice::<Vec<(usize, Vec<Continuation>)>>(&theirs).map_err(json)?);
            }
            all.sort_by_key(|(p, _)| *p);
        }
        let step = self.trainer.state.step;
        for c in all.into_iter().flat_map(|(_, continuations)| continuations) {
            let sample = SampleText { step, prompt: c.prompt, index: c.index, text: c.text };
            self.observer.observe(&Event::Sample(sample))?;
        }
        Ok(())
    }
}

/// A model over all stages of a replica, as one of its ranks sees it.
struct Pipeline<'a> {
    links: Links<'a>,
    monitor: &'a dyn Monitor,
    decoders: Vec<StageDecoder<'a>>,
    dtype: DType,
    d_model: usize,
    vocab: usize,
}

impl<'a> Pipeline<'a> {
    fn new(rank: &'a Rank<'_>) -> Self {
        let trainer = &rank.trainer;
        let decoders = trainer.models.iter().map(|model| StageDecoder::new(model, &trainer.weights)).collect();
        let model = &rank.program.model;
        let (links, monitor) = (rank.links, rank.monitor);
        let dtype = trainer.weights.flat.dtype();
        Self { links, monitor, decoders, dtype, d_model: model.d_model, vocab: model.vocab_size }
    }

    /// Passes on to the next stage what comes now; nothing: the end.
    fn tell(&self, feed: Option<(&Feed, usize)>) -> Result<(), ExecError> {
        if self.links.stage + 1 == self.links.mesh.stages {
            return Ok(());
        }
        let header = match feed {
            Some((feed, n)) => [1, feed.batch as u32, feed.start as u32, feed.capacity as u32, n as u32],
            None => [0; HEADER],
        };
        let header = Tensor::from_slice(&header, HEADER, &Device::Cpu)?;
        self.links.send(self.links.stage + 1, Lane::Activation, &header)
    }

    /// Runs one feed through this rank's chunks; the first stage gets the logits.
    fn run(&mut self, feed: &Feed, n: usize) -> Result<Option<Tensor>, ExecError> {
        self.monitor.alive();
        let Links { mesh, stage, .. } = self.links;
        let parts = mesh.stages * self.decoders.len();
        let shape = [feed.batch * n, self.d_model];
        for chunk in 0..self.decoders.len() {
            let part = chunk * mesh.stages + stage;
            let input = match part.checked_sub(1) {
                Some(before) => Some(self.links.receive(before % mesh.stages, Lane::Activation, self.dtype, &shape)?),
                None => None,
            };
            let output = self.decoders[chunk].feed(feed, input)?;
            if parts == 1 {
                return Ok(Some(output));
            }
            // From the last part these are the logits, for the first stage.
            self.links.send((part + 1) % mesh.stages, Lane::Activation, &output)?;
        }
        if stage > 0 {
            return Ok(None);
        }
        Ok(Some(self.links.receive(mesh.stages - 1, Lane::Activation, self.dtype, &[feed.batch, self.vocab])?))
    }

    /// What the other stages do until the first one says that it is over.
    fn follow(&mut self) -> Result<(), ExecError> {
        loop {
            let header = self.links.receive(self.links.stage - 1, Lane::Activation, DType::U32, &[HEADER])?;
            let header = on_host(&header)?.to_vec1::<u32>()?;
            let [1, batch, start, capacity, n] = header[..] else { return self.tell(None) };
            let [batch, start, capacity, n] = [batch, start, capacity, n].map(|x| x as usize);
            let feed = Feed { ids: Vec::new(), batch, start, capacity };
            self.tell(Some((&feed, n)))?;
            self.run(&feed, n)?;
        }
    }
}

impl Decoder for Pipeline<'_> {
    fn feed(&mut self, feed: &Feed) -> Result<Tensor, EvalError> {
        let n = feed.ids.len() / feed.batch.max(1);
        let mut go = || {
            self.tell(Some((feed, n)))?;
            self.run(feed, n)
        };
        match go() {
            Ok(Some(logits)) => Ok(logits),
            Ok(None) => Err(EvalError::Request("only the first stage leads".into())),
            Err(ExecError::Peer(error)) => Err(error.into()),
            Err(ExecError::Eval(error)) => Err(error),
            Err(ExecError::Kernel(error)) => Err(error.into()),
            Err(other) => Err(EvalError::Request(other.to_string())),
        }
    }
}
