//! A model whose forward alone is run: to evaluate it, or to generate text.

use super::device;
use super::error::ExecError;
use runner_compute::kernels::StoredPrecision;
use runner_compute::model::{Model, Params};
use runner_spec::experiment::Precision;
use runner_spec::program::{Device, Program};

/// The whole model of `program` on `device`, for the calling thread, with the weights that its forward reads in the program's
/// precision. `weights` are f32, on the CPU.
///
/// # Errors
/// If this build or this machine has no such device, or the device has too little memory.
pub fn model_for_inference(program: &Program, weights: Params, device: Device) -> Result<(Model, Params), ExecError> {
    let device = device::open(device, program.precision)?;
    let (layout, all) = (weights.layout, device::move_to_device(&weights.flat, &device)?);
    let precision = StoredPrecision { bf16: program.precision == Precision::Bf16 };
    let blocks = 0..program.model.block_count();
    let model = Model::new(&program.model, layout.clone(), blocks, program.seed, precision, &all)?;
    Ok((model, device::weights_to_read(program, &layout, all)?))
}
