//! A model without training.

use crate::device;
use crate::error::ExecError;
use runner_compute::model::{Model, Params};
use runner_spec::experiment::Precision;
use runner_spec::model::ModelSpec;
use runner_spec::program::{Device, Program};

/// A whole model to compute with, without training.
#[derive(Debug, Clone)]
pub struct InferenceSettings {
    pub spec: ModelSpec,
    pub precision: Precision,
}

impl From<&Program> for InferenceSettings {
    fn from(program: &Program) -> Self {
        Self { spec: program.model.clone(), precision: program.precision }
    }
}

impl InferenceSettings {
    /// The model on `device`, for the calling thread, with the weights that its forward reads. `weights` are f32, on the CPU.
    ///
    /// # Errors
    /// If this build or this machine has no such device, or the device has too little memory.
    pub fn open(&self, weights: Params, device: Device) -> Result<(Model, Params), ExecError> {
        let device = device::open(device, self.precision)?;
        let (layout, all) = (weights.layout, device::move_to_device(&weights.flat, &device)?);
        let blocks = 0..self.spec.block_count();
        // Only dropout reads the seed.
        let model = Model::new(&self.spec, layout.clone(), blocks, 0, &all)?;
        Ok((model, device::weights_to_read(self.precision, &layout, all)?))
    }
}
