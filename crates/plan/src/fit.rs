//! Whether the ranks fit their devices, and what would.

use std::collections::BTreeMap;

use crate::check;
use crate::check::Live;
use crate::device_memory::usable_bytes;
use crate::memory::{MemoryRequest, estimate};
use crate::ranks::Layout;
use crate::render::bytes;
use runner_spec::cluster::DeviceFacts;
use runner_spec::experiment::PipelineSchedule;
use runner_spec::experiment::Recompute;
use runner_spec::mesh::Mode;
use runner_spec::plan::RankPlan;
use runner_spec::program::Program;

/// Says so when a device's ranks need more than it has, with what would fit. The estimate is a few percent off.
pub(crate) fn shortage(layout: &Layout, ranks: &[RankPlan], slots: usize) -> Option<String> {
    let needs: Vec<u64> = ranks.iter().map(|r| r.memory.total()).collect();
    let (first, over) = worst(ranks, &needs)?;
    let rank = &ranks[first];
    let who = match (layout.mesh.stages, layout.mesh.replicas) {
        (1, 1) => "the run".to_owned(),
        (1, _) => format!("rank {}", rank.rank),
        _ => format!("stage {}", rank.stage),
    };
    let sharers = ranks.iter().filter(|r| (r.hardware.node, r.device) == (rank.hardware.node, rank.device)).count();
    let shared = if sharers > 1 { format!(" ({sharers} ranks share it)") } else { String::new() };
    let need: u64 = needs
        .iter()
        .zip(ranks)
        .filter(|(_, r)| (r.hardware.node, r.device) == (rank.hardware.node, rank.device))
        .fold(0, |sum, (need, _)| sum.saturating_add(*need));
    let available = rank.hardware.memory_bytes.unwrap_or(0);
    let offer = offer(layout, ranks, slots);
    let usable = usable_bytes(&rank.hardware).filter(|usable| *usable < available);
    let usable = usable.map_or_else(String::new, |usable| format!(", of which {} may be filled", bytes(usable)));
    Some(format!(
        "memory: {who} is {} over on {}: about {} needed{shared}, {} there{usable}: {offer}",
        bytes(over),
        rank.device,
        bytes(need),
        bytes(available)
    ))
}

/// What would fit, in the file's words.
fn offer(layout: &Layout, ranks: &[RankPlan], slots: usize) -> String {
    let smaller = smaller_micro_batch(layout, ranks, slots);
    let again = recomputing(ranks, slots);
    match (smaller, again) {
        (Some(smaller), Some(again)) => format!("{smaller}, and so does {again}"),
        (Some(smaller), None) => smaller,
        (None, Some(again)) => format!("{again} fits"),
        (None, None) => other_partition(layout, ranks, slots).unwrap_or_else(|| {
            "no batch.micro_batch fits; a smaller model, more stages or an optimizer with less state may".to_owned()
        }),
    }
}

/// The least recomputation with which every rank fits.
fn recomputing(ranks: &[RankPlan], slots: usize) -> Option<String> {
    let names = [(Recompute::Attention, "attention"), (Recompute::Block, "block")];
    let planned = ranks.first()?.program.recompute;
    let more = names.into_iter().filter(|(recompute, _)| *recompute != planned && planned != Recompute::Block);
    let fitting = |recompute: Recompute| {
        let needs = each(ranks, |rank| {
            let mut program = rank.program.clone();
            program.recompute = recompute;
            // Which micro-batches weigh most may change with what they hold.
            let live = check::check_one(&program).map_or_else(|_| live(rank), |walk| walk.live);
            estimate(&MemoryRequest { program: &program, live: &live, slots, hardware: &rank.hardware }).total()
        });
        fits(ranks, &needs)
    };
    more.into_iter().find(|(recompute, _)| fitting(*recompute)).map(|(_, name)| format!("train.recompute: {name}"))
}

