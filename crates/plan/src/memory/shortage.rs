//! Finds out whether the ranks fit into the memory of their devices, and suggests a change that would.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::check::{LiveMicroBatches, execute};
use crate::memory::device::usable_bytes;
use crate::memory::{MemoryBasis, estimate};
use crate::quantity::bytes;
use crate::ranks::RankLayout;
use crate::ranks::shard::divide_parameters;
use runner_spec::cluster::DeviceFacts;
use runner_spec::experiment::ParallelMode;
use runner_spec::experiment::{PipelineSchedule, Recompute};
use runner_spec::format::choice_name;
use runner_spec::mesh::Mesh;
use runner_spec::plan::{MemoryCategory, RankPlan};
use runner_spec::program::{CostClass, Device, Program, ShardedState};

/// The most micro-batch sizes that are tried, so that the search in an absurd batch ends soon.
const MAX_MICRO_BATCHES_TRIED: usize = 4096;

/// Describes the device whose ranks need the most beyond its memory, with a change that would fit. `None` if all ranks fit. The
/// estimate is a few percent off.
pub(crate) fn describe_shortage(layout: &RankLayout, ranks: &[RankPlan], basis: MemoryBasis) -> Option<String> {
    let needs: Vec<u64> = ranks.iter().map(|r| r.memory.total()).collect();
    let (largest, over) = worst_rank(ranks, &needs)?;
    let rank = &ranks[largest];
    let subject = match (layout.mesh.stages, layout.mesh.replicas) {
        (1, 1) => "the run".to_owned(),
        (1, _) => format!("rank {}", rank.rank),
        _ => format!("stage {}", rank.stage),
    };
    let on_device: Vec<u64> =
        needs.iter().zip(ranks).filter(|(_, other)| same_device(other, rank)).map(|(need, _)| *need).collect();
    let shared = if on_device.len() > 1 { format!(", which {} ranks share", on_device.len()) } else { String::new() };
    let needed = on_device.into_iter().fold(0, u64::saturating_add);
    let available = rank.hardware.memory_bytes?;
    let usable = usable_bytes(&rank.hardware).filter(|usable| *usable < available);
    let usable = usable.map_or_else(String::new, |usable| format!(" ({} usable)", bytes(usable)));
    Some(format!(
        "memory: {subject} needs about {} on {}{shared}, {} more than fits into {}{usable}{}; {}",
        bytes(needed),
        rank.device,
        bytes(over),
        bytes(available),
        rank.hardware.memory_limit_note(),
        suggest_change(layout, ranks, basis)
    ))
}

/// Plans no copies of saved states where the memory is too small for them. Returns the note about it.
pub(crate) fn drop_saved_copies(ranks: &mut [RankPlan]) -> Option<String> {
    let needs: Vec<u64> = ranks.iter().map(|rank| rank.memory.total()).collect();
    let largest = ranks.iter().map(|rank| rank.memory.checkpoint).max().filter(|bytes| *bytes > 0)?;
    worst_rank(ranks, &needs)?;
    for rank in ranks {
        rank.program.copies_saved_state = false;
        rank.memory.checkpoint = 0;
        rank.memory.items.retain(|item| item.category != MemoryCategory::Checkpoint);
    }
    Some(format!(
        "checkpoint.every: the memory is too small for a copy of the training state ({} a rank) beside it, so after a save the next update \
         waits until the checkpoint is written",
        bytes(largest)
    ))
}

/// A change to a program with which it may need less memory.
#[derive(Debug, Clone, Copy)]
enum Change<'a> {
    MicroBatch(usize),
    Recompute(Recompute),
    /// Replicas divide the state into these shards.
    Shard(ShardedState, &'a [Range<usize>]),
}

