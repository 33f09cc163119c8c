//! What a run needs of the machines that train it.

use std::time::Duration;

use runner_spec::plan::Plan;
use runner_spec::program::Device;

/// A job requests this multiple of the planned memory, and memory for the program of each rank.
const MEMORY_MARGIN: f64 = 1.25;
const PROGRAM_MEMORY_MB: u64 = 512;

/// The time limit of a job is this multiple of the predicted time, and time for what the prediction leaves out: the preparation of the
/// data, evaluations and checkpoints.
const TIME_MARGIN: f64 = 1.5;
const ADDITIONAL_TIME: Duration = Duration::from_mins(10);

/// What a run needs, or the largest of several runs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct JobNeeds {
    pub ranks: usize,
    /// The machines that the plan is for.
    pub nodes: usize,
    /// Planned host memory of all ranks, and of the rank that needs the most.
    pub memory_bytes: u64,
    pub rank_memory_bytes: u64,
    /// The CUDA devices of one machine that the ranks must see.
    pub cuda_devices: usize,
    /// The predicted time of all steps; `None` if it is unknown.
    pub predicted_seconds: Option<f64>,
}

impl JobNeeds {
    /// The needs of a run of `plan`.
    #[must_use]
    pub fn of_plan(plan: &Plan) -> Self {
        let host_memory = || {
            plan.ranks.iter().map(|rank| match rank.device {
                Device::Cpu => rank.memory.total(),
                // The state is made in host memory, and copied there for each checkpoint.
                Device::Cuda(_) => rank.memory.weights.saturating_add(rank.memory.optimizer),
            })
        };
        let cuda = plan.ranks.iter().filter_map(|rank| match rank.device {
            Device::Cuda(index) => Some(index + 1),
            Device::Cpu => None,
        });
        Self {
            ranks: plan.ranks.len(),
            nodes: plan.ranks.iter().map(|rank| rank.hardware.node + 1).max().unwrap_or(1),
            memory_bytes: host_memory().fold(0, u64::saturating_add),
            rank_memory_bytes: host_memory().max().unwrap_or(0),
            cuda_devices: cuda.max().unwrap_or(0),
            predicted_seconds: plan.forecast.as_ref().map(|forecast| forecast.run_seconds),
        }
    }

    /// The needs of the largest of two runs with the same number of ranks.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            ranks: self.ranks.max(other.ranks),
            nodes: self.nodes.max(other.nodes),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            rank_memory_bytes: self.rank_memory_bytes.max(other.rank_memory_bytes),
            cuda_devices: self.cuda_devices.max(other.cuda_devices),
            predicted_seconds: self.predicted_seconds.zip(other.predicted_seconds).map(|(a, b)| a.max(b)),
        }
    }

    /// The memory of a machine with `ranks` ranks.
    pub(crate) fn memory_mb(&self, ranks: usize) -> u64 {
        let bytes = self.memory_bytes.min(self.rank_memory_bytes.saturating_mul(ranks as u64));
        PROGRAM_MEMORY_MB * ranks as u64 + (bytes as f64 * MEMORY_MARGIN / f64::from(1 << 20)).ceil() as u64
    }

    /// The time limit that follows from the predicted time.
    pub(crate) fn time_limit(&self) -> Option<Duration> {
        let predicted = Duration::try_from_secs_f64(self.predicted_seconds? * TIME_MARGIN).ok()?;
        predicted.checked_add(ADDITIONAL_TIME)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn a_machine_gets_memory_for_its_ranks() {
        let needs = JobNeeds { ranks: 4, memory_bytes: 10 << 20, rank_memory_bytes: 4 << 20, ..JobNeeds::default() };
        assert_eq!([1, 2, 4].map(|ranks| needs.memory_mb(ranks)), [512 + 5, 1024 + 10, 2048 + 13]);
        let plan = compiled(&experiment());
        let of_plan = JobNeeds::of_plan(&plan);
        assert_eq!((of_plan.ranks, of_plan.nodes, of_plan.cuda_devices), (1, 1, 0));
        assert!(of_plan.memory_bytes > 0 && of_plan.memory_bytes == of_plan.rank_memory_bytes);
    }

    #[test]
    fn the_time_limit_has_a_margin() {
        let of = |seconds| JobNeeds { predicted_seconds: seconds, ..JobNeeds::default() };
        assert_eq!(of(Some(3600.0)).time_limit(), Some(Duration::from_mins(100)));
        for unknown in [None, Some(f64::NAN), Some(f64::INFINITY)] {
            assert_eq!(of(unknown).time_limit(), None);
        }
        assert_eq!(of(Some(1.0)).max(of(Some(2.0))).predicted_seconds, Some(2.0));
        assert_eq!(of(Some(1.0)).max(of(None)).predicted_seconds, None, "a time limit must hold for all");
    }
}
