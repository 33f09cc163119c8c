//! Training state that is divided among replicas (Rajbhandari et al. 2020; Zhao et al. 2023): which replica holds what, what a rank holds of
//! it at most, and what that saves and costs.

use std::ops::Range;

use crate::check::ExecutionSummary;
use crate::error::{Result, refuse};
use crate::memory::{MemoryFacts, estimate};
use crate::quantity::bytes;
use runner_spec::cluster::{DeviceFacts, KernelWorkspace};
use runner_spec::format::count;
use runner_spec::model::layout::{ParamLayout, common_range};
use runner_spec::plan::RankPlan;
use runner_spec::precision;
use runner_spec::program::{Device, Instruction, Program, ShardedState};

/// The part of `program`'s flat storage that each of `replicas` updates: whole tensors, so that each is in one part of a checkpoint.
///
/// # Errors
/// If there are fewer tensors than replicas, or a rank is on a GPU.
pub(crate) fn divide_parameters(
    program: &Program,
    replicas: usize,
    hardware: &[DeviceFacts],
) -> Result<Vec<Range<usize>>> {
    if let Some((rank, facts)) = hardware.iter().enumerate().find(|(_, facts)| facts.device != Device::Cpu) {
        refuse!(
            "parallel.shard",
            "state can be sharded on CPUs only, but rank {rank} is on {}; set device: cpu, or delete the key",
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

/// The most elements that a rank with sharded gradients holds at a time in a step, of what comes and goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldElements {
    /// Elements of weights that are not there although passes read them in the step.
    pub released: usize,
    pub gradients: usize,
}

impl HeldElements {
    /// Those of the rank of `program`, by its buckets, and not by its instructions; `None` if it holds all of both.
    pub(crate) fn new(program: &Program) -> Option<Self> {
        let shard = program.shard().filter(|_| program.divides(ShardedState::Gradients))?;
        let layout = program.parameter_layout();
        let released = if program.divides(ShardedState::Parameters) {
            layout.decayed - gathered_at_most(program, &layout)
        } else {
            0
        };
        Some(Self { released, gradients: gradients_at_most(program, &layout, &shard) })
    }
}

/// Elements of the matrices that a pass and the next one read.
fn gathered_at_most(program: &Program, layout: &ParamLayout) -> usize {
    let matrices = |bucket: usize| -> usize {
        let ranges = layout.block_ranges(program.buckets[bucket].range());
        ranges.iter().filter_map(|range| common_range(range, &(0..layout.decayed))).map(|range| range.len()).sum()
    };
    let backward = 0..program.buckets.len();
    let passes: Vec<Vec<usize>> = backward
        .clone()
        .rev()
        .chain(backward)
        .map(|bucket| program.buckets_read_by(program.buckets[bucket]).collect())
        .collect();
    let of_pair = |pair: &[Vec<usize>]| -> usize {
        let mut read = pair.concat();
        read.sort_unstable();
        read.dedup();
        read.into_iter().map(matrices).sum()
    };
    passes.windows(2).map(of_pair).max().unwrap_or(0)
}

/// Elements of gradients in the backward of the last micro-batch. Those of a bucket are there from the first backward that adds to them,
/// which for a tied embedding is the head's, until the next bucket's sum begins; the sums of the rank's shard stay.
fn gradients_at_most(program: &Program, layout: &ParamLayout, shard: &Range<usize>) -> usize {
    let ranges = |bucket: usize| layout.block_ranges(program.buckets[bucket].range());
    let elements = |bucket: usize| ranges(bucket).iter().map(ExactSizeIterator::len).sum::<usize>();
    let own = |bucket: usize| {
        ranges(bucket).iter().filter_map(|range| common_range(range, shard)).map(|range| range.len()).sum::<usize>()
    };
    let buckets = program.buckets.len();
    let mut is_held = vec![program.batch.micro_batches() > 1; buckets];
    let (mut sums, mut most) = (0, 0);
    for bucket in 0..buckets {
        program.buckets_read_by(program.buckets[bucket]).for_each(|touched| is_held[touched] = true);
        let held = |is_held: &[bool]| (0..buckets).filter(|b| is_held[*b]).map(elements).sum::<usize>();
        most = most.max(held(&is_held) + sums);
        // The sum of the bucket before ends here, and that of the last bucket after it.
        for ended in bucket.checked_sub(1).into_iter().chain((bucket + 1 == buckets).then_some(bucket)) {
            sums += own(ended);
            most = most.max(held(&is_held) + sums);
            is_held[ended] = false;
        }
    }
    most
}

/// What sharded state saves and costs; `None` without it.
pub(crate) fn describe_shards(
    ranks: &[RankPlan],
    executions: &[ExecutionSummary],
    slots: usize,
    kernels: KernelWorkspace,
) -> Option<String> {
    let (rank, execution) = ranks.iter().zip(executions).max_by_key(|(rank, _)| rank.memory.total())?;
    let program = &rank.program;
    let largest = program.shard()?;
    // Of replicas that hold all, one alone copies what it saves: copies are not compared.
    let sharded = ShardedState::default();
    let whole = Program { shards: Vec::new(), sharded, copies_saved_state: false, ..program.clone() };
    let facts = MemoryFacts { hardware: &rank.hardware, kernels, slots };
    let needed = rank.memory.total() - rank.memory.checkpoint;
    let saved = estimate(&whole, &execution.live, facts).total().saturating_sub(needed);
    let held = match program.sharded {
        ShardedState::Optimizer => "the optimizer's state",
        ShardedState::Gradients => "the optimizer's state and of summed gradients",
        ShardedState::Parameters => "weights, the optimizer's state and of summed gradients",
    };
    let instead = if program.divides(ShardedState::Gradients) {
        format!(" instead of {}", bytes(summed_bytes(&whole, &largest)))
    } else {
        String::new()
    };
    let mut note = format!(
        "parallel.shard: a rank holds {held} of at most {} of {} parameters, which saves {} on rank {}; each step it receives {} of \
         weights, and {} of gradients{instead}",
        count(largest.len() as u64),
        count(rank.params.total),
        bytes(saved),
        rank.rank,
        bytes(gathered_bytes(program)),
        bytes(summed_bytes(program, &largest)),
    );
    if program.divides(ShardedState::Gradients) && program.batch.micro_batches() > 1 {
        note.push_str(
            "; gradients are whole until the last micro-batch adds to them, so that their sums are those of ddp: with one micro-batch a \
             step (a larger batch.micro_batch, with train.recompute) they would be held by buckets, too",
        );
    }
    Some(note)
}

/// Bytes of weights that the rank of `program` receives in a step.
fn gathered_bytes(program: &Program) -> u64 {
    let (layout, Some(shard)) = (program.parameter_layout(), program.shard()) else { return 0 };
    let received = |bucket: usize| -> usize {
        let ranges = layout.block_ranges(program.buckets[bucket].range());
        ranges.iter().map(|range| range.len() - common_range(range, &shard).map_or(0, |own| own.len())).sum()
    };
    let gathers = program.step.iter().filter_map(|instruction| match instruction {
        Instruction::GatherParameters { bucket } => Some(received(*bucket) as u64),
        _ => None,
    });
    gathers.sum::<u64>().saturating_mul(gathered_element(program))
}

/// Bytes of gradients that the rank of `program` receives in a step: those of its shard from every other replica, and without sharded
/// gradients the other sums, too.
fn summed_bytes(program: &Program, shard: &Range<usize>) -> u64 {
    let others = program.mesh.replicas as u64 - 1;
    let total = program.parameter_layout().total as u64;
    let elements = if program.divides(ShardedState::Gradients) {
        others * shard.len() as u64
    } else {
        2 * total * others / program.mesh.replicas as u64
    };
    elements.saturating_mul(precision::state_bytes(program.master_weights))
}

/// Bytes of an element of the weights that replicas send each other.
pub(crate) fn gathered_element(program: &Program) -> u64 {
    if precision::has_rounded_copy(program.precision, program.master_weights) {
        precision::ROUNDED_COPY_BYTES
    } else {
        precision::state_bytes(program.master_weights)
    }
}