impl Change<'_> {
    /// Bytes that the rank of `program` then needs; with shards, the most that one of its replicas needs.
    fn need(self, program: &Program, hardware: &DeviceFacts, basis: MemoryBasis) -> u64 {
        let mut changed = program.clone();
        match self {
            Self::MicroBatch(micro_batch) => {
                changed.batch.micro_batch = micro_batch;
                let mut live = live_micro_batches(program);
                // Under GPipe all micro-batches are live, so smaller ones need as much memory in sum.
                let in_flight: usize = live.iter().map(|l| l.saved + l.work).sum();
                if in_flight >= program.batch.micro_batches() * program.chunks.len() && in_flight > 1 {
                    let scale = program.batch.micro_batch.div_ceil(micro_batch);
                    for l in &mut live {
                        (l.saved, l.work) = (l.saved * scale, l.work * scale);
                    }
                }
                estimate(&changed, &live, hardware, basis).total()
            }
            // It may change which micro-batches weigh the most.
            Self::Recompute(recompute) => {
                changed.recompute = recompute;
                estimate(&changed, &live_micro_batches(&changed), hardware, basis).total()
            }
            Self::Shard(state, shards) => {
                let live = live_micro_batches(program);
                (changed.shards, changed.sharded) = (shards.to_vec(), state);
                let needs = (0..shards.len()).map(|rank| {
                    changed.rank = rank;
                    estimate(&changed, &live, hardware, basis).total()
                });
                needs.max().unwrap_or(0)
            }
        }
    }

    /// The change to `program` in the file's words, with the bytes that the largest rank then needs.
    fn describe(self, program: &Program, need: u64) -> String {
        let change = match self {
            Self::MicroBatch(rows) if program.mesh.mode == ParallelMode::Pipeline => {
                format!("parallel.pipeline.microbatches {} (of {rows} sequences)", program.batch.slice.1 / rows)
            }
            Self::MicroBatch(rows) => format!("batch.micro_batch {rows}"),
            Self::Recompute(recompute) => format!("train.recompute: {}", choice_name(&recompute)),
            Self::Shard(state, _) => format!("parallel.shard: {}", choice_name(&state)),
        };
        format!("{change} (at most {} a rank)", bytes(need))
    }
}

