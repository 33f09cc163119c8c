//! Training state that is divided among replicas (Rajbhandari et al. 2020; Zhao et al. 2023): which replica holds what, and what a
//! rank holds of it at most.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::error::{Result, refuse};
use runner_spec::cluster::DeviceFacts;
use runner_spec::model::ParamSpec;
use runner_spec::model::layout::{ParamLayout, common_range};
use runner_spec::precision;
use runner_spec::program::{Device, Program, ShardedState};

/// What tensors are of which there are fewer than replicas.
pub(crate) const INDIVISIBLE: &str = "cannot be divided among";

/// The part of `program`'s flat storage that each of `replicas` updates: whole tensors, so that each is in one part of a checkpoint.
///
/// # Errors
/// If there are fewer tensors than replicas, or some ranks are on CPUs and some on GPUs.
pub(crate) fn divide_parameters(
    program: &Program,
    replicas: usize,
    hardware: &[DeviceFacts],
) -> Result<Vec<Range<usize>>> {
    let find = |is_cpu| hardware.iter().position(|facts| (facts.device == Device::Cpu) == is_cpu);
    if let (Some(cpu), Some(gpu)) = (find(true), find(false)) {
        refuse!(
            "parallel.shard",
            "ranks that divide state must all be on CPUs, or all on GPUs, but rank {cpu} is on cpu, and rank {gpu} on {}; list devices of \
             one kind in parallel.devices, or delete the key",
            hardware[gpu].device
        );
    }
    let layout = program.parameter_layout();
    let cost = |spec: &ParamSpec| program.optimizer.update_cost(spec, program.model.layers);
    let Some(shards) = layout.divide(replicas, cost) else {
        refuse!(
            "parallel.shard",
            "{} tensors {INDIVISIBLE} {replicas} replicas; use fewer replicas, or delete the key",
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
            layout.matrices - gathered_at_most(program, &layout)
        } else {
            0
        };
        Some(Self { released, gradients: gradients_at_most(program, &layout, &shard) })
    }
}

/// Buffers by length: those in use, and those that exist. A buffer that is given up serves the next piece of its length.
#[derive(Debug, Default)]
struct BufferPool(BTreeMap<usize, (usize, usize)>);

impl BufferPool {
    fn hold(&mut self, lengths: &[usize]) {
        for length in lengths {
            let (used, exist) = self.0.entry(*length).or_default();
            *used += 1;
            *exist = (*exist).max(*used);
        }
    }

    /// Gives up buffers of `lengths`, which then exist no more if they are to be freed.
    fn give_up(&mut self, lengths: &[usize], free: bool) {
        for length in lengths {
            let (used, exist) = self.0.entry(*length).or_default();
            *used -= 1;
            *exist -= usize::from(free);
        }
    }

    fn elements(&self) -> usize {
        self.0.iter().map(|(length, (_, exist))| length * exist).sum()
    }
}

/// The lengths of the pieces of `bucket` among `elements`.
fn piece_lengths(program: &Program, layout: &ParamLayout, bucket: usize, elements: &Range<usize>) -> Vec<usize> {
    let ranges = layout.block_ranges(program.buckets[bucket].range());
    ranges.iter().filter_map(|range| common_range(range, elements)).map(|range| range.len()).collect()
}

/// Elements of the buffers for the matrices that each pass and the next one read.
fn gathered_at_most(program: &Program, layout: &ParamLayout) -> usize {
    let backward = 0..program.buckets.len();
    let read_by = |bucket: usize| program.buckets_read_by(program.buckets[bucket]).collect::<Vec<_>>();
    // A step of several micro-batches repeats it.
    let passes: Vec<Vec<usize>> =
        (0..2).flat_map(|_| backward.clone().rev().chain(backward.clone())).map(read_by).collect();
    let (mut buffers, mut held) = (BufferPool::default(), Vec::new());
    for (index, now) in passes.iter().enumerate() {
        let next = passes.get(index + 1).map_or(&[][..], Vec::as_slice);
        for bucket in now.iter().chain(next) {
            if !held.contains(bucket) {
                buffers.hold(&piece_lengths(program, layout, *bucket, &(0..layout.matrices)));
                held.push(*bucket);
            }
        }
        for bucket in now.iter().filter(|bucket| !next.contains(bucket)) {
            buffers.give_up(&piece_lengths(program, layout, *bucket, &(0..layout.matrices)), false);
            held.retain(|other| other != bucket);
        }
    }
    buffers.elements()
}

/// Elements of gradients in the backward of the last micro-batch. Those of a bucket are there from the first backward that adds to them,
/// which for a tied embedding is the head's, until the next bucket's sum begins; the sums of the rank's shard stay.
fn gradients_at_most(program: &Program, layout: &ParamLayout, shard: &Range<usize>) -> usize {
    let lengths = |bucket: usize| piece_lengths(program, layout, bucket, &(0..layout.total));
    let (buckets, accumulates) = (program.buckets.len(), program.batch.micro_batches() > 1);
    let (mut buffers, mut held) = (BufferPool::default(), vec![false; buckets]);
    let mut hold = |bucket: usize, buffers: &mut BufferPool| {
        if !std::mem::replace(&mut held[bucket], true) {
            buffers.hold(&lengths(bucket));
        }
    };
    if accumulates {
        (0..buckets).for_each(|bucket| hold(bucket, &mut buffers));
    }
    let (mut sums, mut most) = (0, 0);
    for bucket in 0..buckets {
        program.buckets_read_by(program.buckets[bucket]).for_each(|read| hold(read, &mut buffers));
        most = most.max(buffers.elements() + sums);
        // The sum of the bucket before ends here, and that of the last bucket after it.
        for ended in bucket.checked_sub(1).into_iter().chain((bucket + 1 == buckets).then_some(bucket)) {
            sums = shard.len();
            most = most.max(buffers.elements() + sums);
            buffers.give_up(&lengths(ended), accumulates);
        }
    }
    most
}

/// Bytes of an element of the weights that replicas send each other.
pub(crate) fn gathered_element_bytes(program: &Program) -> u64 {
    if precision::has_rounded_copy(program.precision, program.master_weights) {
        precision::ROUNDED_COPY_BYTES
    } else {
        precision::state_bytes(program.master_weights)
    }
}
