//! Out of memory, in the plan's words: where it happened, what was planned, what the device has, and what would fit.

use std::fmt;

use super::error::ExecError;
use runner_comm::CommError;
use runner_compute::kernels::out_of_memory::{is_out_of_memory, place};
use runner_plan::check::{INITIAL_CHANNEL_SLOTS, LiveMicroBatches, execute};
use runner_plan::memory::{MemoryRequest, estimate};
use runner_plan::quantity::bytes;
use runner_plan::{device_memory, suggest_change_for_rank};
use runner_spec::cluster::{ComputeCapability, DeviceFacts, PeakFlops};
use runner_spec::plan::{MemoryCategory, MemoryEstimate};
use runner_spec::program::{Device, Instruction, Program};

/// What the driver says of a device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What this process holds of it for tensors.
    pub reserved: u64,
    /// `None` where the device could not be opened.
    pub free: Option<u64>,
    pub total: u64,
    pub capability: Option<ComputeCapability>,
}

/// A device's memory was not enough.
#[derive(Debug, Clone, PartialEq)]
pub struct Shortage {
    pub rank: usize,
    pub device: Device,
    /// What the rank was doing: `in step 3 at Forward 2, layer 5`.
    pub place: String,
    /// What was being allocated.
    pub category: MemoryCategory,
    pub planned: MemoryEstimate,
    /// `None` where the driver does not say.
    pub room: Option<Room>,
    pub offer: Option<String>,
}

/// `error` as it is to be told: out of memory is a `Shortage`. `instruction` is the one that failed; without one, the rank was
/// starting.
pub(super) fn explained(
    error: ExecError,
    program: &Program,
    at: u64,
    instruction: Option<Instruction>,
    room: impl FnOnce() -> Option<Room>,
) -> ExecError {
    match error {
        ExecError::Kernel(kernel) | ExecError::Peer(CommError::Tensor(kernel)) if is_out_of_memory(&kernel) => {
            ExecError::OutOfMemory(Box::new(Shortage::new(program, at, instruction, place(&kernel), room())))
        }
        ExecError::Peer(CommError::Device { what, .. }) if is_nccls(&what) => {
            let shortage = Shortage::new(program, at, instruction, None, room());
            ExecError::OutOfMemory(Box::new(Shortage { category: MemoryCategory::Communication, ..shortage }))
        }
        other => other,
    }
}

/// Whether NCCL says that it could not allocate: it has no code of its own for that, but the words of the failed call of CUDA.
fn is_nccls(what: &str) -> bool {
    what.contains("NCCL") && what.contains("out of memory")
}

impl Shortage {
    /// Of `program`'s rank in step `at`, counting from 0; `inside` is the part of the model that was computed.
    #[must_use]
    pub fn new(
        program: &Program,
        at: u64,
        instruction: Option<Instruction>,
        inside: Option<String>,
        room: Option<Room>,
    ) -> Self {
        let inside = inside.map_or_else(String::new, |inside| format!(", {inside}"));
        let place = match instruction {
            Some(instruction) => format!("in step {} at {instruction}{inside}", at + 1),
            None => "while starting".to_owned(),
        };
        let hardware = hardware(program, room.as_ref());
        let live = live(program);
        let planned =
            estimate(&MemoryRequest { program, live: &live, slots: INITIAL_CHANNEL_SLOTS, hardware: &hardware });
        // What other processes have of a device that could not be opened is not known.
        let known = room.filter(|room| room.free.is_some());
        let offer = known.and_then(|room| suggest_change_for_rank(program, &hardware, room.for_this_process(&planned)));
        Self {
            rank: program.rank,
            device: program.device,
            place,
            category: category(instruction),
            planned,
            room,
            offer,
        }
    }
}

/// What an instruction allocates.
fn category(instruction: Option<Instruction>) -> MemoryCategory {
    use Instruction as I;
    match instruction {
        None => MemoryCategory::Weights,
        Some(I::Forward { .. }) => MemoryCategory::Activations,
        Some(
            I::SendActivation { .. }
            | I::RecvActivation { .. }
            | I::SendGradient { .. }
            | I::RecvGradient { .. }
            | I::AllReduce { .. }
            | I::WaitBuckets
            | I::ReduceToRoot { .. }
            | I::SumTied
            | I::BroadcastWeights
            | I::CountTokens { .. },
        ) => MemoryCategory::Communication,
        Some(_) => MemoryCategory::Workspace,
    }
}

fn live(program: &Program) -> Vec<LiveMicroBatches> {
    let unknown = |_| vec![LiveMicroBatches { saved: 1, work: 0 }; program.chunks.len()];
    execute(program).map_or_else(unknown, |execution| execution.live)
}

fn hardware(program: &Program, room: Option<&Room>) -> DeviceFacts {
    DeviceFacts {
        device: program.device,
        node: 0,
        name: String::new(),
        threads: 1,
        memory_bytes: room.map(|room| room.total),
        peak_flops: PeakFlops::default(),
        compute_capability: room.and_then(|room| room.capability),
        estimated: false,
    }
}

