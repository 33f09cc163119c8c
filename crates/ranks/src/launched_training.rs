//! Training as one of the ranks that a launcher started. Rank 0 is the recorder: the others send it their parts of checkpoints and
//! their end over the mesh.
//!
//! A rank that writes parts of checkpoints must see the run directory. The other replicas of a stage need not: they receive their
//! training state from the first replica.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use candle_core::Device;

use super::error::LaunchError;
use super::failure::{RankError, describe_place};
use super::protocol::{FromRank, RankCompletion, ToRank, TrainingStart};
use super::rank_inputs::{RankInputs, TrainingAttempt};
use super::rank_observer::{RankObserver, RecorderLink, peer_error};
use super::rank_reports::{RankReports, RecordingError, RunRecorder};
use super::rank_training::RankTraining;
use super::world::World;
use runner_comm::{Communicator, GroupOperation, JoinError, RunAbort};
use runner_compute::state::TrainState;
use runner_executor::{ExecError, state_dtype};
use runner_machine::host::peak_rss_bytes;
use runner_record::run_dir::CHECKPOINTS;
use runner_spec::error::CommandError;
use runner_spec::event::{BestValidation, ObserveError};
use runner_spec::format::json_bytes;
use runner_spec::mesh::RankGroup;
use runner_spec::plan::RankPlan;
use runner_spec::program::Program;
use runner_spec::topology::GroupId;
use runner_threads::stop::StopSwitch;

/// The time that a file of another machine may take to appear here.
const FILE_TIMEOUT: Duration = Duration::from_secs(3);

/// One of the ranks that a launcher started, ready to train.
pub struct LaunchedTraining<'a> {
    world: &'a World,
    comm: Box<dyn Communicator>,
    /// This rank's program, on its own device.
    program: Program,
    inputs: RankInputs<'a>,
    /// Asks the ranks to stop at the end of their step.
    stop: &'a StopSwitch,
}

impl<'a> LaunchedTraining<'a> {
    /// The training of this process's rank of `world`, once all ranks agree on the plan of `inputs`, which has as many ranks.
    ///
    /// # Errors
    /// If the other ranks have another plan.
    pub fn agree(world: &'a World, inputs: RankInputs<'a>, stop: &'a StopSwitch) -> Result<Self, JoinError> {
        let mut program = inputs.plan.ranks[world.rank()].program.clone();
        if let runner_spec::program::Device::Cuda(index) = program.device {
            program.device = runner_spec::program::Device::Cuda(visible_index(index));
        }
        Ok(Self { world, comm: world.agree_on_plan(inputs.plan)?, program, inputs, stop })
    }

    /// Trains as rank 0, and records the run.
    ///
    /// # Errors
    /// The failure of the rank that failed first. All other ranks receive it too.
    pub(super) fn lead(
        &self,
        run: &TrainingAttempt<'_>,
        record: &mut dyn RunRecorder,
    ) -> Result<Vec<RankCompletion>, LaunchError> {
        self.share_failure(self.lead_ranks(run.folder, run.training.clone(), record))
    }

    fn lead_ranks(
        &self,
        run: &Path,
        mut training: TrainingStart,
        record: &mut dyn RunRecorder,
    ) -> Result<Vec<RankCompletion>, LaunchError> {
        let world = self.world;
        let absolute = |path: &Path| path.canonicalize().map_err(|error| self.start_error(error));
        let run = absolute(run)?;
        training.checkpoint = training.checkpoint.as_deref().map(absolute).transpose()?;
        // The other ranks look for this file to check that they see the run directory.
        let marker = runner_files::temporary_file(&run).map_err(|error| self.start_error(error))?;
        let name = marker.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        world.send_to_all(&ToRank::Begin { run: run.clone(), marker: name, training: training.clone() });
        let mut share_state = false;
        for rank in 1..world.world_size() {
            let sees_run = match world.receive(rank)? {
                FromRank::Ready { sees_run } => sees_run,
                other => return Err(world.abort_for_unexpected_message(rank, &other).into()),
            };
            let writes = |planned: &RankPlan| planned.program.checkpoint_part().is_some();
            let is_writer = self.inputs.plan.ranks.get(rank).is_some_and(writes);
            if !sees_run && is_writer {
                return Err(CommandError::failure(format!(
                    "rank {rank} writes a part of each checkpoint, but does not see {}, where rank 0 keeps the run; \
                     the folder of runs must be on a file system that both share",
                    run.display()
                ))
                .into());
            }
            share_state |= !sees_run;
        }
        drop(marker);
        world.send_to_all(&ToRank::Train { share_state });
        let reports = RankReports::new(world.world_size(), record);
        let mut link = LeaderLink { world, program: &self.program, reports };
        let done = self.train(&run, &training, share_state, &mut link)?;
        let rank_error = |error| LaunchError::Rank(self.rank_error(ExecError::Observer(error)));
        link.send(FromRank::Done(done)).map_err(rank_error)?;
        while let Some(rank) = link.reports.first_unfinished() {
            link.receive_from(rank).map_err(rank_error)?;
        }
        Ok(link.reports.completions())
    }

