//! What the results of a sweep show: the mean of each setting over its seeds, the comparison of every setting with the one whose mean is
//! best, and the conclusion.
//!
//! A setting is compared with the leader pair by pair of equal seeds. The p-values are corrected for all pairs of settings, because the same
//! results have chosen the leader ([`holm_of_leader`]). One test decides all comparisons of a number of seeds: the permutation test if it
//! can show a difference at all, else the paired t-test.

pub mod words;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use runner_stats::{
    DecidingTest, PairedComparison, Sample, deciding_test, holm_of_leader, pairs_of, seeds_needed,
    smallest_detectable_difference, smallest_permutation_p,
};
use serde::Serialize;
use serde_json::Value;

use crate::points::{PointValues, ordered};
use crate::record::{PointSetting, SweepRecord};
use crate::results::{PointStatus, ResultsRow, SweepResults};
use crate::spec::{CONFIDENCE, Goal};
use runner_spec::measure::LossSample;

/// The power at which numbers of seeds and differences are computed.
pub const POWER: f64 = 0.8;

/// What the results of a sweep show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepVerdict {
    pub conclusion: Conclusion,
    /// The settings. The first one leads: of those with the most seeds it has the best mean, unless a setting with fewer seeds is better than it
    /// over their common seeds. The others follow by their means, after them those with fewer seeds, stopped early, diverged, not measured.
    pub settings: Vec<SettingResult>,
    /// What the seeds of the leader and of its rival can show; `None` if there is no rival, or nothing differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseFloor>,
    /// How far the choice of validation rows moves a result; `None` if it is not measured on rows, or their number was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_noise: Option<RowNoise>,
    /// The values of the leading setting that are the lowest or the highest that were tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<EdgeOfRange>,
    /// The conclusion in words, as the screen shows it, a line each.
    pub words: Vec<String>,
}

/// The conclusion. The numbers in it are positions in [`SweepVerdict::settings`]; the leader is at 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Conclusion {
    /// No setting has a result after all its steps.
    NoResult,
    /// The results do not compare.
    Incomparable { reason: String },
    /// The settings are rungs of these ladders: sizes of one experiment, which do not compete.
    Rungs { ladders: Vec<String> },
    /// There is nothing to compare the only setting with.
    OneSetting,
    /// The leader, or what it is compared with, has one seed: nothing shows the noise. `tied`: the settings with exactly the leader's result.
    OneSeed { tied: Vec<usize> },
    /// The results of these settings are the same numbers, and every other setting that did all its steps is worse.
    Tie { settings: Vec<usize> },
    /// No setting that may be the best has a seed in common with the first one, and a seed moves all settings alike: none leads.
    NotCompared,
    /// Every other setting is worse than the leader.
    Best,
    /// Every other setting that did all its steps is worse than the leader, if there is one. Others were not tested: early stopping ended
    /// them after fewer steps, or they have no result.
    BestOfFinished,
    /// These settings, the leader first, may be the best one.
    WithinNoise { settings: Vec<usize> },
}

/// The results of a setting over its seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingResult {
    /// The name in the sentences.
    pub name: String,
    /// What a table says of it, such as `best`, `worse` or `within noise`.
    pub label: String,
    /// What varies, without seeds.
    #[serde(with = "ordered")]
    pub values: PointValues,
    /// The numbers of its points, one for each seed.
    pub points: Vec<usize>,
    pub state: SettingState,
    /// The number of its points that have done all their steps.
    pub measured: usize,
    /// The number of its points that diverged.
    pub diverged: usize,
    /// The mean of the measured points; `None` if there is none, or a point diverged.
    pub sample: Option<Sample>,
    /// The comparison with the leader; `None` for the leader, and if no seed is measured in both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<SettingComparison>,
}

impl SettingResult {
    /// True unless early stopping or divergence has ended the setting, or it has no result.
    #[must_use]
    pub fn may_win(&self) -> bool {
        matches!(self.state, SettingState::Ranked | SettingState::Incomplete)
    }
}

