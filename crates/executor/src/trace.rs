//! Hashes of what a step computed, in the order of computation: they show where two runs of the same program diverge.
//!
//! A trace holds a hash of each block's output, over the micro-batches in their order whichever was computed first, of each
//! parameter's gradient before clipping, and of its value after the update.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::trainer::Trainer;
use runner_compute::kernels::{bytes, on_host};
use runner_compute::model::{Params, name_of_output};
use runner_spec::event::{TraceLine, TracedTensor};

/// The hashes of a rank's current step.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Hashes of outputs, by block and micro-batch.
    outputs: BTreeMap<(usize, usize), blake3::Hash>,
    lines: Vec<TraceLine>,
}

impl Trace {
    /// Records the output of `block` for micro-batch `mb`.
    pub(super) fn record_output(&mut self, mb: usize, block: usize, output: &Tensor) -> Result<()> {
        self.outputs.insert((block, mb), hash_tensor(output)?);
        Ok(())
    }

    /// Records the losses, which are the output of block `head`.
    pub(super) fn record_losses(&mut self, mb: usize, head: usize, losses: &[f32]) {
        let bytes: Vec<u8> = losses.iter().flat_map(|loss| loss.to_le_bytes()).collect();
        self.outputs.insert((head, mb), blake3::hash(&bytes));
    }

    /// Records the gradients. The sums over micro-batches and ranks must be done.
    pub(super) fn record_gradients(&mut self, gradients: &Params, step: u64) -> Result<()> {
        self.record_params(TracedTensor::Gradient, gradients, step)
    }

    /// Returns the lines of the step that is done, and starts over.
    pub(super) fn finish(&mut self, trainer: &Trainer) -> Result<Vec<TraceLine>> {
        let step = trainer.state.step;
        let mut blocks: BTreeMap<usize, blake3::Hasher> = BTreeMap::new();
        for ((block, _), hash) in std::mem::take(&mut self.outputs) {
            blocks.entry(block).or_default().update(hash.as_bytes());
        }
        let head = trainer.models.first().map_or(0, |model| model.spec.layers + 1);
        for (block, hasher) in blocks {
            let name = if block == head { "losses".to_owned() } else { name_of_output(block) };
            self.lines.push(trace_line(step, TracedTensor::Output, block, name, &hasher.finalize()));
        }
        let updated = trainer.updated_weights()?;
        self.record_params(TracedTensor::Parameter, &updated, step)?;
        let mut lines = std::mem::take(&mut self.lines);
        lines.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(lines)
    }

    fn record_params(&mut self, what: TracedTensor, params: &Params, step: u64) -> Result<()> {
        for (index, entry) in params.layout.entries.iter().enumerate() {
            let hash = hash_tensor(&params.parameter(index)?)?;
            self.lines.push(trace_line(step, what, entry.spec.block, entry.spec.name.clone(), &hash));
        }
        Ok(())
    }
}

fn trace_line(step: u64, what: TracedTensor, block: usize, name: String, hash: &blake3::Hash) -> TraceLine {
    TraceLine { step, what, block, name, hash: hash.to_hex().chars().take(16).collect() }
}

/// Hashes the elements in order, as bytes in the machine's own order.
fn hash_tensor(tensor: &Tensor) -> Result<blake3::Hash> {
    bytes::read(&on_host(tensor)?.contiguous()?, blake3::hash)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use runner_spec::event::TracedTensor::{Gradient, Output, Parameter};

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
        a.record_output(0, 1, &x(1.0)).unwrap();
        a.record_output(1, 1, &x(2.0)).unwrap();
        b.record_output(1, 1, &x(2.0)).unwrap();
        b.record_output(0, 1, &x(1.0)).unwrap();
        assert_eq!(a.outputs, b.outputs);
        b.record_output(0, 1, &x(3.0)).unwrap();
        assert_ne!(a.outputs, b.outputs);
    }
}
