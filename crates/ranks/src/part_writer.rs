//! Writes a rank's part of a checkpoint, beside the rank's training if that continues.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use super::faults;
use super::saved_state::{copy_bytes, reader_of_copy, state_reader};
use runner_checkpoint::{PartRecord, PartSpec, RecordError, StateReader, pending_folder, save_failed, write_part};
use runner_compute::state::TrainState;
use runner_executor::tied_copy_entry;
use runner_spec::error::PlainError;
use runner_spec::program::Program;
use runner_threads::threads;

/// The part of a checkpoint that a rank writes.
pub(super) struct PartToWrite {
    rank: usize,
    step: u64,
    /// The folder of checkpoints.
    checkpoints: PathBuf,
    spec: PartSpec,
    /// The entries of the state's layout that the part holds.
    owned: Vec<usize>,
}

impl PartToWrite {
    /// The part that the rank of `program` writes of the checkpoint of `state`; `None` if it writes none. A tied embedding belongs to the
    /// first stage.
    pub(super) fn of_rank(program: &Program, checkpoints: &Path, state: &TrainState) -> Option<Self> {
        let (index, count) = program.checkpoint_part()?;
        let copy = tied_copy_entry(program, &state.layout);
        Some(Self {
            rank: program.rank,
            step: state.step,
            checkpoints: checkpoints.to_owned(),
            spec: PartSpec { index, count },
            owned: (0..state.layout.entries.len()).filter(|index| Some(*index) != copy).collect(),
        })
    }

    pub(super) fn write(&self, state: &StateReader<'_>) -> Result<PartRecord, RecordError> {
        let create = |path: &Path| faults::create_part_file(self.rank, self.step, path);
        let record = write_part(&pending_folder(&self.checkpoints, self.step), self.spec, state, &self.owned, &create)?;
        faults::after_part(self.step);
        Ok(record)
    }
}

/// A thread that writes a part.
pub(super) struct PartWriter {
    thread: JoinHandle<Result<PartRecord, RecordError>>,
    /// Is disconnected once the thread no longer reads the rank's own state.
    reads_state: Receiver<()>,
}

impl PartWriter {
    /// Starts a thread that writes `part` of `state`. If training changes the same buffer (`shared`), the thread first copies it if `copies` is
    /// true. Without a copy, or without memory for one, it reads the buffer until the part is written.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(super) fn start(part: PartToWrite, state: TrainState, shared: bool, copies: bool) -> Result<Self, RecordError> {
        let (reading, reads_state) = channel();
        let reading = shared.then_some(reading);
        let (folder, step) = (part.checkpoints.clone(), part.step);
        let work = move || write_while_training(&part, &state, reading, copies);
        let refused = |error: io::Error| {
            save_failed(&folder, step, RecordError::io("starting the thread that writes", &folder)(error))
        };
        Ok(Self { thread: threads::spawn("checkpoint", work).map_err(refused)?, reads_state })
    }

    /// Waits until the thread no longer reads the rank's own state.
    pub(super) fn await_release(&self) {
        // The sender sends nothing: it is dropped.
        let _ = self.reads_state.recv();
    }

    /// True while the thread reads the rank's own state.
    pub(super) fn reads_state(&self) -> bool {
        self.reads_state.try_recv() != Err(TryRecvError::Disconnected)
    }

    pub(super) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until the part is written.
    ///
    /// # Errors
    /// `Save`, with the checkpoint to resume from.
    pub(super) fn finish(self) -> Result<PartRecord, RecordError> {
        let panicked = |_| RecordError::Tensor(Box::new(PlainError::failure("the thread that writes it panicked")));
        self.thread.join().unwrap_or_else(|panic| Err(panicked(panic)))
    }
}

/// Drops `reading` as soon as it no longer reads the rank's own state.
fn write_while_training(
    part: &PartToWrite,
    state: &TrainState,
    reading: Option<Sender<()>>,
    copies: bool,
) -> Result<PartRecord, RecordError> {
    let copies = copies && reading.is_some();
    // Without memory for a copy, the update waits.
    if let Some(Ok(bytes)) = copies.then(|| copy_bytes(state)) {
        drop(reading);
        return part.write(&reader_of_copy(state, &bytes));
    }
    let written = part.write(&state_reader(state));
    drop(reading);
    written
}