/// How far a setting is, in the order in which settings are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SettingState {
    /// Its points have done all their steps, or as many of them as those of any setting.
    Ranked,
    /// Fewer of its points are measured than of others.
    Incomplete,
    /// Early stopping ended it.
    Stopped,
    /// A point diverged: the mean is worse than any number.
    Diverged,
    /// No point is measured.
    Unmeasured,
}

/// The comparison of a setting with the leader. A positive difference is a higher objective, whether or not that is better.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingComparison {
    #[serde(flatten)]
    pub paired: PairedComparison,
    /// The test that decides; `None` for one pair.
    pub test: Option<DecidingTest>,
    /// The p-value of this test, corrected for the number of comparisons.
    pub adjusted_p: f64,
    /// The smallest corrected p that permutations could give to any of these settings with so many seeds.
    pub smallest_permutation_p: f64,
    /// The number of pairs of settings, by which the smallest p is multiplied.
    pub pairs: usize,
    /// True if the setting is shown to be worse than the leader. A setting that is better than the leader over their common seeds is not.
    pub is_worse: bool,
}

/// The differences that the seeds of the leader and its rival show.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NoiseFloor {
    /// The position of the rival.
    pub rival: usize,
    /// The number of seeds that both have.
    pub seeds: usize,
    /// The standard deviation of the difference from seed to seed.
    pub sd: f64,
    /// The smallest difference that these seeds show with the probability [`POWER`].
    pub smallest_shown: f64,
    /// The observed difference.
    pub observed: f64,
    /// The number of seeds that show it with the probability [`POWER`]; `None` if that is more than a million.
    pub seeds_needed: Option<usize>,
}

/// The validation rows that the results were measured on. Seeds share these rows, so a mean over seeds has the same error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RowNoise {
    /// The fewest tokens and rows, and the largest standard error, of any result.
    #[serde(flatten)]
    pub sample: LossSample,
    /// The smallest difference between the leader and a setting that may win; `None` if there is none.
    pub nearest_difference: Option<f64>,
    /// True if the standard error is larger than this difference, or cannot be known from one row.
    pub may_hide_difference: bool,
}

/// A value of the leading setting that is the lowest or the highest of those that a parameter has in the sweep.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EdgeOfRange {
    pub name: String,
    pub value: Value,
    pub is_highest: bool,
    /// The number of different values.
    pub values: usize,
}

/// The number of different values from which on the lowest and the highest of them are edges of a range.
const MIN_RANGE_VALUES: usize = 3;

/// The measured points of a setting: values of its seeds, and the objective.
type Measured<'r> = Vec<(&'r PointValues, f64)>;

impl SweepVerdict {
    /// The verdict on `results`, which are those of the sweep `record`. `is_finished`: nothing is left to do.
    #[must_use]
    pub fn new(record: &SweepRecord, results: &SweepResults, is_finished: bool) -> Self {
        let ladders: Vec<String> = record.is_ladder.then(|| record.id.clone()).into_iter().collect();
        Self::of_settings(&record.settings(), results, is_finished, &ladders)
    }

    /// The verdict on `results`, whose points belong to the settings `recorded`. Several of these are rungs of `ladders`, if there are any.
    #[must_use]
    pub fn of_settings(
        recorded: &[PointSetting],
        results: &SweepResults,
        is_finished: bool,
        ladders: &[String],
    ) -> Self {
        let mut settings = rank_settings(recorded, results);
        let has_leader = settings.first().is_some_and(|(leader, _)| leader.sample.is_some());
        let are_rungs = !ladders.is_empty();
        if are_rungs {
            settings.sort_by_key(|(setting, _)| setting.points.first().copied());
        } else if results.incomparable.is_none() && has_leader {
            compare_with_leader(&mut settings, results.objective.goal() == Goal::Maximize);
        }
        let settings: Vec<SettingResult> = settings.into_iter().map(|(setting, _)| setting).collect();
        let conclusion = match &results.incomparable {
            Some(reason) => Conclusion::Incomparable { reason: reason.clone() },
            None if !has_leader => Conclusion::NoResult,
            None if are_rungs => Conclusion::Rungs { ladders: ladders.to_vec() },
            None => conclude(&settings),
        };
        let noise = noise_floor(&settings, &conclusion);
        let row_noise = row_noise(results, &settings);
        let mut verdict = Self { conclusion, settings, noise, row_noise, edges: Vec::new(), words: Vec::new() };
        verdict.edges = verdict.leader().map_or_else(Vec::new, |leader| find_edges(results, leader));
        let labels: Vec<String> = (0..verdict.settings.len()).map(|i| words::label(&verdict, i)).collect();
        verdict.settings.iter_mut().zip(labels).for_each(|(setting, label)| setting.label = label);
        verdict.words = words::describe(&verdict, &results.objective, is_finished);
        verdict
    }

