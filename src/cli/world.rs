//! Ranks that a launcher started: which of them this process is, its part of a command's work, and one voice for all.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use clap::{Args, ValueEnum};

use super::common;
use super::exit::{Exit, RequestError, exit_of, render};
use super::interrupt::Interrupt;
use super::output::complain;
use super::ready::Ready;
use runner_comm::{Communicator, JoinError};
use runner_engine::launch::environment;
use runner_engine::launch::environment::Seat;
use runner_engine::launch::member::StateOf;
use runner_engine::launch::{Faults, Task, World, gpus};
use runner_exec::Resources;
use runner_exec::parameter_layout;
use runner_spec::experiment::Experiment;
use runner_spec::mesh::Mesh;
use runner_spec::plan::Plan;
use runner_spec::program::{Device, Mode, Program};
use runner_store::checkpoint;

/// Who starts the ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Launcher {
    /// A launcher if its variables say so, else this process.
    #[default]
    Auto,
    /// This process, whatever variables are set.
    Local,
    /// torchrun, srun or mpirun: this process is one of the ranks.
    Env,
}

#[derive(Debug, Clone, Copy, Default, Args)]
pub(crate) struct LauncherArgs {
    /// Who starts the ranks of a plan with several.
    #[arg(long, value_enum, default_value_t, value_name = "WHO")]
    pub launcher: Launcher,
}

impl LauncherArgs {
    /// The place that a launcher gave this process.
    ///
    /// # Errors
    /// If there is none where one was asked for, or its variables make no sense.
    pub(crate) fn seat(self) -> anyhow::Result<Option<Seat>> {
        let pairs =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let seat = match self.launcher {
            Launcher::Local => return Ok(None),
            Launcher::Auto => environment::seat_of_several(&pairs.collect()),
            Launcher::Env => environment::seat(&pairs.collect())
                .and_then(|seat| seat.map(Some).ok_or(environment::EnvironmentError::None)),
        };
        seat.map_err(|error| RequestError(error.to_string()).into())
    }
}

/// What a command does as the rank that `seat` says, from its meeting with the others to their common end.
///
/// # Errors
/// Those of this rank, and of the others where this one has to say them.
pub(super) fn see_through(
    seat: Seat,
    faults: Option<&Faults>,
    work: impl FnOnce(&World) -> anyhow::Result<Exit>,
) -> anyhow::Result<Exit> {
    if seat.world_size > 1 {
        gpus::tell_this_process();
    }
    let world = World::join(seat, faults.and_then(Faults::wait), |what| complain(&format!("waiting: {what}")))?;
    let error = match work(&world) {
        Ok(exit) => {
            if world.leads() {
                world.over(exit as u8);
            }
            return Ok(exit);
        }
        Err(error) => error,
    };
    let follows = error.chain().any(|cause| matches!(cause.downcast_ref(), Some(JoinError::Comm(_))));
    if !follows {
        let text = render(&error, false);
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        world.fail(exit_of(&error) as u8, &format!("rank {} failed while starting: {text}", world.rank()));
    }
    let ended = world.ended(None);
    match (ended, world.speaks()) {
        (Some((_, _, text)), true) if follows => Err(anyhow!(text)),
        (_, true) => Err(error),
        (Some((_, code, _)), false) => Ok(exit_for(code)),
        (None, false) => Ok(exit_of(&error)),
    }
}

/// The exit of a rank where another ended with `code`.
pub(super) fn exit_for(code: u8) -> Exit {
    [Exit::Done, Exit::Request, Exit::Interrupted].into_iter().find(|exit| *exit as u8 == code).unwrap_or(Exit::Failed)
}

/// A rank that agrees with the others on the plan.
pub(super) struct Joined<'a> {
    pub world: &'a World,
    pub comm: Box<dyn Communicator>,
    /// This rank's, on its own device.
    pub program: Program,
}

