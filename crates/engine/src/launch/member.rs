//! Training as one of the ranks that a launcher started. Rank 0 keeps the record: the others tell it of their parts of a
//! checkpoint and of their end.
//!
//! Ranks that hold parts of the model write them into the run's folder, which they must see; replicas beside the first need
//! not: they get their state from the first.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use candle_core::{DType, Device};
use serde::{Deserialize, Serialize};

use super::child;
use super::error::where_in;
use super::faults::{Faults, Striking};
use super::message::{Done, Part};
use super::supervise::{Ended, Record};
use super::threads::OnBoard;
use super::world::{FromFirst, NOT_FINITE, World};
use runner_comm::{CommError, Communicator, Mesh, RankPhase};
use runner_compute::observer::Observer;
use runner_compute::state::TrainState;
use runner_exec::parameter_layout;
use runner_exec::{ExecError, InstructionList, Peers, ProgressMonitor, RankOutcome, Resources, RunControls};
use runner_machine::host::peak_rss_bytes;
use runner_spec::event::{BestValidation, Event, ObserveError, TraceLine};
use runner_spec::mesh::RankGroup;
use runner_spec::plan::Plan;
use runner_spec::program::Program;
use runner_spec::topology::GroupId;
use runner_store::run_dir::CHECKPOINTS;

/// Between the steps that the others are shown.
const SHOWN: Duration = Duration::from_millis(50);

/// How long a file that another machine wrote may take to be seen here.
const SEEN: Duration = Duration::from_secs(3);

/// What rank 0 tells the others before the first step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begin {
    run: PathBuf,
    /// A file in it that is there now.
    marker: String,
    /// The checkpoint to go on from; `None`: from the start.
    checkpoint: Option<PathBuf>,
    until: Option<u64>,
    trace: bool,
}

/// What a rank tells rank 0.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ToFirst {
    /// Whether it sees the run's folder.
    Ready {
        sees: bool,
    },
    Part(Part),
    Trace(Vec<TraceLine>),
    Done(Done),
}

/// Why this rank did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// By itself.
    #[error("rank {rank} failed {place}: {source}")]
    Failed { rank: usize, place: String, source: Box<ExecError> },
    /// Because of another one; the words are that one's, or of who missed it.
    #[error("{text}")]
    Followed { by: usize, code: u8, text: String },
    #[error(
        "rank {rank} writes a part of each checkpoint, but does not see {}, where rank 0 keeps the run: the folder of runs must be \
         on a file system that both share", run.display()
    )]
    NotSeen { rank: usize, run: PathBuf },
    #[error("rank {rank} failed while starting: {text}")]
    State { rank: usize, text: String },
    /// What keeps the record gave up.
    #[error(transparent)]
    Record(ObserveError),
    #[error(transparent)]
    Comm(#[from] CommError),
}

impl MemberError {
    #[must_use]
    pub fn not_finite(&self) -> bool {
        match self {
            Self::Failed { source, .. } => matches!(**source, ExecError::NotFinite { .. }),
            Self::Followed { code, .. } => *code == NOT_FINITE,
            _ => false,
        }
    }

    /// The exit code of the other ranks.
    #[must_use]
    fn code(&self) -> u8 {
        match self {
            _ if self.not_finite() => NOT_FINITE,
            Self::Followed { code, .. } => *code,
            _ => 1,
        }
    }
}

/// Reads a checkpoint, or makes the state at step 0.
pub type StateOf<'a> =
    &'a (dyn Fn(Option<&Path>) -> Result<TrainState, Box<dyn std::error::Error + Send + Sync>> + Sync);

/// What a rank has to train with.
pub struct Task<'a> {
    pub world: &'a World,
    pub comm: &'a dyn Communicator,
    pub plan: &'a Plan,
    /// This rank's, on its own device.
    pub program: &'a Program,
    pub resources: &'a Resources<'a>,
    pub pool: &'a rayon::ThreadPool,
    pub state: StateOf<'a>,
    pub stop: &'a AtomicBool,
    pub faults: &'a Faults,
}

