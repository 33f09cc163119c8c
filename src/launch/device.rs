//! How ranks on a kind of device talk.

use crate::comm::{Communicator, Topology};
use crate::plan::program::Device;

/// The communicator of a rank on `device`, given that of its host: between GPUs tensors go through NCCL.
///
/// # Errors
/// If there are several ranks on GPUs, and NCCL's library is missing.
#[cfg(feature = "nccl")]
pub(super) fn on_device(
    host: Box<dyn Communicator>,
    device: Device,
    topology: &Topology,
) -> Result<Box<dyn Communicator>, String> {
    if device == Device::Cpu {
        return Ok(host);
    }
    if topology.world_size > 1 {
        // A function of a library that is not there would end the process.
        crate::doctor::usable_nccl().map_err(|why| format!("ranks on GPUs talk through NCCL: {why}"))?;
    }
    Ok(Box::new(crate::comm::nccl::NcclComm::over(host, topology.clone())))
}

/// As above: this build has no NCCL.
///
/// # Errors
/// If there are several ranks on GPUs.
#[cfg(not(feature = "nccl"))]
pub(super) fn on_device(
    host: Box<dyn Communicator>,
    device: Device,
    topology: &Topology,
) -> Result<Box<dyn Communicator>, String> {
    if device != Device::Cpu && topology.world_size > 1 {
        let what =
            "ranks on GPUs talk through NCCL, and this program was built without it: build it with `--features nccl`";
        return Err(what.to_owned());
    }
    Ok(host)
}
