//! From a plan's mesh to the groups and channels that its ranks communicate through.

use runner_spec::mesh::Mesh;
use runner_spec::program::{EVAL_TOKENS_PER_FORWARD, Program};
use runner_spec::topology::{Channel, Lane, Topology};

/// The topology of the ranks of `program`'s mesh. `slots` is what the check found to be enough; `element` the bytes of one
/// activation element. Slots are as long as the longest message of training, evaluation and sampling; what is not used
/// costs nothing.
pub fn topology(program: &Program, slots: usize, element: usize) -> Topology {
    let mesh = program.mesh;
    let groups = mesh.groups().into_iter().map(|group| mesh.members(group)).collect();
    Topology { world_size: mesh.world_size(), groups, channels: channels(program, mesh, slots, element) }
}

fn channels(program: &Program, mesh: Mesh, slots: usize, element: usize) -> Vec<Channel> {
    if mesh.stages < 2 {
        return Vec::new();
    }
    let slot_bytes = longest(program).saturating_mul(element);
    let mut out = Vec::new();
    for replica in 0..mesh.replicas {
        for stage in 0..mesh.stages {
            let next = (stage + 1) % mesh.stages;
            let (here, there) = (mesh.rank(stage, replica), mesh.rank(next, replica));
            // From the last stage to the first: chunks of interleaved schedules, and logits.
            let forward = Channel { from: here, to: there, lane: Lane::Activation, slots, slot_bytes };
            out.push(forward);
            out.push(Channel { from: there, to: here, lane: Lane::Gradient, ..forward });
        }
    }
    out
}

/// Elements of the longest message.
fn longest(program: &Program) -> usize {
    let d = program.model.d_model;
    let training = program.batch.micro_batch.saturating_mul(program.batch.length);
    let choice =
        if program.eval.choice_items.is_some() { EVAL_TOKENS_PER_FORWARD.max(program.model.context_length) } else { 0 };
    let (prompts, logits) = program.eval.samples.as_ref().map_or((0, 0), |samples| {
        let rows = samples.count.saturating_mul(program.model.context_length);
        (rows, samples.count.saturating_mul(program.model.vocab_size))
    });
    training.max(choice).max(prompts).saturating_mul(d).max(logits).max(64)
}