/// The run that rank 0 keeps.
#[derive(Debug, Clone, Copy)]
pub struct Kept<'a> {
    pub run: &'a Path,
    pub checkpoint: Option<&'a Path>,
    pub until: Option<u64>,
    pub trace: bool,
}

impl Task<'_> {
    /// Rank 0's part: begins the run with all others, and records what comes of it.
    ///
    /// # Errors
    /// Its own, or that of the rank that ended first; the others are told.
    pub fn lead(&self, kept: &Kept<'_>, record: &mut (dyn Record + Send)) -> Result<Ended, MemberError> {
        self.told(self.lead_on(kept, record))
    }

    fn lead_on(&self, kept: &Kept<'_>, record: &mut (dyn Record + Send)) -> Result<Ended, MemberError> {
        let world = self.world;
        let run = kept.run.canonicalize().unwrap_or_else(|_| kept.run.to_owned());
        let marker = Marker::new(&run).map_err(|error| self.state_failed(&error))?;
        let begin = Begin {
            run: run.clone(),
            marker: marker.name.clone(),
            checkpoint: kept.checkpoint.map(|path| path.canonicalize().unwrap_or_else(|_| path.to_owned())),
            until: kept.until,
            trace: kept.trace,
        };
        world.tell_all(&FromFirst::Begin(begin.clone()));
        let mut share = false;
        for rank in 1..world.world_size() {
            let ToFirst::Ready { sees } = self.hear(rank)? else { return Err(world.garbled(rank).into()) };
            let writes = self.plan.ranks.get(rank).is_some_and(|planned| planned.replica == 0);
            if !sees && writes {
                return Err(MemberError::NotSeen { rank, run });
            }
            share |= !sees;
        }
        drop(marker);
        world.tell_all(&FromFirst::Go { share });
        let checkpoints = run.join(CHECKPOINTS);
        let mut observer = Leading { task: self, record, checkpoints: &checkpoints };
        let outcome = self.run(&begin, share, &mut observer)?;
        let mut peaks = vec![peak_rss_bytes()];
        for rank in 1..world.world_size() {
            let ToFirst::Done(done) = self.hear(rank)? else { return Err(world.garbled(rank).into()) };
            peaks.push(done.peak_rss_bytes);
        }
        Ok(Ended { interrupted: outcome.interrupted, peak_rss_bytes: peaks })
    }

    /// The part of every other rank. Returns the exit code that rank 0 tells.
    ///
    /// # Errors
    /// As `lead`.
    pub fn follow(&self) -> Result<u8, MemberError> {
        self.told(self.follow_on())
    }

    fn follow_on(&self) -> Result<u8, MemberError> {
        let world = self.world;
        let begin = match world.next_order()? {
            FromFirst::Begin(begin) => begin,
            FromFirst::Over { code } => return Ok(code),
            _ => return Err(world.garbled(0).into()),
        };
        self.say(&ToFirst::Ready { sees: sees(&begin) });
        let FromFirst::Go { share } = world.next_order()? else { return Err(world.garbled(0).into()) };
        let checkpoints = begin.run.join(CHECKPOINTS);
        let mut observer = Following { task: self, checkpoints: &checkpoints };
        let outcome = self.run(&begin, share, &mut observer)?;
        self.say(&ToFirst::Done(Done { interrupted: outcome.interrupted, peak_rss_bytes: peak_rss_bytes() }));
        Ok(world.await_over()?)
    }

    fn say(&self, message: &ToFirst) {
        self.world.mesh.send_control(0, &runner_spec::format::json_bytes(message));
    }

    fn hear(&self, rank: usize) -> Result<ToFirst, CommError> {
        let said = self.world.mesh.receive_control(rank)?;
        serde_json::from_slice(&said).map_err(|_| self.world.garbled(rank))
    }

    fn state_failed(&self, error: &dyn std::fmt::Display) -> MemberError {
        MemberError::State { rank: self.program.rank, text: error.to_string() }
    }

    fn run(
        &self,
        begin: &Begin,
        share: bool,
        observer: &mut (dyn Observer + Send),
    ) -> Result<RankOutcome, MemberError> {
        let state = self.begin_with(begin, share)?;
        let seat = self.world.mesh.status();
        let board = Striking { board: OnBoard(seat), rank: self.program.rank, faults: self.faults };
        let monitor = Shown { board, mesh: &self.world.mesh, last: Mutex::new(Instant::now()) };
        let peers = Peers { comm: self.comm, monitor: &monitor };
        let orders = RunControls { stop: self.stop, until: begin.until, trace: begin.trace };
        let work = || runner_exec::run(self.program, self.resources, peers, state, orders, observer);
        let result = self.pool.install(work).map_err(|source| {
            let place = where_in(self.program, &seat.snapshot());
            MemberError::Failed { rank: self.program.rank, place, source: Box::new(source) }
        });
        seat.set_phase(match &result {
            Ok(outcome) if outcome.interrupted => RankPhase::Stopped,
            Ok(_) => RankPhase::Finished,
            Err(_) => RankPhase::Failed,
        });
        result
    }

    /// The state to begin with. `share`: the first replica of each stage reads the checkpoint, and the others get it from there.
    fn begin_with(&self, begin: &Begin, share: bool) -> Result<TrainState, MemberError> {
        let program = self.program;
        let read = || self.pool.install(|| (self.state)(begin.checkpoint.as_deref()));
        if !share || begin.checkpoint.is_none() || program.mesh.replicas == 1 {
            return read().map_err(|error| self.state_failed(&error));
        }
        let group = GroupId(program.mesh.index(RankGroup::Replicas { stage: program.stage() }));
        let root = program.mesh.rank(program.stage(), 0);
        let mut state = if program.rank == root {
            read().map_err(|error| self.state_failed(&error))?
        } else {
            let zeroed =
                TrainState::zeroed(Arc::new(parameter_layout(program)), program.moments(), DType::F32, &Device::Cpu);
            zeroed.map_err(|error| self.state_failed(&error))?
        };
        self.comm.broadcast(group, root, &state.buffer)?;
        let mine = runner_spec::format::json_bytes(&(state.step, state.tokens, state.best));
        let all = self.comm.all_gather(group, &mine)?;
        let told = all.first().map(|first| serde_json::from_slice::<(u64, u64, Option<BestValidation>)>(first));
        let Some(Ok((step, tokens, best))) = told else { return Err(self.world.garbled(root).into()) };
        (state.step, state.tokens, state.best) = (step, tokens, best);
        Ok(state)
    }

    /// Makes of an error the one that all ranks are told: this rank's own, or that of the rank that ended first.
    fn told<T>(&self, result: Result<T, MemberError>) -> Result<T, MemberError> {
        let Err(error) = result else { return result };
        let (followed, record) = match &error {
            MemberError::Comm(error) => (matches!(error, CommError::Aborted { .. } | CommError::Left { .. }), false),
            MemberError::Failed { source, .. } => (source.is_aborted(), matches!(**source, ExecError::Observer(_))),
            _ => (false, false),
        };
        if !followed || self.world.mesh.abort_cause().is_some_and(|ended| ended.by == self.world.rank()) {
            self.world.fail(error.code(), &error.to_string());
        }
        match self.world.ended(Some(self.plan)) {
            // By this rank too: it was given up by the others.
            Some((by, code, text)) if followed || by != self.world.rank() => {
                Err(MemberError::Followed { by, code, text })
            }
            Some(_) => match error {
                // Errors of the record speak for themselves.
                MemberError::Failed { source, .. } if record && self.world.leads() => match *source {
                    ExecError::Observer(error) => Err(MemberError::Record(error)),
                    source => Err(self.state_failed(&source)),
                },
                error => Err(error),
            },
            None => {
                self.world.fail(error.code(), &error.to_string());
                Err(error)
            }
        }
    }
}

