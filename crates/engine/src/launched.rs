//! A rank that a launcher (torchrun, srun, mpirun) started: from its rendezvous with the other ranks to their common end.

use runner_comm::JoinError;
use runner_launch::launcher_environment::AssignedRank;
use runner_launch::{LaunchedTraining, World, cuda_environment, rank_token};

use runner_spec::experiment::Experiment;

use crate::host::Host;
use crate::observer::{IgnoreEvents, RunEvent, RunObserver};
use crate::outcome::{Exit, RunOutcome, RunReport};
use crate::prepared_run::{PreparedRun, check_world_size};
use crate::run_error::RunError;
use crate::stop::StopSwitch;
use runner_spec::error::CommandError;

/// The rank that a launcher made this process.
#[derive(Debug, Clone)]
pub struct LaunchedRank {
    pub assigned: AssignedRank,
    /// Receives what the rank waits for while the ranks meet.
    pub report_wait: fn(&str),
}

const PUBLIC_TOKEN_WARNING: &str = "the ranks have no secret by which they recognize each other, so that any process in their network \
                                    could join this run: give all ranks the same RUNNER_TOKEN, a random text";

/// Does `work`: as the rank `launched`, from its rendezvous with the other ranks to their common end, or alone. Only the leader has
/// the `observer`. One rank reports for all: the error of another rank is returned only where this one has to report it.
///
/// # Errors
/// Those of this rank, and those of others if this rank has to report them.
pub(crate) fn work_as_rank(
    launched: Option<&LaunchedRank>,
    host: &Host,
    observer: &mut dyn RunObserver,
    work: impl FnOnce(Option<&World>, &Host, &mut dyn RunObserver) -> Result<RunReport, CommandError>,
) -> Result<RunReport, CommandError> {
    let Some(LaunchedRank { assigned, report_wait }) = launched else { return work(None, host, observer) };
    if assigned.world_size > 1 {
        cuda_environment::set_for_this_process();
    }
    let token = rank_token(assigned, host.cache()?)?;
    if assigned.rank == 0 && assigned.world_size > 1 && !token.is_secret() {
        observer.observe(&RunEvent::Warning(PUBLIC_TOKEN_WARNING));
    }
    let world = World::join(assigned.clone(), token, *report_wait)?;
    let observer = if world.is_leader() { observer } else { &mut IgnoreEvents };
    let error = match work(Some(&world), &host.shared_with(&world), observer) {
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
    match (world.await_abort(None), world.must_report()) {
        (Some(abort), true) if is_aborted => Err(CommandError::failure(abort.reason)),
        (_, true) => Err(error),
        (abort, false) => {
            let code = abort.map_or(code, |abort| abort.code);
            Ok(RunReport { outcome: RunOutcome::Followed(code), run: None })
        }
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
) -> Result<LaunchedTraining<'a>, CommandError> {
    check_world_size(world, ready.plan.mesh)?;
    Ok(LaunchedTraining::agree(world, ready.rank_inputs(experiment, host), stop)?)
}

/// Works as a rank that keeps no record.
///
/// # Errors
/// If this rank fails and has to report it.
pub(crate) fn follow(training: &LaunchedTraining<'_>, stop: &StopSwitch) -> Result<RunReport, CommandError> {
    stop.arm();
    let code = training.follow().map_err(RunError::from)?;
    Ok(RunReport { outcome: RunOutcome::Followed(code), run: None })
}
