//! The search for the tensor from which a number that is not finite came.

use candle_core::Result;

use super::trainer::Trainer;
use runner_compute::kernels::optimizer::all_finite;
use runner_compute::model::{Params, Stream};
use runner_compute::nn::MicroBatch;

/// Reported where all gradients are finite and only the sum of their squares is not.
pub(super) const SQUARES_OVERFLOW: &str = "the sum of squared gradients overflows";

/// The first bad tensor behind a bad loss: a parameter, or the first block of the chunk whose output is bad. Runs the forward
/// again from the chunk's `input`.
///
/// # Errors
/// If memory is short.
pub(super) fn find_in_forward(
    trainer: &Trainer,
    chunk: usize,
    input: Option<Stream>,
    mb: &MicroBatch,
) -> Result<String> {
    if let Some(parameter) = find_in_weights(trainer)? {
        return Ok(parameter);
    }
    // Weights that come and go are not all there.
    let block = if trainer.weights.has_temporary_pieces() {
        None
    } else {
        trainer.models[chunk].first_block_not_finite(&trainer.weights, input, mb)?
    };
    Ok(block.unwrap_or_else(|| "the losses".to_owned()))
}

/// The first bad parameter, in the order of the forward; of those that this rank updates, where weights come and go.
///
/// # Errors
/// None on a CPU.
pub(super) fn find_in_weights(trainer: &Trainer) -> Result<Option<String>> {
    let own = if trainer.weights.has_temporary_pieces() { Some(trainer.updated_by_this_rank()?) } else { None };
    let bad = first_bad_parameter(own.as_ref().unwrap_or(&trainer.weights), false)?;
    Ok(bad.map(|name| format!("parameter {name}")))
}

/// The first bad gradient, in the order of the backward; of those that this rank has summed, where gradients come and go.
///
/// # Errors
/// None on a CPU.
pub(super) fn find_in_gradients(trainer: &Trainer) -> Result<Option<String>> {
    let sums = trainer.shard_gradients.clone().map(|sums| Params::new(trainer.state.layout.clone(), sums));
    let name = first_bad_parameter(sums.as_ref().unwrap_or(&trainer.grads), true)?;
    Ok(name.map(|name| format!("gradient of {name}")))
}

fn first_bad_parameter(params: &Params, is_backward: bool) -> Result<Option<String>> {
    let entries = &params.layout.entries;
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|&i| entries[i].spec.block);
    if is_backward {
        order.reverse();
    }
    for index in order {
        if !all_finite(&params.parameter(index)?)? {
            return Ok(Some(entries[index].spec.name.clone()));
        }
    }
    Ok(None)
}
