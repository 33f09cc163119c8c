//! A rank's work, wherever the rank runs: as a thread, as a process of this machine, or started by a launcher.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::device_communicator::device_communicator;
use super::failure::{RankError, describe_place};
use super::faults;
use runner_comm::{Communicator, LocalComm, RankPhase, RankStatus, Region, TcpMesh};
use runner_compute::state::TrainState;
use runner_executor::{InstructionList, Observer, ProgressMonitor, Resources, RunControls, TrainedRank};
use runner_spec::error::PlainError;
use runner_spec::program::Program;

/// The time between two steps that a rank shows to the ranks of other machines.
const STATUS_INTERVAL: Duration = Duration::from_millis(50);

/// The communicator of the rank of `program` over `region`, and the rank's status there.
///
/// # Errors
/// If `region` has no such rank, the rank is taken, or ranks on GPUs cannot communicate.
pub(super) fn connect_rank<'a>(
    region: &'a Arc<Region>,
    program: &Program,
) -> Result<(Box<dyn Communicator>, &'a RankStatus), PlainError> {
    let missing = || PlainError::failure(format!("the region has no rank {}", program.rank));
    let status = region.status(program.rank).ok_or_else(missing)?;
    let comm = LocalComm::new(region.clone(), program.rank).map_err(|error| PlainError::failure(error.to_string()))?;
    if let Some(timeout) = faults::milliseconds("operation-timeout") {
        comm.set_operation_timeout(timeout);
    }
    Ok((device_communicator(Box::new(comm), region.topology(), program)?, status))
}

/// A rank that is ready to train.
#[derive(Clone, Copy)]
pub(super) struct RankTraining<'a> {
    pub program: &'a Program,
    pub resources: &'a Resources<'a>,
    pub comm: &'a dyn Communicator,
    pub status: &'a RankStatus,
    /// The connections over which the status is published; `None`: other ranks read it from shared memory.
    pub mesh: Option<&'a TcpMesh>,
    pub controls: RunControls<'a>,
}

impl RankTraining<'_> {
    /// Trains from `state` on, in the current thread pool, until the program ends or is to stop. The rank's status shows where it is.
    ///
    /// # Errors
    /// The executor's error, with the instruction that the rank had started.
    pub(super) fn run(&self, state: TrainState, observer: &mut dyn Observer) -> Result<TrainedRank, RankError> {
        let Self { program, resources, controls, status, .. } = *self;
        let monitor = StatusMonitor { training: self, published: Mutex::new(Instant::now()) };
        let result = runner_executor::run(program, resources, self.comm, &monitor, state, controls, observer);
        let result = result.map_err(|source| {
            let place = describe_place(program, &status.snapshot());
            RankError { rank: program.rank, place, source }
        });
        status.set_phase(match &result {
            Ok(outcome) if outcome.interrupted => RankPhase::Stopped,
            Ok(_) => RankPhase::Finished,
            Err(_) => RankPhase::Failed,
        });
        result
    }
}

/// Shows in a rank's status where the rank is, and injects the faults that a test asks for.
struct StatusMonitor<'a> {
    training: &'a RankTraining<'a>,
    /// The time of the newest publication.
    published: Mutex<Instant>,
}

impl ProgressMonitor for StatusMonitor<'_> {
    fn enter_instruction(&self, step: u64, list: InstructionList, index: usize) {
        let RankTraining { program, status, mesh, .. } = *self.training;
        status.set_step(step);
        status.set_instruction(list as u32, index as u32);
        status.enter_phase(if list == InstructionList::Step { RankPhase::Step } else { RankPhase::Periodic });
        if (list, index) != (InstructionList::Step, 0) {
            return;
        }
        faults::begin_step(program.rank, step + 1);
        if let Some(mesh) = mesh {
            let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
            if published.elapsed() >= STATUS_INTERVAL {
                *published = Instant::now();
                mesh.publish_status();
            }
        }
    }

    fn heartbeat(&self) {
        self.training.status.record_progress();
    }
}
