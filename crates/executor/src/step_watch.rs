//! Watches one step: when each rank ran which instruction, and how much memory it held. Reports show it beside the plan.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use candle_core::Device;

use super::device;
use super::error::ExecError;
use super::rank_context::RankContext;
use super::trainer::Trainer;
use runner_spec::event::{WatchedMemory, WatchedSpan, WatchedStep};
use runner_spec::forecast::MAX_SPANS;
use runner_spec::program::{Instruction, ParallelMode, Program};

/// One rank's observations, which all ranks exchange.
#[derive(Debug, Default, Serialize, Deserialize)]
struct RankObservation {
    /// Start of the step in seconds since 1970: the clock that ranks have in common.
    began: f64,
    spans: Vec<WatchedSpan>,
    memory: Option<WatchedMemory>,
}

#[derive(Debug)]
pub(super) struct StepWatch {
    began: Instant,
    observation: RankObservation,
    /// Bytes in tensors when the step began.
    allocated: Option<u64>,
}

impl StepWatch {
    /// Starts to watch the `nth` step of this process, counting from 1; `None` if that step is not watched. The 1st, 2nd, 4th,
    /// 8th, … are: a record holds the latest, and a later step is the better measure.
    pub(super) fn start_if_due(nth: u64, program: &Program, device: &Device) -> Option<Self> {
        // All ranks watch the same steps. Under dp they share one process, whose memory the root counts.
        let counts = program.mesh.mode != ParallelMode::Dp || program.rank == 0;
        nth.is_power_of_two().then(|| Self {
            began: Instant::now(),
            observation: RankObservation {
                began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
                ..RankObservation::default()
            },
            allocated: if counts { device::reset_peak_memory(device) } else { None },
        })
    }

    /// Records that `instruction` ran from `start` until now.
    pub(super) fn record_span(&mut self, rank: usize, instruction: &Instruction, start: Instant) {
        // Sends and receives have a chunk but no activity, and are drawn too. More spans than `MAX_SPANS` cannot be drawn.
        let (what, chunk) = (instruction.activity(), instruction.chunk());
        if (what.is_none() && chunk.is_none()) || self.observation.spans.len() >= MAX_SPANS {
            return;
        }
        let since = |at: Instant| at.duration_since(self.began).as_secs_f64();
        self.observation.spans.push(WatchedSpan {
            rank,
            what,
            mb: instruction.mb(),
            chunk: chunk.unwrap_or(0),
            start: since(start),
            end: since(Instant::now()),
        });
    }

    /// Records the memory that the rank holds. The first of several ranks in one process records it for all.
    pub(super) fn record_memory(&mut self, program: &Program, trainer: &Trainer) {
        let sharing = if program.mesh.mode == ParallelMode::Dp { program.world_size() as u64 } else { 1 };
        if sharing > 1 && program.rank > 0 {
            return;
        }
        let bytes = |elements: usize| (elements * trainer.state.buffer.dtype().size_in_bytes()) as u64;
        let held = trainer.state.layout.total;
        let (peak, device) = device::peak_memory(&trainer.device);
        self.observation.memory = Some(WatchedMemory {
            rank: program.rank,
            weights: sharing * (bytes(held) + trainer.copied_weight_bytes() as u64),
            gradients: sharing * trainer.gradient_bytes() as u64,
            // Under dp the root alone has moments.
            optimizer: bytes(trainer.state.layout.state_len(trainer.state.moments) - held),
            step: self.allocated.zip(peak).map(|(before, peak)| peak.saturating_sub(before)),
            device,
        });
    }

    /// Combines the observations of all ranks on rank 0; the others get `None`.
    ///
    /// # Errors
    /// Those of the communication.
    pub(super) fn gather(self, context: RankContext<'_>, step: u64) -> Result<Option<WatchedStep>, ExecError> {
        let all = context.gather_values(&self.observation)?;
        Ok((context.program.rank == 0).then(|| combine(step, all)))
    }
}

/// Puts the spans of all ranks on the clock of the rank that began first.
fn combine(step: u64, all: Vec<RankObservation>) -> WatchedStep {
    let first = all.iter().map(|rank| rank.began).fold(f64::INFINITY, f64::min);
    let mut watched = WatchedStep { step, end: 0.0, spans: Vec::new(), memory: Vec::new() };
    for rank in all {
        let late = rank.began - first;
        watched.spans.extend(rank.spans.into_iter().map(|s| WatchedSpan {
            start: s.start + late,
            end: s.end + late,
            ..s
        }));
        watched.memory.extend(rank.memory);
    }
    watched.end = watched.spans.iter().map(|s| s.end).fold(0.0, f64::max);
    watched
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_put_on_one_clock() {
        let span = |rank, start, end| WatchedSpan { rank, what: None, mb: None, chunk: 0, start, end };
        let observed = |began, span| RankObservation { began, spans: vec![span], memory: None };
        let watched = combine(3, vec![observed(10.5, span(0, 0.0, 1.0)), observed(10.0, span(1, 0.25, 0.5))]);
        assert_eq!(watched.spans, [span(0, 0.5, 1.5), span(1, 0.25, 0.5)]);
        assert_eq!((watched.step, watched.end), (3, 1.5));
    }
}
