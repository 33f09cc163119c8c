//! The recorder's side of the protocol: it records the messages of ranks, and commits a checkpoint once every rank has written its
//! part.

use std::collections::BTreeMap;

use super::protocol::{CheckpointPart, FromRank, RankCompletion, ReportedFailure, ToRank};
use runner_checkpoint::{PartRecord, StateHash};
use runner_spec::event::{BestValidation, Event, ObserveError, TraceLine};

/// Keeps the record of a run.
pub trait RunRecorder: Send {
    /// Records an event.
    ///
    /// # Errors
    /// If the record cannot be written.
    fn observe(&mut self, event: &Event) -> Result<(), ObserveError>;

    /// Records the trace of a step.
    ///
    /// # Errors
    /// If the lines cannot be written.
    fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError>;

    /// Makes a checkpoint of `parts`, one from each stage, and reports that it is saved.
    ///
    /// # Errors
    /// If the checkpoint cannot be committed.
    fn commit(
        &mut self,
        step: u64,
        tokens: u64,
        best: Option<BestValidation>,
        parts: Vec<PartRecord>,
    ) -> Result<(), ObserveError>;

    /// Removes parts of checkpoints that were not committed. No rank may be writing.
    fn abandon_parts(&self);

    /// Step and hash of the newest checkpoint.
    fn newest_checkpoint(&self) -> Option<(u64, StateHash)>;
}

/// The error of recording a message of a rank.
#[derive(Debug)]
pub(super) enum RecordingError {
    /// The record could not be written.
    Record(ObserveError),
    /// The rank did not keep to the protocol: its message is invalid for this reason.
    Protocol(String),
}

fn violation(why: impl Into<String>) -> RecordingError {
    RecordingError::Protocol(why.into())
}

impl From<ObserveError> for RecordingError {
    fn from(error: ObserveError) -> Self {
        Self::Record(error)
    }
}

/// The reports of the ranks of a run.
pub(super) struct RankReports<'a> {
    record: &'a mut dyn RunRecorder,
    /// True once a message was lost, or the record could not be written. From then on nothing is recorded, and no checkpoint is committed,
    /// because the record lacks its steps.
    is_broken: bool,
    /// The parts of the next checkpoint, by rank.
    parts: BTreeMap<usize, CheckpointPart>,
    /// The last message of each rank.
    ends: Vec<Option<Result<RankCompletion, ReportedFailure>>>,
}

impl<'a> RankReports<'a> {
    pub(super) fn new(world_size: usize, record: &'a mut dyn RunRecorder) -> Self {
        Self { record, is_broken: false, parts: BTreeMap::new(), ends: vec![None; world_size] }
    }

    /// Records a message. Returns the message that all ranks are to be sent next, if there is one.
    pub(super) fn receive(&mut self, rank: usize, message: FromRank) -> Result<Option<ToRank>, RecordingError> {
        if self.is_broken && matches!(message, FromRank::Event(_) | FromRank::Trace(_) | FromRank::Part(_)) {
            return Ok(None);
        }
        let received = self.record(rank, message);
        self.is_broken |= received.is_err();
        received
    }

    /// A message of a rank could not be read.
    pub(super) fn lose_message(&mut self) {
        self.is_broken = true;
    }

    fn record(&mut self, rank: usize, message: FromRank) -> Result<Option<ToRank>, RecordingError> {
        match message {
            FromRank::Event(_) if rank > 0 => {
                return Err(violation("the rank sent an event, although only rank 0 sends events"));
            }
            FromRank::Event(event) => self.record.observe(&event)?,
            FromRank::Trace(lines) => self.record.trace(&lines)?,
            FromRank::Part(part) => return self.add_part(rank, part),
            FromRank::Done(done) => self.ends[rank] = Some(Ok(done)),
            FromRank::Failed(failure) => self.ends[rank] = Some(Err(failure)),
            FromRank::Ready { .. } => {
                return Err(violation("the rank reports that it is ready, although it is already training"));
            }
        }
        Ok(None)
    }

    /// Adds a rank's part. The last one makes the checkpoint.
    fn add_part(&mut self, rank: usize, part: CheckpointPart) -> Result<Option<ToRank>, RecordingError> {
        let CheckpointPart { step, tokens, best, .. } = part;
        if let Some(other) = self.parts.values().find(|other| other.step != step) {
            let expected = other.step;
            let why = format!("the rank has saved step {step}, although other ranks have saved step {expected}");
            return Err(violation(why));
        }
        if self.parts.insert(rank, part).is_some() {
            return Err(violation(format!("the rank has saved step {step} twice")));
        }
        if self.parts.len() < self.ends.len() {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts).into_values().filter_map(|part| part.record).collect();
        self.record.commit(step, tokens, best, parts)?;
        Ok(Some(ToRank::Committed { step }))
    }

    /// The first rank whose part of the checkpoint of `step` is missing; `None` if no rank waits for its commit.
    pub(super) fn first_missing_part(&self, step: u64) -> Option<usize> {
        let is_pending = self.parts.values().any(|part| part.step == step);
        (0..self.ends.len()).find(|rank| is_pending && !self.parts.contains_key(rank))
    }

    /// True if `rank` has reported its part of a checkpoint that is not committed yet.
    pub(super) fn has_part(&self, rank: usize) -> bool {
        self.parts.contains_key(&rank)
    }

