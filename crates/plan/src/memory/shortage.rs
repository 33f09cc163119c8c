//! Finds out whether the ranks fit into the memory of their devices, and suggests a change that would.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::check::{LiveMicroBatches, execute};
use crate::memory::device::usable_bytes;
use crate::memory::{MemoryBasis, MemoryFacts, estimate};
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

/// The most parts of a pipeline whose layers are moved.
const MAX_PARTS_TRIED: usize = 512;

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
        suggest_change(layout, ranks, |rank| basis.on(&rank.hardware))
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

/// A change with which all ranks fit, in the file's words.
fn suggest_change(layout: &RankLayout, ranks: &[RankPlan], facts: impl Fn(&RankPlan) -> MemoryFacts<'_>) -> String {
    let need = |recompute| fitting_need(ranks, |rank| need_with_recompute(&rank.program, facts(rank), recompute));
    let recompute = ranks.first().and_then(|rank| more_recomputation(&rank.program, need));
    let recompute = recompute.map(|(change, need)| with_need(&change, need));
    let hardware: Vec<DeviceFacts> = ranks.iter().map(|rank| rank.hardware.clone()).collect();
    let sharded = ranks.first().and_then(|first| {
        more_sharding(&first.program, &hardware, |state, shards| {
            fitting_need(ranks, |rank| need_with_shards(&rank.program, facts(rank), state, shards))
        })
    });
    let sharded = sharded.map(|(change, need)| with_need(&change, need));
    let mut found = smaller_micro_batch(layout, ranks, &facts).into_iter().chain(recompute).chain(sharded);
    let Some(first) = found.next() else {
        return other_partition(layout, ranks, &facts).unwrap_or_else(|| {
            "no batch.micro_batch fits; a smaller model, more stages or an optimizer with less state may".to_owned()
        });
    };
    let fitting: Vec<String> = std::iter::once(format!("{first} fits")).chain(found).collect();
    fitting.join(", and so does ")
}

/// The least sharding beyond that of `program`, whose ranks are on `hardware`, for which `need` has a value, as a key of the file, and that
/// value. `None` if more is impossible.
fn more_sharding<T>(
    program: &Program,
    hardware: &[DeviceFacts],
    need: impl Fn(ShardedState, &[Range<usize>]) -> Option<T>,
) -> Option<(String, T)> {
    let Mesh { mode, replicas, .. } = program.mesh;
    if mode != ParallelMode::Ddp || replicas < 2 {
        return None;
    }
    let shards = divide_parameters(program, replicas, hardware).ok()?;
    let more = [ShardedState::Optimizer, ShardedState::Gradients, ShardedState::Parameters];
    let mut more = more.into_iter().filter(|state| !program.divides(*state));
    more.find_map(|state| Some((format!("parallel.shard: {}", choice_name(&state)), need(state, &shards)?)))
}

/// The most bytes that a rank needs if the replicas of `program`, which is one of them under ddp, divide `state` into `shards`.
fn need_with_shards(program: &Program, facts: MemoryFacts<'_>, state: ShardedState, shards: &[Range<usize>]) -> u64 {
    let live = live_micro_batches(program);
    let mut sharded = Program { shards: shards.to_vec(), sharded: state, ..program.clone() };
    let needs = (0..shards.len()).map(|rank| {
        sharded.rank = rank;
        estimate(&sharded, &live, facts).total()
    });
    needs.max().unwrap_or(0)
}

/// A change with the bytes that the largest rank then needs.
fn with_need(change: &str, need: u64) -> String {
    format!("{change} (at most {} a rank)", bytes(need))
}

/// The least recomputation beyond that of `program` for which `need` has a value, as a key of the file, and that value.
fn more_recomputation<T>(program: &Program, need: impl Fn(Recompute) -> Option<T>) -> Option<(String, T)> {
    let more: &[Recompute] = match program.recompute {
        Recompute::None => &[Recompute::Attention, Recompute::Block],
        Recompute::Attention => &[Recompute::Block],
        Recompute::Block => &[],
    };
    more.iter().find_map(|least| Some((format!("train.recompute: {}", choice_name(least)), need(*least)?)))
}

/// Bytes that the rank of `program` needs with a different recomputation. It may change which micro-batches weigh the most.
fn need_with_recompute(program: &Program, facts: MemoryFacts<'_>, recompute: Recompute) -> u64 {
    let program = Program { recompute, ..program.clone() };
    estimate(&program, &live_micro_batches(&program), facts).total()
}

/// Suggests a change with which the rank of `program` alone fits into `available` bytes: the largest smaller micro-batch, the least
/// recomputation, or the least sharding. `None` if none of them fits, or if the program does not pass the check.
pub fn suggest_change_for_rank(program: &Program, facts: MemoryFacts<'_>, available: u64) -> Option<String> {
    let live = execute(program).ok()?.live;
    let smaller =
        smaller_micro_batches(program).find(|&mb| need_with_micro_batch(program, &live, facts, mb) <= available);
    let recompute = more_recomputation(program, |recompute| {
        (need_with_recompute(program, facts, recompute) <= available).then_some(())
    });
    let sharded = more_sharding(program, std::slice::from_ref(facts.hardware), |state, shards| {
        Some(need_with_shards(program, facts, state, shards)).filter(|need| *need <= available)
    });
    let sharded = sharded.map(|(change, need)| with_need(&change, need));
    let recompute = recompute.map(|(change, ())| change);
    let mut found = smaller.map(|mb| format!("batch.micro_batch {mb}")).into_iter().chain(recompute).chain(sharded);
    let first = format!("{} would fit", found.next()?);
    let fitting: Vec<String> = std::iter::once(first).chain(found).collect();
    Some(fitting.join(", and so would "))
}

