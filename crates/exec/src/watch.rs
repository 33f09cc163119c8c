//! One step under watch: when each rank did what in it, and how much memory it held. Shown beside what the plan says.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use candle_core::Device;

use super::device;
use super::error::ExecError;
use super::peers::Links;
use super::step::Trainer;
use runner_spec::event::{WatchedMemory, WatchedSpan, WatchedStep};
use runner_spec::forecast::{Activity, MOST_SPANS};
use runner_spec::program::{Instruction, Mode, Program};

/// What one rank tells the others of the step.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Told {
    /// Seconds since 1970 when it began: the clock that ranks have in common.
    began: f64,
    spans: Vec<WatchedSpan>,
    memory: Option<WatchedMemory>,
}

/// Notes what its rank does.
#[derive(Debug)]
pub(super) struct Stopwatch {
    began: Instant,
    told: Told,
    allocated: Option<u64>,
}

impl Stopwatch {
    /// For the `nth` step of this process, counting from 1; `None` if it goes unwatched. The 1st, 2nd, 4th, 8th, … are
    /// watched, since the later one is the better measure, and a record holds the latest.
    pub(super) fn for_step(nth: u64, program: &Program, device: &Device) -> Option<Self> {
        // All ranks answer alike: what was noted is gathered. Under dp they share what is allocated.
        let counts = program.mesh.mode != Mode::Dp || program.rank == 0;
        nth.is_power_of_two().then(|| Self {
            began: Instant::now(),
            told: Told {
                began: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64()),
                ..Told::default()
            },
            allocated: if counts { device::start_peak(device) } else { None },
        })
    }

    /// Notes that `instruction` ran from `start` until now.
    pub(super) fn note(&mut self, rank: usize, instruction: &Instruction, start: Instant) {
        let Some((what, mb, chunk)) = activity(instruction) else { return };
        // A picture of more shows nothing.
        if self.told.spans.len() >= MOST_SPANS {
            return;
        }
        let since = |at: Instant| at.duration_since(self.began).as_secs_f64();
        self.told.spans.push(WatchedSpan { rank, what, mb, chunk, start: since(start), end: since(Instant::now()) });
    }

    /// Notes what the rank holds. Of ranks that share a process, the first speaks for all.
    pub(super) fn weigh(&mut self, program: &Program, trainer: &Trainer) {
        let sharing = if program.mesh.mode == Mode::Dp { program.world_size() as u64 } else { 1 };
        if sharing > 1 && program.rank > 0 {
            return;
        }
        let bytes = |elements: usize| (elements * trainer.state.buffer.dtype().size_in_bytes()) as u64;
        let total = trainer.state.layout.total;
        let copy = match (trainer.has_rounded_copy(), trainer.device().is_cpu()) {
            (false, _) => 0,
            (true, true) => bytes(total),
            // As bf16.
            (true, false) => 2 * total as u64,
        };
        let (peak, device) = device::peak(trainer.device());
        self.told.memory = Some(WatchedMemory {
            rank: program.rank,
            weights: sharing * (bytes(total) + copy),
            gradients: sharing * bytes(total),
            // Under dp the root alone has moments.
            optimizer: bytes(total * trainer.state.moments),
            step: self.allocated.zip(peak).map(|(before, peak)| peak.saturating_sub(before)),
            device,
        });
    }

    /// Puts together what all ranks noted; the first rank gets it.
    ///
    /// # Errors
    /// Those of the communication.
    pub(super) fn gather(self, links: &Links<'_>, step: u64) -> Result<Option<WatchedStep>, ExecError> {
        let told = serde_json::to_vec(&self.told).map_err(|e| ExecError::Program(e.to_string()))?;
        let all = links.gather(&told)?;
        if links.comm.rank() > 0 {
            return Ok(None);
        }
        let read = |bytes: &Vec<u8>| serde_json::from_slice(bytes).map_err(|e| ExecError::Program(e.to_string()));
        Ok(Some(together(step, all.iter().map(read).collect::<Result<_, _>>()?)))
    }
}

fn together(step: u64, all: Vec<Told>) -> WatchedStep {
    let first = all.iter().map(|t| t.began).fold(f64::INFINITY, f64::min);
    let mut watched = WatchedStep { step, end: 0.0, spans: Vec::new(), memory: Vec::new() };
    for told in all {
        let late = told.began - first;
        watched.spans.extend(told.spans.into_iter().map(|s| WatchedSpan {
            start: s.start + late,
            end: s.end + late,
            ..s
        }));
        watched.memory.extend(told.memory);
    }
    watched.end = watched.spans.iter().map(|s| s.end).fold(0.0, f64::max);
    watched
}

/// What an instruction is in a picture of the step: activity, micro-batch, chunk. Reading data is none of it.
fn activity(instruction: &Instruction) -> Option<(Option<Activity>, Option<usize>, usize)> {
    use Instruction as I;
    let passing = |what, mb, chunk| Some((what, Some(mb), chunk));
    match *instruction {
        I::Forward { mb, chunk } => passing(Some(Activity::Forward), mb, chunk),
        I::Backward { mb, chunk, .. } => passing(Some(Activity::Backward), mb, chunk),
        I::BackwardInput { mb, chunk } => passing(Some(Activity::Input), mb, chunk),
        I::BackwardWeight { mb, chunk, .. } => passing(Some(Activity::Weight), mb, chunk),
        I::SendActivation { mb, chunk, .. }
        | I::RecvActivation { mb, chunk, .. }
        | I::SendGradient { mb, chunk, .. }
        | I::RecvGradient { mb, chunk, .. } => passing(None, mb, chunk),
        I::ClipNorm { .. } | I::OptimizerStep | I::ZeroGradients => Some((Some(Activity::Update), None, 0)),
        I::AllReduce { .. } | I::ReduceToRoot { .. } => Some((Some(Activity::Reduce), None, 0)),
        I::WaitBuckets | I::SumTied | I::BroadcastWeights | I::CountTokens { .. } => {
            Some((Some(Activity::Collective), None, 0))
        }
        I::Load { .. } | I::Evaluate | I::Sample | I::Checkpoint => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_put_on_one_clock() {
        let span = |rank, start, end| WatchedSpan { rank, what: None, mb: None, chunk: 0, start, end };
        let told = |began, span| Told { began, spans: vec![span], memory: None };
        let watched = together(3, vec![told(10.5, span(0, 0.0, 1.0)), told(10.0, span(1, 0.25, 0.5))]);
        assert_eq!(watched.spans, [span(0, 0.5, 1.5), span(1, 0.25, 0.5)]);
        assert_eq!((watched.step, watched.end), (3, 1.5));
    }
}
