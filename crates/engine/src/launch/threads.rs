//! Ranks as threads of one process: how dp runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use super::device::on_device;
use super::error::{RankError, where_in};
use runner_comm::{LocalComm, RankPhase, RankStatus, Region};
use runner_compute::observer::Observer;
use runner_compute::state::TrainState;
use runner_exec::{ExecError, InstructionList, Peers, ProgressMonitor, RankOutcome, Resources, RunControls};
use runner_plan::topology::topology;
use runner_spec::event::{Event, ObserveError};
use runner_spec::program::Program;
use runner_spec::topology::LocalRanks;

/// One rank of a run in this process.
#[derive(Debug)]
pub struct Seated<'a> {
    pub program: &'a Program,
    /// Threads that it computes with.
    pub threads: usize,
    pub state: TrainState,
}

/// Writes on the board where a rank is.
#[derive(Debug)]
pub struct OnBoard<'a>(pub &'a RankStatus);

impl ProgressMonitor for OnBoard<'_> {
    fn enter_instruction(&self, step: u64, list: InstructionList, index: usize) {
        self.0.set_step(step);
        self.0.set_instruction(list as u32, index as u32);
        self.0.set_phase(if list == InstructionList::Step { RankPhase::Step } else { RankPhase::Periodic });
        self.0.record_progress();
    }

    fn heartbeat(&self) {
        self.0.record_progress();
    }
}

/// Of the ranks besides the first, nothing is recorded.
struct Unheard;

impl Observer for Unheard {
    fn observe(&mut self, _: &Event) -> Result<(), ObserveError> {
        Ok(())
    }

    fn checkpoint(&mut self, _: &TrainState) -> Result<(), ObserveError> {
        Ok(())
    }
}

/// Runs all ranks to their end; what happens on rank 0 goes to `observer`. `slots` is what the plan's check found.
///
/// # Errors
/// That of the rank that failed first, when all have ended.
pub fn run<'a>(
    ranks: Vec<Seated<'_>>,
    slots: usize,
    resources: &Resources<'_>,
    orders: impl Into<RunControls<'a>>,
    observer: &mut (dyn Observer + Send),
) -> Result<Vec<RankOutcome>, RankError> {
    let orders = orders.into();
    let programs: Vec<&Program> = ranks.iter().map(|r| r.program).collect();
    let failed = |rank: usize, source: ExecError| RankError {
        rank,
        place: "while starting".to_owned(),
        source: Box::new(source),
    };
    let Some(first) = ranks.first() else { return Ok(Vec::new()) };
    let element = first.state.buffer.dtype().size_in_bytes();
    let topology = topology(first.program, slots, element);
    let region = Region::anonymous(&topology).map_err(|e| failed(0, ExecError::Program(e.to_string())))?;
    let mut observer = Some(observer);
    let results: Vec<Result<RankOutcome, ExecError>> = thread::scope(|scope| {
        let mut handles = Vec::with_capacity(ranks.len());
        for (rank, seated) in ranks.into_iter().enumerate() {
            let region = region.clone();
            let own = observer.take();
            handles.push(scope.spawn(move || {
                let mut unheard = Unheard;
                let observer: &mut (dyn Observer + Send) = match own {
                    Some(observer) => observer,
                    None => &mut unheard,
                };
                // A panic must not leave the others waiting.
                let work = AssertUnwindSafe(|| one(rank, seated, &region, resources, orders, observer));
                let result = catch_unwind(work).unwrap_or_else(|_| Err(ExecError::Program("it panicked".to_owned())));
                if result.is_err() {
                    region.abort(rank);
                }
                result
            }));
        }
        let panicked = || Err(ExecError::Program("its thread panicked".to_owned()));
        handles.into_iter().map(|handle| handle.join().unwrap_or_else(|_| panicked())).collect()
    });
    let mut outcomes = Vec::with_capacity(results.len());
    let mut errors = Vec::new();
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => errors.push((rank, error)),
        }
    }
    // The one that the others only followed.
    errors.sort_by_key(|(rank, error)| (error.is_aborted(), *rank));
    match errors.into_iter().next() {
        None => Ok(outcomes),
        Some((rank, source)) => {
            let place = region.snapshot(rank).map_or_else(String::new, |view| where_in(programs[rank], &view));
            Err(RankError { rank, place, source: Box::new(source) })
        }
    }
}

fn one(
    rank: usize,
    seated: Seated<'_>,
    region: &Arc<Region>,
    resources: &Resources<'_>,
    orders: RunControls<'_>,
    observer: &mut (dyn Observer + Send),
) -> Result<RankOutcome, ExecError> {
    let local = LocalComm::new(region.clone(), rank).map_err(|e| ExecError::Program(e.to_string()))?;
    let comm =
        on_device(Box::new(local), seated.program.device, region.topology(), seated.program, LocalRanks::Threads)
            .map_err(ExecError::Program)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(seated.threads.max(1)).stack_size(8 << 20).build();
    let pool = pool.map_err(|e| ExecError::Program(format!("threads of rank {rank}: {e}")))?;
    let monitor = OnBoard(region.status(rank).ok_or_else(|| ExecError::Program(format!("there is no rank {rank}")))?);
    let peers = Peers { comm: &*comm, monitor: &monitor };
    pool.install(|| runner_exec::run(seated.program, resources, peers, seated.state, orders, observer))
}