/// What would let `program`'s rank alone fit into `room` bytes: the largest smaller micro-batch, or the least recomputation.
#[must_use]
pub fn would_fit(program: &Program, hardware: &DeviceFacts, room: u64) -> Option<String> {
    let live = check::check_one(program).ok()?.live;
    let slice = program.batch.slice.1;
    let largest = program.batch.micro_batch.min(4096 + 1);
    let smaller = (1..largest).rev().filter(|mb| slice.is_multiple_of(*mb));
    let mut smaller = smaller.filter(|&mb| with_micro_batch(program, &live, hardware, check::SLOTS, mb) <= room);
    let again =
        [(Recompute::Attention, "attention"), (Recompute::Block, "block")].into_iter().find(|(recompute, _)| {
            if *recompute == program.recompute || program.recompute == Recompute::Block {
                return false;
            }
            let program = Program { recompute: *recompute, ..program.clone() };
            let live = check::check_one(&program).map_or_else(|_| live.clone(), |walk| walk.live);
            estimate(&MemoryRequest { program: &program, live: &live, slots: check::SLOTS, hardware }).total() <= room
        });
    match (smaller.next(), again) {
        (Some(mb), Some((_, name))) => {
            Some(format!("batch.micro_batch {mb} would fit, and so would train.recompute: {name}"))
        }
        (Some(mb), None) => Some(format!("batch.micro_batch {mb} would fit")),
        (None, Some((_, name))) => Some(format!("train.recompute: {name} would fit")),
        (None, None) => None,
    }
}

/// Bytes that the rank of `program` needs with another micro-batch.
fn with_micro_batch(program: &Program, live: &[Live], hardware: &DeviceFacts, slots: usize, micro_batch: usize) -> u64 {
    let mut smaller = program.clone();
    smaller.batch.micro_batch = micro_batch;
    // With smaller micro-batches more of them are alive under GPipe: what was alive stays alive.
    let in_flight: usize = live.iter().map(|l| l.saved + l.work).sum();
    let gpipe = in_flight >= program.batch.micro_batches() * program.chunks.len();
    let scale = if gpipe && in_flight > 1 { program.batch.micro_batch.div_ceil(micro_batch) } else { 1 };
    let scaled = |l: &Live| Live { saved: l.saved * scale, work: l.work * scale };
    let live: Vec<Live> = live.iter().map(scaled).collect();
    estimate(&MemoryRequest { program: &smaller, live: &live, slots, hardware }).total()
}

/// What `need` says of each rank; of replicas, which are alike, one is asked.
fn each(ranks: &[RankPlan], need: impl Fn(&RankPlan) -> u64) -> Vec<u64> {
    let mut last: Option<((usize, bool), u64)> = None;
    let mut of = |rank: &RankPlan| {
        let key = (rank.stage, rank.program.owns_optimizer());
        if let Some((_, need)) = last.filter(|(k, _)| *k == key) {
            return need;
        }
        let need = need(rank);
        last = Some((key, need));
        need
    };
    ranks.iter().map(&mut of).collect()
}

/// The device that is most over, by its first rank, and how much it is over. Ranks may share a device.
fn worst(ranks: &[RankPlan], needs: &[u64]) -> Option<(usize, u64)> {
    let mut sums: BTreeMap<(usize, String), (usize, u64)> = BTreeMap::new();
    for (index, rank) in ranks.iter().enumerate() {
        let entry = sums.entry((rank.hardware.node, rank.device.to_string())).or_insert((index, 0));
        entry.1 = entry.1.saturating_add(needs[index]);
        // Of those that share it, the largest is named.
        if needs[index] > needs[entry.0] {
            entry.0 = index;
        }
    }
    let over = sums.into_values().filter_map(|(index, sum)| {
        let over = sum.checked_sub(usable_bytes(&ranks[index].hardware)?)?;
        (over > 0).then_some((index, over))
    });
    over.max_by_key(|&(index, over)| (over, std::cmp::Reverse(index)))
}

