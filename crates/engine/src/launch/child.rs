//! A rank that is a process of its own: it listens to its parent, shows that it lives, runs its program, and tells.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::parent_id;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::exit;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use super::device::on_device;
use super::faults::{Faults, Striking};
use super::message::{Failure, FailureKind, Part, Start, ToParent, ToRank, write};
use super::progress::culprit;
use super::system;
use super::threads::OnBoard;
use runner_comm::{CommError, LocalComm, RankPhase, RankStatus, Region};
use runner_compute::observer::Observer;
use runner_compute::state::TrainState;
use runner_exec::eval::EvalError;
use runner_exec::tied_copy_entry;
use runner_exec::{ExecError, Peers, RankOutcome, Resources, RunControls};
use runner_spec::event::{Event, ObserveError, TraceLine};
use runner_spec::program::Program;
use runner_spec::topology::LocalRanks;
use runner_store::checkpoint::{part, pending_folder};
use runner_store::{PartRecord, PartSpec, StoreError};

/// Between signs of life, and between looks whether the parent lives.
const BEAT: Duration = Duration::from_millis(250);

/// Between looks whether the run was ended, while a commit is awaited.
const NAP: Duration = Duration::from_millis(100);

/// The process that started this one, at the other ends of standard input and output.
#[derive(Debug)]
pub struct Parent {
    rank: usize,
    answers: Receiver<ToRank>,
}

impl Parent {
    /// Listens to the parent from here on, and ends this process when the parent has ended. `None` if it does not begin as
    /// a parent would.
    ///
    /// # Errors
    /// If there is no thread to listen with.
    pub fn meet(rank: usize) -> io::Result<Option<(Self, Start)>> {
        system::name_process(&format!("runner rank {rank}"));
        let (send, answers) = channel();
        let listen = move || {
            for line in BufReader::new(io::stdin()).lines() {
                let Some(message) = line.ok().and_then(|line| serde_json::from_str::<ToRank>(&line).ok()) else {
                    break;
                };
                if send.send(message).is_err() {
                    return;
                }
            }
            // Whatever this rank does now, nobody would record it.
            exit(1);
        };
        thread::Builder::new().name("parent".to_owned()).spawn(listen)?;
        match answers.recv() {
            Ok(ToRank::Start(start)) => Ok(Some((Self { rank, answers }, *start))),
            _ => Ok(None),
        }
    }

    /// # Errors
    /// If the parent has ended.
    pub fn say(&self, message: &ToParent) -> io::Result<()> {
        write(&mut io::stdout().lock(), message)
    }

    /// Waits until the checkpoint of `step` is in place.
    fn await_commit(&self, step: u64, region: &Region) -> Result<(), ObserveError> {
        loop {
            match self.answers.recv_timeout(NAP) {
                Ok(ToRank::Committed { step: committed }) if committed == step => return Ok(()),
                Ok(_) => return Err(ObserveError("the parent answered something else than asked".into())),
                Err(RecvTimeoutError::Disconnected) => return Err(ObserveError("the parent has ended".into())),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(by) = region.aborted() {
                        return Err(ObserveError(Box::new(CommError::Aborted { by })));
                    }
                }
            }
        }
    }
}

/// Shows on the board, from a thread of its own, that this process lives; ends it when its parent has ended.
///
/// # Errors
/// If there is no thread for it.
pub fn beat(region: Arc<Region>, rank: usize) -> io::Result<()> {
    let parent = parent_id();
    let work = move || {
        while let Some(seat) = region.status(rank) {
            seat.record_heartbeat(system::milliseconds());
            thread::sleep(BEAT);
            if parent_id() != parent {
                exit(1);
            }
        }
    };
    thread::Builder::new().name("heartbeat".to_owned()).spawn(work).map(drop)
}

