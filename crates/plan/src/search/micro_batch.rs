//! `batch.micro_batch: auto`: the largest micro-batch with which an experiment fits the memory.

use std::borrow::Cow;

use super::evaluate::{Evaluator, Unfit};
use super::{Layout, MAX_PASSES, divisors};
use crate::compile;
use crate::error::Result;
use crate::quantity::bytes;
use crate::ranks;
use crate::schedule::schedule;
use runner_spec::cluster::ClusterFacts;
use runner_spec::data::DataFacts;
use runner_spec::experiment::{AUTO_MICRO_BATCH, Experiment, PipelineSchedule};
use runner_spec::format::count;

/// A file has at most so many sequences; what is planned with more is refused, not divided.
const MAX_SEQUENCES: usize = 1_000_000_000;

/// `experiment` with a number as its micro-batch, and the reason for the number if the file says `auto`: the largest divisor of a replica's
/// sequences that fits the memory. If none does it is 1, and the plan says what is missing.
///
/// # Errors
/// Those of [`compile`].
pub fn settle_micro_batch<'e>(
    experiment: &'e Experiment,
    data: &DataFacts,
    cluster: &ClusterFacts,
) -> Result<(Cow<'e, Experiment>, Option<String>)> {
    if experiment.batch.micro_batch != AUTO_MICRO_BATCH {
        return Ok((Cow::Borrowed(experiment), None));
    }
    let mut settled = experiment.clone();
    let sequences = settled.batch.sequences / ranks::mesh(&settled.parallel, settled.batch.sequences)?.replicas;
    settled.batch.micro_batch = sequences.max(1);
    if sequences > MAX_SEQUENCES {
        return Ok((Cow::Owned(settled), None));
    }
    let plan = compile(&settled, data, cluster)?;
    let Some(rank) = plan.ranks.first() else { return Ok((Cow::Owned(settled), None)) };
    let mut evaluator = Evaluator::new(&settled, cluster, &rank.program);
    let mut too_large = None;
    let mut found = 1;
    for micro_batch in divisors(sequences).into_iter().rev().filter(|size| 2 * (sequences / size) <= MAX_PASSES) {
        let layout = Layout { micro_batch, ..Layout::of(&settled) };
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
    settled.batch.micro_batch = found;
    Ok((Cow::Owned(settled), Some(format!("batch.micro_batch: auto is {found}: {why}"))))
}