/// Shows the others now and then in which step this rank is: what they say of it if it is lost.
struct Shown<'a> {
    board: Striking<'a>,
    mesh: &'a Mesh,
    last: Mutex<Instant>,
}

impl ProgressMonitor for Shown<'_> {
    fn enter_instruction(&self, step: u64, list: InstructionList, index: usize) {
        self.board.enter_instruction(step, list, index);
        if (list, index) == (InstructionList::Step, 0) {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() >= SHOWN {
                *last = Instant::now();
                self.mesh.publish_status();
            }
        }
    }

    fn heartbeat(&self) {
        self.board.heartbeat();
    }
}

fn boxed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ObserveError {
    ObserveError(error.into())
}

/// Records what happens on rank 0, and the parts of all.
struct Leading<'a> {
    task: &'a Task<'a>,
    record: &'a mut (dyn Record + Send),
    checkpoints: &'a Path,
}

impl Leading<'_> {
    fn gather_checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        let Task { world, program, faults, .. } = self.task;
        let TrainState { step, tokens, best, .. } = *state;
        let mut parts = Vec::new();
        parts.extend(child::save(program, state, self.checkpoints, faults).map_err(boxed)?);
        faults.after_part(step);
        for rank in 1..world.world_size() {
            let part = match self.task.hear(rank).map_err(boxed)? {
                ToFirst::Part(part) if part.step == step => part,
                _ => return Err(boxed(world.garbled(rank))),
            };
            parts.extend(part.record);
        }
        self.record.commit(step, tokens, best, parts)?;
        world.tell_all(&FromFirst::Committed { step });
        Ok(())
    }
}

