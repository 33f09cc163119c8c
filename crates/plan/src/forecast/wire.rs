//! The bytes that the ranks of a plan send in a step.

use crate::forecast::cost::block_params;
use crate::forecast::step_costs::gradient_elements;
use crate::ranks::shard::gathered_element_bytes;
use runner_spec::plan::Plan;
use runner_spec::precision;
use runner_spec::program::{Instruction, Program};
use runner_spec::topology::Lane;

/// The bytes that all ranks of `plan` together send in a step: activations, gradients and weights. A sum over n replicas moves 2(n − 1)
/// times its bytes, as a ring does, and one into the replica that updates them half of that. Counts of tokens and norms are left out.
pub fn bytes_sent(plan: &Plan) -> u64 {
    let first_replicas = plan.ranks.iter().filter(|rank| rank.replica == 0);
    first_replicas.map(|rank| bytes_sent_by_stage(&rank.program)).fold(0, u64::saturating_add)
}

/// The bytes that the replicas of a stage send in a step; `program` is that of the first one.
pub(crate) fn bytes_sent_by_stage(program: &Program) -> u64 {
    let (params, replicas) = (block_params(&program.model), program.mesh.replicas as u64);
    let element = precision::state_bytes(program.master_weights);
    let gradients = |bucket: usize| element * gradient_elements(&params, program, program.buckets[bucket]);
    let sent_rows = |mb, edge| replicas * message_bytes(program, program.batch.rows(mb).1 as u64, edge);
    let sent = |instruction: &Instruction| match *instruction {
        Instruction::SendActivation { mb, chunk, .. } => sent_rows(mb, program.sent_at(chunk, Lane::Activation)),
        Instruction::SendGradient { mb, chunk, .. } => sent_rows(mb, program.sent_at(chunk, Lane::Gradient)),
        Instruction::AllReduce { bucket } => 2 * (replicas - 1) * gradients(bucket),
        Instruction::ReduceScatter { bucket } | Instruction::ReduceToRoot { bucket } => {
            (replicas - 1) * gradients(bucket)
        }
        Instruction::GatherParameters { bucket } => {
            (replicas - 1) * gradients(bucket) / element * gathered_element_bytes(program)
        }
        Instruction::BroadcastWeights => (replicas - 1) * element * params.iter().sum::<u64>(),
        Instruction::SumTied => replicas * element * (program.model.vocab_size * program.model.d_model) as u64,
        _ => 0,
    };
    program.step.iter().map(sent).fold(0, u64::saturating_add)
}

/// The bytes of `rows` rows that flow into `block`, or of their gradients.
pub(crate) fn message_bytes(program: &Program, rows: u64, block: usize) -> u64 {
    bytes_of_rows(program, rows, program.model.width_to(block))
}

/// The bytes of `rows` rows of activations of `width`.
pub(crate) fn bytes_of_rows(program: &Program, rows: u64, width: usize) -> u64 {
    let numbers = rows.saturating_mul((program.batch.length * width) as u64);
    numbers.saturating_mul(precision::activation_bytes(program.precision))
}
