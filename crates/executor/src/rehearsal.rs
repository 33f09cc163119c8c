//! What ranks on several GPUs do before the first step, so that nothing happens for the first time while another rank waits.
//!
//! The first product of a kind loads kernels, and the first copies and tensors allocate memory; both may wait for all that runs on the GPU,
//! also for a transfer that waits for this rank. So the passes of one micro-batch run before the ranks are connected. NCCL connects the
//! members of a group again for each of its algorithms, which it chooses by operation and length, so the group operations of a step run once
//! when nothing else is under way. At the start of a later stage the ranks are connected; by then each has started every transfer of the step
//! before, so none of them waits for what this rank has yet to do. Afterwards gradients are cleared, and weights have not changed.

use candle_core::Tensor;

use super::error::ExecError;
use super::gradient_reduction::GradientReduction;
use super::passes::Passes;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use super::weight_exchange::{self, WeightExchange};
use runner_spec::data::Rows;
use runner_spec::program::Instruction;
use runner_spec::topology::Lane;

/// The micro-batch that is run.
const MICRO_BATCH: usize = 0;

/// Runs the passes of one micro-batch with rows and messages of zeros, twice: as the first of a step, whose gradients are stored, and as a later
/// one, whose gradients are added.
///
/// # Errors
/// If memory is short.
pub(super) fn run_passes(context: RankContext<'_>, trainer: &mut Trainer) -> Result<(), ExecError> {
    trainer.clear_gradients()?;
    run_micro_batch(context, trainer)?;
    run_micro_batch(context, trainer)?;
    Ok(trainer.clear_gradients()?)
}

fn run_micro_batch(context: RankContext<'_>, trainer: &mut Trainer) -> Result<(), ExecError> {
    let program = context.program;
    let mut passes = Passes::new(context, trainer.state.step);
    let (rows, length) = (program.batch.rows(MICRO_BATCH).1, program.batch.length);
    let zeros = vec![0; rows * length];
    passes.add_rows(
        trainer,
        MICRO_BATCH,
        Rows { length, inputs: zeros.clone(), targets: zeros, filled: Vec::new() },
    )?;
    passes.set_global_tokens(1);
    let receive = |passes: &mut Passes<'_>, trainer: &Trainer, chunk: usize, lane: Lane| {
        let (dtype, width) = (trainer.weights.activation_dtype(), passes.received_width(chunk, lane));
        let message = Tensor::zeros((rows * length, width), dtype, &trainer.device)?;
        passes.put(trainer, (MICRO_BATCH, chunk), lane, message)
    };
    for instruction in &program.step {
        match *instruction {
            Instruction::GatherParameters { bucket } => {
                trainer.hold_weights(&trainer.weights.layout.block_ranges(program.buckets[bucket].range()))?;
            }
            Instruction::ReleaseParameters { bucket } => trainer.release_weights(program.buckets[bucket]),
            Instruction::Forward { mb: MICRO_BATCH, chunk, blocks } => {
                passes.forward(trainer, MICRO_BATCH, chunk, blocks, None)?;
            }
            Instruction::Backward { mb: MICRO_BATCH, chunk, blocks } => {
                trainer.hold_gradients_of(program, *instruction)?;
                passes.backward(trainer, MICRO_BATCH, chunk, blocks)?;
            }
            Instruction::BackwardInput { mb: MICRO_BATCH, chunk } => {
                passes.backward_input(trainer, MICRO_BATCH, chunk)?;
            }
            Instruction::BackwardWeight { mb: MICRO_BATCH, chunk, blocks } => {
                trainer.hold_gradients_of(program, *instruction)?;
                passes.backward_weight(trainer, MICRO_BATCH, chunk, blocks)?;
            }
            Instruction::RecvActivation { mb: MICRO_BATCH, chunk, .. } => {
                receive(&mut passes, trainer, chunk, Lane::Activation)?;
            }
            Instruction::RecvGradient { mb: MICRO_BATCH, chunk, .. } => {
                receive(&mut passes, trainer, chunk, Lane::Gradient)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Runs the group operations of a step once: sums of gradients, which do not count, and the exchange of weights.
///
/// # Errors
/// If memory is short, and those of the communication.
pub(super) fn run_group_operations(context: RankContext<'_>, trainer: &mut Trainer) -> Result<(), ExecError> {
    let program = context.program;
    let (mut reduction, mut exchange) = (GradientReduction::new(context), WeightExchange::new(context));
    for instruction in &program.step {
        trainer.hold_gradients_of(program, *instruction)?;
        match *instruction {
            Instruction::BroadcastWeights => weight_exchange::broadcast_weights(context, trainer)?,
            Instruction::PrefetchParameters { bucket } => exchange.prefetch(trainer, bucket)?,
            Instruction::GatherParameters { bucket } => exchange.gather(trainer, bucket)?,
            Instruction::ReleaseParameters { bucket } => trainer.release_weights(program.buckets[bucket]),
            Instruction::AllReduce { bucket } => reduction.all_reduce(trainer, bucket)?,
            Instruction::ReduceScatter { bucket } => reduction.reduce_scatter(trainer, bucket)?,
            Instruction::WaitBuckets => reduction.wait_buckets(trainer)?,
            Instruction::ReduceToRoot { bucket } => reduction.reduce_to_root(trainer, bucket)?,
            Instruction::SumTied => reduction.sum_tied(trainer)?,
            _ => {}
        }
    }
    Ok(trainer.clear_gradients()?)
}
