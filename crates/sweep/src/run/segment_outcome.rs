//! Decides what happens to a segment after its process or its job has ended.

use crate::SegmentResult;
use runner_threads::signal::signal_name;

use runner_spec::exit::Exit;

/// A segment whose process or job has ended, and what is known about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EndedSegment<'a> {
    pub end: SegmentEnd,
    /// True if the sweep asked the process to stop.
    pub was_asked_to_stop: bool,
    /// True if the process was to train to a step before the segment's end, and has reached it.
    pub is_paused: bool,
    /// True if another process works on the run.
    pub is_held: bool,
    /// The result of the segment in the run's record.
    pub result: Option<SegmentResult>,
    /// The error in the run's record.
    pub recorded_error: Option<&'a str>,
    /// The last error in the process's log.
    pub logged_error: Option<&'a str>,
    /// The number of times that the segment was retried, and that it may be.
    pub attempts: u32,
    pub max_retries: u32,
}

/// How the work on a segment ended: the exit code of its process, the signal that killed the process, or a job that is no longer queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SegmentEnd {
    Exited(i32),
    Killed(i32),
    /// `is_ours` if this call submitted the job for this segment.
    LeftQueue {
        is_ours: bool,
    },
}

/// The outcome of a segment.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SegmentOutcome {
    /// The steps are done, with this objective.
    Completed(f64),
    /// Another process works on the run, or a notice ended this one: the segment is still due.
    Busy,
    /// The process stopped where it was to pause, or on request, or the job of an earlier call has ended: the segment is still due.
    Stopped,
    Failed {
        error: String,
        is_retried: bool,
    },
}

