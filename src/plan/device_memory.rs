//! What a GPU holds besides tensors, and what of its memory a plan may use: constants, where only the device could say more.

use crate::plan::facts::{ComputeCapability, DeviceFacts};
use crate::plan::program::{Device, Program};

const MIB: u64 = 1 << 20;

/// Of a GPU's memory the share that plans may fill: the rest is the driver's, fragments, and what the estimate misses.
const USABLE_PERCENT: u64 = 95;

/// What cuBLASLt is given as scratch by each rank: as much as its fastest kernels want on Hopper and after, a little before.
#[must_use]
pub fn matmul_workspace_bytes(capability: Option<ComputeCapability>) -> u64 {
    if is_hopper(capability) { 32 * MIB } else { 4 * MIB }
}

/// What a process costs a device before its first tensor: the driver's context, and the code of kernels and libraries. An
/// estimate, to be corrected where it is measured; it grows with the device's multiprocessors.
#[must_use]
pub fn context_bytes(capability: Option<ComputeCapability>) -> u64 {
    if is_hopper(capability) { 512 * MIB } else { 384 * MIB }
}

/// What NCCL holds for each communicator of a rank, its channels' buffers for the most part: an estimate.
pub const COMMUNICATOR_BYTES: u64 = 128 * MIB;

/// NCCL's communicators of a rank: one over the replicas of its stage, one over the stages of its replica.
#[must_use]
pub fn communicators(program: &Program) -> u64 {
    u64::from(program.mesh.replicas > 1) + u64::from(program.mesh.stages > 1)
}

/// Bytes that a plan may fill; `None` where the device's memory is not known.
#[must_use]
pub fn usable_bytes(device: &DeviceFacts) -> Option<u64> {
    let all = device.memory_bytes?;
    Some(match device.device {
        Device::Cpu => all,
        Device::Cuda(_) => all / 100 * USABLE_PERCENT,
    })
}

fn is_hopper(capability: Option<ComputeCapability>) -> bool {
    capability.is_some_and(|c| c.major >= 9)
}
