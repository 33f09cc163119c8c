//! The symbolic sum: over all ranks of a stage, every row of the global batch reaches the gradients with coefficient 1.
//!
//! `walk` has shown that each rank adds each of its micro-batches once, before the replicas' gradients are summed once. So
//! the coefficient of a row is the number of micro-batches that contain it, over the replicas of a stage.

use super::error::{CheckError, at, place, rows};
use super::walk::Walk;
use runner_spec::mesh::Group;
use runner_spec::program::Program;

/// Rows `start` … `start + count - 1` of one residue class (rows a stride apart, counted from 0), added by micro-batch `mb` of
/// the program at `program`.
#[derive(Debug, Clone, Copy)]
struct Contribution {
    start: usize,
    count: usize,
    program: usize,
    mb: usize,
}

/// All ranks work on one global batch, replicas of a stage on the same part of the model, stages of a replica on the same
/// rows.
pub(super) fn same_work(programs: &[&Program]) -> Result<(), CheckError> {
    let Some(first) = programs.first() else { return Ok(()) };
    let error = |p: &Program, place: &str, why: String| CheckError { rank: p.rank, place: place.to_owned(), why };
    if programs.len() != first.world_size() {
        let why = format!("it has {} ranks, and there are {} programs", first.world_size(), programs.len());
        return Err(error(first, "mesh", why));
    }
    for (rank, p) in programs.iter().enumerate() {
        if p.rank != rank || p.mesh != first.mesh {
            return Err(error(p, "mesh", format!("it stands at place {rank}, and its mesh is {:?}", p.mesh)));
        }
        let (a, b) = (&p.batch, &first.batch);
        if (a.stride, a.order) != (b.stride, b.order) {
            let why = format!("its rows are taken in another order than rank {}'s", first.rank);
            return Err(error(p, "batch", why));
        }
        if (a.sequences, a.length) != (b.sequences, b.length) {
            let why = format!(
                "its global batch is {}x{}, rank {}'s is {}x{}",
                a.sequences, a.length, first.rank, b.sequences, b.length
            );
            return Err(error(p, "batch", why));
        }
        if let Some((field, why)) = differs(p, first) {
            return Err(error(p, field, format!("its {why} differs from rank {}'s: they are not one run", first.rank)));
        }
        let (stage, replica) = p.mesh.place(rank);
        let head = programs[p.mesh.rank(0, replica)];
        if (a.slice, a.micro_batch) != (head.batch.slice, head.batch.micro_batch) {
            let why = format!("its rows are not those of rank {}, which it is a later stage of", head.rank);
            return Err(error(p, "batch", why));
        }
        let sibling = programs[p.mesh.rank(stage, 0)];
        if p.chunks != sibling.chunks || p.buckets != sibling.buckets {
            let why = format!("its blocks or buckets are not those of rank {}, of the same stage", sibling.rank);
            return Err(error(p, "chunks", why));
        }
    }
    blocks_are_whole(programs)
}

/// What must be equal on all ranks and is not: a field and what it is. What ranks differ in by right is not looked at here.
fn differs(a: &Program, b: &Program) -> Option<(&'static str, &'static str)> {
    let all = [
        ("seed", "seed", a.seed == b.seed),
        ("model", "model", a.model == b.model),
        ("precision", "precision", a.precision == b.precision),
        ("master_weights", "choice of master weights", a.master_weights == b.master_weights),
        ("batch.mask_padding", "padding mask", a.batch.mask_padding == b.batch.mask_padding),
        ("optimizer", "optimizer", a.optimizer == b.optimizer),
        ("schedule", "learning-rate schedule", a.schedule == b.schedule),
        ("steps", "number of steps", a.steps == b.steps),
        ("start", "list of what comes before the steps", a.start == b.start),
        ("periodic", "list of what comes after a step", a.periodic == b.periodic),
        ("eval", "evaluation", a.eval == b.eval),
    ];
    all.into_iter().find(|(.., equal)| !equal).map(|(field, what, _)| (field, what))
}

