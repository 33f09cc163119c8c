//! The optimizer's state, divided among replicas (ZeRO-1, Rajbhandari et al. 2020).

use std::ops::Range;

use crate::check::ExecutionSummary;
use crate::error::{Result, refuse};
use crate::memory::{MemoryFacts, estimate};
use crate::quantity::bytes;
use runner_spec::cluster::{DeviceFacts, KernelWorkspace};
use runner_spec::format::count;
use runner_spec::plan::RankPlan;
use runner_spec::precision;
use runner_spec::program::{Device, Program};

/// The part of `program`'s flat storage that each of `replicas` updates: whole tensors, so that each is in one part of a checkpoint.
///
/// # Errors
/// If there are fewer tensors than replicas, or a rank is on a GPU.
pub(crate) fn optimizer_shards(
    program: &Program,
    replicas: usize,
    hardware: &[DeviceFacts],
) -> Result<Vec<Range<usize>>> {
    if let Some((rank, facts)) = hardware.iter().enumerate().find(|(_, facts)| facts.device != Device::Cpu) {
        refuse!(
            "parallel.shard",
            "the optimizer can be sharded on CPUs only, but rank {rank} is on {}; set device: cpu, or delete the key",
            facts.device
        );
    }
    let layout = program.parameter_layout();
    let Some(shards) = layout.divide(replicas) else {
        refuse!(
            "parallel.shard",
            "{} tensors cannot be divided among {replicas} replicas; use fewer replicas, or delete the key",
            layout.entries.len()
        );
    };
    Ok(shards)
}

/// What a sharded optimizer saves and costs; `None` without one.
pub(crate) fn describe_shards(
    ranks: &[RankPlan],
    executions: &[ExecutionSummary],
    slots: usize,
    kernels: KernelWorkspace,
) -> Option<String> {
    let (rank, execution) = ranks.iter().zip(executions).max_by_key(|(rank, _)| rank.memory.total())?;
    let program = &rank.program;
    let largest = program.shard()?;
    let whole = Program { shards: Vec::new(), ..program.clone() };
    let facts = MemoryFacts { hardware: &rank.hardware, kernels, slots };
    let saved = estimate(&whole, &execution.live, facts).total().saturating_sub(rank.memory.total());
    let received = (rank.params.total - largest.len() as u64) * gathered_element(program);
    Some(format!(
        "parallel.shard: a rank holds the optimizer's state of at most {} of {} parameters, which saves {} on rank {}; each step it \
         receives {} of weights that other ranks updated",
        count(largest.len() as u64),
        count(rank.params.total),
        bytes(saved),
        rank.rank,
        bytes(received)
    ))
}

/// Bytes of an element of the weights that replicas send each other.
pub(crate) fn gathered_element(program: &Program) -> u64 {
    if precision::has_rounded_copy(program.precision, program.master_weights) {
        precision::ROUNDED_COPY_BYTES
    } else {
        precision::state_bytes(program.master_weights)
    }
}