impl Room {
    /// Of the device's bytes those that other processes hold, as far as it can be told: what is neither free, nor this
    /// process's tensors, nor its context as it was planned.
    fn others(&self, planned: &MemoryEstimate) -> u64 {
        let Some(free) = self.free else { return 0 };
        self.total.saturating_sub(free).saturating_sub(self.reserved).saturating_sub(planned.context)
    }

    /// What a plan may fill beside them.
    fn for_this_process(&self, planned: &MemoryEstimate) -> u64 {
        device_memory::usable(self.total).saturating_sub(self.others(planned))
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, device, place, category, planned, room, offer } = self;
        write!(f, "rank {rank}, {place}: out of memory on {device}, allocating {}; planned ", category.name())?;
        let parts = planned.categories().into_iter().filter(|(_, sum)| *sum > 0);
        let parts: Vec<String> = parts.map(|(of, sum)| format!("{} {}", of.name(), bytes(sum))).collect();
        write!(f, "{} ({})", bytes(planned.total()), parts.join(", "))?;
        if let Some(room) = room {
            write!(f, "; the device has {}", bytes(room.total))?;
            match room.free {
                Some(free) => write!(f, ": {} in this process's tensors, {} free", bytes(room.reserved), bytes(free))?,
                None => f.write_str(", of which not even its context could be had")?,
            }
            let others = room.others(planned);
            if others > 0 {
                write!(f, ", about {} of other processes", bytes(others))?;
            }
        }
        match offer {
            Some(offer) => write!(f, ": {offer}"),
            None => f.write_str(
                ": no batch.micro_batch or train.recompute is known to fit; free the device, or take a smaller model, or more stages",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Error;

    use super::*;
    use runner_plan::compile;
    use runner_plan::testing::{data, experiment};
    use runner_spec::experiment::Recompute;

    #[derive(Debug, thiserror::Error)]
    #[error("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")")]
    struct Driver;

    /// A tiny model with rows of 8 in micro-batches of 8, which is only trained: evaluations would need more.
    fn program() -> Program {
        let mut experiment = experiment();
        experiment.batch.micro_batch = 8;
        (experiment.eval.loss, experiment.eval.hellaswag, experiment.eval.samples) = (None, None, None);
        let cluster = runner_machine::cluster_description::named_cluster("1x1xH100").unwrap();
        compile(&experiment, &data(), &cluster).unwrap().ranks[0].program.clone()
    }

    fn room(total: u64) -> Room {
        let capability = Some(ComputeCapability { major: 9, minor: 0 });
        Room { reserved: 20 << 20, free: Some(1 << 20), total, capability }
    }

    #[test]
    fn it_says_what_was_planned_and_what_suggest_change_for_rank() {
        let program = program();
        let need = Shortage::new(&program, 2, None, None, Some(room(80 << 30))).planned.total();
        // All is this process's but 1 MiB, and a little less than the plan needs may be filled.
        let total = (need - 1) / 95 * 100;
        let room = Room { free: Some(total - (20 << 20) - (512 << 20)), ..room(total) };
        let forward = Some(Instruction::Forward { mb: 0, chunk: 0 });
        let shortage = Shortage::new(&program, 2, forward, Some("layer 1".to_owned()), Some(room));
        assert_eq!((shortage.category, shortage.offer.is_some()), (MemoryCategory::Activations, true));
        insta::assert_snapshot!(shortage.to_string());
        let other = Room { free: Some(0), ..room };
        let crowded = Shortage::new(&program, 2, forward, None, Some(other));
        assert_eq!(crowded.offer, None);
        assert!(crowded.to_string().contains("of other processes"), "{crowded}");
        let closed = Shortage::new(&program, 0, None, None, Some(Room { reserved: 0, free: None, ..room }));
        assert_eq!(closed.offer, None);
        assert!(closed.to_string().contains(", of which not even its context could be had: "), "{closed}");
        // Nothing is left to recompute.
        let block = Program { recompute: Recompute::Block, ..program };
        let offer = Shortage::new(&block, 2, forward, None, Some(room)).offer;
        assert!(offer.is_none_or(|offer| !offer.contains("recompute")));
    }

    #[test]
    fn only_what_is_out_of_memory_is_told_so() {
        let program = program();
        let of = |error: Error| explained(ExecError::Kernel(error), &program, 0, None, || None);
        let text = of(Error::Cuda(Box::new(Driver)).bt()).to_string();
        assert!(
            text.starts_with("rank 0, while starting: out of memory on cuda:0, allocating weights; planned "),
            "{text}"
        );
        assert!(!text.contains("CUDA_ERROR"), "{text}");
        assert!(matches!(of(Error::Msg("other".to_owned())), ExecError::Kernel(_)));
        let nccl = |what: &str| {
            let what = what.to_owned();
            let error = CommError::Device { operation: runner_comm::Kind::AllReduce, rank: 0, what };
            explained(ExecError::Peer(error), &program, 0, None, || None)
        };
        let ExecError::OutOfMemory(shortage) = nccl("NCCL: unhandled cuda error: Cuda failure 2 'out of memory'")
        else {
            panic!("it is out of memory")
        };
        assert_eq!(shortage.category, MemoryCategory::Communication);
        assert!(matches!(nccl("NCCL: unhandled cuda error"), ExecError::Peer(_)));
    }
}