/// Runs the rank of `start` to its end in the current thread pool. Checkpoints go to the folder `checkpoints`, as parts.
///
/// # Errors
/// As `runner_exec::run`; the others are told before this returns.
pub fn run(
    parent: &mut Parent,
    start: &Start,
    region: &Arc<Region>,
    resources: &Resources<'_>,
    state: TrainState,
    checkpoints: &Path,
) -> Result<RankOutcome, ExecError> {
    let Start { program, until, trace, faults, .. } = start;
    let rank = program.rank;
    let local = LocalComm::new(region.clone(), rank).map_err(|e| ExecError::Program(e.to_string()))?;
    if let Some(limit) = faults.wait() {
        local.set_operation_timeout(limit);
    }
    let seat = region.status(rank).ok_or_else(|| ExecError::Program(format!("there is no rank {rank}")))?;
    let comm = on_device(Box::new(local), program.device, region.topology(), program, LocalRanks::Processes)
        .map_err(ExecError::Program)?;
    let monitor = Striking { board: OnBoard(seat), rank, faults };
    let peers = Peers { comm: &*comm, monitor: &monitor };
    let mut speaker = Speaker { parent, program, region, seat, checkpoints, faults };
    let orders = RunControls { stop: region.stop(), until: *until, trace: *trace };
    let work = AssertUnwindSafe(|| runner_exec::run(program, resources, peers, state, orders, &mut speaker));
    let result = catch_unwind(work);
    // While the rank still has its seat: one that has left without a word is an error of its own to those who wait for it.
    if let Ok(Ok(outcome)) = &result {
        seat.set_phase(if outcome.interrupted { RankPhase::Stopped } else { RankPhase::Finished });
    } else {
        region.abort(cause(&result, rank, region));
        seat.set_phase(RankPhase::Failed);
    }
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

/// The rank that ended the run, of which `rank` ended with `result`. Seen while the others are still waiting.
fn cause(result: &thread::Result<Result<RankOutcome, ExecError>>, rank: usize, region: &Region) -> usize {
    let error = result.as_ref().ok().and_then(|result| result.as_ref().err());
    error.and_then(timed_out).map_or(rank, |(peer, _)| culprit(rank, peer, |r| region.snapshot(r)?.waiting_for))
}

/// Whom a rank that ended with `error` waited for, and how long, if that was for too long.
fn timed_out(error: &ExecError) -> Option<(usize, Duration)> {
    match error {
        ExecError::Peer(CommError::Timeout { peer, waited, .. })
        | ExecError::Eval(EvalError::Peer(CommError::Timeout { peer, waited, .. })) => Some((*peer, *waited)),
        _ => None,
    }
}

/// What the parent is told of an error; `by` is the rank that ended the run, as the region says.
#[must_use]
pub fn failure(error: &(dyn std::error::Error + 'static), by: Option<usize>) -> Failure {
    let causes = || std::iter::successors(Some(error), |cause| cause.source());
    let cause = causes().find_map(|cause| cause.downcast_ref::<ExecError>());
    let kind = match (cause, cause.and_then(timed_out)) {
        (Some(error), _) if error.is_aborted() => FailureKind::Followed,
        (Some(ExecError::NotFinite { .. }), _) => FailureKind::NotFinite,
        (_, Some((peer, waited))) => FailureKind::TimedOut { peer: by.unwrap_or(peer), seconds: waited.as_secs() },
        _ => FailureKind::Other,
    };
    let text: Vec<String> = causes().map(ToString::to_string).collect();
    Failure { kind, text: text.join(": ") }
}

/// Passes on what happens; saves what this rank owns.
struct Speaker<'a> {
    parent: &'a Parent,
    program: &'a Program,
    region: &'a Region,
    seat: &'a RankStatus,
    checkpoints: &'a Path,
    faults: &'a Faults,
}

impl Speaker<'_> {
    /// Does `work`, which is up to the parent, and shows that on the board.
    fn waiting<T>(&self, work: impl FnOnce() -> T) -> T {
        self.seat.set_waiting_for_parent(true);
        let result = work();
        self.seat.record_progress();
        self.seat.set_waiting_for_parent(false);
        result
    }

    /// A parent that does not read lets it wait, too.
    fn say(&self, message: &ToParent) -> io::Result<()> {
        self.waiting(|| self.parent.say(message))
    }

    fn enter(&self, phase: RankPhase) {
        self.seat.set_phase(phase);
        self.seat.record_progress();
    }

    fn save(&self, state: &TrainState) -> Result<Option<PartRecord>, StoreError> {
        save(self.program, state, self.checkpoints, self.faults)
    }
}

/// Of a stage its first replica saves the parameters, to a part of the checkpoint in the making; a tied embedding is the first
/// stage's.
pub(super) fn save(
    program: &Program,
    state: &TrainState,
    checkpoints: &Path,
    faults: &Faults,
) -> Result<Option<PartRecord>, StoreError> {
    if program.replica() > 0 {
        return Ok(None);
    }
    let copy = tied_copy_entry(program, &state.layout);
    let owned: Vec<usize> = (0..state.layout.entries.len()).filter(|index| Some(*index) != copy).collect();
    let spec = PartSpec { index: program.stage(), count: program.mesh.stages };
    let create = |path: &Path| faults.create(program.rank, state.step, path);
    part::write(&pending_folder(checkpoints, state.step), spec, state, &owned, &create).map(Some)
}

impl Observer for Speaker<'_> {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        let say = |message: ToParent| self.say(&message).map_err(|error| ObserveError(Box::new(error)));
        let first = self.parent.rank == 0;
        match event {
            Event::Step(metrics) if first => say(ToParent::Step(metrics.clone())),
            Event::Eval(metrics) if first => say(ToParent::Eval(metrics.clone())),
            Event::Sample(sample) if first => say(ToParent::Sample(sample.clone())),
            Event::Watched(step) if first => say(ToParent::Watched(step.clone())),
            Event::Warning(message) if first => say(ToParent::Warning(message.clone())),
            _ => Ok(()),
        }
    }

    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        self.enter(RankPhase::Saving);
        let record = self.save(state).map_err(|error| ObserveError(Box::new(error)))?;
        self.faults.after_part(state.step);
        let part = Part { step: state.step, tokens: state.tokens, best: state.best, record };
        self.say(&ToParent::Part(part)).map_err(|error| ObserveError(Box::new(error)))?;
        self.waiting(|| self.parent.await_commit(state.step, self.region))?;
        self.enter(RankPhase::Periodic);
        Ok(())
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.say(&ToParent::Trace(lines.to_vec())).map_err(|error| ObserveError(Box::new(error)))
    }
}
