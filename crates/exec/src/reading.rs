//! A model of which only the forward is run: it is evaluated, or text is made with it.

use super::device;
use super::error::ExecError;
use runner_compute::kernels::Math;
use runner_compute::model::{Model, Params};
use runner_spec::experiment::Precision;
use runner_spec::program::{Device, Program};

/// The whole model of `program` on `device`, for the thread that calls, with the weights that its forward reads in the program's
/// precision. `weights`: f32, on the CPU.
///
/// # Errors
/// If this build or this machine has no such device, or its memory is short.
pub fn for_reading(program: &Program, weights: Params, device: Device) -> Result<(Model, Params), ExecError> {
    let device = device::open(device, program.precision)?;
    let (layout, all) = (weights.layout, device::moved(&weights.flat, &device)?);
    let math = Math { bf16: program.precision == Precision::Bf16 };
    let blocks = 0..program.model.block_count();
    let model = Model::new(&program.model, layout.clone(), blocks, program.seed, math, &all)?;
    if !device::is_copied(program, &device) {
        return Ok((model, Params::new(layout, all)));
    }
    let weights = device::rounded(&layout, all.clone())?;
    device::round_again(&weights, &all)?;
    Ok((model, weights))
}
