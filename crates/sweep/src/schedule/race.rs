//! A race: every setting starts with a few seeds, and only those that may still be the best one get more.
//!
//! The race goes in rounds. In the first one every setting is trained with `min_seeds` seeds, in each later one every setting that is left
//! with one more. After a round, the settings are compared with the leader, the one with the best mean among those that are left, pair by
//! pair of equal seeds; those that are shown to be worse drop out. It is an F-race (Birattari et al. 2002, "A racing algorithm for
//! configuring metaheuristics") with corrected p-values: for the pairs of settings ([`holm_of_leader`]), and for the number of rounds
//! (Bonferroni). So the setting that is truly the best drops out with a probability of at most 1 − `confidence`.
//!
//! A decision depends on the results of whole rounds alone, so it is the same on every machine and after every interruption.

use runner_spec::error::PlainError;
use runner_spec::format::counted;
use runner_stats::{DecidingTest, PairedComparison, deciding_test, holm_of_leader, pairs_of};
use serde::Serialize;

use super::asha::SegmentResult;
use crate::record::{PointSetting, SweepRecord, describe_values};
use crate::spec::{Goal, RaceSettings};

/// The state of a race.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RaceState {
    /// The tasks that are due, in their order.
    pub due: Vec<usize>,
    /// The settings that dropped out, by their position.
    pub dropped: Vec<(usize, DroppedSetting)>,
    /// True if nothing is left to train.
    pub is_finished: bool,
}

/// Why a setting dropped out of a race.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DroppedSetting {
    /// The number of seeds that it was trained with.
    pub seeds: usize,
    /// The position of the leader of that moment among the recorded settings; `None` if the setting diverged.
    #[serde(skip)]
    pub leader: Option<usize>,
    /// The corrected p, which is below 1 − confidence; `None` if the setting diverged.
    pub p: Option<f64>,
    pub test: Option<DecidingTest>,
}

/// Decides which tasks are due. `settings` has the tasks of each setting in the order of their seeds, the same seeds for all;
/// `result_of` the final result of a task.
pub(crate) fn decide(
    settings: &[Vec<usize>],
    race: &RaceSettings,
    goal: Goal,
    result_of: &dyn Fn(usize) -> Option<SegmentResult>,
) -> RaceState {
    let most = settings.iter().map(Vec::len).max().unwrap_or(0);
    let first = race.min_seeds.clamp(1, most.max(1));
    let rounds = most.saturating_sub(first) + 1;
    let alpha = (1.0 - race.confidence) / rounds as f64;
    let mut left: Vec<usize> = (0..settings.len()).collect();
    let mut dropped = Vec::new();
    for seeds in first..=most {
        // Every result of the round is waited for, so that what is trained does not depend on which run ends first.
        let members = || left.iter().flat_map(|&setting| settings[setting].iter().take(seeds));
        let due: Vec<usize> = members().copied().filter(|&task| result_of(task).is_none()).collect();
        if !due.is_empty() {
            return RaceState { due, dropped, is_finished: false };
        }
        let value = |task: &usize| match result_of(*task) {
            Some(SegmentResult::Value(value)) if value.is_finite() => value,
            _ => f64::NAN,
        };
        let results: Vec<Vec<f64>> =
            left.iter().map(|&setting| settings[setting].iter().take(seeds).map(value).collect()).collect();
        let out: Vec<(usize, DroppedSetting)> = losers(&left, &results, goal, alpha, rounds);
        left.retain(|setting| out.iter().all(|(loser, _)| loser != setting));
        dropped.extend(out);
        if left.len() < 2 {
            break;
        }
    }
    RaceState { due: Vec::new(), dropped, is_finished: true }
}

