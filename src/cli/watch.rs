//! Who hears of a run's events: first its record, then the log and the screen.

use std::path::PathBuf;

use super::printer::Printer;
use runner_compute::observer::Observer;
use runner_compute::state::TrainState;
use runner_engine::launch::Record;
use runner_report::{EventLines, JsonEvent, OutputMode};
use runner_spec::event::{BestValidation, Event, ObserveError, TraceLine};
use runner_store::{Log, PartRecord, Recorder, StoreError};

/// Passes events on.
pub(super) struct Watch {
    pub path: PathBuf,
    pub recorder: Recorder,
    pub log: Log,
    pub lines: EventLines,
    pub screen: Printer,
}

impl Watch {
    /// A warning to the log and the screen.
    ///
    /// # Errors
    /// If the log cannot be written.
    pub(super) fn warn(&mut self, text: &str) -> Result<(), StoreError> {
        self.log.line(&format!("warning: {text}"))?;
        self.screen.json(&JsonEvent::Warning { message: text });
        self.screen.warn(text);
        Ok(())
    }
}

impl Observer for Watch {
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
        self.recorder.observe(event)?;
        let line = self.lines.line(event);
        if let Some(line) = &line {
            self.log.line(line).map_err(|error| ObserveError(Box::new(error)))?;
        }
        if let Some(line) = JsonEvent::new(event, &self.path) {
            self.screen.json(&line);
        }
        match event {
            Event::Step(metrics) => {
                self.screen.step(metrics.step, || self.lines.numbers(metrics));
                if let Some(line) = line.filter(|_| self.screen.mode() != OutputMode::Bar) {
                    self.screen.line(&line);
                }
            }
            Event::Warning(message) => self.screen.warn(message),
            _ => line.iter().for_each(|line| self.screen.line(line)),
        }
        Ok(())
    }

    fn checkpoint(&mut self, state: &TrainState) -> Result<(), ObserveError> {
        self.recorder.checkpoint(state)?;
        self.observe(&Event::Saved { step: state.step })
    }

    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
        self.recorder.trace(lines)
    }
}

impl Record for Watch {
    fn commit(
        &mut self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        parts: Vec<PartRecord>,
    ) -> Result<(), ObserveError> {
        self.recorder.commit(step, tokens, best, parts).map_err(|error| ObserveError(Box::new(error)))?;
        self.observe(&Event::Saved { step })
    }
}
