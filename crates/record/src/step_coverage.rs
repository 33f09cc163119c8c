//! The steps of the lines of a file: those that it has, those that it lacks, and those that it has several times.

/// The steps of lines, in the order of the lines. It takes little memory unless the lines are in disorder.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepCoverage {
    /// First and last step of each run of lines whose steps follow one another.
    ranges: Vec<(u64, u64)>,
    lines: u64,
}

impl StepCoverage {
    pub(crate) fn add(&mut self, step: u64) {
        self.lines += 1;
        match self.ranges.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(step) => *last = step,
            _ => self.ranges.push((step, step)),
        }
    }

    /// The number of different steps.
    pub(crate) fn count(&self) -> u64 {
        self.count_through(u64::MAX)
    }

    /// The number of different steps up to `through`.
    pub(crate) fn count_through(&self, through: u64) -> u64 {
        let union = self.union();
        union.iter().filter(|(first, _)| *first <= through).map(|(first, last)| last.min(&through) - first + 1).sum()
    }

    /// The number of lines of steps that an earlier line has.
    pub(crate) fn repeated(&self) -> u64 {
        self.lines - self.count()
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.ranges.iter().map(|(_, last)| *last).max()
    }

    /// The first step from 1 to `through` that no line has.
    pub(crate) fn first_missing(&self, through: u64) -> Option<u64> {
        let mut next = 1;
        for (first, last) in self.union() {
            if first > next {
                break;
            }
            next = next.max(last.saturating_add(1));
        }
        (next <= through).then_some(next)
    }

    /// True if the lines are in the order of their steps.
    pub(crate) fn is_ascending(&self) -> bool {
        self.ranges.windows(2).all(|pair| pair[0].1 < pair[1].0)
    }

    /// The ranges in order, none of which overlaps another.
    fn union(&self) -> Vec<(u64, u64)> {
        let mut sorted = self.ranges.clone();
        sorted.sort_unstable();
        let mut union: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match union.last_mut() {
                Some((_, end)) if first <= *end => *end = last.max(*end),
                _ => union.push((first, last)),
            }
        }
        union
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_lost_and_repeated_steps() {
        let of = |steps: &[u64]| {
            let mut coverage = StepCoverage::default();
            for step in steps {
                coverage.add(*step);
            }
            (coverage.count(), coverage.repeated(), coverage.first_missing(5), coverage.is_ascending())
        };
        for (steps, expected) in [
            (&[1, 2, 3, 4, 5][..], (5, 0, None, true)),
            (&[], (0, 0, Some(1), true)),
            (&[1, 2, 4, 5], (4, 0, Some(3), true)),
            (&[2, 3, 4, 5], (4, 0, Some(1), true)),
            (&[1, 2, 3], (3, 0, Some(4), true)),
            (&[1, 2, 3, 4, 5, 1, 2, 3, 4, 5], (5, 5, None, false)),
            (&[1, 1, 2, 3, 4, 5], (5, 1, None, false)),
            (&[3, 4, 5, 1, 2], (5, 0, None, false)),
            (&[1, 2, 3, 2, 3, 4], (4, 2, Some(5), false)),
            (&[1, u64::MAX, 2], (3, 0, Some(3), false)),
        ] {
            assert_eq!(of(steps), expected, "{steps:?}");
        }
    }
}
