//! The device of a rank: opening it, moving tensors to it, and reading how much memory it has.

use std::sync::Arc;

use candle_core::{Device, Result, Tensor};

use super::error::ExecError;
use super::memory_shortage::DriverMemory;
use runner_compute::model::Params;
use runner_spec::event::WatchedDevice;
use runner_spec::experiment::Precision;
use runner_spec::model::layout::ParamLayout;
use runner_spec::program::{self, Program};
use runner_threads::heap;
#[cfg(feature = "cuda")]
use {
    super::memory_shortage,
    runner_compute::gpu::{self, DeviceMemory, Gpu},
    runner_spec::cluster::ComputeCapability,
};

/// Opens `device` for the calling thread, to compute in `precision`.
///
/// # Errors
/// If this build or this machine has no such device.
pub(super) fn open(device: program::Device, precision: Precision) -> std::result::Result<Device, ExecError> {
    let program::Device::Cuda(ordinal) = device else { return Ok(Device::Cpu) };
    #[cfg(feature = "cuda")]
    {
        let device = gpu::open(ordinal)?;
        Gpu::of_device(&device)?.set_tf32(precision == Precision::Tf32);
        Ok(device)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = (ordinal, precision);
        Err(ExecError::Program("this build does not include CUDA; build it with `make cuda`".into()))
    }
}

/// Opens the GPU of the rank of `stages`, and reserves the memory that is planned for the tensors of the stage that needs the most: what is short
/// is short before the first step, and no step waits until the pool has grown. Does nothing on a CPU.
///
/// # Errors
/// If the GPU cannot be opened, or has less memory.
pub(super) fn reserve(stages: &[Program]) -> std::result::Result<(), ExecError> {
    #[cfg(feature = "cuda")]
    if let Some(first) = stages.first().filter(|first| first.device != program::Device::Cpu) {
        let device = open(first.device, first.precision)?;
        let memory = driver_memory(&device);
        let planned = stages.iter().map(|stage| memory_shortage::planned_tensors(stage, memory.as_ref()));
        gpu::reserve(&device, planned.max().unwrap_or_default())?;
    }
    let _ = stages;
    Ok(())
}

/// Copies `tensor` to `device`, and waits for the copy: the host's memory may be freed afterwards.
///
/// # Errors
/// If memory is short.
pub(super) fn move_to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    let moved = tensor.to_device(device)?;
    synchronize(device)?;
    Ok(moved)
}

/// The weights that a forward in `precision` reads, given the weights `all`.
///
/// # Errors
/// If memory is short.
pub(super) fn weights_to_read(precision: Precision, layout: &Arc<ParamLayout>, all: Tensor) -> Result<Params> {
    match precision {
        Precision::Bf16 => Params::rounded(layout.clone(), all),
        Precision::Fp32 | Precision::Tf32 => Ok(Params::new(layout.clone(), all)),
    }
}

/// Waits for the launched kernels of a GPU.
///
/// # Errors
/// The error of a kernel.
pub(super) fn synchronize(device: &Device) -> Result<()> {
    #[cfg(feature = "cuda")]
    if device.is_cuda() {
        return Gpu::of_device(device)?.synchronize();
    }
    let _ = device;
    Ok(())
}

/// The memory of `device`, for an error message; `None` where no driver reports it.
pub(super) fn driver_memory(device: &Device) -> Option<DriverMemory> {
    #[cfg(feature = "cuda")]
    {
        let memory = gpu::memory(device)?;
        let (major, minor) = Gpu::of_device(device).ok()?.compute_capability();
        let capability = ComputeCapability { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
        let DeviceMemory { reserved, free, total, .. } = memory;
        Some(DriverMemory { reserved, free: Some(free), total, capability: Some(capability) })
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = device;
        None
    }
}

/// The memory of `program`'s device, on which a rank failed to start. Without a context of this thread the driver knows only the
/// total.
pub(super) fn memory_of_program(program: &Program) -> Option<DriverMemory> {
    let program::Device::Cuda(ordinal) = program.device else { return None };
    #[cfg(feature = "cuda")]
    {
        if let Some(device) = gpu::opened_by_this_thread(ordinal) {
            return driver_memory(&device);
        }
        let total = gpu::total_memory(ordinal)?;
        Some(DriverMemory { reserved: 0, free: None, total, capability: None })
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = ordinal;
        None
    }
}

/// Resets the peak of `device`'s memory in tensors. Returns the bytes in use now; `None` where they are not counted.
pub(super) fn reset_peak_memory(device: &Device) -> Option<u64> {
    if device.is_cpu() {
        return heap::restart_peak();
    }
    #[cfg(feature = "cuda")]
    {
        gpu::reset_peak(device).ok()?;
        gpu::memory(device).map(|memory| memory.used)
    }
    #[cfg(not(feature = "cuda"))]
    None
}

/// The most bytes of tensors since `reset_peak_memory`, and the driver's numbers of a GPU.
pub(super) fn peak_memory(device: &Device) -> (Option<u64>, Option<WatchedDevice>) {
    if device.is_cpu() {
        return (heap::peak_bytes(), None);
    }
    #[cfg(feature = "cuda")]
    {
        let Some(memory) = gpu::memory(device) else { return (None, None) };
        let DeviceMemory { peak, reserved, free, total, .. } = memory;
        (Some(peak), Some(WatchedDevice { reserved, used: total.saturating_sub(free), total, peak: Some(peak) }))
    }
    #[cfg(not(feature = "cuda"))]
    (None, None)
}
