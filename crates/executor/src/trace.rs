//! Hashes of what a step computed, in the order of computation: they show where two runs of the same program diverge.
//!
//! A trace holds a hash of each block's output, over the micro-batches in their order whichever was computed first, of each
//! parameter's gradient before clipping, and of its value after the update.

use std::collections::BTreeMap;

use candle_core::{Result, Tensor};

use super::trainer::Trainer;
use runner_compute::kernels::{bytes, on_host, optimizer};
use runner_compute::model::{Params, name_of_output};
use runner_spec::event::{TraceLine, TracedTensor};

/// The hashes of a rank's current step.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// Outputs, by block and micro-batch.
    outputs: BTreeMap<(usize, usize), TracedOutput>,
    lines: Vec<TraceLine>,
}

/// The hash of an output, its elements, and the sum of their squares.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TracedOutput {
    hash: blake3::Hash,
    elements: usize,
    squares: f64,
}

impl Trace {
    /// Records the output of `block` for micro-batch `mb`.
    pub(super) fn record_output(&mut self, mb: usize, block: usize, output: &Tensor) -> Result<()> {
        let output = on_host(output)?.contiguous()?;
        let squares = optimizer::squares_by_task(&output)?.iter().sum();
        let traced = TracedOutput { hash: hash_tensor(&output)?, elements: output.elem_count(), squares };
        self.outputs.insert((block, mb), traced);
        Ok(())
    }

    /// Records the losses, which are the output of block `head`.
    pub(super) fn record_losses(&mut self, mb: usize, head: usize, losses: &[f32]) {
        let bytes: Vec<u8> = losses.iter().flat_map(|loss| loss.to_le_bytes()).collect();
        let squares = losses.iter().map(|loss| f64::from(*loss).powi(2)).sum();
        self.outputs.insert((head, mb), TracedOutput { hash: blake3::hash(&bytes), elements: losses.len(), squares });
    }

    /// Records the gradients. The sums over micro-batches and ranks must be done.
    pub(super) fn record_gradients(&mut self, gradients: &Params, step: u64) -> Result<()> {
        self.record_params(TracedTensor::Gradient, gradients, step)
    }

    /// Returns the lines of the step that is done, and starts over.
    pub(super) fn finish(&mut self, trainer: &Trainer) -> Result<Vec<TraceLine>> {
        let step = trainer.state.step;
        let mut blocks: BTreeMap<usize, (blake3::Hasher, usize, f64)> = BTreeMap::new();
        for ((block, _), output) in std::mem::take(&mut self.outputs) {
            let (hasher, elements, squares) = blocks.entry(block).or_default();
            hasher.update(output.hash.as_bytes());
            *elements += output.elements;
            *squares += output.squares;
        }
        let head = trainer.models.first().map_or(0, |model| model.spec.layers + 1);
        for (block, (hasher, elements, squares)) in blocks {
            let name = if block == head { "losses".to_owned() } else { name_of_output(block) };
            let rms = Some((squares / elements.max(1) as f64).sqrt()).filter(|rms| rms.is_finite());
            let line = trace_line(step, TracedTensor::Output, block, name, &hasher.finalize());
            self.lines.push(TraceLine { rms, ..line });
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
    TraceLine { step, what, block, name, hash: hash.to_hex().chars().take(16).collect(), rms: None }
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
        let line = |what, block| TraceLine { step: 1, what, block, name: "x".into(), hash: String::new(), rms: None };
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
