//! Whether the ranks fit their devices, and what would.

use std::collections::BTreeMap;

use crate::config::experiment::PipelineSchedule;
use crate::plan::check;
use crate::plan::memory::{MemoryRequest, estimate};
use crate::plan::mesh::Mode;
use crate::plan::program::Program;
use crate::plan::ranks::Layout;
use crate::plan::render::bytes;
use crate::plan::types::RankPlan;

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
    let offer = smaller_micro_batch(layout, ranks, slots).or_else(|| other_partition(layout, ranks, slots));
    let offer = offer.unwrap_or_else(|| {
        "no batch.micro_batch fits; a smaller model, more stages or an optimizer with less state may".to_owned()
    });
    Some(format!(
        "memory: {who} is {} over on {}: about {} needed{shared}, {} there: {offer}",
        bytes(over),
        rank.device,
        bytes(need),
        bytes(available)
    ))
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
        let over = sum.checked_sub(ranks[index].hardware.memory_bytes?)?;
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
        let mut last: Option<((usize, bool), u64)> = None;
        ranks
            .iter()
            .map(|rank| {
                let key = (rank.stage, rank.program.owns_optimizer());
                if let Some((_, need)) = last.filter(|(k, _)| *k == key) {
                    return need;
                }
                let mut smaller = rank.program.clone();
                smaller.batch.micro_batch = micro_batch;
                // With smaller micro-batches more of them are alive under GPipe: what was alive stays alive.
                let scale = if rank.in_flight > 1 { program.batch.micro_batch.div_ceil(micro_batch) } else { 1 };
                let gpipe = rank.in_flight >= rank.program.batch.micro_batches() * rank.chunks.len();
                let live = live(rank).iter().map(|n| if gpipe { n * scale } else { *n }).collect::<Vec<_>>();
                let request = MemoryRequest { program: &smaller, live: &live, slots, threads: rank.hardware.threads };
                let need = estimate(&request).total();
                last = Some((key, need));
                need
            })
            .collect()
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

fn live(rank: &RankPlan) -> Vec<usize> {
    check::check_one(&rank.program).map_or_else(|_| vec![rank.in_flight; rank.chunks.len()], |walk| walk.live)
}

/// Moves layers from the fullest stage to the emptiest, one by one, until all fit.
fn other_partition(layout: &Layout, ranks: &[RankPlan], slots: usize) -> Option<String> {
    let parts = layout.counts.len();
    // On one device, moving layers changes nothing.
    let shared = ranks.iter().all(|r| (r.hardware.node, r.device) == (ranks[0].hardware.node, ranks[0].device));
    if layout.mesh.stages < 2 || parts > 512 || shared {
        return None;
    }
    let lives: Vec<Vec<usize>> =
        (0..layout.mesh.stages).map(|stage| live(&ranks[layout.mesh.rank(stage, 0)])).collect();
    let of_stage = |candidate: &Layout, stage: usize| -> u64 {
        let rank = &ranks[layout.mesh.rank(stage, 0)];
        let mut program: Program = rank.program.clone();
        program.chunks = candidate.stage_chunks(stage);
        let request = MemoryRequest { program: &program, live: &lives[stage], slots, threads: rank.hardware.threads };
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
            let available = ranks[layout.mesh.rank(stage, 0)].hardware.memory_bytes.unwrap_or(u64::MAX);
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
