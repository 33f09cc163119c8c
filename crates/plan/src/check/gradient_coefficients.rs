//! The symbolic sum: over all ranks of a stage, every row of the global batch reaches the gradients with coefficient 1.
//!
//! `execution` has shown that each rank adds each of its micro-batches once, before the replicas' gradients are summed once. So
//! the coefficient of a row is the number of micro-batches that contain it, over the replicas of a stage.

use super::error::{CheckError, Result, instruction_name, row_names};
use super::execution::ExecutionSummary;
use runner_spec::mesh::RankGroup;
use runner_spec::program::{Instruction, Periodic, Program};

/// Checks that all ranks work on one global batch, replicas of a stage on the same part of the model, and stages of a replica on
/// the same rows.
pub(super) fn check_same_work(programs: &[&Program]) -> Result<()> {
    let Some(first) = programs.first() else { return Ok(()) };
    if programs.len() != first.world_size() {
        let why = format!("it has {} ranks, and there are {} programs", first.world_size(), programs.len());
        return Err(CheckError::in_part(first, "mesh", why));
    }
    for (rank, p) in programs.iter().enumerate() {
        let fail = |part: &str, why: String| Err(CheckError::in_part(p, part, why));
        if p.rank != rank || p.mesh != first.mesh {
            return fail("mesh", format!("its program is number {rank}, and its mesh is {:?}", p.mesh));
        }
        let (a, b) = (&p.batch, &first.batch);
        if (a.stride, a.order) != (b.stride, b.order) {
            return fail("batch", format!("its rows are taken in a different order from rank {}'s", first.rank));
        }
        if (a.sequences, a.length) != (b.sequences, b.length) {
            let why = format!(
                "its global batch is {}x{}, rank {}'s is {}x{}",
                a.sequences, a.length, first.rank, b.sequences, b.length
            );
            return fail("batch", why);
        }
        if let Some((field, what)) = first_difference(p, first) {
            return fail(
                field,
                format!("its {what} differs from rank {}'s, so they are not of the same run", first.rank),
            );
        }
        let (stage, replica) = p.mesh.stage_and_replica(rank);
        let head = programs[p.mesh.rank(0, replica)];
        if (a.slice, a.micro_batch) != (head.batch.slice, head.batch.micro_batch) {
            return fail(
                "batch",
                format!("its rows are not those of rank {}, which it is a later stage of", head.rank),
            );
        }
        let sibling = programs[p.mesh.rank(stage, 0)];
        if (&p.chunks, &p.buckets, &p.shards, p.sharded)
            != (&sibling.chunks, &sibling.buckets, &sibling.shards, sibling.sharded)
        {
            let why =
                format!("its blocks, buckets or shards are not those of rank {}, of the same stage", sibling.rank);
            return fail("chunks", why);
        }
    }
    check_all_blocks_held(programs, first)
}

/// The first field that must be equal on all ranks and is not, and its name in a message.
fn first_difference(a: &Program, b: &Program) -> Option<(&'static str, &'static str)> {
    let all = [
        ("seed", "seed", a.seed == b.seed),
        ("model", "model", a.model == b.model),
        ("precision", "precision", a.precision == b.precision),
        ("master_weights", "choice of master weights", a.master_weights == b.master_weights),
        ("batch.mask_padding", "padding mask", a.batch.mask_padding == b.batch.mask_padding),
        ("optimizer", "optimizer", a.optimizer == b.optimizer),
        ("schedule", "learning-rate schedule", a.schedule == b.schedule),
        ("steps", "number of steps", a.steps == b.steps),
        ("start", "list of what comes before the steps", evaluates_first(a) == evaluates_first(b)),
        ("periodic", "list of what comes after a step", without_weights(a).eq(without_weights(b))),
        ("eval", "evaluation", a.eval == b.eval),
    ];
    all.into_iter().find(|(.., equal)| !equal).map(|(field, what, _)| (field, what))
}

/// True if the program evaluates before the first step.
fn evaluates_first(program: &Program) -> bool {
    program.start.contains(&Instruction::Evaluate)
}