    /// Trains as a rank that keeps no record. Returns the exit code that rank 0 sends.
    ///
    /// # Errors
    /// Those of `lead`.
    pub fn follow(&self) -> Result<u8, LaunchError> {
        self.share_failure(self.follow_leader())
    }

    fn follow_leader(&self) -> Result<u8, LaunchError> {
        let mut world = self.world;
        let (run, marker, training) = match world.receive(0)? {
            ToRank::Begin { run, marker, training } => (run, marker, training),
            ToRank::Exit { code } => return Ok(code),
            other => return Err(world.abort_for_unexpected_message(0, &other).into()),
        };
        world.send_to_leader(&FromRank::Ready { sees_run: sees_marker(&run, &marker) });
        let share_state = match world.receive(0)? {
            ToRank::Train { share_state } => share_state,
            other => return Err(world.abort_for_unexpected_message(0, &other).into()),
        };
        let done = self.train(&run, &training, share_state, &mut world)?;
        world.send_to_leader(&FromRank::Done(done));
        Ok(world.await_exit()?)
    }

    fn train(
        &self,
        run: &Path,
        training: &TrainingStart,
        share_state: bool,
        link: &mut (impl RecorderLink + Send),
    ) -> Result<RankCompletion, LaunchError> {
        let state = self.load_state(training.checkpoint.as_deref(), share_state)?;
        let (checkpoints, mesh) = (run.join(CHECKPOINTS), &*self.world.mesh);
        let training = RankTraining {
            program: &self.program,
            resources: &self.inputs.resources,
            comm: &*self.comm,
            status: mesh.status(),
            mesh: Some(mesh),
            controls: training.controls(self.stop),
        };
        let outcome = self.inputs.pool.install(|| {
            let mut observer = RankObserver::new(&self.program, Some(training.status), &checkpoints, link);
            training.run(state, &mut observer)
        });
        let interrupted = outcome.map_err(LaunchError::Rank)?.interrupted;
        Ok(RankCompletion { interrupted, stop_reason: self.stop.stop_reason(), peak_rss_bytes: peak_rss_bytes() })
    }

    /// The training state to begin with. If `share_state` is true, the first replica of each stage reads the checkpoint and broadcasts it
    /// to the others.
    fn load_state(&self, checkpoint: Option<&Path>, share_state: bool) -> Result<TrainState, LaunchError> {
        let Self { program, inputs: RankInputs { pool, load_state, .. }, .. } = self;
        let read = || pool.install(|| load_state(program, checkpoint)).map_err(|error| self.start_error(error));
        if !share_state || checkpoint.is_none() || program.mesh.replicas == 1 {
            return read();
        }
        let group = GroupId(program.mesh.index(RankGroup::Replicas { stage: program.stage() }));
        let root = program.mesh.rank(program.stage(), 0);
        let mut state = if program.rank == root {
            read()?
        } else {
            let layout = Arc::new(program.state_layout());
            TrainState::zeroed(layout, program.moments(), state_dtype(program), &Device::Cpu)
                .map_err(|error| self.start_error(ExecError::from(error)))?
        };
        self.comm.run(group, GroupOperation::Broadcast { root }, &state.buffer)?;
        let own = json_bytes(&(state.step, state.tokens, state.best));
        let all = self.comm.all_gather(group, &own)?;
        let position = all.first().map(|first| serde_json::from_slice::<(u64, u64, Option<BestValidation>)>(first));
        let Some(Ok((step, tokens, best))) = position else {
            let why = "it does not contain the position of a checkpoint";
            return Err(self.world.abort_for_invalid_message(root, why).into());
        };
        (state.step, state.tokens, state.best) = (step, tokens, best);
        Ok(state)
    }

    fn start_error(&self, error: impl Into<CommandError>) -> LaunchError {
        error.into().context(format!("rank {} failed while starting", self.program.rank)).into()
    }

    fn rank_error(&self, source: ExecError) -> RankError {
        let place = describe_place(&self.program, &self.world.mesh.status().snapshot());
        RankError { rank: self.program.rank, place, source }
    }