impl Observer for Leading<'_> {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        self.record.observe(event)
    }

    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        let seat = self.task.world.mesh.status();
        seat.set_phase(RankPhase::Saving);
        self.gather_checkpoint(state)?;
        seat.set_phase(RankPhase::Periodic);
        Ok(())
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.record.trace(lines)?;
        // Of each other stage the first replica tells its lines, at every step.
        let mesh = self.task.program.mesh;
        for stage in 1..mesh.stages {
            let rank = mesh.rank(stage, 0);
            match self.task.hear(rank).map_err(boxed)? {
                ToFirst::Trace(lines) => self.record.trace(&lines)?,
                _ => return Err(boxed(self.task.world.garbled(rank))),
            }
        }
        Ok(())
    }
}

/// Tells rank 0 what it must know.
struct Following<'a> {
    task: &'a Task<'a>,
    checkpoints: &'a Path,
}

impl Observer for Following<'_> {
    fn observe(&mut self, _: &Event) -> Result<(), ObserveError> {
        Ok(())
    }

    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        let Task { world, program, faults, .. } = self.task;
        let seat = world.mesh.status();
        seat.set_phase(RankPhase::Saving);
        let record = child::save(program, state, self.checkpoints, faults).map_err(boxed)?;
        faults.after_part(state.step);
        self.task.say(&ToFirst::Part(Part { step: state.step, tokens: state.tokens, best: state.best, record }));
        match world.next_order().map_err(boxed)? {
            FromFirst::Committed { step } if step == state.step => {}
            _ => return Err(boxed(world.garbled(0))),
        }
        seat.set_phase(RankPhase::Periodic);
        Ok(())
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.task.say(&ToFirst::Trace(lines.to_vec()));
        Ok(())
    }
}

/// A file by which other ranks see whether a folder is the same; dropped, it is removed.
struct Marker {
    path: PathBuf,
    name: String,
}

impl Marker {
    fn new(run: &Path) -> std::io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = format!(".tmp-ranks-{}-{}", std::process::id(), now.as_nanos());
        let path = run.join(&name);
        fs::write(&path, "")?;
        Ok(Self { path, name })
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether this rank sees the run's folder; other machines' files may come late.
fn sees(begin: &Begin) -> bool {
    let plain = Path::new(&begin.marker).file_name().is_some_and(|name| name == begin.marker.as_str());
    let path = begin.run.join(&begin.marker);
    let started = Instant::now();
    while plain && started.elapsed() < SEEN {
        if path.exists() {
            return true;
        }
        thread::sleep(Duration::from_millis(100));
    }
    false
}