/// The periodic instructions, apart from those that exchange weights: stages have different numbers of buckets.
fn without_weights(program: &Program) -> impl Iterator<Item = &Periodic> {
    program.periodic.iter().filter(|periodic| periodic.instruction.bucket().is_none())
}

/// Checks that the chunks of all stages, in their order, are the model's block list.
fn check_all_blocks_held(programs: &[&Program], first: &Program) -> Result<()> {
    let mesh = first.mesh;
    let mut next = 0;
    for part in 0..mesh.stages * first.chunks.len() {
        let holder = programs[mesh.rank(part % mesh.stages, 0)];
        let fail = |why: String| Err(CheckError::in_part(holder, "chunks", why));
        let Some(chunk) = holder.chunks.get(part / mesh.stages) else {
            return fail(format!("part {part} of the model is missing"));
        };
        if chunk.start != next {
            let begin = chunk.start;
            return fail(format!(
                "part {part} of the model starts at block {begin}, but the previous one ended before {next}"
            ));
        }
        next = chunk.end;
    }
    let blocks = first.model.block_count();
    if next == blocks {
        return Ok(());
    }
    Err(CheckError::in_part(first, "chunks", format!("the stages hold {next} of the model's {blocks} blocks")))
}

/// The rows `start` … `start + count - 1` of a residue class that one micro-batch of a rank adds. They are counted within the class.
#[derive(Debug, Clone, Copy)]
struct Contribution {
    start: usize,
    count: usize,
    rank: usize,
    mb: usize,
}

/// Checks that every row of the global batch is in exactly one micro-batch of the replicas of each stage.
pub(super) fn check_coefficients(programs: &[&Program], executions: &[ExecutionSummary]) -> Result<()> {
    let Some(first) = programs.first() else { return Ok(()) };
    for stage in 0..first.mesh.stages {
        let (stride, sequences) = (first.batch.stride.max(1), first.batch.sequences);
        let mut classes: Vec<Vec<Contribution>> = vec![Vec::new(); stride];
        for rank in first.mesh.members(RankGroup::Replicas { stage }) {
            for mb in 0..programs[rank].batch.micro_batches() {
                let (start, count) = programs[rank].batch.rows(mb);
                classes[start % stride].push(Contribution { start: start / stride, count, rank, mb });
            }
        }
        for (residue, contributions) in classes.iter_mut().enumerate() {
            let row = |index: usize| residue + index * stride;
            let count = sequences.saturating_sub(residue).div_ceil(stride);
            check_tiling(contributions, count, row, programs, executions)?;
        }
    }
    Ok(())
}

/// Checks that `contributions` cover the `count` rows of a residue class without gap or overlap. `row` is the row of the global batch that
/// has a number in the class.
fn check_tiling(
    contributions: &mut [Contribution],
    count: usize,
    row: impl Fn(usize) -> usize,
    programs: &[&Program],
    executions: &[ExecutionSummary],
) -> Result<()> {
    contributions.sort_unstable_by_key(|c| (c.start, c.rank, c.mb));
    let last_rank = contributions.last().map_or(0, |c| c.rank);
    let missing = |from: usize, to: usize| {
        let rows = row_names(row(from), to - from, row(1) - row(0));
        let why = format!("no Backward adds {rows} of the global batch");
        Err(CheckError { rank: last_rank, part: "gradients".to_owned(), why })
    };
    let last_addition = |c: &Contribution| executions[c.rank].last_addition[c.mb];
    let mut covered = 0;
    let mut last: Option<&Contribution> = None;
    for now in contributions.iter() {
        if now.start > covered {
            return missing(covered, now.start);
        }
        if let Some(last) = last
            && now.start < covered
        {
            let index = last_addition(last);
            let why = format!(
                "row {} of the global batch reaches the gradients twice, first by rank {}, {}: its coefficient is 2, not 1",
                row(now.start),
                last.rank,
                instruction_name(index, &programs[last.rank].step[index])
            );
            return Err(CheckError::at_instruction(programs[now.rank], last_addition(now), why));
        }
        covered = now.start + now.count;
        last = Some(now);
    }
    if covered < count { missing(covered, count) } else { Ok(()) }
}
