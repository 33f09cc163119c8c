//! The device of a rank.

#![cfg_attr(
    not(feature = "cuda"),
    allow(
        clippy::unnecessary_wraps,
        clippy::unused_self,
        clippy::needless_pass_by_value,
        reason = "as with the feature"
    )
)]

use candle_core::{DType, Device, Result, Tensor};

use super::error::ExecError;
use super::shortage::Room;
use runner_compute::kernels::optimizer;
use runner_compute::model::Params;
use runner_machine::heap;
#[cfg(feature = "cuda")]
use runner_spec::cluster::ComputeCapability;
use runner_spec::event::WatchedDevice;
use runner_spec::experiment::Precision;
use runner_spec::model::layout::ParamLayout;
use runner_spec::program;
use runner_spec::program::Program;

/// Opens `device` for the thread that calls, to compute in `precision`.
///
/// # Errors
/// If this build or this machine has no such device.
#[cfg(feature = "cuda")]
pub(super) fn open(device: program::Device, precision: Precision) -> std::result::Result<Device, ExecError> {
    let program::Device::Cuda(ordinal) = device else { return Ok(Device::Cpu) };
    let device = runner_compute::gpu::open(ordinal)?;
    runner_compute::gpu::Gpu::of(&device)?.set_tf32(precision == Precision::Tf32);
    Ok(device)
}

/// As above.
///
/// # Errors
/// On any device but a CPU.
#[cfg(not(feature = "cuda"))]
pub(super) fn open(device: program::Device, _: Precision) -> std::result::Result<Device, ExecError> {
    match device {
        program::Device::Cpu => Ok(Device::Cpu),
        program::Device::Cuda(_) => Err(ExecError::Program("this build has no CUDA: build it with `make cuda`".into())),
    }
}

/// `tensor` on `device`. It is there when this returns: a driver need not have read the host's memory before, which may be freed
/// then.
///
/// # Errors
/// If memory is short.
pub(super) fn moved(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    let there = tensor.to_device(device)?;
    synchronize(device)?;
    Ok(there)
}

/// Whether the forward reads a rounded copy of the weights. Weights that are bf16 values anyhow need none but where bf16 is a type
/// of its own.
pub(super) fn is_copied(program: &Program, device: &Device) -> bool {
    program.precision == Precision::Bf16 && (program.master_weights || !device.is_cpu())
}

/// What the forward of a bf16 run reads, given the f32 buffer, `all`: on a CPU the same with matrices rounded in place of
/// matrices, on a GPU all of it as a bf16 tensor, beside which norms read `all`. `round_again` fills it.
///
/// # Errors
/// If memory is short.
pub(super) fn rounded(layout: &std::sync::Arc<ParamLayout>, all: Tensor) -> Result<Params> {
    if all.device().is_cpu() {
        return Ok(Params::new(layout.clone(), all.zeros_like()?));
    }
    let rounded = Tensor::zeros(layout.total, DType::BF16, all.device())?;
    Ok(Params::of_two(layout.clone(), rounded, all))
}

/// Fills what `rounded` made from the f32 buffer `all`.
///
/// # Errors
/// None on a CPU.
pub(super) fn round_again(rounded: &Params, all: &Tensor) -> Result<()> {
    // A CPU keeps gains and biases as they are.
    let count = if all.device().is_cpu() { rounded.layout.decayed } else { rounded.layout.total };
    optimizer::copy_rounded(&rounded.flat, all, count)
}

/// Waits for what was launched, where kernels run beside the host.
///
/// # Errors
/// That of a kernel.
#[cfg(feature = "cuda")]
pub(super) fn synchronize(device: &Device) -> Result<()> {
    if device.is_cuda() { runner_compute::gpu::Gpu::of(device)?.synchronize() } else { Ok(()) }
}

/// As above.
///
/// # Errors
/// None.
#[cfg(not(feature = "cuda"))]
pub(super) fn synchronize(_: &Device) -> Result<()> {
    Ok(())
}

/// How much memory `device` has, for an error; `None` where there is no driver to ask.
#[cfg(feature = "cuda")]
pub(super) fn room(device: &Device) -> Option<Room> {
    let memory = runner_compute::gpu::memory(device)?;
    let (major, minor) = runner_compute::gpu::Gpu::of(device).ok()?.compute_capability();
    let capability = ComputeCapability { major: major.unsigned_abs(), minor: minor.unsigned_abs() };
    let capability = Some(capability);
    Some(Room { reserved: memory.reserved, free: Some(memory.free), total: memory.total, capability })
}

/// As above.
#[cfg(not(feature = "cuda"))]
pub(super) fn room(_: &Device) -> Option<Room> {
    None
}

/// The same of `program`'s device, which could not be filled: by the context of this thread, or, where that could not even be
/// made, by what the driver knows without one.
#[cfg(feature = "cuda")]
pub(super) fn room_of(program: &Program) -> Option<Room> {
    let program::Device::Cuda(ordinal) = program.device else { return None };
    runner_compute::gpu::opened_here(ordinal).map_or_else(|| closed(ordinal), |device| room(&device))
}

/// Of a device that nobody has opened.
#[cfg(feature = "cuda")]
#[expect(unsafe_code, reason = "FFI")]
fn closed(ordinal: usize) -> Option<Room> {
    use candle_core::cuda_backend::cudarc::driver::result::device;
    let gpu = device::get(i32::try_from(ordinal).ok()?).ok()?;
    // SAFETY: `gpu` is one that the driver has just named.
    let total = unsafe { device::total_mem(gpu) }.ok()? as u64;
    Some(Room { reserved: 0, free: None, total, capability: None })
}

/// As above.
#[cfg(not(feature = "cuda"))]
pub(super) fn room_of(_: &Program) -> Option<Room> {
    None
}

/// Bytes of `device`'s memory in tensors now; the peak is counted anew from here. `None` where nobody counts.
pub(super) fn start_peak(device: &Device) -> Option<u64> {
    if device.is_cpu() {
        return heap::restart_peak();
    }
    #[cfg(feature = "cuda")]
    {
        runner_compute::gpu::reset_peak(device).ok()?;
        runner_compute::gpu::memory(device).map(|memory| memory.used)
    }
    #[cfg(not(feature = "cuda"))]
    None
}

/// The most bytes of tensors since `start_peak`, and of a GPU what its driver says of it.
pub(super) fn peak(device: &Device) -> (Option<u64>, Option<WatchedDevice>) {
    if device.is_cpu() {
        return (heap::peak_bytes(), None);
    }
    #[cfg(feature = "cuda")]
    {
        let Some(memory) = runner_compute::gpu::memory(device) else { return (None, None) };
        let used = memory.total.saturating_sub(memory.free);
        (
            Some(memory.peak),
            Some(WatchedDevice { reserved: memory.reserved, used, total: memory.total, peak: Some(memory.peak) }),
        )
    }
    #[cfg(not(feature = "cuda"))]
    (None, None)
}
