//! Whether ranks restart after the loss of one of them: not if the same failure would occur again.

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
}
