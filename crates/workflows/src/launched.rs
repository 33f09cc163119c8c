//! A rank that a launcher (torchrun, srun, mpirun) started: from its rendezvous with the other ranks to their common end.

use std::thread;
use std::time::Duration;

use runner_comm::{JoinError, RunAbort};
use runner_ranks::launcher_environment::{AssignedRank, Launcher};
use runner_ranks::{LaunchedTraining, World, cuda_environment, rank_token};

use runner_spec::experiment::Experiment;

use crate::outcome::{RunOutcome, RunReport};
use crate::rank_inputs::rank_inputs;
use crate::run_error::RunError;
use runner_inputs::{Host, IgnoreEvents, PreparedRun, RunEvent, RunObserver, local_devices};
use runner_machine::local_cluster::with_rank_locations;
use runner_spec::cluster::ClusterFacts;
use runner_spec::error::{CommandError, Result};
use runner_spec::exit::Exit;
use runner_spec::format::short_hash;
use runner_spec::mesh::Mesh;
use runner_spec::plan::Plan;
use runner_spec::program::ParallelMode;
use runner_threads::stop::{StopReason, StopSwitch};

/// The rank that a launcher made this process.
#[derive(Debug, Clone)]
pub struct LaunchedRank {
    pub assigned: AssignedRank,
    /// Receives what the rank waits for while the ranks meet.
    pub report_wait: fn(&str),
}

/// The time that the other ranks leave to the one that reports why the run ended. An mpirun kills all ranks as soon as one of them exits
/// with a code other than 0.
const REPORT_TIME: Duration = Duration::from_secs(1);

const PUBLIC_TOKEN_WARNING: &str = "the ranks do not share a secret, so any process in their network could join \
    this run; set `RUNNER_TOKEN` to the same random text on all ranks";

/// Does `work`: as the rank `launched`, from its rendezvous with the other ranks to their common end, or alone. Only the leader has
/// the `observer`. One rank reports for all: the error of another rank is returned only where this one has to report it.
///
/// # Errors
/// Those of this rank, and those of others if this rank has to report them.
pub(crate) fn work_as_rank(
    launched: Option<&LaunchedRank>,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
    work: impl FnOnce(Option<&World>, &Host, &mut dyn RunObserver) -> Result<RunReport>,
) -> Result<RunReport> {
    let Some(launched) = launched else { return work(None, host, observer) };
    let result = join_and_work(launched, host, stop, observer, work);
    let is_follower = |report: &RunReport| matches!(report.outcome, RunOutcome::Followed(code) if code != 0);
    if matches!(launched.assigned.launcher, Launcher::OpenMpi | Launcher::Mpich)
        && result.as_ref().is_ok_and(is_follower)
    {
        thread::sleep(REPORT_TIME);
    }
    result
}

fn join_and_work(
    LaunchedRank { assigned, report_wait }: &LaunchedRank,
    host: &Host,
    stop: &StopSwitch,
    observer: &mut dyn RunObserver,
    work: impl FnOnce(Option<&World>, &Host, &mut dyn RunObserver) -> Result<RunReport>,
) -> Result<RunReport> {
    if assigned.world_size > 1 {
        cuda_environment::set_for_this_process();
    }
    let token = rank_token(assigned, host.cache()?)?;
    if assigned.rank == 0 && assigned.world_size > 1 && !token.is_secret() {
        observer.observe(&RunEvent::Warning(PUBLIC_TOKEN_WARNING));
    }
    let sources = host.build.source_hash.as_deref().map_or("unknown", short_hash);
    let program = format!("runner {} (sources {sources})", env!("CARGO_PKG_VERSION"));
    let world = World::join(assigned.clone(), &program, token, *report_wait, stop)?;
    let leaders_observer: &mut dyn RunObserver = if world.is_leader() { observer } else { &mut IgnoreEvents };
    // This rank shares the threads of its host with the other ranks on it.
    let threads = world.threads(host.threads, host.has_given_threads);
    let error = match work(Some(&world), &Host { threads, ..host.clone() }, leaders_observer) {
        Ok(report) => {
            if world.is_leader() {
                world.send_exit(report.outcome.exit() as u8);
            }
            return Ok(report);
        }
        Err(error) => error,
    };
    let code = Exit::of_error(error.kind()) as u8;
    let is_aborted = matches!(error.cause(), Some(JoinError::Comm(_)));
    if !is_aborted {
        world.abort_outside_training(code, &error.to_string());
    }
    let abort = world.await_abort(None);
    if let Some(RunAbort { code, reason, .. }) =
        abort.as_ref().filter(|abort| StopReason::of_exit_code(abort.code).is_some())
    {
        leaders_observer.observe(&RunEvent::Note(reason));
        return Ok(RunReport::followed(*code));
    }
    match (abort, world.must_report()) {
        (Some(abort), true) if is_aborted => Err(CommandError::failure(abort.reason)),
        (_, true) => Err(error),
        (abort, false) => Ok(RunReport::followed(abort.map_or(code, |abort| abort.code))),
    }
}

/// The training of this process's rank of `world`, once all ranks agree on the plan of `ready`.
///
/// # Errors
/// If the plan is for another number of ranks, or the other ranks have another plan.
pub(crate) fn agree_on_training<'a>(
    world: &'a World,
    experiment: &'a Experiment,
    ready: &'a PreparedRun,
    host: &'a Host,
    stop: &'a StopSwitch,
) -> Result<LaunchedTraining<'a>> {
    check_world_size(world, ready.plan.mesh)?;
    Ok(LaunchedTraining::agree(world, rank_inputs(ready, experiment, host), stop)?)
}

/// Works as a rank that keeps no record.
///
/// # Errors
/// If this rank fails and has to report it.
pub(crate) fn follow(training: &LaunchedTraining<'_>, stop: &StopSwitch) -> Result<RunReport> {
    stop.arm();
    Ok(RunReport::followed(training.follow().map_err(RunError::from)?))
}

/// The devices of this machine, or of the machines of `world`. They are checked before data is prepared, which may take long.
///
/// # Errors
/// If they are not those that the experiment asks for, or the world has another number of ranks.
pub(crate) fn find_devices(experiment: &Experiment, host: &Host, world: Option<&World>) -> Result<ClusterFacts> {
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
fn check_world_size(world: &World, mesh: Mesh) -> Result<()> {
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

/// # Errors
/// If `plan` needs more memory than its device has: the run would end in the middle of a step. If the ranks of `world` are on several
/// machines, the memory of this one does not determine the memory of the others.
pub(crate) fn check_memory(plan: &Plan, world: Option<&World>) -> Result<()> {
    match &plan.shortage {
        Some(shortage) if world.is_none_or(|world| world.machine_count() == 1) => {
            Err(CommandError::request(shortage.clone()))
        }
        _ => Ok(()),
    }
}