/// The chunks of all stages, in their order, are the model's block list.
fn blocks_are_whole(programs: &[&Program]) -> Result<(), CheckError> {
    let Some(first) = programs.first() else { return Ok(()) };
    let mesh = first.mesh;
    let mut next = 0;
    for part in 0..mesh.stages * first.chunks.len() {
        let holder = programs[mesh.rank(part % mesh.stages, 0)];
        let Some(chunk) = holder.chunks.get(part / mesh.stages) else {
            let why = format!("part {part} of the model is missing");
            return Err(CheckError { rank: holder.rank, place: "chunks".to_owned(), why });
        };
        if chunk.start != next {
            let why =
                format!("part {part} of the model begins at block {}, and the last ended before {next}", chunk.start);
            return Err(CheckError { rank: holder.rank, place: "chunks".to_owned(), why });
        }
        next = chunk.end;
    }
    if next == first.model.block_count() {
        return Ok(());
    }
    let why = format!("the stages hold {next} of the model's {} blocks", first.model.block_count());
    Err(CheckError { rank: first.rank, place: "chunks".to_owned(), why })
}

/// Every row of the global batch must be in exactly one micro-batch of each stage's replicas.
pub(super) fn coefficients_are_one(programs: &[&Program], walks: &[Walk]) -> Result<(), CheckError> {
    let Some(first) = programs.first() else { return Ok(()) };
    for stage in 0..first.mesh.stages {
        let (stride, sequences) = (first.batch.stride.max(1), first.batch.sequences);
        let mut classes: Vec<Vec<Contribution>> = vec![Vec::new(); stride];
        for rank in first.mesh.members(Group::Replicas { stage }) {
            for mb in 0..programs[rank].batch.micro_batches() {
                let (start, count) = programs[rank].batch.rows(mb);
                classes[start % stride].push(Contribution { start: start / stride, count, program: rank, mb });
            }
        }
        for (residue, sum) in classes.iter_mut().enumerate() {
            tile(sum, Class { residue, stride, sequences }, programs, walks)?;
        }
    }
    Ok(())
}

/// The rows `residue`, `residue + stride`, … of a global batch of `sequences` rows.
#[derive(Debug, Clone, Copy)]
struct Class {
    residue: usize,
    stride: usize,
    sequences: usize,
}

impl Class {
    fn count(self) -> usize {
        self.sequences.saturating_sub(self.residue).div_ceil(self.stride)
    }

    /// The row of the global batch that is `index` of the class.
    fn row(self, index: usize) -> usize {
        self.residue + index * self.stride
    }
}

fn tile(sum: &mut [Contribution], class: Class, programs: &[&Program], walks: &[Walk]) -> Result<(), CheckError> {
    sum.sort_unstable_by_key(|c| (c.start, c.program, c.mb));
    let by = |c: &Contribution| (programs[c.program], walks[c.program].added[c.mb]);
    let last_rank = sum.last().map_or(0, |c| c.program);
    let missing = |from: usize, to: usize| CheckError {
        rank: last_rank,
        place: "gradients".to_owned(),
        why: format!("no Backward adds {} of the global batch", rows(class.row(from), to - from, class.stride)),
    };
    let mut covered = 0;
    let mut last: Option<&Contribution> = None;
    for now in sum.iter() {
        if now.start > covered {
            return Err(missing(covered, now.start));
        }
        if let Some(last) = last
            && now.start < covered
        {
            let (program, index) = by(last);
            let why = format!(
                "row {} of the global batch reaches the gradients twice, first by rank {}, {}: its coefficient is 2, not 1",
                class.row(now.start),
                program.rank,
                place(index, &program.step[index])
            );
            let (program, index) = by(now);
            return Err(at(program, index, why));
        }
        covered = now.start + now.count;
        last = Some(now);
    }
    if covered < class.count() {
        return Err(missing(covered, class.count()));
    }
    Ok(())
}
