//! What becomes of a segment whose process has ended. Pure.

use super::schedule::SegmentResult;
use runner_machine::signal::signal_name;

/// Exit codes of a point's process, as far as they decide something; the command line has the same.
const FAILED: i32 = 1;
const REQUEST: i32 = 2;
const INTERRUPTED: i32 = 130;
/// Another process has the run.
pub const BUSY: i32 = 75;

/// How a process ended, and what is known then.
#[derive(Debug, Clone, Copy)]
pub struct EndedProcess<'a> {
    pub end: ProcessExit,
    /// By the sweep.
    pub asked_to_stop: bool,
    /// What its run's record says of the segment.
    pub finding: Option<SegmentResult>,
    /// Why the run failed, by its record.
    pub recorded: Option<&'a str>,
    /// The last error in the process's log.
    pub written: Option<&'a str>,
    /// How often it was tried again, of how often it may be.
    pub attempts: u32,
    pub retries: u32,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessExit {
    Exited(i32),
    Killed(i32),
}

/// How it is gone on with.
#[derive(Debug, Clone, PartialEq)]
pub enum SegmentOutcome {
    /// With this objective.
    Completed(f64),
    /// Another process has its run: later.
    Later,
    /// On request.
    Stopped,
    Failed {
        error: String,
        again: bool,
    },
}

impl EndedProcess<'_> {
    /// Only what ended well and is recorded is complete. What would come again is not tried again.
    #[must_use]
    pub fn next(&self) -> SegmentOutcome {
        if let (ProcessExit::Exited(0), Some(SegmentResult::Value(value))) = (self.end, self.finding) {
            return SegmentOutcome::Completed(value);
        }
        if self.asked_to_stop {
            return SegmentOutcome::Stopped;
        }
        let written = self.written.map(str::to_owned);
        let (error, repeats) = match self.end {
            ProcessExit::Exited(BUSY) => return SegmentOutcome::Later,
            ProcessExit::Exited(0) => ("it ended without the objective at its last step".to_owned(), true),
            ProcessExit::Exited(INTERRUPTED) => ("it was interrupted from outside".to_owned(), false),
            ProcessExit::Exited(code) => {
                let recorded = self.recorded.filter(|_| code == FAILED).map(str::to_owned);
                let error = recorded.or(written).unwrap_or_else(|| format!("it ended with exit code {code}"));
                (error, code == REQUEST)
            }
            ProcessExit::Killed(signal) => (format!("its process was ended by {}", signal_name(signal)), false),
        };
        // What is found is not due any more, be it a value or a failure that would come again.
        let again = !repeats && self.finding.is_none() && self.attempts < self.retries;
        SegmentOutcome::Failed { error, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(end: ProcessExit, finding: Option<SegmentResult>) -> EndedProcess<'static> {
        EndedProcess { end, asked_to_stop: false, finding, recorded: None, written: None, attempts: 0, retries: 1 }
    }

    fn again(ended: &EndedProcess<'_>) -> bool {
        match ended.next() {
            SegmentOutcome::Failed { again, .. } => again,
            other => panic!("{other:?}"),
        }
    }

    const VALUE: Option<SegmentResult> = Some(SegmentResult::Value(2.0));

    #[test]
    fn only_what_ended_well_is_complete() {
        assert_eq!(ended(ProcessExit::Exited(0), VALUE).next(), SegmentOutcome::Completed(2.0));
        assert!(!again(&ended(ProcessExit::Exited(1), VALUE)), "it is recorded, and told");
        assert!(!again(&ended(ProcessExit::Killed(9), VALUE)));
        assert!(!again(&ended(ProcessExit::Exited(0), None)), "it would come again");
    }

    #[test]
    fn what_may_go_well_is_tried_again() {
        for end in
            [ProcessExit::Exited(1), ProcessExit::Exited(INTERRUPTED), ProcessExit::Killed(9), ProcessExit::Exited(101)]
        {
            assert!(again(&ended(end, None)), "{end:?}");
            assert!(!again(&EndedProcess { attempts: 1, ..ended(end, None) }), "{end:?}, tried often enough");
        }
        assert!(!again(&ended(ProcessExit::Exited(REQUEST), None)));
        assert!(!again(&ended(ProcessExit::Exited(1), Some(SegmentResult::Failed))), "not finite");
    }

    #[test]
    fn stopping_and_waiting_are_no_failures() {
        assert_eq!(ended(ProcessExit::Exited(BUSY), None).next(), SegmentOutcome::Later);
        let stopped = EndedProcess { asked_to_stop: true, ..ended(ProcessExit::Exited(INTERRUPTED), None) };
        assert_eq!(stopped.next(), SegmentOutcome::Stopped);
        assert_eq!(
            EndedProcess { end: ProcessExit::Exited(0), finding: VALUE, ..stopped }.next(),
            SegmentOutcome::Completed(2.0)
        );
    }

    #[test]
    fn the_record_says_why_before_the_log_does() {
        let both =
            EndedProcess { recorded: Some("disk full"), written: Some("other"), ..ended(ProcessExit::Exited(1), None) };
        assert_eq!(both.next(), SegmentOutcome::Failed { error: "disk full".into(), again: true });
        let older = EndedProcess { end: ProcessExit::Exited(2), ..both };
        assert_eq!(
            older.next(),
            SegmentOutcome::Failed { error: "other".into(), again: false },
            "the record is of another time"
        );
        let neither = ended(ProcessExit::Exited(101), None);
        assert_eq!(neither.next(), SegmentOutcome::Failed { error: "it ended with exit code 101".into(), again: true });
    }
}