    /// The last message of `rank`, if it has sent one.
    pub(super) fn end_of(&self, rank: usize) -> Option<&Result<RankCompletion, ReportedFailure>> {
        self.ends[rank].as_ref()
    }

    /// The first rank that has not reported that it is done.
    pub(super) fn first_unfinished(&self) -> Option<usize> {
        self.ends.iter().position(|end| !matches!(end, Some(Ok(_))))
    }

    /// The ends of all ranks, once each has reported that it is done.
    pub(super) fn completions(&self) -> Vec<RankCompletion> {
        self.ends.iter().flatten().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that keeps the calls that it received as text.
    #[derive(Default)]
    struct TextRecord {
        calls: Vec<String>,
        /// The number of the call that fails, and all further ones; 0 if none does.
        fails_at: usize,
    }

    impl TextRecord {
        fn keep(&mut self, call: String) -> Result<(), ObserveError> {
            if self.calls.len() + 1 == self.fails_at {
                return Err(ObserveError::Failed("the disk is full".into()));
            }
            self.calls.push(call);
            Ok(())
        }
    }

    impl RunRecorder for TextRecord {
        fn observe(&mut self, event: &Event) -> Result<(), ObserveError> {
            self.keep(format!("{event:?}"))
        }

        fn trace(&mut self, lines: &[TraceLine]) -> Result<(), ObserveError> {
            self.keep(format!("{} trace lines", lines.len()))
        }

        fn commit(
            &mut self,
            step: u64,
            tokens: u64,
            _: Option<BestValidation>,
            parts: Vec<PartRecord>,
        ) -> Result<(), ObserveError> {
            self.keep(format!("step {step}, {tokens} tokens, {} parts", parts.len()))
        }

        fn abandon_parts(&self) {}

        fn newest_checkpoint(&self) -> Option<(u64, StateHash)> {
            None
        }
    }

    fn part(step: u64) -> FromRank {
        FromRank::Part(CheckpointPart { step, tokens: 10 * step, best: None, record: None })
    }

    #[test]
    fn a_checkpoint_is_committed_when_all_parts_are_written() {
        let mut record = TextRecord::default();
        let mut reports = RankReports::new(3, &mut record);
        assert_eq!(reports.first_missing_part(4), None);
        assert_eq!(reports.receive(0, part(4)).unwrap(), None);
        assert_eq!(reports.first_missing_part(4), Some(1));
        assert_eq!(reports.receive(2, part(4)).unwrap(), None);
        assert_eq!(reports.receive(1, part(4)).unwrap(), Some(ToRank::Committed { step: 4 }));
        assert_eq!(reports.first_missing_part(4), None);
        // The other ranks may save the next checkpoint before rank 0 waits for this one.
        assert_eq!(reports.receive(1, part(8)).unwrap(), None);
        assert_eq!(reports.first_missing_part(4), None);
        reports.receive(0, FromRank::Trace(Vec::new())).unwrap();
        assert_eq!(record.calls, ["step 4, 40 tokens, 0 parts", "0 trace lines"]);
    }

    #[test]
    fn after_an_error_of_the_record_nothing_is_committed() {
        let mut record = TextRecord { fails_at: 2, ..TextRecord::default() };
        let mut reports = RankReports::new(2, &mut record);
        let event = || FromRank::Event(Event::Saved { step: 7 });
        reports.receive(0, event()).unwrap();
        reports.receive(1, part(8)).unwrap();
        assert!(matches!(reports.receive(0, event()), Err(RecordingError::Record(_))));
        assert_eq!((reports.receive(0, event()).unwrap(), reports.receive(0, part(8)).unwrap()), (None, None));
        assert_eq!((reports.receive(1, part(8)).unwrap(), reports.end_of(0).is_some()), (None, false));
        reports.lose_message();
        assert_eq!(record.calls, ["Saved { step: 7 }"]);
        let mut record = TextRecord::default();
        let mut reports = RankReports::new(1, &mut record);
        reports.lose_message();
        assert_eq!((reports.receive(0, event()).unwrap(), reports.receive(0, part(8)).unwrap()), (None, None));
        assert!(record.calls.is_empty(), "the record has a hole");
    }

    #[test]
    fn ranks_that_disagree_are_reported() {
        let violation = |rank, message| {
            let mut record = TextRecord::default();
            let mut reports = RankReports::new(2, &mut record);
            reports.receive(0, part(4)).unwrap();
            match reports.receive(rank, message) {
                Err(RecordingError::Protocol(text)) => text,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(violation(1, part(5)), "the rank has saved step 5, although other ranks have saved step 4");
        assert_eq!(violation(0, part(4)), "the rank has saved step 4 twice");
        let event = FromRank::Event(Event::Saved { step: 4 });
        assert_eq!(violation(1, event), "the rank sent an event, although only rank 0 sends events");
        assert!(violation(0, FromRank::Ready { sees_run: true }).contains("ready"));
    }

    #[test]
    fn the_end_is_that_of_all_ranks() {
        let mut record = TextRecord::default();
        let mut reports = RankReports::new(2, &mut record);
        let completion = |peak_rss_bytes| RankCompletion { interrupted: true, stop_reason: None, peak_rss_bytes };
        reports.receive(1, FromRank::Done(completion(Some(7)))).unwrap();
        assert_eq!(reports.first_unfinished(), Some(0));
        reports.receive(0, FromRank::Done(completion(None))).unwrap();
        assert_eq!(reports.first_unfinished(), None);
        assert_eq!(reports.completions(), [completion(None), completion(Some(7))]);
    }
}
