//! The rank's side of the protocol: events and checkpoint parts go to the recorder.

use std::path::Path;

use super::faults;
use super::protocol::{CheckpointPart, FromRank};
use super::rank_training::RankTraining;
use runner_checkpoint::state_reader;
use runner_comm::{CommError, RankPhase};
use runner_compute::state::TrainState;
use runner_exec::{Observer, tied_copy_entry};
use runner_record::checkpoint::{pending_folder, write_part};
use runner_record::{PartRecord, PartSpec, RecordError};
use runner_spec::event::{Event, ObserveError, TraceLine};

/// A rank's connection to the recorder.
pub(super) trait RecorderLink {
    /// # Errors
    /// If the recorder has ended, or could not record the message.
    fn send(&mut self, message: FromRank) -> Result<(), ObserveError>;

    /// Waits until the recorder has committed the checkpoint of `step`, to which this rank has sent its part.
    ///
    /// # Errors
    /// If the recorder has ended, the run was aborted, or the checkpoint could not be committed.
    fn await_commit(&mut self, step: u64) -> Result<(), ObserveError>;
}

/// Writes a rank's parts of checkpoints, and reports what happens to the recorder.
pub(super) struct RankObserver<'a, L> {
    pub training: &'a RankTraining<'a>,
    /// The folder of checkpoints.
    pub checkpoints: &'a Path,
    pub link: &'a mut L,
}

impl<L> RankObserver<'_, L> {
    /// Writes this rank's part of the checkpoint, if it has one. A tied embedding belongs to the first stage.
    fn write_part(&self, state: &TrainState) -> Result<Option<PartRecord>, RecordError> {
        let RankTraining { program, .. } = *self.training;
        let Some((index, count)) = program.checkpoint_part() else { return Ok(None) };
        let copy = tied_copy_entry(program, &state.layout);
        let owned: Vec<usize> = (0..state.layout.entries.len()).filter(|index| Some(*index) != copy).collect();
        let spec = PartSpec { index, count };
        let create = |path: &Path| faults::create_part_file(program.rank, state.step, path);
        write_part(&pending_folder(self.checkpoints, state.step), spec, &state_reader(state), &owned, &create).map(Some)
    }
}

impl<L: RecorderLink> Observer for RankObserver<'_, L> {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        if self.training.program.rank > 0 {
            return Ok(());
        }
        self.link.send(FromRank::Event(event.clone()))
    }

    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        let RankTraining { status, .. } = *self.training;
        let TrainState { step, tokens, best, .. } = *state;
        status.enter_phase(RankPhase::Saving);
        let record = self.write_part(state).map_err(observe_error)?;
        faults::after_part(step);
        self.link.send(FromRank::Part(CheckpointPart { step, tokens, best, record }))?;
        self.link.await_commit(step)?;
        status.enter_phase(RankPhase::Periodic);
        Ok(())
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.link.send(FromRank::Trace(lines.to_vec()))
    }
}

pub(super) fn observe_error(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ObserveError {
    ObserveError::Failed(error.into())
}

/// For `map_err`: the error of waiting for another rank.
pub(super) fn peer_error(error: CommError) -> ObserveError {
    if error.is_aborted() { ObserveError::Aborted(error.into()) } else { ObserveError::Failed(error.into()) }
}