/// A race compares settings seed by seed, and gives them seeds in one order.
///
/// # Errors
/// If two settings have different seeds.
pub(crate) fn check_same_seeds(record: &SweepRecord) -> Result<(), PlainError> {
    let settings = record.settings();
    let seeds = |setting: &PointSetting| setting.points.iter().map(|member| member.seed.clone()).collect::<Vec<_>>();
    let Some(first) = settings.first() else { return Ok(()) };
    let Some(other) = settings.iter().find(|setting| seeds(setting) != seeds(first)) else { return Ok(()) };
    Err(PlainError::request(format!(
        "early_stop.race compares settings with the same seeds, but {} has {} and {} has {}: do not leave out seeds with \
         `exclude`, and vary the seed by `seeds` alone",
        describe_values(&first.values),
        counted(first.points.len() as u64, "seed"),
        describe_values(&other.values),
        counted(other.points.len() as u64, "seed"),
    )))
}

/// The settings among `left`, with these `results`, that drop out: those that diverged, and those that are worse than the leader at the level
/// `alpha`, one of `rounds`.
fn losers(left: &[usize], results: &[Vec<f64>], goal: Goal, alpha: f64, rounds: usize) -> Vec<(usize, DroppedSetting)> {
    let has_diverged = |i: &usize| results[*i].iter().any(|value| value.is_nan());
    let mean = |i: usize| results[i].iter().sum::<f64>() / results[i].len() as f64;
    let (diverged, finite): (Vec<usize>, Vec<usize>) = (0..left.len()).partition(has_diverged);
    let diverged = diverged
        .into_iter()
        .map(|i| (left[i], DroppedSetting { seeds: results[i].len(), leader: None, p: None, test: None }));
    // Of equal means the first setting leads.
    let leader = finite.iter().copied().min_by(|&a, &b| goal.order(mean(a), mean(b)).then(a.cmp(&b)));
    let Some(leader) = leader else { return diverged.collect() };
    let others: Vec<usize> = finite.into_iter().filter(|&i| i != leader).collect();
    let pairs = pairs_of(others.len() + 1);
    let tests: Vec<Option<(DecidingTest, f64)>> = others
        .iter()
        .map(|&i| {
            let n = results[i].len().min(results[leader].len());
            deciding_test(&PairedComparison::new(&results[i][..n], &results[leader][..n], 0.95)?, pairs, alpha)
        })
        .collect();
    let adjusted = holm_of_leader(&tests.iter().map(|test| test.map_or(1.0, |(_, p)| p)).collect::<Vec<f64>>(), 0);
    let worse = others.into_iter().zip(tests).zip(adjusted).filter(|(_, p)| *p < alpha).map(|((i, test), p)| {
        let p = Some((p * rounds as f64).min(1.0));
        let test = test.map(|(test, _)| test);
        (left[i], DroppedSetting { seeds: results[i].len(), leader: Some(left[leader]), p, test })
    });
    diverged.chain(worse).collect()
}

#[cfg(test)]
mod tests {
    use runner_spec::philox::Philox;

    use super::*;

    const RACE: RaceSettings = RaceSettings { confidence: 0.95, min_seeds: 3 };

    /// Four settings of eight seeds: task 8·setting + seed.
    fn settings() -> Vec<Vec<usize>> {
        (0..4).map(|setting| (0..8).map(|seed| setting * 8 + seed).collect()).collect()
    }

    /// The result of a task in a sweep whose settings have these means, with noise of the size 1.
    fn result(stream: Philox, trial: u64, means: &[f64; 4], task: usize) -> f64 {
        means[task / 8] + stream.normals(trial * 32 + task as u64)[0]
    }

    /// Runs the race to its end, and returns how many tasks were trained.
    fn run(result_of: &dyn Fn(usize) -> SegmentResult, batch: usize) -> (RaceState, Vec<usize>) {
        let mut done: Vec<usize> = Vec::new();
        loop {
            let known = |task: usize| done.contains(&task).then(|| result_of(task));
            let state = decide(&settings(), &RACE, Goal::Minimize, &known);
            if state.is_finished {
                done.sort_unstable();
                return (state, done);
            }
            // Those that are trained at once end in any order.
            done.extend(state.due.iter().rev().take(batch));
        }
    }

