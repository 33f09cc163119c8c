//! Detection of hung ranks. A rank is treated as hung when its process is alive, waits for no other rank, and makes no progress.

use std::time::{Duration, Instant};

use runner_comm::{RankPhase, RankSnapshot};

/// The time that a rank may make no progress in a step, if nothing took longer before.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_mins(2);
/// A rank may take this many times as long as the slowest one before.
const MAX_SLOWDOWN: u32 = 20;
/// The timeout where there is nothing to compare with (the first step), and for writing a checkpoint, which depends on the disk.
const FIRST_STEP_TIMEOUT: Duration = Duration::from_mins(30);

/// The progress that the ranks have shown.
#[derive(Debug)]
pub(super) struct HangDetector {
    step_timeout: Duration,
    /// The step with which the ranks began.
    from: u64,
    /// The longest time between two signs of progress of a rank that computed.
    slowest: Duration,
    ranks: Vec<LastProgress>,
}

/// A rank when it last made progress or waited.
#[derive(Debug, Clone, Copy)]
struct LastProgress {
    progress: u64,
    phase: RankPhase,
    time: Instant,
}

impl HangDetector {
    pub(super) fn new(ranks: usize, from: u64, step_timeout: Duration, now: Instant) -> Self {
        let last = LastProgress { progress: 0, phase: RankPhase::Starting, time: now };
        Self { step_timeout, from, slowest: Duration::ZERO, ranks: vec![last; ranks] }
    }

    /// Checks the status `status` of `rank`. Returns how long the rank has made no progress, if it is hung. If this process was
    /// suspended, the time since the last check does not count.
    pub(super) fn check(
        &mut self,
        rank: usize,
        status: &RankSnapshot,
        now: Instant,
        was_suspended: bool,
    ) -> Option<Duration> {
        let allowed = MAX_SLOWDOWN * self.slowest;
        let timeout = match status.phase {
            RankPhase::Step | RankPhase::Periodic if status.step > self.from => self.step_timeout.max(allowed),
            RankPhase::Step | RankPhase::Periodic | RankPhase::Saving => FIRST_STEP_TIMEOUT.max(allowed),
            RankPhase::Starting | RankPhase::Finished | RankPhase::Stopped | RankPhase::Failed => Duration::MAX,
        };
        let last = &mut self.ranks[rank];
        let quiet = now.duration_since(last.time);
        let has_computed = matches!(last.phase, RankPhase::Step | RankPhase::Periodic);
        if was_suspended || timeout == Duration::MAX || status.is_waiting() || status.progress != last.progress {
            if has_computed && !was_suspended {
                self.slowest = self.slowest.max(quiet);
            }
            *last = LastProgress { progress: status.progress, phase: status.phase, time: now };
            return None;
        }
        (quiet >= timeout).then_some(quiet)
    }
}

/// The rank that let `rank` wait too long for `peer`: `peer`, or the rank that `peer` waits for, and so on; `peer` if they wait for
/// each other.
pub(super) fn rank_to_blame(rank: usize, peer: usize, waits_for: impl Fn(usize) -> Option<usize>) -> usize {
    let mut chain = vec![rank, peer];
    let mut last = peer;
    while let Some(next) = waits_for(last) {
        if chain.contains(&next) {
            return peer;
        }
        chain.push(next);
        last = next;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn status(phase: RankPhase, step: u64, progress: u64) -> RankSnapshot {
        RankSnapshot { step, phase, progress, ..RankSnapshot::default() }
    }

    /// The number of seconds after which a rank whose status stays `status` hangs, checked every second for two hours.
    fn hangs(progress: &mut HangDetector, status: &RankSnapshot, from: Instant) -> Option<u32> {
        (0..7200).find(|&s| progress.check(0, status, from + s * SECOND, false).is_some())
    }

    #[test]
    fn a_rank_that_neither_computes_nor_waits_hangs() {
        let start = Instant::now();
        let new = || HangDetector::new(2, 3, STEP_TIMEOUT, start);
        assert_eq!(hangs(&mut new(), &status(RankPhase::Step, 5, 7), start), Some(120));
        assert_eq!(hangs(&mut new(), &status(RankPhase::Periodic, 5, 7), start), Some(120));
        assert_eq!(hangs(&mut new(), &status(RankPhase::Step, 3, 7), start), Some(1800), "nothing to compare with");
        assert_eq!(hangs(&mut new(), &status(RankPhase::Saving, 5, 7), start), Some(1800), "a slow disk");
        assert_eq!(hangs(&mut new(), &status(RankPhase::Starting, 0, 0), start), None, "data may take any time");
        assert_eq!(hangs(&mut new(), &status(RankPhase::Finished, 9, 7), start), None);
        let waits = RankSnapshot { waiting_for: Some(1), ..status(RankPhase::Step, 5, 7) };
        assert_eq!(hangs(&mut new(), &waits, start), None);
        let waits = RankSnapshot { waiting_for_parent: true, ..status(RankPhase::Periodic, 5, 7) };
        assert_eq!(hangs(&mut new(), &waits, start), None);
    }

    #[test]
    fn slow_ranks_are_given_time() {
        let start = Instant::now();
        let mut progress = HangDetector::new(2, 3, STEP_TIMEOUT, start);
        // Rank 1 needed 10 s for something, so rank 0 may need 200.
        progress.check(1, &status(RankPhase::Step, 4, 1), start, false);
        progress.check(1, &status(RankPhase::Step, 4, 2), start + 10 * SECOND, false);
        let before = start + 20 * SECOND;
        assert_eq!(hangs(&mut progress, &status(RankPhase::Step, 5, 7), before), Some(200));
        // The time of a wait, a disk or a suspended machine does not count.
        let mut progress = HangDetector::new(2, 3, STEP_TIMEOUT, start);
        let waits = RankSnapshot { waiting_for: Some(0), ..status(RankPhase::Step, 4, 1) };
        (0..100).for_each(|s| assert_eq!(progress.check(1, &waits, start + s * SECOND, false), None));
        let after = |s: u32| start + s * SECOND;
        progress.check(1, &status(RankPhase::Saving, 4, 2), after(100), false);
        progress.check(1, &status(RankPhase::Step, 4, 3), after(200), false);
        assert_eq!(progress.check(1, &status(RankPhase::Step, 4, 3), after(9000), true), None);
        assert_eq!(hangs(&mut progress, &status(RankPhase::Step, 5, 7), after(9001)), Some(120));
    }

    #[test]
    fn the_last_rank_of_a_chain_of_waits_is_to_blame() {
        let chain = |to: [Option<usize>; 4]| move |rank: usize| to[rank];
        assert_eq!(rank_to_blame(0, 1, chain([None, Some(2), Some(3), None])), 3);
        assert_eq!(rank_to_blame(0, 1, chain([None, None, None, None])), 1);
        assert_eq!(rank_to_blame(0, 1, chain([None, Some(0), None, None])), 1, "each other");
        assert_eq!(rank_to_blame(0, 1, chain([None, Some(2), Some(1), None])), 1, "each other");
    }
}