/// The largest smaller micro-batch, the least recomputation and the least sharding beyond those of `program`, whose ranks are on `hardware`,
/// for which `need` has a value, each with this value.
fn fitting_changes(
    program: &Program,
    hardware: &[DeviceFacts],
    is_legal: impl Fn(usize) -> bool,
    need: impl Fn(Change<'_>) -> Option<u64>,
) -> Vec<String> {
    let Mesh { mode, replicas, .. } = program.mesh;
    let can_shard = mode == ParallelMode::Ddp && replicas > 1;
    let shards = can_shard.then(|| divide_parameters(program, replicas, hardware).ok()).flatten();
    let rows = program.batch.slice.1;
    let micro_batches = (1..program.batch.micro_batch.min(MAX_MICRO_BATCHES_TRIED + 1)).rev();
    let smaller = micro_batches.filter(|size| rows.is_multiple_of(*size) && is_legal(*size)).map(Change::MicroBatch);
    let more = [Recompute::Attention, Recompute::Block].into_iter().filter(|more| *more > program.recompute);
    let states = [ShardedState::Optimizer, ShardedState::Gradients, ShardedState::Parameters];
    let sharded = shards.iter().flat_map(|shards| {
        let more = states.into_iter().filter(|state| !program.divides(*state));
        more.map(|state| Change::Shard(state, shards))
    });
    let kinds: [Vec<Change<'_>>; 3] = [smaller.collect(), more.map(Change::Recompute).collect(), sharded.collect()];
    let first =
        |changes: &Vec<Change<'_>>| changes.iter().find_map(|change| Some(change.describe(program, need(*change)?)));
    kinds.iter().filter_map(first).collect()
}

/// A change with which all ranks fit, in the file's words.
fn suggest_change(layout: &RankLayout, ranks: &[RankPlan], basis: MemoryBasis) -> String {
    let program = &ranks[0].program;
    let (rows, Mesh { mode, stages, .. }) = (program.batch.slice.1, layout.mesh);
    let interleaved = layout.schedule == PipelineSchedule::Interleaved && mode == ParallelMode::Pipeline;
    let is_legal = |micro_batch: usize| !interleaved || (rows / micro_batch).is_multiple_of(stages);
    let hardware: Vec<DeviceFacts> = ranks.iter().map(|rank| rank.hardware.clone()).collect();
    let need = |change: Change<'_>| fitting_need(ranks, |rank| change.need(&rank.program, &rank.hardware, basis));
    match fitting_changes(program, &hardware, is_legal, need).split_first() {
        Some((first, others)) => {
            others.iter().fold(format!("{first} fits"), |text, other| format!("{text}, and so does {other}"))
        }
        None => {
            "no batch.micro_batch fits; a smaller model, more stages or an optimizer with less state may".to_owned()
        }
    }
}

/// Suggests changes with which the rank of `program` alone fits into `available` bytes: the largest smaller micro-batch, the least
/// recomputation, and the least sharding. `None` if none of them fits, or if the program does not pass the check.
pub fn suggest_change_for_rank(
    program: &Program,
    hardware: &DeviceFacts,
    basis: MemoryBasis,
    available: u64,
) -> Option<String> {
    execute(program).ok()?;
    let need = |change: Change<'_>| Some(change.need(program, hardware, basis)).filter(|need| *need <= available);
    let changes = fitting_changes(program, std::slice::from_ref(hardware), |_| true, need);
    let (first, others) = changes.split_first()?;
    Some(others.iter().fold(format!("{first} would fit"), |text, other| format!("{text}, and so would {other}")))
}

/// The most that a rank needs when each needs `need` bytes; `None` if they do not all fit. Replicas need the same, so `need` is called for
/// one of them.
fn fitting_need(ranks: &[RankPlan], need: impl Fn(&RankPlan) -> u64) -> Option<u64> {
    let mut last: Option<(CostClass, u64)> = None;
    let mut need_of_rank = |rank: &RankPlan| {
        let key = rank.program.cost_class();
        let bytes = last.filter(|(k, _)| *k == key).map_or_else(|| need(rank), |(_, bytes)| bytes);
        last = Some((key, bytes));
        bytes
    };
    let needs: Vec<u64> = ranks.iter().map(&mut need_of_rank).collect();
    if worst_rank(ranks, &needs).is_some() { None } else { needs.into_iter().max() }
}

fn same_device(a: &RankPlan, b: &RankPlan) -> bool {
    (a.hardware.node, a.device) == (b.hardware.node, b.device)
}

/// [`worst_device`] of `ranks`.
fn worst_rank(ranks: &[RankPlan], needs: &[u64]) -> Option<(usize, u64)> {
    worst_device(ranks.iter().map(|rank| &rank.hardware).zip(needs.iter().copied()))
}

/// The device whose ranks need the most beyond its memory: the index of its largest rank, and the bytes beyond. `None` if all fit. `ranks`
/// are the devices of the ranks and the bytes that each needs.
pub(crate) fn worst_device<'a>(ranks: impl Iterator<Item = (&'a DeviceFacts, u64)>) -> Option<(usize, u64)> {
    // By machine and device: of its largest rank the index and the need, and the sum.
    let mut sums: BTreeMap<(usize, Device), (usize, u64, u64, &DeviceFacts)> = BTreeMap::new();
    for (index, (device, need)) in ranks.enumerate() {
        let entry = sums.entry((device.node, device.device)).or_insert((index, need, 0, device));
        entry.2 = entry.2.saturating_add(need);
        if need > entry.1 {
            (entry.0, entry.1) = (index, need);
        }
    }
    let over = sums.into_values().filter_map(|(index, _, sum, device)| {
        let over = sum.checked_sub(usable_bytes(device)?)?;
        (over > 0).then_some((index, over))
    });
    over.max_by_key(|&(index, over)| (over, Reverse(index)))
}

/// The live micro-batches of each chunk of a planned program.
#[expect(clippy::expect_used, reason = "a plan is made only of programs that pass the check")]
fn live_micro_batches(program: &Program) -> Vec<LiveMicroBatches> {
    execute(program).expect("a planned program passes the check").live
}
