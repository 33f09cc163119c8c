//! The rank's side of the protocol: events and checkpoint parts go to the recorder.

use std::path::Path;

use super::part_writer::{PartToWrite, PartWriter};
use super::protocol::{CheckpointPart, FromRank};
use super::saved_state::state_reader;
use runner_checkpoint::PartRecord;
use runner_comm::{CommError, RankPhase, RankStatus};
use runner_compute::state::TrainState;
use runner_executor::{InstructionList, Observer};
use runner_spec::event::{BestValidation, Event, ObserveError, TraceLine};
use runner_spec::program::{Device, Instruction, Program};

/// A rank's connection to the recorder.
pub(super) trait RecorderLink {
    /// # Errors
    /// If the recorder has ended, or could not record the message.
    fn send(&mut self, message: FromRank) -> Result<(), ObserveError>;

    /// Records the parts that other ranks have sent, without waiting, where this rank is the recorder.
    ///
    /// # Errors
    /// If they could not be recorded.
    fn record_arrived_parts(&mut self) -> Result<(), ObserveError> {
        Ok(())
    }

    /// Waits until the recorder has committed the checkpoint of `step`, to which this rank has sent its part.
    ///
    /// # Errors
    /// If the recorder has ended, the run was aborted, or the checkpoint could not be committed.
    fn await_commit(&mut self, step: u64) -> Result<(), ObserveError>;
}

/// Writes a rank's parts of checkpoints, and reports what happens to the recorder.
pub(super) struct RankObserver<'a, L> {
    program: &'a Program,
    /// `None` if nobody watches the rank.
    status: Option<&'a RankStatus>,
    /// The folder of checkpoints.
    checkpoints: &'a Path,
    link: &'a mut L,
    /// The newest checkpoint, until it is known to be committed.
    save: Option<Save>,
}

/// A checkpoint to which a rank contributes a part.
struct Save {
    step: u64,
    tokens: u64,
    best: Option<BestValidation>,
    /// The thread that writes the part; `None` once the recorder has the rank's report.
    writer: Option<PartWriter>,
}

impl<'a, L: RecorderLink> RankObserver<'a, L> {
    pub(super) fn new(
        program: &'a Program,
        status: Option<&'a RankStatus>,
        checkpoints: &'a Path,
        link: &'a mut L,
    ) -> Self {
        Self { program, status, checkpoints, link, save: None }
    }

    fn enter_phase(&self, phase: RankPhase) {
        if let Some(status) = self.status {
            status.enter_phase(phase);
        }
    }

    /// Sends the part `record` of `save` to the recorder; `None` if other ranks write everything that this one holds.
    fn report(&mut self, save: &Save, record: Option<PartRecord>) -> Result<(), ObserveError> {
        let Save { step, tokens, best, .. } = *save;
        self.link.send(FromRank::Part(CheckpointPart { step, tokens, best, record }))
    }

    /// Reports the part that a thread writes, and waits for it if `waits`.
    fn report_written_part(&mut self, waits: bool) -> Result<(), ObserveError> {
        let is_due = |writer: &mut PartWriter| waits || writer.is_done();
        let Some(mut save) = self.save.take() else { return Ok(()) };
        if let Some(writer) = save.writer.take_if(is_due) {
            let record = writer.finish().inspect_err(|_| self.show_save(save.step)).map_err(observe_error)?;
            self.report(&save, Some(record))?;
        }
        self.save = Some(save);
        Ok(())
    }

    /// Shows that the rank is where it saves after `step`: that is where an error of the thread that writes belongs.
    fn show_save(&self, step: u64) {
        let instruction = self.program.periodic.iter().position(|p| p.instruction == Instruction::Checkpoint);
        if let Some(status) = self.status {
            status.set_step(step - 1);
            status.set_instruction(
                InstructionList::Periodic as u32,
                instruction.unwrap_or(self.program.periodic.len()) as u32,
            );
            status.set_phase(RankPhase::Saving);
        }
    }

    /// Waits until the newest checkpoint is committed.
    fn await_save(&mut self) -> Result<(), ObserveError> {
        self.report_written_part(true)?;
        self.save.take().map_or(Ok(()), |save| self.link.await_commit(save.step))
    }

    /// Starts to save `state` while training continues, or saves it.
    fn save(&mut self, state: &TrainState, continues: bool) -> Result<(), ObserveError> {
        self.await_save()?;
        let TrainState { step, tokens, best, .. } = *state;
        let mut save = Save { step, tokens, best, writer: None };
        match PartToWrite::of_rank(self.program, self.checkpoints, state) {
            None => self.report(&save, None)?,
            Some(part) if continues => {
                let state = state.on_host().map_err(observe_error)?;
                let shared = self.program.device == Device::Cpu;
                let writer = PartWriter::start(part, state, shared, self.program.copies_saved_state);
                save.writer = Some(writer.map_err(observe_error)?);
            }
            Some(part) => {
                let state = state.on_host().map_err(observe_error)?;
                let record = part.write(&state_reader(&state)).map_err(observe_error)?;
                self.report(&save, Some(record))?;
            }
        }
        self.save = Some(save);
        if continues { Ok(()) } else { self.await_save() }
    }
}

impl<L: RecorderLink> Observer for RankObserver<'_, L> {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        if self.program.rank == 0 {
            self.link.send(FromRank::Event(event.clone()))?;
        }
        self.report_written_part(false)?;
        self.link.record_arrived_parts()
    }

    fn checkpoint(&mut self, state: &TrainState, continues: bool) -> Result<(), ObserveError> {
        self.enter_phase(RankPhase::Saving);
        self.save(state, continues)?;
        self.enter_phase(RankPhase::Periodic);
        Ok(())
    }

    fn before_update(&mut self) {
        let writer = self.save.as_ref().and_then(|save| save.writer.as_ref());
        if let Some(writer) = writer.filter(|writer| writer.reads_state()) {
            self.enter_phase(RankPhase::Saving);
            writer.await_release();
            self.enter_phase(RankPhase::Step);
        }
    }

    fn finish(&mut self, is_regular: bool) -> Result<(), ObserveError> {
        if self.save.is_some() {
            self.enter_phase(RankPhase::Saving);
        }
        if is_regular {
            return self.await_save();
        }
        // The other ranks may have ended, but a part that is written may complete the checkpoint.
        self.report_written_part(true)?;
        self.link.record_arrived_parts()
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
