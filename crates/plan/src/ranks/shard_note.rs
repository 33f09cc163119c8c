//! What sharded state saves and costs.

use std::ops::Range;

use crate::check::ExecutionSummary;
use crate::memory::{MemoryBasis, estimate};
use crate::quantity::{bytes, si};
use crate::ranks::shard::gathered_element_bytes;
use runner_spec::format::{count, counted};
use runner_spec::model::layout::common_range;
use runner_spec::plan::RankPlan;
use runner_spec::precision;
use runner_spec::program::{Instruction, Program, ShardedState};

/// With fewer buckets than this, those in use are much of the model.
const FEW_BUCKETS: usize = 6;

/// What sharded state saves and costs; `None` without it.
pub(crate) fn describe_shards(
    ranks: &[RankPlan],
    executions: &[ExecutionSummary],
    basis: MemoryBasis,
) -> Option<String> {
    let (rank, execution) = ranks.iter().zip(executions).max_by_key(|(rank, _)| rank.memory.total())?;
    let program = &rank.program;
    let largest = program.shard()?;
    let most = ranks.iter().filter_map(|rank| rank.program.shard()).map(|shard| shard.len()).max()?;
    // Of replicas that hold all, one alone copies what it saves: copies are not compared.
    let sharded = ShardedState::default();
    let whole = Program { shards: Vec::new(), sharded, copies_saved_state: false, ..program.clone() };
    let needed = rank.memory.total() - rank.memory.checkpoint;
    let unsharded = estimate(&whole, &execution.live, &rank.hardware, basis).total();
    let effect = if needed <= unsharded {
        format!("saves {}", bytes(unsharded - needed))
    } else {
        format!("needs {} more", bytes(needed - unsharded))
    };
    let held = match program.sharded {
        ShardedState::Optimizer => "the optimizer's state",
        ShardedState::Gradients => "the optimizer's state and the summed gradients",
        ShardedState::Parameters => "the weights, the optimizer's state and the summed gradients",
    };
    let instead = if program.divides(ShardedState::Gradients) {
        format!(" instead of {}", bytes(summed_bytes(&whole, &largest)))
    } else {
        String::new()
    };
    let mut note = format!(
        "parallel.shard: a rank holds {held} of at most {} of {} parameters, which {effect} on rank {}; each step it receives {} of \
         weights, and {} of gradients{instead}",
        count(most as u64),
        count(rank.params.total),
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
    if program.divides(ShardedState::Gradients) && program.buckets.len() < FEW_BUCKETS {
        let buckets = counted(program.buckets.len() as u64, "bucket");
        note.extend([
            "; there are ",
            &buckets,
            " of parallel.bucket_mb, and smaller ones hold less of the model at a time",
        ]);
    }
    Some(note)
}

/// Ranks with shards that [`describe_orthogonalization`] lists.
const LISTED_OWNERS: usize = 8;

/// How many matrices each rank orthogonalizes under Muon, and what that costs; `None` where one rank updates all.
pub(crate) fn describe_orthogonalization(ranks: &[RankPlan]) -> Option<String> {
    let owners: Vec<_> = ranks.iter().filter(|rank| rank.program.orthogonalization_flops() > 0.0).collect();
    let (first, replicas) = (owners.first()?, owners.first()?.program.mesh.replicas);
    if first.program.shard().is_none() && first.program.mesh.stages == 1 {
        return (owners.len() > 1 && replicas > 1).then(|| {
            let sum: f64 = owners.iter().map(|rank| rank.program.orthogonalization_flops()).sum();
            format!(
                "optimizer.muon: each of {replicas} replicas orthogonalizes every matrix, {} a step in all, {:.1}% of the FLOPs of the forward \
                 and backward passes; `parallel.shard: optimizer` gives each matrix one owner",
                si(sum, "FLOP"),
                100.0 * sum / first.program.flops_per_step
            )
        });
    }
    let own = |rank: &&&RankPlan| {
        let (number, program) = (rank.rank, &rank.program);
        let matrices = match program.orthogonalized().len() {
            1 => "1 matrix".to_owned(),
            number => format!("{number} matrices"),
        };
        format!("rank {number} {matrices}, {}", si(program.orthogonalization_flops(), "FLOP"))
    };
    let mut listed: Vec<String> = owners.iter().take(LISTED_OWNERS).map(|rank| own(&rank)).collect();
    if owners.len() > LISTED_OWNERS {
        listed.push(format!("and {} more ranks", owners.len() - LISTED_OWNERS));
    }
    Some(format!("optimizer.muon: each matrix is orthogonalized by the rank that holds it: {}", listed.join("; ")))
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
    gathers.sum::<u64>().saturating_mul(gathered_element_bytes(program))
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
