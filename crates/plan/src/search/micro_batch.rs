//! The largest micro-batch with which an experiment fits the memory, for `batch.micro_batch: auto`.

use super::evaluate::{Evaluator, Unfit};
use super::{Layout, MAX_PASSES, divisors};
use crate::compile;
use crate::error::Result;
use crate::quantity::bytes;
use crate::schedule::schedule;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::experiment::{Experiment, PipelineSchedule, Schedule};
use runner_spec::format::count;

/// A file has at most so many sequences; what is planned with more is refused, not divided.
const MAX_SEQUENCES: usize = 1_000_000_000;

/// A micro-batch, and the note with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FittingMicroBatch {
    pub rows: usize,
    pub note: String,
}

/// The largest divisor of the micro-batch of `experiment`, which is all sequences of a replica, that fits the memory. If none does it is 1, and
/// the plan says what is missing. The length of the training has no part in it.
///
/// # Errors
/// Those of [`compile`].
pub fn largest_micro_batch(
    experiment: &Experiment,
    data: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<FittingMicroBatch> {
    let sequences = experiment.batch.micro_batch;
    // The schedule may not fit a length that is not final.
    let mut probe = Experiment { schedule: Schedule::default(), ..experiment.clone() };
    probe.train.set_steps(1);
    // By default, the micro-batch of an earlier stage is at most this one.
    probe.train.stages.clear();
    probe.batch.warmup = None;
    let plan = compile(&probe, data, cluster)?;
    let (mut found, mut too_large) = (1, None);
    if let Some(rank) = plan.ranks.first().filter(|_| sequences <= MAX_SEQUENCES) {
        let mut evaluator = Evaluator::new(&probe, cluster, &rank.program);
        for micro_batch in divisors(sequences).into_iter().rev().filter(|size| 2 * (sequences / size) <= MAX_PASSES) {
            let layout = Layout { micro_batch, ..Layout::of(&probe) };
            let passes = schedule(PipelineSchedule::OneFOneB, 1, 1, sequences / micro_batch);
            match evaluator.memory_of(&layout, &passes) {
                Ok(_) => {
                    found = micro_batch;
                    break;
                }
                Err(Unfit::Memory(lacking)) => too_large = Some((micro_batch, lacking)),
                Err(_) => {}
            }
        }
    }
    let whole = count(sequences as u64);
    let why = match too_large {
        None => format!("all {whole} sequences of a replica fit the memory"),
        Some((1, lacking)) => format!("not even 1 fits the memory, which lacks {}", bytes(lacking)),
        Some((larger, lacking)) => {
            format!(
                "the largest divisor of a replica's {whole} sequences that fits the memory; {larger} lacks {}",
                bytes(lacking)
            )
        }
    };
    Ok(FittingMicroBatch { rows: found, note: format!("batch.micro_batch: auto is {found}: {why}") })
}
