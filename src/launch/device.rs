//! How ranks on a kind of device talk.

use crate::comm::{Communicator, Topology};
use crate::plan::program::Device;

/// The communicator of a rank on `device`, given that of its host: between GPUs tensors go through NCCL, where this build has it.
#[cfg(feature = "nccl")]
pub(super) fn on_device(host: Box<dyn Communicator>, device: Device, topology: &Topology) -> Box<dyn Communicator> {
    match device {
        Device::Cpu => host,
        Device::Cuda(_) => Box::new(crate::comm::nccl::NcclComm::over(host, topology.clone())),
    }
}

/// As above: this build has none.
#[cfg(not(feature = "nccl"))]
pub(super) fn on_device(host: Box<dyn Communicator>, _: Device, _: &Topology) -> Box<dyn Communicator> {
    host
}
