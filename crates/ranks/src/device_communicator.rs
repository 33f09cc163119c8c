//! The communicator of ranks on a device: between GPUs tensors go through NCCL.

use runner_comm::Communicator;
use runner_spec::error::PlainError;
use runner_spec::program::{Device, ParallelMode, Program};
use runner_spec::topology::Topology;

/// The communicator of the rank of `program`, given that of its host.
///
/// # Errors
/// If there are several ranks on GPUs, and NCCL's library or its support in this build is missing.
pub(super) fn device_communicator(
    host: Box<dyn Communicator>,
    topology: &Topology,
    program: &Program,
) -> Result<Box<dyn Communicator>, PlainError> {
    // A program of mode `single` sums no tensors.
    if program.device == Device::Cpu || program.mesh.mode == ParallelMode::Single {
        return Ok(host);
    }
    #[cfg(feature = "nccl")]
    {
        if topology.world_size > 1 {
            // A call of a library that is missing would end the process.
            runner_machine::doctor::check_nccl()
                .map_err(|why| PlainError::failure(format!("ranks on GPUs communicate through NCCL: {why}")))?;
        }
        Ok(Box::new(runner_comm::nccl::NcclComm::new(host, topology.clone(), summing_groups(program))))
    }
    #[cfg(not(feature = "nccl"))]
    {
        if topology.world_size > 1 {
            let message = "ranks on GPUs communicate through NCCL, but this program was built without it; build it \
                with `--features nccl`";
            return Err(PlainError::request(message));
        }
        Ok(host)
    }
}

/// The groups through which a rank's program sums or broadcasts tensors.
#[cfg(feature = "nccl")]
fn summing_groups(program: &Program) -> Vec<runner_spec::topology::GroupId> {
    use runner_spec::mesh::RankGroup;
    use runner_spec::program::Instruction;
    let (stage, replica) = program.mesh.stage_and_replica(program.rank);
    let group = |instruction: &Instruction| match instruction {
        Instruction::AllReduce { .. }
        | Instruction::ReduceToRoot { .. }
        | Instruction::GatherParameters { .. }
        | Instruction::BroadcastWeights => Some(RankGroup::Replicas { stage }),
        Instruction::SumTied => Some(RankGroup::Tied { replica }),
        _ => None,
    };
    let periodic = program.periodic.iter().map(|periodic| &periodic.instruction);
    let all = program.start.iter().chain(&program.step).chain(periodic);
    all.filter_map(group).map(|group| runner_spec::topology::GroupId(program.mesh.index(group))).collect()
}
