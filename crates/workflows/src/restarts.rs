//! Whether ranks restart after the loss of one of them: not if the same failure would occur again.

use runner_record::manifest::{Manifest, Session};
use runner_record::summary::Summary;

/// The end of the message about a failure that was repeated.
pub(crate) const REPEATED: &str =
    "the ranks failed twice in a row without reaching a later step or saving a checkpoint, so they are not restarted";

/// The progress of the ranks between a start and the exit of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttemptProgress {
    /// The step of the checkpoint that the ranks began with; 0: none.
    pub from: u64,
    /// The step of the newest checkpoint at the end.
    pub saved: u64,
    /// The step, from 0, in which the rank exited.
    pub exited_in: u64,
}

impl AttemptProgress {
    /// True if this attempt went like the one before: neither saved anything, and this one came no further. A third attempt would fail
    /// in the same way, because what kills ranks from outside comes at another step each time.
    pub(crate) fn repeats(&self, before: &Self) -> bool {
        let nothing_saved = |attempt: &Self| attempt.saved <= attempt.from;
        nothing_saved(before) && nothing_saved(self) && self.exited_in <= before.exited_in
    }
}

/// The reason why ranks that a launcher restarted must not train, after the sessions that `run` records; `None` if a restart may succeed. The
/// newest session has the `summary`, and `saved` is the step of the newest checkpoint.
pub(crate) fn restart_problem(run: &Manifest, summary: Option<&Summary>, saved: u64) -> Option<String> {
    let error = run.error.as_ref()?;
    if summary.is_some_and(|summary| summary.not_finite) {
        return Some(format!("{error}; the same file would fail in the same way"));
    }
    let [.., before, last] = run.sessions.as_slice() else { return None };
    let attempt = |session: &Session, saved| {
        let exited_in = session.to_step.filter(|_| session.error.is_some())?;
        Some(AttemptProgress { from: session.from_step, saved, exited_in })
    };
    let is_repeated = attempt(last, saved)?.repeats(&attempt(before, last.from_step)?);
    is_repeated.then(|| format!("{error}; {REPEATED}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_exits_at_the_same_step_are_enough() {
        let attempt = |from, saved, exited_in| AttemptProgress { from, saved, exited_in };
        let repeats = |a: AttemptProgress, b: AttemptProgress| b.repeats(&a);
        assert!(repeats(attempt(10, 10, 15), attempt(10, 10, 15)));
        assert!(repeats(attempt(10, 10, 15), attempt(10, 10, 12)), "earlier");
        assert!(repeats(attempt(0, 0, 0), attempt(0, 0, 0)), "while starting");
        assert!(!repeats(attempt(10, 10, 15), attempt(10, 10, 16)), "further");
        assert!(!repeats(attempt(0, 10, 15), attempt(10, 10, 15)), "the first one saved");
        assert!(!repeats(attempt(10, 10, 25), attempt(10, 20, 25)), "this one saved");
    }

    #[test]
    fn recorded_sessions_that_fail_twice_at_the_same_step_are_enough() {
        let failed = |from_step, to_step| Session {
            from_step,
            to_step: Some(to_step),
            error: Some("rank 1 was lost".to_owned()),
            ..Session::default()
        };
        let problem = |sessions: &[Session], saved| {
            let (error, sessions) = (Some("rank 1 was lost".to_owned()), sessions.to_vec());
            restart_problem(&Manifest { error, sessions, ..Manifest::default() }, None, saved)
        };
        let twice = [failed(0, 14), failed(10, 14), failed(10, 14)];
        let text = problem(&twice, 10).unwrap();
        assert!(text.starts_with("rank 1 was lost; the ranks failed twice in a row"), "{text}");
        assert_eq!(problem(&twice[..2], 10), None, "the first one saved");
        assert_eq!(problem(&twice, 12), None, "the last one saved");
        assert_eq!(problem(&[failed(10, 14), failed(10, 15)], 10), None, "further");
        let killed = Session { to_step: None, error: None, ..failed(10, 14) };
        assert_eq!(problem(&[killed, failed(10, 14)], 10), None, "nobody knows where it failed");
        let diverged = Summary { not_finite: true, ..Summary::default() };
        let run = Manifest { error: Some("the loss is not finite".to_owned()), ..Manifest::default() };
        assert!(restart_problem(&run, Some(&diverged), 0).unwrap().contains("fail in the same way"));
    }
}