fn fits(ranks: &[RankPlan], needs: &[u64]) -> bool {
    worst(ranks, needs).is_none()
}

/// The largest smaller micro-batch with which every rank fits, of those that divide the slice.
fn smaller_micro_batch(layout: &Layout, ranks: &[RankPlan], slots: usize) -> Option<String> {
    let program = &ranks.first()?.program;
    let slice = program.batch.slice.1;
    // Bounded, so that an absurd batch is not searched for long; of replicas one is estimated.
    let largest = program.batch.micro_batch.min(4096 + 1);
    let needs = |micro_batch: usize| -> Vec<u64> {
        each(ranks, |rank| with_micro_batch(&rank.program, &live(rank), &rank.hardware, slots, micro_batch))
    };
    let interleaved = layout.schedule == PipelineSchedule::Interleaved && layout.mesh.mode == Mode::Pipeline;
    let legal =
        |mb: usize| slice.is_multiple_of(mb) && (!interleaved || (slice / mb).is_multiple_of(layout.mesh.stages));
    let found = (1..largest).rev().filter(|&mb| legal(mb)).find(|&mb| fits(ranks, &needs(mb)))?;
    Some(match layout.mesh.mode {
        Mode::Pipeline => format!("parallel.pipeline.microbatches {} (of {found} sequences) fits", slice / found),
        _ => format!("batch.micro_batch {found} fits"),
    })
}

fn live(rank: &RankPlan) -> Vec<Live> {
    let unknown = |_| vec![Live { saved: rank.in_flight, work: 0 }; rank.chunks.len()];
    check::check_one(&rank.program).map_or_else(unknown, |walk| walk.live)
}

/// Moves layers from the fullest stage to the emptiest, one by one, until all fit.
fn other_partition(layout: &Layout, ranks: &[RankPlan], slots: usize) -> Option<String> {
    let parts = layout.counts.len();
    // On one device, moving layers changes nothing.
    let shared = ranks.iter().all(|r| (r.hardware.node, r.device) == (ranks[0].hardware.node, ranks[0].device));
    if layout.mesh.stages < 2 || parts > 512 || shared {
        return None;
    }
    let lives: Vec<Vec<Live>> = (0..layout.mesh.stages).map(|stage| live(&ranks[layout.mesh.rank(stage, 0)])).collect();
    let of_stage = |candidate: &Layout, stage: usize| -> u64 {
        let rank = &ranks[layout.mesh.rank(stage, 0)];
        let mut program: Program = rank.program.clone();
        program.chunks = candidate.stage_chunks(stage);
        let request = MemoryRequest { program: &program, live: &lives[stage], slots, hardware: &rank.hardware };
        estimate(&request).total()
    };
    let mut counts = layout.counts.clone();
    for _ in 0..layout.counts.iter().sum::<usize>() {
        let candidate = layout.with_counts(&counts);
        let stages: Vec<u64> = (0..layout.mesh.stages).map(|stage| of_stage(&candidate, stage)).collect();
        let needs: Vec<u64> = ranks.iter().map(|r| stages[r.stage]).collect();
        if fits(ranks, &needs) {
            return (counts != layout.counts).then(|| format!("partition {counts:?} fits"));
        }
        let room = |stage: usize| {
            let available = usable_bytes(&ranks[layout.mesh.rank(stage, 0)].hardware).unwrap_or(u64::MAX);
            i128::from(available) - i128::from(stages[stage])
        };
        let full = (0..parts).filter(|&p| counts[p] > 1).min_by_key(|&p| (room(p % layout.mesh.stages), p))?;
        let empty = (0..parts).max_by_key(|&p| (room(p % layout.mesh.stages), std::cmp::Reverse(p)))?;
        if full % layout.mesh.stages == empty % layout.mesh.stages {
            return None;
        }
        counts[full] -= 1;
        counts[empty] += 1;
    }
    None
}
