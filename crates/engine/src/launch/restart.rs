//! Whether to start the ranks again after one of them died.

/// How far the ranks came between a start and the death of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attempt {
    /// The checkpoint that they began with; 0: none.
    pub from: u64,
    /// The newest at the end.
    pub saved: u64,
    /// The step in which the rank died, from 0.
    pub died_in: u64,
}

impl Attempt {
    /// Whether it went as the one before did: neither saved anything, and this one came no further. A third would, too; what
    /// kills ranks from outside comes at another step each time.
    #[must_use]
    pub fn repeats(&self, before: &Self) -> bool {
        let nothing_saved = |attempt: &Self| attempt.saved <= attempt.from;
        nothing_saved(before) && nothing_saved(self) && self.died_in <= before.died_in
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_deaths_at_the_same_step_are_enough() {
        let attempt = |from, saved, died_in| Attempt { from, saved, died_in };
        let repeats = |a: Attempt, b: Attempt| b.repeats(&a);
        assert!(repeats(attempt(10, 10, 15), attempt(10, 10, 15)));
        assert!(repeats(attempt(10, 10, 15), attempt(10, 10, 12)), "earlier");
        assert!(repeats(attempt(0, 0, 0), attempt(0, 0, 0)), "while starting");
        assert!(!repeats(attempt(10, 10, 15), attempt(10, 10, 16)), "further");
        assert!(!repeats(attempt(0, 10, 15), attempt(10, 10, 15)), "the first one saved");
        assert!(!repeats(attempt(10, 10, 25), attempt(10, 20, 25)), "this one saved");
    }
}
