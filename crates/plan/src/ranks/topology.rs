//! From a plan's mesh to the groups and channels that its ranks communicate through.

use runner_spec::program::{EVAL_TOKENS_PER_FORWARD, Program};
use runner_spec::topology::{Channel, Lane, Topology};

/// The topology of the ranks of `program`'s mesh. `slots` is what the check found to be enough; `element` the bytes of one
/// activation element. Slots are as long as the longest message of training, evaluation and sampling; what is not used
/// costs nothing.
pub fn topology(program: &Program, slots: usize, element: usize) -> Topology {
    let mesh = program.mesh;
    let groups = mesh.groups().into_iter().map(|group| mesh.members(group)).collect();
    let slot_bytes = longest_message(program).saturating_mul(element);
    let mut channels = Vec::new();
    let stages = if mesh.stages < 2 { 0 } else { mesh.stages };
    for (replica, stage) in (0..mesh.replicas).flat_map(|replica| (0..stages).map(move |stage| (replica, stage))) {
        let (from, to) = (mesh.rank(stage, replica), mesh.rank((stage + 1) % stages, replica));
        // From the last stage to the first: chunks of interleaved schedules, and logits.
        let forward = Channel { from, to, lane: Lane::Activation, slots, slot_bytes };
        channels.extend([forward, Channel { from: to, to: from, lane: Lane::Gradient, ..forward }]);
    }
    Topology { world_size: mesh.world_size(), groups, channels }
}

/// Elements of the longest message.
pub(crate) fn longest_message(program: &Program) -> usize {
    let d = program.model.decoder().widest();
    let batches = program.earlier.iter().map(|stage| &stage.batch).chain([&program.batch]);
    let training = batches.map(|batch| batch.micro_batch.saturating_mul(batch.length)).max().unwrap_or(0);
    let choice =
        if program.eval.choice_items.is_some() { EVAL_TOKENS_PER_FORWARD.max(program.model.context_length) } else { 0 };
    let (prompts, logits) = program.eval.samples.as_ref().map_or((0, 0), |samples| {
        let rows = samples.batch_rows();
        (rows.saturating_mul(program.model.context_length), rows.saturating_mul(program.model.vocab_size))
    });
    training.max(choice).max(prompts).saturating_mul(d).max(logits).max(64)
}
