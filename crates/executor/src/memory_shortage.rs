//! Explains an out-of-memory error with the plan: where it happened, what was planned, what the device has, and what would fit.

use std::fmt;

use runner_plan::check::{INITIAL_CHANNEL_SLOTS, LiveMicroBatches, execute};
use runner_plan::memory::device;
use runner_plan::memory::{MemoryBasis, estimate};
use runner_plan::quantity::bytes;
use runner_plan::suggest_change_for_rank;
use runner_spec::cluster::{ComputeCapability, DeviceFacts};
use runner_spec::plan::MemoryEstimate;
use runner_spec::program::{Device, Instruction, Program};

/// The memory of a device in bytes, as its driver reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriverMemory {
    /// Held by this process for tensors.
    pub reserved: u64,
    /// `None` where the device could not be opened.
    pub free: Option<u64>,
    pub total: u64,
    pub capability: Option<ComputeCapability>,
}

/// A device had too little memory for what a rank was allocating.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryShortage {
    pub rank: usize,
    pub device: Device,
    /// The place that the rank had reached: `in step 3 at Forward 2, layer 5`.
    pub place: String,
    pub planned: MemoryEstimate,
    /// `None` where the driver does not report it.
    pub memory: Option<DriverMemory>,
    /// Bytes that are planned for what this process holds besides tensors: until it starts without NCCL's buffers.
    pub beside_tensors: u64,
    /// A smaller setting that would fit, in words.
    pub suggestion: Option<String>,
}

impl MemoryShortage {
    /// A shortage of `program`'s rank in step `step`, counting from 0. `inside` is the part of the model that was computed.
    pub fn new(
        program: &Program,
        step: u64,
        instruction: Option<Instruction>,
        inside: Option<String>,
        memory: Option<DriverMemory>,
    ) -> Self {
        let inside = inside.map_or_else(String::new, |inside| format!(", {inside}"));
        let place = match instruction {
            Some(instruction) => format!("in step {} at {instruction}{inside}", step + 1),
            None => "while starting".to_owned(),
        };
        let (hardware, basis) = (device_facts(program, memory.as_ref()), basis());
        let planned = estimate(program, &live_activations(program), &hardware, basis);
        // On a device that could not be opened, what other processes hold is unknown.
        let known = memory.filter(|memory| memory.free.is_some());
        let beside_tensors = match instruction {
            Some(_) => planned.context,
            None => device::context_bytes(hardware.compute_capability),
        };
        let suggestion = known.and_then(|memory| {
            suggest_change_for_rank(program, &hardware, basis, memory.usable_by_this_process(beside_tensors))
        });
        Self { rank: program.rank, device: program.device, place, planned, memory, beside_tensors, suggestion }
    }
}

/// Of a GPU: the processes on the host do not count.
fn basis() -> MemoryBasis {
    let kernels = runner_compute::kernel_workspace();
    MemoryBasis { kernels, slots: INITIAL_CHANNEL_SLOTS, is_launched: false }
}

/// The bytes that are planned for the tensors of `program`'s rank on a GPU of this memory, with the fewest slots of channels.
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only GPUs reserve their memory"))]
pub(super) fn planned_tensors(program: &Program, memory: Option<&DriverMemory>) -> u64 {
    estimate(program, &live_activations(program), &device_facts(program, memory), basis()).tensors()
}

/// The activations that the program keeps at once; one of each chunk where the program cannot be executed.
fn live_activations(program: &Program) -> Vec<LiveMicroBatches> {
    let unknown = |_| vec![LiveMicroBatches { saved: 1, work: 0 }; program.chunks.len()];
    execute(program).map_or_else(unknown, |execution| execution.live)
}

fn device_facts(program: &Program, memory: Option<&DriverMemory>) -> DeviceFacts {
    DeviceFacts {
        memory_bytes: memory.map(|memory| memory.total),
        compute_capability: memory.and_then(|memory| memory.capability),
        ..DeviceFacts::unmeasured(program.device, String::new(), 1)
    }
}

impl DriverMemory {
    /// An estimate of the bytes that other processes hold: what is neither free, nor held by this process for tensors, nor `beside_tensors`.
    fn held_by_others(&self, beside_tensors: u64) -> u64 {
        let Some(free) = self.free else { return 0 };
        self.total.saturating_sub(free).saturating_sub(self.reserved).saturating_sub(beside_tensors)
    }

    /// The bytes that a plan may fill beside other processes.
    fn usable_by_this_process(&self, beside_tensors: u64) -> u64 {
        device::usable(self.total).saturating_sub(self.held_by_others(beside_tensors))
    }
}

