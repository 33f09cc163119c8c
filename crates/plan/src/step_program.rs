//! Turns the schedule of a stage into the instructions of one rank's step: adds messages, gradient buckets and collectives.

use crate::cost::block_params;
use crate::schedule::{Pass, ScheduledPass};
use runner_spec::mesh::{Mesh, Mode};
use runner_spec::model::ModelSpec;
use runner_spec::program::{BlockRange, Instruction};

/// The inputs of one rank's step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepInputs<'a> {
    pub mesh: Mesh,
    pub stage: usize,
    /// Under dp, the root updates the weights for all replicas.
    pub is_root: bool,
    pub tie_embeddings: bool,
    pub chunks: &'a [BlockRange],
    pub buckets: &'a [BlockRange],
    pub micro_batches: usize,
    pub passes: &'a [ScheduledPass],
    pub clip_norm: Option<f64>,
}

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

/// The instructions of one optimizer step. All micro-batches are loaded first: a head scales its gradient by the valid
/// tokens of the whole batch.
pub(crate) fn step_instructions(inputs: &StepInputs<'_>) -> Vec<Instruction> {
    let mut out: Vec<Instruction> = (0..inputs.micro_batches).map(|mb| Instruction::Load { mb }).collect();
    out.push(Instruction::CountTokens { numerator: 1 });
    if inputs.mesh.mode == Mode::Dp {
        out.push(Instruction::BroadcastWeights);
    }
    // For each chunk, the pass after which its gradients are complete.
    let last: Vec<Option<usize>> = (0..inputs.chunks.len())
        .map(|chunk| inputs.passes.iter().rposition(|p| p.chunk == chunk && p.pass != Pass::Forward))
        .collect();
    for (index, pass) in inputs.passes.iter().enumerate() {
        let reduces = last[pass.chunk] == Some(index) && inputs.mesh.replicas > 1;
        push_pass(inputs, *pass, reduces, &mut out);
    }
    if inputs.mesh.replicas > 1 && inputs.mesh.mode != Mode::Dp {
        out.push(Instruction::WaitBuckets);
    }
    if inputs.tie_embeddings && inputs.mesh.stages > 1 && (inputs.stage == 0 || inputs.stage + 1 == inputs.mesh.stages)
    {
        out.push(Instruction::SumTied);
    }
    out.push(Instruction::ClipNorm { max: inputs.clip_norm });
    let updates = inputs.mesh.mode != Mode::Dp || inputs.is_root;
    out.push(if updates { Instruction::OptimizerStep } else { Instruction::ZeroGradients });
    out
}

/// Adds one pass with its messages. If it `reduces`, the pass is cut into buckets, and each bucket is reduced when its gradients are
/// complete.
fn push_pass(inputs: &StepInputs<'_>, scheduled: ScheduledPass, reduces: bool, out: &mut Vec<Instruction>) {
    let ScheduledPass { pass, mb, chunk } = scheduled;
    let stages = inputs.mesh.stages;
    let part = chunk * stages + inputs.stage;
    let previous = part.checked_sub(1).map(|p| p % stages);
    let next = (part + 1 < stages * inputs.chunks.len()).then_some((part + 1) % stages);
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
        Pass::Forward => Instruction::Forward { mb, chunk },
        Pass::BackwardInput => Instruction::BackwardInput { mb, chunk },
        Pass::Backward => Instruction::Backward { mb, chunk, blocks },
        Pass::BackwardWeight => Instruction::BackwardWeight { mb, chunk, blocks },
    };
    if !reduces {
        out.push(run(None));
        out.extend(send);
        return;
    }
    let buckets = inputs.buckets.iter().enumerate().filter(|(_, b)| inputs.chunks[chunk].contains(b.start));
    for (bucket, &blocks) in buckets {
        let whole = blocks == inputs.chunks[chunk];
        out.push(run(if whole { None } else { Some(blocks) }));
        // The previous stage already waits for the gradient; no rank waits for the bucket yet.
        out.extend(send.filter(|_| blocks.start == inputs.chunks[chunk].start));
        out.push(match inputs.mesh.mode {
            Mode::Dp => Instruction::ReduceToRoot { bucket },
            _ => Instruction::AllReduce { bucket },
        });
    }
}
