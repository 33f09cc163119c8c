//! A plan for this machine, and what a run of it needs before it begins.

use std::time::Instant;

use runner_data::Prepared;
use runner_exec::Resources;
use runner_launch::{RankInputs, World};
use runner_machine::local_cluster::with_rank_locations;
use runner_spec::cluster::ClusterFacts;
use runner_spec::experiment::Experiment;
use runner_spec::mesh::Mesh;
use runner_spec::plan::Plan;
use runner_spec::program::ParallelMode;

use crate::details::precise_duration;
use crate::host::{Host, local_devices};
use crate::observer::{RunEvent, RunObserver};
use crate::prepare::{RecordedInputs, load_state, prepare_rank_inputs};
use runner_spec::error::CommandError;

/// The inputs of a plan: the devices of this machine, the data, and threads to work with.
#[derive(Debug)]
pub(crate) struct PreparedInputs {
    pub(crate) prepared: Prepared,
    cluster: ClusterFacts,
    pool: rayon::ThreadPool,
}

impl PreparedInputs {
    /// Prepares the inputs of `experiment`, as [`PreparedRun::new`] does.
    ///
    /// # Errors
    /// If the data or the initial weights cannot be read, or the world has another number of ranks.
    pub(crate) fn new(
        experiment: &Experiment,
        recorded_inputs: Option<&RecordedInputs>,
        host: &Host,
        world: Option<&World>,
        observer: &mut dyn RunObserver,
    ) -> Result<Self, CommandError> {
        let (cluster, pool) = (find_devices(experiment, host, world)?, host.pool()?);
        let prepared = prepare_rank_inputs(experiment, recorded_inputs, &pool, host, observer)?;
        Ok(Self { prepared, cluster, pool })
    }

    /// Plans `experiment`, which has these inputs. Other runs did the first `inherited_steps`.
    ///
    /// # Errors
    /// If it cannot be planned.
    pub(crate) fn plan(
        self,
        experiment: &Experiment,
        inherited_steps: u64,
        observer: &mut dyn RunObserver,
    ) -> Result<PreparedRun, CommandError> {
        let Self { prepared, cluster, pool } = self;
        let started = Instant::now();
        let plan = runner_plan::compile_continuation(experiment, &prepared.facts, &cluster, inherited_steps)?;
        let time = precise_duration(started.elapsed());
        observer.observe(&RunEvent::Detail(&format!("plan   {}, compiled in {time}", plan.hash)));
        for warning in &plan.warnings {
            observer.observe(&RunEvent::Warning(warning));
        }
        for note in &plan.notes {
            observer.observe(&RunEvent::Note(&format!("plan   {note}")));
        }
        let split = plan.data.validation.as_ref().filter(|split| split.text.is_none());
        if split.is_some() && plan.ranks.first().is_some_and(|rank| rank.program.eval.loss.is_some()) {
            observer.observe(&RunEvent::Note(
                "data   bits per byte are unknown: the validation data's tokens do not show how many bytes of text they stand for",
            ));
        }
        Ok(PreparedRun { plan, prepared, pool })
    }
}

/// A plan for this machine, the data it was made for, and threads to work with.
#[derive(Debug)]
pub(crate) struct PreparedRun {
    pub plan: Plan,
    pub prepared: Prepared,
    pub pool: rayon::ThreadPool,
}

impl PreparedRun {
    /// Prepares `experiment` and plans it for this machine, or for the machines of the `world` that a launcher started. There are
    /// `recorded_inputs` if the run begins with a checkpoint. Other runs did the first `inherited_steps`.
    ///
    /// # Errors
    /// If the data or the initial weights cannot be read, the experiment cannot be planned, or the world has another number of
    /// ranks.
    pub(crate) fn new(
        experiment: &Experiment,
        recorded_inputs: Option<&RecordedInputs>,
        inherited_steps: u64,
        host: &Host,
        world: Option<&World>,
        observer: &mut dyn RunObserver,
    ) -> Result<Self, CommandError> {
        let inputs = PreparedInputs::new(experiment, recorded_inputs, host, world, observer)?;
        inputs.plan(experiment, inherited_steps, observer)
    }

    /// What the ranks of this run of `experiment` train with.
    pub(crate) fn rank_inputs<'a>(&'a self, experiment: &'a Experiment, host: &'a Host) -> RankInputs<'a> {
        let plan = &self.plan;
        let ranks = plan.ranks.len();
        RankInputs {
            plan,
            experiment,
            resources: Resources::from(&self.prepared),
            threads: plan.ranks.iter().map(|r| host.rank_threads(r.hardware.threads, r.rank, ranks)).collect(),
            pool: &self.pool,
            load_state: Box::new(move |program, checkpoint| {
                load_state(experiment, program, &plan.hash, &plan.data, host, checkpoint)
            }),
        }
    }

    /// # Errors
    /// If the plan needs more memory than its device has: the run would end in the middle of a step. If the ranks of `world` are on
    /// several machines, this one's memory says nothing about the others'.
    pub(crate) fn check_memory(&self, world: Option<&World>) -> Result<(), CommandError> {
        match &self.plan.shortage {
            Some(shortage) if world.is_none_or(|world| world.machine_count() == 1) => {
                Err(CommandError::request(shortage.clone()))
            }
            _ => Ok(()),
        }
    }
}

/// The devices of this machine, or of the machines of `world`. They are checked before data is prepared, which may take long.
///
/// # Errors
/// If they are not those that the experiment asks for, or the world has another number of ranks.
fn find_devices(experiment: &Experiment, host: &Host, world: Option<&World>) -> Result<ClusterFacts, CommandError> {
    let mut cluster = local_devices(host);
    if let Some(world) = world {
        // Before the plan looks for as many devices as it has ranks.
        if let Ok(mesh) = runner_plan::mesh(&experiment.parallel, experiment.batch.sequences) {
            check_world_size(world, mesh)?;
        }
        cluster = with_rank_locations(cluster, world.rank_locations());
    }
    runner_plan::check_devices(experiment, &cluster)?;
    Ok(cluster)
}

/// # Errors
/// If `world` has another number of ranks than a plan of `mesh`.
pub(crate) fn check_world_size(world: &World, mesh: Mesh) -> Result<(), CommandError> {
    match world.assigned_rank().world_size_problem(mesh.world_size(), &describe_mesh(mesh)) {
        Some(problem) => Err(CommandError::request(problem)),
        None => Ok(()),
    }
}

/// The layout in words, such as `ddp: 4 replicas`.
fn describe_mesh(mesh: Mesh) -> String {
    let replicas = format!("{} replicas", mesh.replicas);
    match mesh.mode {
        ParallelMode::Single => "mode: single".to_owned(),
        ParallelMode::Dp => format!("dp: {replicas}"),
        ParallelMode::Ddp => format!("ddp: {replicas}"),
        ParallelMode::Pipeline if mesh.replicas == 1 => format!("pipeline: {} stages", mesh.stages),
        ParallelMode::Pipeline => format!("pipeline: {} stages, {replicas}", mesh.stages),
    }
}
