//! Whether ranks come on: one whose process lives, but that neither works nor waits for anyone, hangs.

use std::time::{Duration, Instant};

use runner_comm::{RankPhase, RankSnapshot};

/// How long a rank may stay where it is, if none was slower before.
pub(super) const PATIENCE: Duration = Duration::from_mins(2);
/// How much longer than ever before something may take.
const TIMES: u32 = 20;
/// What nobody has a measure for yet, or is up to a disk: the first step, and writing a checkpoint.
const UNKNOWN: Duration = Duration::from_mins(30);

/// What the ranks showed so far.
#[derive(Debug)]
pub(super) struct Progress {
    patience: Duration,
    /// The step that they began with.
    from: u64,
    /// The longest time between two signs of progress of a rank that worked.
    longest: Duration,
    ranks: Vec<Last>,
}

/// A rank as it was when it last came on, or waited.
#[derive(Debug, Clone, Copy)]
struct Last {
    progress: u64,
    phase: RankPhase,
    at: Instant,
}

impl Progress {
    pub(super) fn new(ranks: usize, from: u64, patience: Duration, now: Instant) -> Self {
        let last = Last { progress: 0, phase: RankPhase::Starting, at: now };
        Self { patience, from, longest: Duration::ZERO, ranks: vec![last; ranks] }
    }

    /// Looks at `rank`'s line of the board: how long it has hung, if that is too long. `late`: time passed that was not its.
    pub(super) fn look(&mut self, rank: usize, view: &RankSnapshot, now: Instant, late: bool) -> Option<Duration> {
        let limit = match view.phase {
            RankPhase::Step | RankPhase::Periodic if view.step > self.from => self.patience.max(TIMES * self.longest),
            RankPhase::Step | RankPhase::Periodic | RankPhase::Saving => UNKNOWN.max(TIMES * self.longest),
            RankPhase::Starting | RankPhase::Finished | RankPhase::Stopped | RankPhase::Failed => Duration::MAX,
        };
        let last = &mut self.ranks[rank];
        let quiet = now.duration_since(last.at);
        let works = matches!(last.phase, RankPhase::Step | RankPhase::Periodic);
        if late || limit == Duration::MAX || view.is_waiting() || view.progress != last.progress {
            if works && !late {
                self.longest = self.longest.max(quiet);
            }
            *last = Last { progress: view.progress, phase: view.phase, at: now };
            return None;
        }
        (quiet >= limit).then_some(quiet)
    }
}

/// Who let `rank` wait too long for `named`: that one, or whom it waits for itself, and so on; `named` if they wait for each
/// other.
pub(super) fn culprit(rank: usize, named: usize, waits_for: impl Fn(usize) -> Option<usize>) -> usize {
    let mut chain = vec![rank, named];
    let mut at = named;
    while let Some(next) = waits_for(at) {
        if chain.contains(&next) {
            return named;
        }
        chain.push(next);
        at = next;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn view(phase: RankPhase, step: u64, progress: u64) -> RankSnapshot {
        RankSnapshot { step, phase, progress, ..RankSnapshot::default() }
    }

    /// Seconds after which a rank that stays as `view` is found to hang, looked at every second for two hours.
    fn hangs(progress: &mut Progress, view: &RankSnapshot, from: Instant) -> Option<u32> {
        (0..7200).find(|&s| progress.look(0, view, from + s * SECOND, false).is_some())
    }

    #[test]
    fn who_neither_works_nor_waits_hangs() {
        let start = Instant::now();
        let new = || Progress::new(2, 3, PATIENCE, start);
        assert_eq!(hangs(&mut new(), &view(RankPhase::Step, 5, 7), start), Some(120));
        assert_eq!(hangs(&mut new(), &view(RankPhase::Periodic, 5, 7), start), Some(120));
        assert_eq!(hangs(&mut new(), &view(RankPhase::Step, 3, 7), start), Some(1800), "nothing to compare with");
        assert_eq!(hangs(&mut new(), &view(RankPhase::Saving, 5, 7), start), Some(1800), "a slow disk");
        assert_eq!(hangs(&mut new(), &view(RankPhase::Starting, 0, 0), start), None, "data may take any time");
        assert_eq!(hangs(&mut new(), &view(RankPhase::Finished, 9, 7), start), None);
        let waits = RankSnapshot { waiting_for: Some(1), ..view(RankPhase::Step, 5, 7) };
        assert_eq!(hangs(&mut new(), &waits, start), None);
        let waits = RankSnapshot { waiting_for_parent: true, ..view(RankPhase::Periodic, 5, 7) };
        assert_eq!(hangs(&mut new(), &waits, start), None);
    }

    #[test]
    fn slow_ranks_are_given_time() {
        let start = Instant::now();
        let mut progress = Progress::new(2, 3, PATIENCE, start);
        // Rank 1 needed 10 s for something, so rank 0 may need 200.
        progress.look(1, &view(RankPhase::Step, 4, 1), start, false);
        progress.look(1, &view(RankPhase::Step, 4, 2), start + 10 * SECOND, false);
        let before = start + 20 * SECOND;
        assert_eq!(hangs(&mut progress, &view(RankPhase::Step, 5, 7), before), Some(200));
        // What a wait, a disk or a suspended machine took is no measure.
        let mut progress = Progress::new(2, 3, PATIENCE, start);
        let waits = RankSnapshot { waiting_for: Some(0), ..view(RankPhase::Step, 4, 1) };
        (0..100).for_each(|s| assert_eq!(progress.look(1, &waits, start + s * SECOND, false), None));
        let after = |s: u32| start + s * SECOND;
        progress.look(1, &view(RankPhase::Saving, 4, 2), after(100), false);
        progress.look(1, &view(RankPhase::Step, 4, 3), after(200), false);
        assert_eq!(progress.look(1, &view(RankPhase::Step, 4, 3), after(9000), true), None);
        assert_eq!(hangs(&mut progress, &view(RankPhase::Step, 5, 7), after(9001)), Some(120));
    }

    #[test]
    fn the_last_of_those_who_wait_is_to_blame() {
        let chain = |to: [Option<usize>; 4]| move |rank: usize| to[rank];
        assert_eq!(culprit(0, 1, chain([None, Some(2), Some(3), None])), 3);
        assert_eq!(culprit(0, 1, chain([None, None, None, None])), 1);
        assert_eq!(culprit(0, 1, chain([None, Some(0), None, None])), 1, "each other");
        assert_eq!(culprit(0, 1, chain([None, Some(2), Some(1), None])), 1, "each other");
    }
}