impl<'a> Joined<'a> {
    /// # Errors
    /// If the plan is for another number of ranks, or the others have another plan.
    pub(super) fn new(world: &'a World, plan: &Plan) -> anyhow::Result<Self> {
        as_many(world, plan.mesh)?;
        let mut program = plan.ranks[world.rank()].program.clone();
        if let Device::Cuda(index) = program.device {
            program.device = Device::Cuda(visible(index));
        }
        let comm = world.agree(plan, program.device)?;
        Ok(Self { world, comm, program })
    }

    /// What this rank trains with.
    pub(super) fn task<'t>(
        &'t self,
        ready: &'t Ready,
        resources: &'t Resources<'t>,
        state: StateOf<'t>,
        interrupt: &'t Interrupt,
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
            stop: interrupt.stop(),
            faults,
        }
    }

    /// Works as a rank that keeps no record.
    ///
    /// # Errors
    /// As `Task::follow`.
    pub(super) fn follow(
        &self,
        experiment: &Experiment,
        ready: &Ready,
        interrupt: &Interrupt,
        faults: Option<&Faults>,
    ) -> anyhow::Result<Exit> {
        let none = Faults::default();
        let prepared = &ready.prepared;
        let resources = Resources {
            dataset: &prepared.dataset,
            tokenizer: &prepared.tokenizer,
            choice: prepared.choice.as_deref(),
        };
        let state = state_of(experiment, &ready.plan, &self.program);
        interrupt.arm();
        let task = self.task(ready, &resources, &state, interrupt, faults.unwrap_or(&none));
        Ok(exit_for(task.follow()?))
    }
}

/// Reads a rank's state from a checkpoint, or makes it as it is at step 0.
pub(super) fn state_of<'a>(
    experiment: &'a Experiment,
    plan: &'a Plan,
    program: &'a Program,
) -> impl Fn(Option<&Path>) -> Result<runner_compute::state::TrainState, Box<dyn std::error::Error + Send + Sync>> + Sync + 'a
{
    move |checkpoint| {
        Ok(match checkpoint {
            Some(path) => {
                let layout = Arc::new(parameter_layout(program));
                checkpoint::load_state(path, Some(&plan.hash), &layout, program.moments(), &candle_core::Device::Cpu)?
            }
            None => common::initial_state(experiment, program, &plan.data)?,
        })
    }
}

/// # Errors
/// If `world` has another number of ranks than a plan of `mesh`.
pub(super) fn as_many(world: &World, mesh: Mesh) -> anyhow::Result<()> {
    match world.seat().mismatch(mesh.world_size(), &shape(mesh)) {
        Some(mismatch) => Err(RequestError(mismatch).into()),
        None => Ok(()),
    }
}

/// `ddp: 4 replicas`.
fn shape(mesh: Mesh) -> String {
    let replicas = format!("{} replicas", mesh.replicas);
    match mesh.mode {
        Mode::Single => "mode: single".to_owned(),
        Mode::Dp => format!("dp: {replicas}"),
        Mode::Ddp => format!("ddp: {replicas}"),
        Mode::Pipeline if mesh.replicas == 1 => format!("pipeline: {} stages", mesh.stages),
        Mode::Pipeline => format!("pipeline: {} stages, {replicas}", mesh.stages),
    }
}

/// As which the driver shows the GPU that the plan calls `index`: the only one there is, where the launcher shows each rank its
/// own.
#[cfg(feature = "cuda")]
fn visible(index: usize) -> usize {
    use candle_core::cuda_backend::cudarc::driver::CudaContext;
    CudaContext::device_count().map_or(index, |count| index % count.max(1) as usize)
}

/// As above; this build has no GPUs.
#[cfg(not(feature = "cuda"))]
fn visible(index: usize) -> usize {
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_exits() {
        let exits = [0, 1, 2, 64, 130].map(exit_for);
        assert_eq!(exits, [Exit::Done, Exit::Failed, Exit::Request, Exit::Failed, Exit::Interrupted]);
    }
}
