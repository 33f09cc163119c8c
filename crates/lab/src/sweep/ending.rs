//! What becomes of a segment whose process has ended. Pure.

use super::schedule::Finding;
use runner_machine::signal::signal_name;

/// Exit codes of a point's process, as far as they decide something; the command line has the same.
const FAILED: i32 = 1;
const REQUEST: i32 = 2;
const INTERRUPTED: i32 = 130;
/// Another process has the run.
pub const BUSY: i32 = 75;

/// How a process ended, and what is known then.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    pub end: End,
    /// By the sweep.
    pub asked_to_stop: bool,
    /// What its run's record says of the segment.
    pub finding: Option<Finding>,
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
pub enum End {
    Exited(i32),
    Killed(i32),
}

/// How it is gone on with.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
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

impl Ended<'_> {
    /// Only what ended well and is recorded is complete. What would come again is not tried again.
    #[must_use]
    pub fn next(&self) -> Next {
        if let (End::Exited(0), Some(Finding::Value(value))) = (self.end, self.finding) {
            return Next::Completed(value);
        }
        if self.asked_to_stop {
            return Next::Stopped;
        }
        let written = self.written.map(str::to_owned);
        let (error, repeats) = match self.end {
            End::Exited(BUSY) => return Next::Later,
            End::Exited(0) => ("it ended without the objective at its last step".to_owned(), true),
            End::Exited(INTERRUPTED) => ("it was interrupted from outside".to_owned(), false),
            End::Exited(code) => {
                let recorded = self.recorded.filter(|_| code == FAILED).map(str::to_owned);
                let error = recorded.or(written).unwrap_or_else(|| format!("it ended with exit code {code}"));
                (error, code == REQUEST)
            }
            End::Killed(signal) => (format!("its process was ended by {}", signal_name(signal)), false),
        };
        // What is found is not due any more, be it a value or a failure that would come again.
        let again = !repeats && self.finding.is_none() && self.attempts < self.retries;
        Next::Failed { error, again }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(end: End, finding: Option<Finding>) -> Ended<'static> {
        Ended { end, asked_to_stop: false, finding, recorded: None, written: None, attempts: 0, retries: 1 }
    }

    fn again(ended: &Ended<'_>) -> bool {
        match ended.next() {
            Next::Failed { again, .. } => again,
            other => panic!("{other:?}"),
        }
    }

    const VALUE: Option<Finding> = Some(Finding::Value(2.0));

    #[test]
    fn only_what_ended_well_is_complete() {
        assert_eq!(ended(End::Exited(0), VALUE).next(), Next::Completed(2.0));
        assert!(!again(&ended(End::Exited(1), VALUE)), "it is recorded, and told");
        assert!(!again(&ended(End::Killed(9), VALUE)));
        assert!(!again(&ended(End::Exited(0), None)), "it would come again");
    }

    #[test]
    fn what_may_go_well_is_tried_again() {
        for end in [End::Exited(1), End::Exited(INTERRUPTED), End::Killed(9), End::Exited(101)] {
            assert!(again(&ended(end, None)), "{end:?}");
            assert!(!again(&Ended { attempts: 1, ..ended(end, None) }), "{end:?}, tried often enough");
        }
        assert!(!again(&ended(End::Exited(REQUEST), None)));
        assert!(!again(&ended(End::Exited(1), Some(Finding::Failed))), "not finite");
    }

    #[test]
    fn stopping_and_waiting_are_no_failures() {
        assert_eq!(ended(End::Exited(BUSY), None).next(), Next::Later);
        let stopped = Ended { asked_to_stop: true, ..ended(End::Exited(INTERRUPTED), None) };
        assert_eq!(stopped.next(), Next::Stopped);
        assert_eq!(Ended { end: End::Exited(0), finding: VALUE, ..stopped }.next(), Next::Completed(2.0));
    }

    #[test]
    fn the_record_says_why_before_the_log_does() {
        let both = Ended { recorded: Some("disk full"), written: Some("other"), ..ended(End::Exited(1), None) };
        assert_eq!(both.next(), Next::Failed { error: "disk full".into(), again: true });
        let older = Ended { end: End::Exited(2), ..both };
        assert_eq!(older.next(), Next::Failed { error: "other".into(), again: false }, "the record is of another time");
        let neither = ended(End::Exited(101), None);
        assert_eq!(neither.next(), Next::Failed { error: "it ended with exit code 101".into(), again: true });
    }
}
