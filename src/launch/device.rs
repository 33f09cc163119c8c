//! How ranks on a kind of device talk.

use crate::comm::{Communicator, Topology};
use crate::plan::program::{Device, Program};

/// The communicator of the rank of `program` on `device`, given that of its host: between GPUs tensors go through NCCL, where
/// this build has it.
#[cfg(feature = "nccl")]
pub(super) fn on_device(
    host: Box<dyn Communicator>,
    device: Device,
    topology: &Topology,
    program: &Program,
) -> Box<dyn Communicator> {
    match device {
        Device::Cpu => host,
        Device::Cuda(_) => Box::new(crate::comm::nccl::NcclComm::over(host, topology.clone(), summing(program))),
    }
}

/// As above: this build has none.
#[cfg(not(feature = "nccl"))]
pub(super) fn on_device(host: Box<dyn Communicator>, _: Device, _: &Topology, _: &Program) -> Box<dyn Communicator> {
    host
}

/// The groups through which a rank's program sums or broadcasts tensors.
#[cfg(feature = "nccl")]
fn summing(program: &Program) -> Vec<crate::comm::GroupId> {
    use crate::plan::mesh::Group;
    use crate::plan::program::Instruction;
    let (stage, replica) = program.mesh.place(program.rank);
    let group = |instruction: &Instruction| match instruction {
        Instruction::AllReduce { .. } | Instruction::ReduceToRoot { .. } | Instruction::BroadcastWeights => {
            Some(Group::Replicas { stage })
        }
        Instruction::SumTied => Some(Group::Tied { replica }),
        _ => None,
    };
    let periodic = program.periodic.iter().map(|periodic| &periodic.instruction);
    let all = program.start.iter().chain(&program.step).chain(periodic);
    all.filter_map(group).map(|group| crate::comm::GroupId(program.mesh.index(group))).collect()
}