/// Smaller micro-batches that divide the rank's rows, the largest first.
fn smaller_micro_batches(program: &Program) -> impl Iterator<Item = usize> {
    let rows = program.batch.slice.1;
    (1..program.batch.micro_batch.min(MAX_MICRO_BATCHES_TRIED + 1)).rev().filter(move |mb| rows.is_multiple_of(*mb))
}

/// Bytes that the rank of `program` needs with a different micro-batch.
fn need_with_micro_batch(
    program: &Program,
    live: &[LiveMicroBatches],
    facts: MemoryFacts<'_>,
    micro_batch: usize,
) -> u64 {
    let mut smaller = program.clone();
    smaller.batch.micro_batch = micro_batch;
    // Under GPipe all micro-batches are live, so smaller ones need as much memory in sum.
    let in_flight: usize = live.iter().map(|l| l.saved + l.work).sum();
    let gpipe = in_flight >= program.batch.micro_batches() * program.chunks.len();
    let scale = if gpipe && in_flight > 1 { program.batch.micro_batch.div_ceil(micro_batch) } else { 1 };
    let scaled = |l: &LiveMicroBatches| LiveMicroBatches { saved: l.saved * scale, work: l.work * scale };
    let live: Vec<LiveMicroBatches> = live.iter().map(scaled).collect();
    estimate(&smaller, &live, facts).total()
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

/// The largest smaller micro-batch with which every rank fits.
fn smaller_micro_batch(
    layout: &RankLayout,
    ranks: &[RankPlan],
    facts: &impl Fn(&RankPlan) -> MemoryFacts<'_>,
) -> Option<String> {
    let program = &ranks.first()?.program;
    let rows = program.batch.slice.1;
    let (mode, stages) = (layout.mesh.mode, layout.mesh.stages);
    let interleaved = layout.schedule == PipelineSchedule::Interleaved && mode == ParallelMode::Pipeline;
    let mut legal = smaller_micro_batches(program).filter(|mb| !interleaved || (rows / mb).is_multiple_of(stages));
    let (found, need) = legal.find_map(|micro_batch| {
        let need = fitting_need(ranks, |rank| {
            let live = live_micro_batches(&rank.program);
            need_with_micro_batch(&rank.program, &live, facts(rank), micro_batch)
        })?;
        Some((micro_batch, need))
    })?;
    let change = match mode {
        ParallelMode::Pipeline => format!("parallel.pipeline.microbatches {} (of {found} sequences)", rows / found),
        _ => format!("batch.micro_batch {found}"),
    };
    Some(with_need(&change, need))
}

/// The live micro-batches of each chunk of a planned program.
#[expect(clippy::expect_used, reason = "a plan is made only of programs that pass the check")]
fn live_micro_batches(program: &Program) -> Vec<LiveMicroBatches> {
    execute(program).expect("a planned program passes the check").live
}

/// Moves layers from the fullest stage to the emptiest, one by one, until all ranks fit.
fn other_partition(
    layout: &RankLayout,
    ranks: &[RankPlan],
    facts: &impl Fn(&RankPlan) -> MemoryFacts<'_>,
) -> Option<String> {
    let (parts, stages) = (layout.counts.len(), layout.mesh.stages);
    let first_of_stage = |stage: usize| &ranks[layout.mesh.rank(stage, 0)];
    // Moving layers changes nothing on a single device.
    let one_device = ranks.iter().all(|r| same_device(r, &ranks[0]));
    if stages < 2 || parts > MAX_PARTS_TRIED || one_device {
        return None;
    }
    let live: Vec<_> = (0..stages).map(|stage| live_micro_batches(&first_of_stage(stage).program)).collect();
    let need_of_stage = |candidate: &RankLayout, stage: usize| -> u64 {
        let rank = first_of_stage(stage);
        let program = Program { chunks: candidate.stage_chunks(stage), ..rank.program.clone() };
        estimate(&program, &live[stage], facts(rank)).total()
    };
    let mut counts = layout.counts.clone();
    for _ in 0..layout.counts.iter().sum::<usize>() {
        let candidate = RankLayout { counts: counts.clone(), ..layout.clone() };
        let stage_needs: Vec<u64> = (0..stages).map(|stage| need_of_stage(&candidate, stage)).collect();
        let needs: Vec<u64> = ranks.iter().map(|r| stage_needs[r.stage]).collect();
        if worst_rank(ranks, &needs).is_none() {
            return (counts != layout.counts).then(|| format!("partition {counts:?} fits"));
        }
        let free_memory = |part: usize| {
            let available = usable_bytes(&first_of_stage(part % stages).hardware).unwrap_or(u64::MAX);
            i128::from(available) - i128::from(stage_needs[part % stages])
        };
        let fullest = (0..parts).filter(|&p| counts[p] > 1).min_by_key(|&p| (free_memory(p), p))?;
        let emptiest = (0..parts).max_by_key(|&p| (free_memory(p), Reverse(p)))?;
        if fullest % stages == emptiest % stages {
            return None;
        }
        counts[fullest] -= 1;
        counts[emptiest] += 1;
    }
    None
}
