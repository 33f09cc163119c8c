//! A model without training.

use crate::device;
use crate::error::ExecError;
use runner_compute::model::{Model, Params};
use runner_spec::experiment::Precision;
use runner_spec::model::ModelSpec;
use runner_spec::program::Device;

/// The model `spec` on `device`, for the calling thread, with the weights that its forward reads. `weights` are f32, on the CPU.
///
/// # Errors
/// If this build or this machine has no such device, or the device has too little memory.
pub fn open_model(
    spec: &ModelSpec,
    precision: Precision,
    weights: Params,
    device: Device,
) -> Result<(Model, Params), ExecError> {
    let device = device::open(device, precision)?;
    let (layout, all) = (weights.layout, device::move_to_device(&weights.flat, &device)?);
    // Only dropout reads the seed.
    let model = Model::new(spec, layout.clone(), 0..spec.block_count(), 0, &all)?;
    Ok((model, device::weights_to_read(precision, &layout, all)?))
}