    /// Aborts the run if this rank failed first. Returns the failure that all ranks report: this rank's own, or that of the rank
    /// that failed first.
    fn share_failure<T>(&self, result: Result<T, LaunchError>) -> Result<T, LaunchError> {
        let Err(error) = result else { return result };
        let (world, is_aborted) = (self.world, error.is_aborted());
        if !is_aborted || world.mesh.abort_cause().is_some_and(|abort| abort.by == world.rank()) {
            world.abort(error.code(), &error.to_string());
        }
        match world.await_abort(Some(self.inputs.plan)) {
            // The abort may name this rank too, if the others have lost it.
            Some(RunAbort { by, code, reason, .. }) if is_aborted || by != world.rank() => {
                Err(LaunchError::OtherRank { code, text: reason })
            }
            Some(_) => Err(error),
            None => {
                world.abort(error.code(), &error.to_string());
                Err(error)
            }
        }
    }
}

/// The leader's connection to itself, the recorder. It receives the messages of the other ranks when they are due.
struct LeaderLink<'a> {
    world: &'a World,
    program: &'a Program,
    reports: RankReports<'a>,
}

impl LeaderLink<'_> {
    fn record(&mut self, rank: usize, message: FromRank) -> Result<(), ObserveError> {
        match self.reports.receive(rank, message) {
            Ok(answer) => answer.iter().for_each(|answer| self.world.send_to_all(answer)),
            Err(RecordingError::Record(error)) => return Err(error),
            Err(RecordingError::Protocol(why)) => {
                return Err(peer_error(self.world.abort_for_invalid_message(rank, &why)));
            }
        }
        Ok(())
    }

    /// Receives and records the next message of `rank`. Returns true if it is a trace.
    fn receive_from(&mut self, rank: usize) -> Result<bool, ObserveError> {
        let message = self.world.receive(rank).map_err(peer_error)?;
        let is_trace = matches!(message, FromRank::Trace(_));
        self.record(rank, message).map(|()| is_trace)
    }
}

impl RecorderLink for LeaderLink<'_> {
    fn send(&mut self, message: FromRank) -> Result<(), ObserveError> {
        let is_trace = matches!(message, FromRank::Trace(_));
        self.record(0, message)?;
        if is_trace {
            // The first replica of each other stage sends its lines at every step.
            let mesh = self.program.mesh;
            for stage in 1..mesh.stages {
                // A part of a checkpoint may come first.
                while !self.receive_from(mesh.rank(stage, 0))? {}
            }
        }
        Ok(())
    }

    fn record_arrived_parts(&mut self) -> Result<(), ObserveError> {
        for rank in 1..self.world.world_size() {
            while let Some(message) = self.world.receive_if_arrived(rank).map_err(peer_error)? {
                self.record(rank, message)?;
            }
        }
        Ok(())
    }

    fn await_commit(&mut self, step: u64) -> Result<(), ObserveError> {
        while let Some(rank) = self.reports.first_missing_part(step) {
            self.receive_from(rank)?;
        }
        Ok(())
    }
}

/// The connection of every other rank to the leader.
impl RecorderLink for &World {
    fn send(&mut self, message: FromRank) -> Result<(), ObserveError> {
        self.send_to_leader(&message);
        Ok(())
    }

    fn await_commit(&mut self, step: u64) -> Result<(), ObserveError> {
        match self.receive(0).map_err(peer_error)? {
            ToRank::Committed { step: committed } if committed == step => Ok(()),
            other => Err(peer_error(self.abort_for_unexpected_message(0, &other))),
        }
    }
}

/// True if this rank sees the file `marker` in the run directory `run`. Files of other machines may appear late.
fn sees_marker(run: &Path, marker: &str) -> bool {
    let is_plain_name = Path::new(marker).file_name().is_some_and(|name| name == marker);
    let path = run.join(marker);
    let started = Instant::now();
    while is_plain_name && started.elapsed() < FILE_TIMEOUT {
        if path.exists() {
            return true;
        }
        thread::sleep(Duration::from_millis(100));
    }
    false
}

/// The number under which the driver shows the GPU that the plan calls `index`: 0 where the launcher shows each rank only its own.
fn visible_index(index: usize) -> usize {
    #[cfg(feature = "cuda")]
    let count = cudarc::driver::CudaContext::device_count().ok();
    #[cfg(not(feature = "cuda"))]
    let count: Option<i32> = None;
    count.map_or(index, |count| index % count.max(1) as usize)
}
