//! Where a number that is not finite came from.

use candle_core::{Result, Tensor};

use super::step::Trainer;
use runner_compute::kernels::optimizer::all_finite;
use runner_compute::model::Params;
use runner_compute::nn::MicroBatch;

/// The first bad tensor behind a bad loss: a parameter, or the first block of the chunk whose output is bad, by replaying
/// the forward from the chunk's `input`.
///
/// # Errors
/// If memory is short.
pub fn forward(trainer: &Trainer, chunk: usize, input: Option<Tensor>, mb: &MicroBatch) -> Result<String> {
    if let Some(parameter) = weights(trainer)? {
        return Ok(parameter);
    }
    let block = trainer.models[chunk].first_bad_block(&trainer.weights, input, mb)?;
    Ok(block.unwrap_or_else(|| "the losses".to_owned()))
}

/// The first bad parameter, if there is one.
///
/// # Errors
/// None on a CPU.
pub fn weights(trainer: &Trainer) -> Result<Option<String>> {
    let name = first_parameter(&trainer.weights, false)?;
    Ok(name.map(|name| format!("parameter {name}")))
}

/// The first parameter, in the order of the backward, whose gradient is bad.
///
/// # Errors
/// None on a CPU.
pub fn gradients(trainer: &Trainer) -> Result<String> {
    Ok(match first_parameter(&trainer.grads, true)? {
        Some(name) => format!("gradient of {name}"),
        None => "the sum of squared gradients overflows".into(),
    })
}

fn first_parameter(params: &Params, backwards: bool) -> Result<Option<String>> {
    let mut order: Vec<usize> = (0..params.layout.entries.len()).collect();
    order.sort_by_key(|&i| params.layout.entries[i].spec.block);
    if backwards {
        order.reverse();
    }
    for index in order {
        if !all_finite(&params.view(index)?)? {
            return Ok(Some(params.layout.entries[index].spec.name.clone()));
        }
    }
    Ok(None)
}