impl fmt::Display for MemoryShortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, device, place, planned, memory, beside_tensors, suggestion } = self;
        write!(f, "rank {rank}, {place}: out of memory on {device}; planned ")?;
        let parts = planned.categories().into_iter().filter(|(_, sum)| *sum > 0);
        let parts: Vec<String> = parts.map(|(category, sum)| format!("{} {}", category.name(), bytes(sum))).collect();
        write!(f, "{} ({})", bytes(planned.total()), parts.join(", "))?;
        if let Some(memory) = memory {
            write!(f, "; the device has {}", bytes(memory.total))?;
            match memory.free {
                Some(free) => {
                    write!(f, ": {} held by this process for tensors, {} free", bytes(memory.reserved), bytes(free))?;
                }
                None => f.write_str(", but even its context could not be created")?,
            }
            let others = memory.held_by_others(*beside_tensors);
            if others > 0 {
                write!(f, ", about {} held by other processes", bytes(others))?;
            }
        }
        match suggestion {
            Some(suggestion) => write!(f, ": {suggestion}"),
            None => f.write_str(
                ": no batch.micro_batch or train.recompute is known to fit; free the device, or choose a smaller model or more stages",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Error;

    use super::*;
    use crate::error::{ExecError, explain_out_of_memory};
    use runner_comm::CommError;
    use runner_plan::compile;
    use runner_plan::testing::{data, experiment};
    use runner_spec::experiment::{Experiment, Parallel, ParallelMode, Recompute, ShardedState};

    #[derive(Debug, thiserror::Error)]
    #[error("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")]
    struct Driver;

    /// A tiny model with rows of 8 in micro-batches of 8, which is only trained: evaluations would need more.
    fn program() -> Program {
        programs(Parallel::single()).remove(0)
    }

    fn programs(parallel: Parallel) -> Vec<Program> {
        let mut experiment = Experiment { parallel, ..experiment() };
        experiment.batch.micro_batch = 8;
        (experiment.eval.loss, experiment.eval.hellaswag, experiment.eval.samples) = (None, None, None);
        let cluster = runner_machine::cluster_description::named_cluster("1x2xH100").unwrap();
        compile(&experiment, &data(), &cluster).unwrap().ranks.into_iter().map(|rank| rank.program).collect()
    }

    fn memory(total: u64) -> DriverMemory {
        let capability = Some(ComputeCapability { major: 9, minor: 0 });
        DriverMemory { reserved: 20 << 20, free: Some(1 << 20), total, capability }
    }

    #[test]
    fn the_message_has_the_planned_memory_and_what_would_fit() {
        let program = program();
        let need = MemoryShortage::new(&program, 2, None, None, Some(memory(80 << 30))).planned.total();
        // All is this process's but 1 MiB, and a little less than the plan needs may be filled.
        let total = (need - 1) / 95 * 100;
        let memory = DriverMemory { free: Some(total - (20 << 20) - (512 << 20)), ..memory(total) };
        let forward = Some(Instruction::Forward { mb: 0, chunk: 0, blocks: None });
        let shortage = MemoryShortage::new(&program, 2, forward, Some("layer 1".to_owned()), Some(memory));
        assert!(shortage.suggestion.is_some());
        insta::assert_snapshot!(shortage.to_string());
        let other = DriverMemory { free: Some(0), ..memory };
        let crowded = MemoryShortage::new(&program, 2, forward, None, Some(other));
        assert_eq!(crowded.suggestion, None);
        assert!(crowded.to_string().contains("held by other processes"), "{crowded}");
        let closed =
            MemoryShortage::new(&program, 0, None, None, Some(DriverMemory { reserved: 0, free: None, ..memory }));
        assert_eq!(closed.suggestion, None);
        assert!(closed.to_string().contains(", but even its context could not be created: "), "{closed}");
        // Nothing is left to recompute.
        let block = Program { recompute: Recompute::Block, ..program };
        let suggestion = MemoryShortage::new(&block, 2, forward, None, Some(memory)).suggestion;
        assert!(suggestion.is_none_or(|text| !text.contains("recompute")));
    }

    #[test]
    fn replicas_on_gpus_can_divide_what_does_not_fit() {
        let ddp = |shard| programs(Parallel { mode: ParallelMode::Ddp, replicas: 2, shard, ..Parallel::single() });
        let (whole, wait) = (ddp(None).remove(0), Some(Instruction::WaitBuckets));
        let shortage = |program: &Program, memory| MemoryShortage::new(program, 2, wait, None, Some(memory));
        let need = |program| shortage(program, memory(80 << 30)).planned.total();
        // All but the context is this process's, and a little less than the plan needs may be filled.
        let total = (need(&whole) - 1) / 95 * 100;
        let memory = DriverMemory { free: Some(total - (20 << 20) - (512 << 20)), ..memory(total) };
        let suggestion = shortage(&whole, memory).suggestion.unwrap();
        let sharded = ddp(Some(ShardedState::Optimizer));
        let need = sharded.iter().map(need).max().unwrap();
        let expected = format!(", and so would parallel.shard: optimizer (at most {} a rank)", bytes(need));
        assert!(suggestion.ends_with(&expected), "{suggestion}, not {expected}");
    }

    #[test]
    fn only_out_of_memory_errors_are_explained() {
        let program = program();
        let explain = |error: Error| explain_out_of_memory(ExecError::Kernel(error), &program, 0, None, || None);
        let text = explain(Error::Cuda(Box::new(Driver)).bt()).to_string();
        assert!(text.starts_with("rank 0, while starting: out of memory on cuda:0; planned "), "{text}");
        assert!(!text.contains("CUDA_ERROR"), "{text}");
        assert!(matches!(explain(Error::Msg("other".to_owned())), ExecError::Kernel(_)));
        let nccl = |what: &str| {
            let what = what.to_owned();
            let error = CommError::Device { operation: runner_comm::OperationKind::AllReduce, rank: 0, what };
            explain_out_of_memory(ExecError::Peer(error), &program, 0, None, || None)
        };
        let short = nccl("NCCL: unhandled cuda error: Cuda failure 2 'out of memory'");
        assert!(matches!(short, ExecError::OutOfMemory(_)), "{short}");
        assert!(matches!(nccl("NCCL: unhandled cuda error"), ExecError::Peer(_)));
    }
}
