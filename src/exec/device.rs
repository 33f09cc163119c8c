//! The device of a rank.

use candle_core::{DType, Device, Result, Tensor};

use super::error::ExecError;
use crate::model::{ParamLayout, Params};
use crate::plan::program::{self, Program};

/// Opens what `program` computes on, for the thread that calls.
///
/// # Errors
/// If this build or this machine has no such device.
#[cfg(feature = "cuda")]
pub(super) fn open(program: &Program) -> std::result::Result<Device, ExecError> {
    let program::Device::Cuda(ordinal) = program.device else { return Ok(Device::Cpu) };
    let device = crate::gpu::open(ordinal)?;
    crate::gpu::Gpu::of(&device)?.set_tf32(program.precision == program::Precision::Tf32);
    Ok(device)
}

/// As above.
///
/// # Errors
/// On any device but a CPU.
#[cfg(not(feature = "cuda"))]
pub(super) fn open(program: &Program) -> std::result::Result<Device, ExecError> {
    match program.device {
        program::Device::Cpu => Ok(Device::Cpu),
        program::Device::Cuda(_) => Err(ExecError::Program("this build has no CUDA: build it with `make cuda`".into())),
    }
}

/// What the forward of a bf16 run reads, given the f32 buffer, `all`: on a CPU the same with matrices rounded in place of
/// matrices, on a GPU the matrices as a bf16 tensor beside it. `refresh` fills it.
///
/// # Errors
/// If memory is short.
pub(super) fn rounded(layout: &std::sync::Arc<ParamLayout>, all: Tensor) -> Result<Params> {
    if all.device().is_cpu() {
        return Ok(Params::new(layout.clone(), all.zeros_like()?));
    }
    let matrices = Tensor::zeros(layout.decayed, DType::BF16, all.device())?;
    Ok(Params::of_two(layout.clone(), matrices, all))
}

/// Waits for what was launched, where kernels run beside the host.
///
/// # Errors
/// That of a kernel.
#[cfg(feature = "cuda")]
pub(super) fn synchronize(device: &Device) -> Result<()> {
    if device.is_cuda() { crate::gpu::Gpu::of(device)?.synchronize() } else { Ok(()) }
}

/// As above.
///
/// # Errors
/// None.
#[cfg(not(feature = "cuda"))]
pub(super) fn synchronize(_: &Device) -> Result<()> {
    Ok(())
}
