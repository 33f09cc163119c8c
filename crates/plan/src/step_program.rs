//! Turns the schedule of a stage into the instructions of one rank's step: adds messages, gradient buckets and collectives.

use crate::forecast::cost::block_params;
use crate::schedule::{Pass, ScheduledPass};
use runner_spec::experiment::ParallelMode;
use runner_spec::model::ModelSpec;
use runner_spec::program::{BlockRange, Instruction, Program, ShardedState};

/// Gradient buckets: runs of blocks with about `bytes` of gradients each, last blocks first, never across two chunks.
pub(crate) fn gradient_buckets(spec: &ModelSpec, chunks: &[BlockRange], bytes: f64) -> Vec<BlockRange> {
    let params = block_params(spec);
    let mut out = Vec::new();
    for chunk in chunks.iter().rev() {
        let (mut end, mut sum) = (chunk.end, 0.0);
        for block in chunk.range().rev() {
            sum += 4.0 * params[block] as f64;
            if sum >= bytes || block == chunk.start {
                out.push(BlockRange { start: block, end });
                (end, sum) = (block, 0.0);
            }
        }
    }
    out
}

/// The instructions of one optimizer step of `program`, whose stage runs `passes`. All micro-batches are loaded first: a head scales its
/// gradient by the valid tokens of the whole batch.
pub(crate) fn step_instructions(
    program: &Program,
    passes: &[ScheduledPass],
    clip_norm: Option<f64>,
) -> Vec<Instruction> {
    let mesh = program.mesh;
    let mut out: Vec<Instruction> = (0..program.batch.micro_batches()).map(|mb| Instruction::Load { mb }).collect();
    out.push(Instruction::CountTokens { numerator: 1 });
    if !program.divides(ShardedState::Parameters) {
        // Weights that the replicas keep are on their way from here on.
        out.extend(program.weight_exchange().into_iter().map(|instruction| match instruction {
            Instruction::GatherParameters { bucket } => Instruction::PrefetchParameters { bucket },
            broadcast => broadcast,
        }));
    }
    // For each chunk, the pass after which its gradients are complete.
    let last: Vec<Option<usize>> = (0..program.chunks.len())
        .map(|chunk| passes.iter().rposition(|p| p.chunk == chunk && p.pass != Pass::Forward))
        .collect();
    let mut work = Vec::new();
    for (index, pass) in passes.iter().enumerate() {
        let reduces = last[pass.chunk] == Some(index) && mesh.replicas > 1;
        push_pass(program, *pass, reduces, &mut work);
    }
    out.extend(if program.shards.is_empty() { work } else { gather_for_work(program, &work) });
    if mesh.replicas > 1 && mesh.mode != ParallelMode::Dp {
        out.push(Instruction::WaitBuckets);
    }
    if program.shares_tied() {
        out.push(Instruction::SumTied);
    }
    out.push(Instruction::ClipNorm { max: clip_norm });
    out.push(if program.owns_optimizer() { Instruction::OptimizerStep } else { Instruction::ZeroGradients });
    out
}

/// Adds to `work` the instructions that gather the weights of a bucket before they are read first. Where replicas do not keep them, they are
/// freed when the next passes do not read them, and those that the next passes read are on their way during a pass.
fn gather_for_work(program: &Program, work: &[Instruction]) -> Vec<Instruction> {
    let read_by = |instruction: &Instruction| -> Vec<usize> {
        instruction.blocks_run(program).into_iter().flat_map(|blocks| program.buckets_read_by(blocks)).collect()
    };
    let mut passes = work.iter().filter(|i| i.blocks_run(program).is_some()).map(read_by).peekable();
    let (mut out, mut held) = (Vec::new(), Vec::new());
    let keeps = !program.divides(ShardedState::Parameters);
    for instruction in work {
        if instruction.blocks_run(program).is_none() {
            out.push(*instruction);
            continue;
        }
        let (now, next) = (passes.next().unwrap_or_default(), passes.peek().cloned().unwrap_or_default());
        let missing: Vec<usize> = now.iter().copied().filter(|bucket| !held.contains(bucket)).collect();
        out.extend(missing.iter().map(|&bucket| Instruction::GatherParameters { bucket }));
        if keeps {
            out.push(*instruction);
            held.extend(missing);
            continue;
        }
        let coming = next.iter().filter(|bucket| !now.contains(bucket));
        out.extend(coming.map(|&bucket| Instruction::PrefetchParameters { bucket }));
        out.push(*instruction);
        let (kept, freed): (Vec<usize>, Vec<usize>) = now.into_iter().partition(|bucket| next.contains(bucket));
        out.extend(freed.into_iter().map(|bucket| Instruction::ReleaseParameters { bucket }));
        held = kept;
    }
    out
}

/// Adds one pass with its messages. If it `reduces`, the pass is cut into buckets, and each bucket is reduced when its gradients are
/// complete. The first forward, and all passes where buckets of weights come and go, are cut into the buckets that are gathered for them.
fn push_pass(program: &Program, scheduled: ScheduledPass, reduces: bool, out: &mut Vec<Instruction>) {
    let ScheduledPass { pass, mb, chunk } = scheduled;
    let stages = program.mesh.stages;
    let part = program.virtual_stage(chunk);
    let previous = part.checked_sub(1).map(|p| p % stages);
    let next = (part + 1 < stages * program.chunks.len()).then_some((part + 1) % stages);
    if let (Pass::Forward, Some(from)) = (pass, previous) {
        out.push(Instruction::RecvActivation { mb, chunk, from });
    }
    if let (Pass::Backward | Pass::BackwardInput, Some(from)) = (pass, next) {
        out.push(Instruction::RecvGradient { mb, chunk, from });
    }
    let send = match pass {
        Pass::Forward => next.map(|to| Instruction::SendActivation { mb, chunk, to }),
        Pass::Backward | Pass::BackwardInput => previous.map(|to| Instruction::SendGradient { mb, chunk, to }),
        Pass::BackwardWeight => None,
    };
    let run = |blocks| match pass {
        Pass::Forward => Instruction::Forward { mb, chunk, blocks },
        Pass::BackwardInput => Instruction::BackwardInput { mb, chunk },
        Pass::Backward => Instruction::Backward { mb, chunk, blocks },
        Pass::BackwardWeight => Instruction::BackwardWeight { mb, chunk, blocks },
    };
    let is_first = pass == Pass::Forward && mb == 0 && !program.shards.is_empty();
    if !reduces && !is_first && !program.divides(ShardedState::Parameters) {
        out.push(run(None));
        out.extend(send);
        return;
    }
    let of_chunk = program.buckets.iter().enumerate().filter(|(_, b)| program.chunks[chunk].contains(b.start));
    let mut buckets: Vec<(usize, &BlockRange)> = of_chunk.collect();
    let last = if pass == Pass::Forward { program.chunks[chunk].end } else { program.chunks[chunk].start };
    if pass == Pass::Forward {
        buckets.reverse();
    }
    for (bucket, &blocks) in buckets {
        let whole = blocks == program.chunks[chunk];
        out.push(run(if whole { None } else { Some(blocks) }));
        // The previous stage already waits for the gradient; no rank waits for the bucket yet.
        out.extend(send.filter(|_| [blocks.start, blocks.end].contains(&last)));
        if reduces {
            out.push(program.reduction(bucket));
        }
    }
}
