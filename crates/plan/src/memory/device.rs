//! Memory of a GPU that is not for tensors, and the fraction that a plan may use: constants, because a plan does not ask the device.

use runner_spec::cluster::{ComputeCapability, DeviceFacts};
use runner_spec::program::{Device, Program};
use runner_spec::topology::{CHANNEL_BLOCKS, GROUP_BLOCKS};

const MIB: u64 = 1 << 20;

/// The share of a GPU's memory that plans may fill. The rest is for the driver, fragments, and errors of the estimate.
const USABLE_PERCENT: u64 = 95;

/// Bytes that a process takes of a device before its first tensor: the driver's context, and the code of kernels and libraries. This is
/// an estimate, to be corrected where it is measured: the true number also grows with the device's multiprocessors.
pub fn context_bytes(capability: Option<ComputeCapability>) -> u64 {
    if is_hopper_or_newer(capability) { 512 * MIB } else { 384 * MIB }
}

/// Bytes of NCCL's buffers for one block of a connection, at the receiver and at the sender: an estimate, from the sources of NCCL 2.30
/// (`transport/p2p.cc`) for GPUs of one node.
const CONNECTION_BYTES: u64 = (10 + 2) * MIB;

/// Bytes of the communicator of a group: a ring, and a tree, through which numbers go up and down.
pub const GROUP_COMMUNICATOR_BYTES: u64 = 3 * CONNECTION_BYTES * GROUP_BLOCKS as u64;

/// Bytes of two communicators: of a channel to another rank, and of one from another rank.
pub const CHANNEL_COMMUNICATORS_BYTES: u64 = CONNECTION_BYTES * CHANNEL_BLOCKS as u64;

/// The NCCL communicators of a rank: the number of groups that sum its tensors (the replicas of its stage, the two ends of a tied embedding),
/// and of pairs of channels. The stages form a ring: a stage sends activations to one neighbour and gradients to the other, and receives
/// as much.
pub fn communicators(program: &Program) -> (u64, u64) {
    let groups = u64::from(program.mesh.replicas > 1) + u64::from(program.shares_tied());
    (groups, if program.mesh.stages > 1 { 2 } else { 0 })
}

/// Bytes that a plan may fill; `None` if the device's memory is unknown.
pub fn usable_bytes(device: &DeviceFacts) -> Option<u64> {
    let all = device.memory_bytes?;
    Some(match device.device {
        Device::Cpu => all,
        Device::Cuda(_) => usable(all),
    })
}

/// The part of a GPU's `all` bytes that a plan may fill.
pub fn usable(all: u64) -> u64 {
    all / 100 * USABLE_PERCENT
}

pub(crate) fn is_hopper_or_newer(capability: Option<ComputeCapability>) -> bool {
    capability.is_some_and(|c| c.major >= 9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile;
    use crate::ranks::topology::topology;
    use crate::testing::{data, experiment};
    use runner_spec::experiment::{AutoOr, Parallel, ParallelMode, Pipeline, PipelineSchedule};
    use runner_spec::mesh::RankGroup;

    /// Beside the groups and channels that ranks are connected by.
    #[test]
    fn communicators_are_those_of_the_topology() {
        let pipeline = |stages| Pipeline {
            stages,
            partition: AutoOr::Auto,
            schedule: PipelineSchedule::OneFOneB,
            chunks: 1,
            microbatches: 1,
        };
        for (stages, replicas, expected) in
            [(1, 1, [(0, 0), (0, 0)]), (1, 2, [(1, 0), (1, 0)]), (2, 1, [(1, 2), (1, 2)]), (3, 2, [(2, 2), (1, 2)])]
        {
            let mut experiment = experiment();
            experiment.model.tie_embeddings = true;
            experiment.parallel = match (stages, replicas) {
                (1, 1) => Parallel::single(),
                (1, _) => Parallel { mode: ParallelMode::Ddp, replicas, ..Parallel::single() },
                _ => Parallel {
                    mode: ParallelMode::Pipeline,
                    replicas,
                    pipeline: Some(pipeline(stages)),
                    ..Parallel::single()
                },
            };
            let plan =
                compile(&experiment, &data(), &runner_machine::cluster_description::named_cluster("1x8xH100").unwrap())
                    .unwrap();
            for rank in &plan.ranks {
                let (program, mesh) = (&rank.program, plan.mesh);
                let topology = topology(program, plan.channel_slots, 4);
                let channels = topology.channels.iter().filter(|c| c.from == program.rank || c.to == program.rank);
                let used = |group: &RankGroup| match *group {
                    RankGroup::World => false,
                    RankGroup::Replicas { .. } | RankGroup::Tied { .. } => {
                        mesh.size(*group) > 1 && mesh.members(*group).contains(&program.rank)
                    }
                };
                let groups = mesh.groups().iter().filter(|group| used(group)).count();
                let pairs = channels.count() / 2;
                assert_eq!(communicators(program), (groups as u64, pairs as u64), "{stages} x {replicas}");
            }
            // A rank at an end, and one in the middle.
            let middle = &plan.ranks[plan.ranks.len() / 2].program;
            assert_eq!([&plan.ranks[0].program, middle].map(communicators), expected, "{stages} x {replicas}");
        }
    }
}