impl EndedSegment<'_> {
    /// The outcome of the segment. It is completed only if the process succeeded and the result is recorded. A failure that would repeat
    /// is not retried.
    pub(super) fn outcome(&self) -> SegmentOutcome {
        if let (SegmentEnd::Exited(0) | SegmentEnd::LeftQueue { .. }, Some(SegmentResult::Value(value))) =
            (self.end, self.result)
        {
            return SegmentOutcome::Completed(value);
        }
        let is_paused = self.is_paused && self.end == SegmentEnd::Exited(0);
        if self.was_asked_to_stop || is_paused {
            return SegmentOutcome::Stopped;
        }
        let logged = self.logged_error.map(str::to_owned);
        let (error, would_repeat) = match self.end {
            SegmentEnd::Exited(code) if code == Exit::TryAgain as i32 => return SegmentOutcome::Busy,
            // A job of another sweep has the same point.
            SegmentEnd::LeftQueue { .. } if self.is_held && self.result.is_none() => return SegmentOutcome::Busy,
            SegmentEnd::Exited(0) => ("it ended without the objective at its last step".to_owned(), true),
            SegmentEnd::Exited(code) if code == Exit::Interrupted as i32 => {
                ("it was interrupted from outside".to_owned(), false)
            }
            SegmentEnd::Exited(code) => {
                let recorded = self.recorded_error.filter(|_| code == Exit::Failed as i32).map(str::to_owned);
                let error = recorded.or(logged).unwrap_or_else(|| format!("it ended with exit code {code}"));
                (error, code == Exit::Request as i32)
            }
            // It may have been submitted for an earlier segment.
            SegmentEnd::LeftQueue { is_ours: false } if self.result.is_none() => return SegmentOutcome::Stopped,
            SegmentEnd::LeftQueue { .. } => {
                let recorded = self.recorded_error.map(str::to_owned);
                (recorded.or(logged).unwrap_or_else(|| "its job ended early".to_owned()), false)
            }
            SegmentEnd::Killed(signal) => (format!("its process was ended by {}", signal_name(signal)), false),
        };
        // A segment with a result is no longer due, whether the result is a value or a failure that would repeat.
        let is_retried = !would_repeat && self.result.is_none() && self.attempts < self.max_retries;
        SegmentOutcome::Failed { error, is_retried }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(end: SegmentEnd, result: Option<SegmentResult>) -> EndedSegment<'static> {
        EndedSegment {
            end,
            was_asked_to_stop: false,
            is_paused: false,
            is_held: false,
            result,
            recorded_error: None,
            logged_error: None,
            attempts: 0,
            max_retries: 1,
        }
    }

    #[test]
    fn a_pause_is_no_end_without_a_result() {
        let paused = EndedSegment { is_paused: true, ..exited(SegmentEnd::Exited(0), None) };
        assert_eq!(paused.outcome(), SegmentOutcome::Stopped);
        assert!(is_retried(&EndedSegment { end: SegmentEnd::Killed(9), ..paused }));
    }

    fn is_retried(exited: &EndedSegment<'_>) -> bool {
        match exited.outcome() {
            SegmentOutcome::Failed { is_retried, .. } => is_retried,
            other => panic!("{other:?}"),
        }
    }

    const VALUE: Option<SegmentResult> = Some(SegmentResult::Value(2.0));

    #[test]
    fn only_successful_segments_are_complete() {
        assert_eq!(exited(SegmentEnd::Exited(0), VALUE).outcome(), SegmentOutcome::Completed(2.0));
        assert!(!is_retried(&exited(SegmentEnd::Exited(1), VALUE)), "it is recorded and reported");
        assert!(!is_retried(&exited(SegmentEnd::Killed(9), VALUE)));
        assert!(!is_retried(&exited(SegmentEnd::Exited(0), None)), "it would come again");
    }

    #[test]
    fn failures_that_may_pass_are_retried() {
        for exit in [
            SegmentEnd::Exited(1),
            SegmentEnd::Exited(Exit::Interrupted as i32),
            SegmentEnd::Killed(9),
            SegmentEnd::Exited(101),
        ] {
            assert!(is_retried(&exited(exit, None)), "{exit:?}");
            assert!(!is_retried(&EndedSegment { attempts: 1, ..exited(exit, None) }), "{exit:?}, tried often enough");
        }
        assert!(!is_retried(&exited(SegmentEnd::Exited(Exit::Request as i32), None)));
        assert!(!is_retried(&exited(SegmentEnd::Exited(1), Some(SegmentResult::Failed))), "not finite");
    }

    #[test]
    fn stopping_and_waiting_are_not_failures() {
        assert_eq!(exited(SegmentEnd::Exited(Exit::TryAgain as i32), None).outcome(), SegmentOutcome::Busy);
        let stopped =
            EndedSegment { was_asked_to_stop: true, ..exited(SegmentEnd::Exited(Exit::Interrupted as i32), None) };
        assert_eq!(stopped.outcome(), SegmentOutcome::Stopped);
        assert_eq!(
            EndedSegment { end: SegmentEnd::Exited(0), result: VALUE, ..stopped }.outcome(),
            SegmentOutcome::Completed(2.0)
        );
    }

    #[test]
    fn a_job_that_left_the_queue_is_judged_by_its_result() {
        let left = |is_ours, result| exited(SegmentEnd::LeftQueue { is_ours }, result);
        for is_ours in [true, false] {
            assert_eq!(left(is_ours, VALUE).outcome(), SegmentOutcome::Completed(2.0));
        }
        assert!(is_retried(&left(true, None)));
        assert_eq!(EndedSegment { is_held: true, ..left(true, None) }.outcome(), SegmentOutcome::Busy);
        assert_eq!(left(false, None).outcome(), SegmentOutcome::Stopped, "it may have been for fewer steps");
        for is_ours in [true, false] {
            assert!(!is_retried(&left(is_ours, Some(SegmentResult::Failed))), "not finite");
        }
    }

    #[test]
    fn the_record_says_why_before_the_log_does() {
        let both = EndedSegment {
            recorded_error: Some("disk full"),
            logged_error: Some("other"),
            ..exited(SegmentEnd::Exited(1), None)
        };
        assert_eq!(both.outcome(), SegmentOutcome::Failed { error: "disk full".into(), is_retried: true });
        let older = EndedSegment { end: SegmentEnd::Exited(2), ..both };
        assert_eq!(
            older.outcome(),
            SegmentOutcome::Failed { error: "other".into(), is_retried: false },
            "the record is of another time"
        );
        let neither = exited(SegmentEnd::Exited(101), None);
        assert_eq!(
            neither.outcome(),
            SegmentOutcome::Failed { error: "it ended with exit code 101".into(), is_retried: true }
        );
    }
}
