//! Hashes of what a step computed, in the order of computation: they show where two runs of the same program part.
//!
//! Of each block the output, over the micro-batches in their order whichever was computed first; of each parameter the gradient
//! before clipping, and the value after the update. Of replicas the first one traces: what another one computed otherwise
//! shows in the gradients, which are sums over all.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::step::Trainer;
use runner_compute::kernels::{bytes, on_host};
use runner_compute::model::Params;
use runner_spec::event::{TraceLine, Traced};

/// The hashes of the step that a rank is in.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// By block and micro-batch.
    outputs: BTreeMap<(usize, usize), blake3::Hash>,
    lines: Vec<TraceLine>,
}

impl Trace {
    /// The output of `block` for micro-batch `mb`.
    pub(super) fn output(&mut self, mb: usize, block: usize, output: &Tensor) -> Result<()> {
        self.outputs.insert((block, mb), hash(output)?);
        Ok(())
    }

    /// The losses, which are what comes out of `head`.
    pub(super) fn losses(&mut self, mb: usize, head: usize, losses: &[f32]) {
        let bytes: Vec<u8> = losses.iter().flat_map(|loss| loss.to_le_bytes()).collect();
        self.outputs.insert((head, mb), blake3::hash(&bytes));
    }

    /// The gradients as they are now, when the sums over micro-batches and ranks are done.
    pub(super) fn gradients(&mut self, trainer: &Trainer) -> Result<()> {
        self.params(Traced::Gradient, &trainer.grads, trainer.state.step + 1)
    }

    /// The lines of the step that is done, which this then forgets.
    pub(super) fn finish(&mut self, trainer: &Trainer) -> Result<Vec<TraceLine>> {
        let step = trainer.state.step;
        let mut blocks: BTreeMap<usize, blake3::Hasher> = BTreeMap::new();
        for ((block, _), hash) in std::mem::take(&mut self.outputs) {
            blocks.entry(block).or_default().update(hash.as_bytes());
        }
        let head = trainer.models.first().map_or(0, |model| model.spec.layers + 1);
        for (block, hasher) in blocks {
            let name = match block {
                0 => "output of the embedding".to_owned(),
                block if block == head => "losses".to_owned(),
                block => format!("output of layer {}", block - 1),
            };
            self.lines.push(line(step, Traced::Output, block, name, &hasher.finalize()));
        }
        let weights = Params::new(trainer.state.layout.clone(), trainer.state.weights()?);
        self.params(Traced::Parameter, &weights, step)?;
        let mut lines = std::mem::take(&mut self.lines);
        lines.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(lines)
    }

    fn params(&mut self, what: Traced, params: &Params, step: u64) -> Result<()> {
        for (index, entry) in params.layout.entries.iter().enumerate() {
            let hash = hash(&params.view(index)?)?;
            self.lines.push(line(step, what, entry.spec.block, entry.spec.name.clone(), &hash));
        }
        Ok(())
    }
}

fn line(step: u64, what: Traced, block: usize, name: String, hash: &blake3::Hash) -> TraceLine {
    TraceLine { step, what, block, name, hash: hash.to_hex().chars().take(16).collect() }
}

/// Of the elements in order. A machine whose own order of bytes is another has none of these processors' bits anyway.
fn hash(tensor: &Tensor) -> Result<blake3::Hash> {
    bytes::read(&on_host(tensor)?.contiguous()?, blake3::hash)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use runner_spec::event::Traced::{Gradient, Output, Parameter};

    #[test]
    fn lines_are_in_the_order_of_computation() {
        let line = |what, block| TraceLine { step: 1, what, block, name: "x".into(), hash: String::new() };
        let expected = [(Output, 0), (Output, 1), (Gradient, 1), (Gradient, 0), (Parameter, 0), (Parameter, 1)];
        let expected = expected.map(|(what, block)| line(what, block));
        let mut mixed = expected.clone();
        mixed.reverse();
        mixed.sort_by(|a, b| a.order().cmp(&b.order()));
        assert_eq!(mixed, expected);
        let text = serde_json::to_string(&expected[0]).unwrap();
        assert_eq!(text, "{\"step\":1,\"kind\":\"output\",\"block\":0,\"name\":\"x\",\"hash\":\"\"}");
    }

    #[test]
    fn an_output_does_not_depend_on_which_micro_batch_was_first() {
        let x = |v: f32| Tensor::new(&[v, 1.0], &Device::Cpu).unwrap();
        let (mut a, mut b) = (Trace::default(), Trace::default());
        a.output(0, 1, &x(1.0)).unwrap();
        a.output(1, 1, &x(2.0)).unwrap();
        b.output(1, 1, &x(2.0)).unwrap();
        b.output(0, 1, &x(1.0)).unwrap();
        assert_eq!(a.outputs, b.outputs);
        b.output(0, 1, &x(3.0)).unwrap();
        assert_ne!(a.outputs, b.outputs);
    }
}