    /// The setting with the best mean, whether or not others are shown to be worse; `None` if the results do not compare or there is none.
    #[must_use]
    pub fn leader(&self) -> Option<&SettingResult> {
        let is_known = !matches!(
            self.conclusion,
            Conclusion::NoResult | Conclusion::Incomparable { .. } | Conclusion::NotCompared | Conclusion::Rungs { .. }
        );
        self.settings.first().filter(|_| is_known)
    }

    /// The setting that every other one is shown to be worse than.
    #[must_use]
    pub fn best(&self) -> Option<&SettingResult> {
        self.settings.first().filter(|_| self.conclusion == Conclusion::Best)
    }

    /// Sorts the rows of `results` by the rank of their settings, and those of a setting by their number.
    pub(crate) fn sort_rows(&self, results: &mut SweepResults) {
        let rank = |row: &ResultsRow| self.settings.iter().position(|setting| setting.points.contains(&row.point));
        results.rows.sort_by_cached_key(|row| (rank(row).unwrap_or(usize::MAX), row.point));
    }

    /// True if a setting has several seeds.
    #[must_use]
    pub fn has_seeds(&self) -> bool {
        self.settings.iter().any(|setting| setting.points.len() > 1)
    }
}

/// The settings of a sweep with their measured points, in the order of [`SweepVerdict::settings`].
pub(crate) fn rank_settings<'r>(
    recorded: &'r [PointSetting],
    results: &SweepResults,
) -> Vec<(SettingResult, Measured<'r>)> {
    let rows: BTreeMap<usize, &ResultsRow> = results.rows.iter().map(|row| (row.point, row)).collect();
    let mut settings: Vec<(SettingResult, Measured<'r>)> =
        recorded.iter().map(|setting| setting_result(setting, &rows)).collect();
    let ranked = |setting: &SettingResult| setting.state == SettingState::Ranked;
    let most = settings.iter().filter(|(s, _)| ranked(s)).map(|(s, _)| s.measured).max().unwrap_or(0);
    for (setting, _) in settings.iter_mut().filter(|(s, _)| ranked(s) && s.measured < most) {
        setting.state = SettingState::Incomplete;
    }
    let mean = |setting: &SettingResult| setting.sample.map_or(f64::NAN, |sample| sample.mean);
    let goal = results.objective.goal();
    settings.sort_by(|(a, _), (b, _)| a.state.cmp(&b.state).then(goal.order(mean(a), mean(b))));
    if let Some(leader) = unbeaten_setting(&settings, goal) {
        settings[..=leader].rotate_right(1);
    }
    settings
}

/// The first of the sorted `settings` that no other one is better than over at least two common seeds. Means over different seeds do not
/// compare, as a seed moves all settings alike. `None` if all settings have the same number of seeds, or each one is worse than another.
fn unbeaten_setting(settings: &[(SettingResult, Measured<'_>)], goal: Goal) -> Option<usize> {
    let candidates = || settings.iter().enumerate().filter(|(_, (setting, _))| setting.may_win());
    if candidates().all(|(_, (setting, _))| setting.state == SettingState::Ranked) {
        return None;
    }
    let is_beaten = |i: usize, own: &Measured<'_>| {
        candidates()
            .filter(|(j, _)| *j != i)
            .filter_map(|(_, (_, other))| compare_seeds(other, own))
            .any(|paired| paired.n > 1 && goal.order(paired.difference, 0.0) == Ordering::Less)
    };
    candidates().find(|(i, (_, measured))| !is_beaten(*i, measured)).map(|(i, _)| i)
}

/// The comparison of `measured` with `leader` over the seeds that both have; `None` if there is none.
fn compare_seeds(measured: &Measured<'_>, leader: &Measured<'_>) -> Option<PairedComparison> {
    let value_of = |seed: &PointValues| leader.iter().find(|(other, _)| *other == seed).map(|(_, value)| *value);
    let pairs = measured.iter().filter_map(|(seed, value)| Some((*value, value_of(seed)?)));
    let (own, leaders): (Vec<f64>, Vec<f64>) = pairs.unzip();
    PairedComparison::new(&own, &leaders, CONFIDENCE)
}

fn setting_result<'r>(setting: &'r PointSetting, rows: &BTreeMap<usize, &ResultsRow>) -> (SettingResult, Measured<'r>) {
    let rows = || setting.points.iter().filter_map(|member| Some((member, rows.get(&member.point)?)));
    let done = rows().filter(|(_, row)| row.status == PointStatus::Done && !row.diverged);
    let measured: Measured<'_> = done.filter_map(|(member, row)| Some((&member.seed, row.objective?))).collect();
    let diverged = rows().filter(|(_, row)| row.diverged).count();
    let was_stopped = rows().any(|(_, row)| row.status == PointStatus::Stopped);
    let values: Vec<f64> = measured.iter().map(|(_, value)| *value).collect();
    let sample = Sample::new(&values, CONFIDENCE).filter(|_| diverged == 0);
    let state = match (diverged, was_stopped, sample) {
        (1.., ..) => SettingState::Diverged,
        (0, true, _) => SettingState::Stopped,
        (0, false, None) => SettingState::Unmeasured,
        (0, false, Some(_)) => SettingState::Ranked,
    };
    let result = SettingResult {
        name: setting.name.clone(),
        label: String::new(),
        values: setting.values.clone(),
        points: setting.points.iter().map(|member| member.point).collect(),
        state,
        measured: measured.len(),
        diverged,
        sample,
        comparison: None,
    };
    (result, measured)
}

/// Compares each setting that has a mean with the first one.
fn compare_with_leader(settings: &mut [(SettingResult, Measured<'_>)], is_more_better: bool) {
    let Some(((_, leader), others)) = settings.split_first_mut() else { return };
    let compared: Vec<(usize, PairedComparison)> = others
        .iter()
        .enumerate()
        .filter(|(_, (setting, _))| setting.sample.is_some())
        .filter_map(|(i, (_, measured))| Some((i, compare_seeds(measured, leader)?)))
        .collect();
    let pairs = pairs_of(compared.len() + 1);
    let tests: Vec<Option<(DecidingTest, f64)>> =
        compared.iter().map(|(_, paired)| deciding_test(paired, pairs, 1.0 - CONFIDENCE)).collect();
    let ps: Vec<f64> = tests.iter().map(|test| test.map_or(1.0, |(_, p)| p)).collect();
    let adjusted = holm_of_leader(&ps);
    for (((i, paired), test), adjusted_p) in compared.into_iter().zip(tests).zip(adjusted) {
        let is_behind = if is_more_better { paired.difference < 0.0 } else { paired.difference > 0.0 };
        others[i].0.comparison = Some(SettingComparison {
            test: test.map(|(test, _)| test),
            adjusted_p,
            smallest_permutation_p: (smallest_permutation_p(paired.n) * pairs as f64).min(1.0),
            pairs,
            is_worse: is_behind && adjusted_p < 1.0 - CONFIDENCE,
            paired,
        });
    }
}

/// The conclusion from settings that were compared with the first one, which has a result.
fn conclude(settings: &[SettingResult]) -> Conclusion {
    let compared = || settings.iter().enumerate().skip(1).filter_map(|(i, s)| Some((i, s.comparison.as_ref()?)));
    let is_equal = |i: usize, c: &SettingComparison| c.paired.is_identical && settings[i].may_win();
    let identical: Vec<usize> = compared().filter(|(i, c)| is_equal(*i, c)).map(|(i, _)| i).collect();
    if settings.len() == 1 {
        return Conclusion::OneSetting;
    }
    if settings[0].measured < 2 || compared().any(|(i, c)| c.paired.n < 2 && settings[i].may_win()) {
        return Conclusion::OneSeed { tied: identical };
    }
    let rivals = || settings.iter().skip(1).filter(|setting| setting.may_win());
    if rivals().next().is_some() && rivals().all(|setting| setting.comparison.is_none()) {
        return Conclusion::NotCompared;
    }
    let open: Vec<usize> = (1..settings.len())
        .filter(|&i| settings[i].may_win())
        .filter(|&i| !settings[i].comparison.as_ref().is_some_and(|comparison| comparison.is_worse))
        .collect();
    let is_untested =
        |setting: &SettingResult| matches!(setting.state, SettingState::Stopped | SettingState::Unmeasured);
    match (open.is_empty(), open == identical) {
        (true, _) if settings.iter().any(is_untested) => Conclusion::BestOfFinished,
        (true, _) => Conclusion::Best,
        (false, true) => Conclusion::Tie { settings: [vec![0], identical].concat() },
        (false, false) => Conclusion::WithinNoise { settings: [vec![0], open].concat() },
    }
}

/// The values of `leader` that bound those of the points that have a result.
fn find_edges(results: &SweepResults, leader: &SettingResult) -> Vec<EdgeOfRange> {
    let edge = |(name, value): &(String, Value)| {
        let own = value.as_f64()?;
        // A value without a result bounds nothing yet.
        let tried = results.rows.iter().filter(|row| row.objective.is_some() || row.diverged);
        let all = tried.flat_map(|row| &row.values).filter(|(other, _)| other == name);
        let mut numbers: Vec<f64> = all.map(|(_, value)| value.as_f64()).collect::<Option<_>>()?;
        numbers.sort_by(f64::total_cmp);
        numbers.dedup();
        let (lowest, highest) = (*numbers.first()?, *numbers.last()?);
        let is_edge = numbers.len() >= MIN_RANGE_VALUES && (own <= lowest || own >= highest);
        let (name, value, is_highest) = (name.clone(), value.clone(), own >= highest);
        is_edge.then_some(EdgeOfRange { name, value, is_highest, values: numbers.len() })
    };
    leader.values.iter().filter_map(edge).collect()
}

/// The rows behind the results that have all steps.
fn row_noise(results: &SweepResults, settings: &[SettingResult]) -> Option<RowNoise> {
    let sample = results.measured_on()?;
    let differs = |comparison: &&SettingComparison| !comparison.paired.is_identical;
    let rivals = settings.iter().filter(|setting| setting.may_win()).filter_map(|setting| setting.comparison.as_ref());
    let nearest = rivals.filter(differs).map(|comparison| comparison.paired.difference.abs()).min_by(f64::total_cmp);
    let may_hide_difference = nearest.is_some_and(|nearest| sample.standard_error.is_none_or(|error| error > nearest));
    Some(RowNoise { sample, nearest_difference: nearest, may_hide_difference })
}

/// What the seeds of the leader and its rival show: the best of the settings that may be as good, or else of the others.
fn noise_floor(settings: &[SettingResult], conclusion: &Conclusion) -> Option<NoiseFloor> {
    let rivals: Vec<usize> = match conclusion {
        Conclusion::WithinNoise { settings } => settings[1..].to_vec(),
        Conclusion::Best | Conclusion::BestOfFinished => {
            (1..settings.len()).filter(|&i| settings[i].may_win()).collect()
        }
        _ => return None,
    };
    let differs =
        |i: &usize| settings[*i].comparison.as_ref().is_some_and(|comparison| !comparison.paired.is_identical);
    let rival = rivals.into_iter().find(differs)?;
    let SettingComparison { paired, pairs, .. } = settings[rival].comparison.as_ref()?;
    let sd = paired.sd.filter(|sd| *sd > 0.0)?;
    // The level of the first comparison of the settings.
    let alpha = (1.0 - CONFIDENCE) / *pairs as f64;
    let observed = paired.difference.abs();
    Some(NoiseFloor {
        rival,
        seeds: paired.n,
        sd,
        smallest_shown: smallest_detectable_difference(paired.n, sd, POWER, alpha)?,
        observed,
        seeds_needed: seeds_needed(sd, observed, POWER, alpha),
    })
}

#[cfg(test)]
mod tests;
