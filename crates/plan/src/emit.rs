//! From the order of work to the instructions of one rank's step: messages, buckets and collectives are put in.

use crate::cost::block_params;
use crate::schedule::{Op, Work};
use runner_spec::mesh::{Mesh, Mode};
use runner_spec::model::ModelSpec;
use runner_spec::program::{Blocks, Instruction};

/// What a rank's step is made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step<'a> {
    pub mesh: Mesh,
    pub stage: usize,
    /// dp's root updates the weights for all.
    pub root: bool,
    pub tied: bool,
    pub chunks: &'a [Blocks],
    pub buckets: &'a [Blocks],
    pub micro_batches: usize,
    pub ops: &'a [Op],
    pub clip_norm: Option<f64>,
}

/// One rank without a pipeline: forward and backward of each micro-batch in turn.
pub(crate) fn in_turn(micro_batches: usize) -> Vec<Op> {
    (0..micro_batches).flat_map(|mb| [Op::new(Work::Forward, mb, 0), Op::new(Work::Backward, mb, 0)]).collect()
}

/// Runs of blocks of about `bytes` of gradients each, last blocks first, never across two chunks.
pub(crate) fn buckets(spec: &ModelSpec, chunks: &[Blocks], bytes: f64) -> Vec<Blocks> {
    let params = block_params(spec);
    let mut out = Vec::new();
    for chunk in chunks.iter().rev() {
        let (mut end, mut sum) = (chunk.end, 0.0);
        for block in chunk.range().rev() {
            sum += 4.0 * params.get(block).copied().unwrap_or(0) as f64;
            if sum >= bytes || block == chunk.start {
                out.push(Blocks { start: block, end });
                (end, sum) = (block, 0.0);
            }
        }
    }
    out
}

/// The instructions of one optimizer step. All micro-batches are loaded first: a head scales its gradient by the valid
/// tokens of the whole batch.
pub(crate) fn step(s: &Step<'_>) -> Vec<Instruction> {
    let mut out: Vec<Instruction> = (0..s.micro_batches).map(|mb| Instruction::Load { mb }).collect();
    out.push(Instruction::CountTokens { numerator: 1 });
    if s.mesh.mode == Mode::Dp {
        out.push(Instruction::BroadcastWeights);
    }
    // Of each chunk, the op after which its gradients are whole.
    let last: Vec<Option<usize>> =
        (0..s.chunks.len()).map(|c| s.ops.iter().rposition(|op| op.chunk == c && op.work != Work::Forward)).collect();
    for (index, op) in s.ops.iter().enumerate() {
        let reduces = last[op.chunk] == Some(index) && s.mesh.replicas > 1;
        push(s, *op, reduces, &mut out);
    }
    if s.mesh.replicas > 1 && s.mesh.mode != Mode::Dp {
        out.push(Instruction::WaitBuckets);
    }
    if s.tied && s.mesh.stages > 1 && (s.stage == 0 || s.stage + 1 == s.mesh.stages) {
        out.push(Instruction::SumTied);
    }
    out.push(Instruction::ClipNorm { max: s.clip_norm });
    let updates = s.mesh.mode != Mode::Dp || s.root;
    out.push(if updates { Instruction::OptimizerStep } else { Instruction::ZeroGradients });
    out
}

fn push(s: &Step<'_>, op: Op, reduces: bool, out: &mut Vec<Instruction>) {
    let Op { work, mb, chunk } = op;
    let stages = s.mesh.stages;
    let part = chunk * stages + s.stage;
    let before = part.checked_sub(1).map(|p| p % stages);
    let after = (part + 1 < stages * s.chunks.len()).then_some((part + 1) % stages);
    if let (Work::Forward, Some(from)) = (work, before) {
        out.push(Instruction::RecvActivation { mb, chunk, from });
    }
    if let (Work::Backward | Work::Input, Some(from)) = (work, after) {
        out.push(Instruction::RecvGradient { mb, chunk, from });
    }
    let send = match work {
        Work::Forward => after.map(|to| Instruction::SendActivation { mb, chunk, to }),
        Work::Backward | Work::Input => before.map(|to| Instruction::SendGradient { mb, chunk, to }),
        Work::Weight => None,
    };
    let run = |blocks| match work {
        Work::Forward => Instruction::Forward { mb, chunk },
        Work::Input => Instruction::BackwardInput { mb, chunk },
        Work::Backward => Instruction::Backward { mb, chunk, blocks },
        Work::Weight => Instruction::BackwardWeight { mb, chunk, blocks },
    };
    if !reduces {
        out.push(run(None));
        out.extend(send);
        return;
    }
    let mine = s.buckets.iter().enumerate().filter(|(_, b)| s.chunks[chunk].contains(b.start));
    for (bucket, &blocks) in mine {
        let whole = blocks == s.chunks[chunk];
        out.push(run(if whole { None } else { Some(blocks) }));
        // The next stage waits for the gradient, nobody for the bucket yet.
        out.extend(send.filter(|_| blocks.start == s.chunks[chunk].start));
        out.push(match s.mesh.mode {
            Mode::Dp => Instruction::ReduceToRoot { bucket },
            _ => Instruction::AllReduce { bucket },
        });
    }
}
