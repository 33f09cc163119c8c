//! Passes each event of the executor to the run's record, then to its log, then to the caller.

use std::path::PathBuf;

use runner_ranks::RunRecorder;
use runner_record::checkpoint::StateHash;
use runner_record::{Log, PartRecord, RecordError, Recorder};
use runner_spec::event::{BestValidation, Event, ObserveError, TraceLine};

use crate::event_lines::EventLines;
use crate::tracking::Tracking;
use runner_inputs::{RunEvent, RunObserver};

/// The observer of a run's ranks.
pub(crate) struct Recording<'a> {
    pub path: PathBuf,
    pub recorder: Recorder,
    pub log: Log,
    pub lines: EventLines,
    pub tracking: Tracking,
    pub observer: &'a mut dyn RunObserver,
}

impl Recording<'_> {
    /// A warning to the log and to the caller.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub(crate) fn warn(&mut self, text: String) -> Result<(), RecordError> {
        self.log.line(&format!("warning: {text}"))?;
        self.observer.observe(&RunEvent::Training { run: &self.path, event: &Event::Warning(text) });
        Ok(())
    }
}

impl RunRecorder for Recording<'_> {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        self.recorder.record(event).map_err(observe_error)?;
        let line = self.lines.line(event);
        if let Some(line) = &line {
            self.log.line(line).map_err(observe_error)?;
        }
        self.tracking.add(event, line.is_some());
        for warning in self.tracking.take_warnings() {
            self.warn(warning).map_err(observe_error)?;
        }
        self.observer.observe(&RunEvent::Training { run: &self.path, event });
        Ok(())
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.recorder.trace(lines).map_err(observe_error)
    }

    fn commit(
        &mut self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        parts: Vec<PartRecord>,
    ) -> Result<(), ObserveError> {
        self.recorder.commit(step, tokens, best, parts).map_err(observe_error)?;
        self.observe(&Event::Saved { step })
    }

    fn abandon_parts(&self) {
        self.recorder.abandon_all();
    }

    fn newest_checkpoint(&self) -> Option<(u64, StateHash)> {
        self.recorder.newest_checkpoint().cloned()
    }
}

fn observe_error(error: RecordError) -> ObserveError {
    ObserveError::Failed(Box::new(error))
}