    #[test]
    fn all_start_with_the_first_seeds_and_the_worse_ones_drop_out() {
        let far = |task: usize| {
            let value = [0.0, 50.0, 0.1, f64::NAN][task / 8] + (task % 8) as f64 * 0.01 + (task % 5) as f64 * 0.001;
            SegmentResult::Value(value)
        };
        let first = decide(&settings(), &RACE, Goal::Minimize, &|_| None);
        assert_eq!(first.due, [0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26]);
        let (state, done) = run(&far, 2);
        let count = |setting: usize| done.iter().filter(|task| *task / 8 == setting).count();
        assert_eq!([count(1), count(3)], [3, 3], "{state:?}");
        let (_, diverged) = state.dropped.iter().find(|(setting, _)| *setting == 3).unwrap();
        assert_eq!((diverged.p, diverged.leader, diverged.seeds), (None, None, 3));
        let (_, worse) = state.dropped.iter().find(|(setting, _)| *setting == 1).unwrap();
        assert!(worse.p.unwrap() < 0.05 && worse.leader == Some(0), "{worse:?}");
        // Once one setting is left, nothing more is trained.
        let last = state.dropped.iter().map(|(_, dropped)| dropped.seeds).max().unwrap();
        assert_eq!(count(0), if state.dropped.len() == 3 { last } else { 8 }, "{state:?}");
    }

    #[test]
    fn decisions_do_not_depend_on_the_order_in_which_runs_end() {
        let stream = Philox::new(1, "race");
        for trial in 0..20 {
            let result_of = |task| SegmentResult::Value(result(stream, trial, &[0.0, 1.0, 3.0, 9.0], task));
            assert_eq!(run(&result_of, 1), run(&result_of, 5));
        }
    }

    #[test]
    fn equal_results_never_drop_out() {
        let (state, done) = run(&|task| SegmentResult::Value((task % 8) as f64), 3);
        assert_eq!((state.dropped.len(), done.len()), (0, 32));
    }

    #[test]
    fn settings_must_have_the_same_seeds() {
        let point = |lr: f64, seed: u64| (serde_json::json!(lr), seed, 1.0);
        let (mut record, _) = crate::testing::finished(&[point(0.1, 1), point(0.1, 2), point(0.2, 1), point(0.2, 2)]);
        assert!(check_same_seeds(&record).is_ok());
        record.points.pop();
        let error = check_same_seeds(&record).unwrap_err().to_string();
        assert!(error.contains("lr=0.1 has 2 seeds and lr=0.2 has 1 seed"), "{error}");
    }

    /// The guarantee of the confidence, and that the race saves runs where settings differ.
    #[test]
    fn the_best_setting_is_seldom_dropped_and_seeds_are_saved() {
        let stream = Philox::new(2, "race");
        let trials = 400;
        for (means, least_saved) in
            [([0.0, 0.5, 1.0, 8.0], 0.05), ([0.0, 0.0, 0.0, 0.0], 0.0), ([0.0, 9.0, 9.0, 9.0], 0.25)]
        {
            let (mut lost, mut trained) = (0, 0);
            for trial in 0..trials {
                let (state, done) = run(&|task| SegmentResult::Value(result(stream, trial, &means, task)), 32);
                lost += usize::from(state.dropped.iter().any(|(setting, _)| *setting == 0));
                trained += done.len();
            }
            // Three and a half standard errors above 5 in 100.
            let lost = lost as f64 / trials as f64;
            assert!(lost < 0.05 + 3.5 * (0.05 * 0.95 / trials as f64).sqrt(), "{means:?}: {lost}");
            let saved = 1.0 - trained as f64 / (32 * trials) as f64;
            assert!(saved >= least_saved, "{means:?}: {saved}");
        }
    }
}
