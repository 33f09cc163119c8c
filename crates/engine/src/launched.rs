//! A rank that a launcher (torchrun, srun, mpirun) started: from meeting the other ranks to their common end.

use std::path::Path;
use std::sync::Arc;

use runner_comm::{Communicator, JoinError};
use runner_compute::state::TrainState;
use runner_exec::Resources;
use runner_exec::parameter_layout;
use runner_spec::experiment::Experiment;
use runner_spec::mesh::Mesh;
use runner_spec::plan::Plan;
use runner_spec::program::{Device, Mode, Program};
use runner_store::checkpoint;

use crate::error::{EngineError, error_text};
use crate::launch::environment::Seat;
use crate::launch::member::StateOf;
use crate::launch::{Faults, Task, World, gpus};
use crate::outcome::{RunOutcome, RunReport, exit_code};
use crate::prepare::{Host, PreparedRun, initial_state};
use crate::stop::StopSwitch;

/// The rank that a launcher made this process, and who hears what it waits for while the ranks meet.
#[derive(Debug, Clone)]
pub struct LaunchedRank {
    pub seat: Seat,
    pub announce_wait: fn(&str),
}

/// Does `work` as the rank `launched`, from its meeting with the others to their common end. One rank speaks for all: the error
/// of another rank is returned only where this one has to say it.
///
/// # Errors
/// Those of this rank, and those of others if this rank has to say them.
pub(crate) fn work_with_others(
    launched: &LaunchedRank,
    faults: Option<&Faults>,
    work: impl FnOnce(&World) -> Result<RunReport, EngineError>,
) -> Result<RunReport, EngineError> {
    if launched.seat.world_size > 1 {
        gpus::tell_this_process();
    }
    let world = World::join(launched.seat.clone(), faults.and_then(Faults::wait), launched.announce_wait)?;
    let error = match work(&world) {
        Ok(report) => {
            if world.leads() {
                world.over(report.outcome.exit_code());
            }
            return Ok(report);
        }
        Err(error) => error,
    };
    let code = if error.is_request() { exit_code::REQUEST } else { exit_code::FAILED };
    let follows_another = matches!(error, EngineError::Join(JoinError::Comm(_)));
    if !follows_another {
        world.fail(code, &format!("rank {} failed while starting: {}", world.rank(), error_text(&error)));
    }
    let followed = |code| Ok(RunReport { outcome: RunOutcome::Followed(code), run: None });
    match (world.ended(None), world.speaks()) {
        (Some((_, _, text)), true) if follows_another => Err(EngineError::Other(text)),
        (_, true) => Err(error),
        (Some((_, code, _)), false) => followed(code),
        (None, false) => followed(code),
    }
}

/// A rank that agrees with the others on the plan.
pub(crate) struct Joined<'a> {
    world: &'a World,
    comm: Box<dyn Communicator>,
    /// This rank's program, on its own device.
    pub program: Program,
}

impl<'a> Joined<'a> {
    /// # Errors
    /// If the plan is for another number of ranks, or the others have another plan.
    pub(crate) fn new(world: &'a World, plan: &Plan) -> Result<Self, EngineError> {
        check_world_size(world, plan.mesh)?;
        let mut program = plan.ranks[world.rank()].program.clone();
        if let Device::Cuda(index) = program.device {
            program.device = Device::Cuda(visible_index(index));
        }
        let comm = world.agree(plan, program.device)?;
        Ok(Self { world, comm, program })
    }

    /// What this rank trains with.
    pub(crate) fn task<'t>(
        &'t self,
        ready: &'t PreparedRun,
        resources: &'t Resources<'t>,
        state: StateOf<'t>,
        stop: &'t StopSwitch,
        faults: &'t Faults,
    ) -> Task<'t> {
        Task {
            world: self.world,
            comm: &*self.comm,
            plan: &ready.plan,
            program: &self.program,
            resources,
            pool: &ready.pool,
            state,
            stop: stop.flag(),
            faults,
        }
    }

    /// Works as a rank that keeps no record.
    ///
    /// # Errors
    /// If this rank fails and has to say so itself.
    pub(crate) fn follow(
        &self,
        experiment: &Experiment,
        ready: &PreparedRun,
        host: &Host,
        stop: &StopSwitch,
        faults: Option<&Faults>,
    ) -> Result<RunReport, EngineError> {
        let no_faults = Faults::default();
        let prepared = &ready.prepared;
        let resources = Resources {
            dataset: &prepared.dataset,
            tokenizer: &prepared.tokenizer,
            choice: prepared.choice.as_deref(),
        };
        let load_state = state_loader(experiment, &ready.plan, &self.program, &host.cache);
        stop.arm();
        let task = self.task(ready, &resources, &load_state, stop, faults.unwrap_or(&no_faults));
        let code = task.follow().map_err(crate::run_error::RunError::Member)?;
        Ok(RunReport { outcome: RunOutcome::Followed(code), run: None })
    }
}

/// Reads a rank's state from a checkpoint, or makes it as it is at step 0.
pub(crate) fn state_loader<'a>(
    experiment: &'a Experiment,
    plan: &'a Plan,
    program: &'a Program,
    cache: &'a Path,
) -> impl Fn(Option<&Path>) -> Result<TrainState, Box<dyn std::error::Error + Send + Sync>> + Sync + 'a {
    move |checkpoint| {
        Ok(match checkpoint {
            Some(path) => {
                let layout = Arc::new(parameter_layout(program));
                checkpoint::load_state(path, Some(&plan.hash), &layout, program.moments(), &candle_core::Device::Cpu)?
            }
            None => initial_state(experiment, program, &plan.data, cache)?,
        })
    }
}

/// # Errors
/// If `world` has another number of ranks than a plan of `mesh`.
pub(crate) fn check_world_size(world: &World, mesh: Mesh) -> Result<(), EngineError> {
    match world.seat().mismatch(mesh.world_size(), &describe_mesh(mesh)) {
        Some(mismatch) => Err(EngineError::Request(mismatch)),
        None => Ok(()),
    }
}

/// `ddp: 4 replicas`.
fn describe_mesh(mesh: Mesh) -> String {
    let replicas = format!("{} replicas", mesh.replicas);
    match mesh.mode {
        Mode::Single => "mode: single".to_owned(),
        Mode::Dp => format!("dp: {replicas}"),
        Mode::Ddp => format!("ddp: {replicas}"),
        Mode::Pipeline if mesh.replicas == 1 => format!("pipeline: {} stages", mesh.stages),
        Mode::Pipeline => format!("pipeline: {} stages, {replicas}", mesh.stages),
    }
}

/// The number under which the driver shows the GPU that the plan calls `index`: 0 where the launcher shows each rank only its own.
#[cfg(feature = "cuda")]
fn visible_index(index: usize) -> usize {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    CudaContext::device_count().map_or(index, |count| index % count.max(1) as usize)
}

/// The number of a GPU in a build without GPUs.
#[cfg(not(feature = "cuda"))]
fn visible_index(index: usize) -> usize {
    index
}
