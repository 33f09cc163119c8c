//! What the results of a sweep show: the mean of each setting over its seeds, the comparison of every setting with the leader, and the
//! conclusion. [`runner_stats::decide`] has the rule. Here it meets settings that diverged, were stopped or wait for results, seeds that an
//! earlier sweep has judged, and budgets that were not kept.

mod background;
mod cost;
mod edges;
pub mod words;

use std::collections::BTreeMap;

use runner_stats::{Compared, Detectable, Interval, Outcome, RowComparison, RowLosses, Rule, Sample, Standing, decide};
use serde::Serialize;

pub use self::background::Background;
pub use self::cost::UnequalCost;
pub use self::edges::EdgeOfRange;
use crate::points::{PointValues, ordered};
use crate::record::{PointSetting, SeedPoint, SeenSeeds, SweepRecord};
use crate::results::{PointStatus, ResultsRow, SweepResults};
use crate::spec::{CONFIDENCE, Goal};
use runner_spec::measure::{LossSample, Measure};

/// The new seeds that are proposed where too few are new.
const FEWEST_NEW_SEEDS: usize = 3;

/// What the results of a sweep show.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SweepVerdict {
    /// What the settings are compared by.
    pub metric: Measure,
    /// The probability of the intervals; a p-value below 1 − it shows a difference.
    pub confidence: f64,
    pub conclusion: Conclusion,
    /// The settings. The first one leads: of those with the most seeds it has the best mean, unless a setting with fewer seeds is better than it
    /// over their common seeds. The others follow by their means, after them those with fewer seeds, stopped early, diverged, not measured.
    pub settings: Vec<SettingResult>,
    /// The seeds that an earlier sweep has judged. They are left out of the means and tests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reused_seeds: Vec<SeenSeeds>,
    /// The number of settings from which these were picked by their results, if they are not all. The p-values that decide are multiplied by the
    /// number of their pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picked_from: Option<usize>,
    /// Values for the key `seeds` of a new group of the settings that may be the best, if they are not decided. As many show the difference to
    /// each of them with a probability of 80%, if it is as large as the smallest difference of interest, or as observed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub new_seeds: Vec<u64>,
    /// How far the choice of validation rows moves a result; `None` if it is not measured on rows, or their number was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row_noise: Option<RowNoise>,
    /// The costs of the settings, if they are not equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unequal_cost: Option<UnequalCost>,
    /// The values that all settings that may be the best have, if these are the lowest or the highest that were tried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<EdgeOfRange>,
    /// The conclusion in words, as the screen shows it, a line each: the answer, what to do next, and the details.
    pub words: Vec<String>,
}

/// The conclusion. The numbers in it are positions in [`SweepVerdict::settings`]; the leader is at 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Conclusion {
    /// No setting has a result after all its steps.
    NoResult,
    /// Earlier sweeps have judged all seeds, each of them others or more than these.
    JudgedBefore,
    /// The results do not compare.
    Incomparable { reason: String },
    /// The settings are rungs of these ladders: sizes of one experiment, which do not compete.
    Rungs { ladders: Vec<String> },
    /// There is nothing to compare the only setting with.
    OneSetting,
    /// Fewer than two settings have several seeds: nothing shows the noise.
    OneSeed,
    /// All settings have the same numbers with every seed.
    Same,
    /// Every other setting is worse than the leader or diverged, apart from settings with the same numbers.
    Best,
    /// Every setting that was compared is worse than the leader. Others were not compared: early stopping ended them after fewer steps, or
    /// they have no result, or one seed.
    BestOfCompared,
    /// These settings, the leader first, differ from the leader by less than the smallest difference of interest. Every other one that was
    /// compared is worse.
    Equal { settings: Vec<usize>, within: f64 },
    /// These settings, the leader first, may be the best one.
    Undecided { settings: Vec<usize> },
}

/// The results of a setting over its seeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SettingResult {
    /// The name in the sentences.
    pub name: String,
    /// What a table says of it, such as `best`, `worse` or `may be best`.
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
    /// The mean of the measured points, without seeds that were judged before; `None` if there is none, or a point diverged. It has an interval
    /// only if there is one setting: the results have chosen the leader, so an interval of its mean would miss the true mean too often.
    pub sample: Option<Sample>,
    pub standing: Standing,
    /// The comparison with the leader; `None` for the leader, for a setting with its numbers, and for those that are not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<SettingComparison>,
    /// The comparison with the leader over the validation rows, or the items of a task, with the seeds that both have; if both have one seed, with
    /// these. It says nothing about other seeds. `None` for the leader, if they were not measured on the same rows, and if the results of rows are
    /// not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowComparison>,
}

/// The comparison of a setting with the leader. A positive difference is a higher objective, whether or not that is better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SettingComparison {
    #[serde(flatten)]
    pub compared: Compared,
    /// The smallest true difference to the leader that as many new seeds would show; only of settings that may be the best.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detectable: Option<Detectable>,
    /// The number of new seeds that would show the smallest difference of interest, or the observed one; only of settings that may be the
    /// best, and none above a hundred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds_needed: Option<usize>,
}

impl SettingComparison {
    pub fn difference(&self) -> f64 {
        self.compared.contrast.difference
    }

    pub fn interval(&self) -> Option<Interval> {
        self.compared.contrast.interval
    }
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
    /// No point is measured, or none with a new seed.
    Unmeasured,
}

/// The validation rows that the results were measured on. Seeds share these rows, so a mean over seeds has the same error.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct RowNoise {
    /// The fewest tokens and rows, and the largest standard error, of any result.
    #[serde(flatten)]
    pub sample: LossSample,
    /// The smallest difference between the leader and a setting that may win; `None` if there is none.
    pub nearest_difference: Option<f64>,
    /// True if this difference may be absent on other rows: by the comparison over rows, or else if the standard error is larger than the
    /// difference, or cannot be known from one row.
    pub may_hide_difference: bool,
}

/// The measured points of a setting: values of its seeds, and the objective.
type Measured<'r> = Vec<(&'r PointValues, f64)>;

impl SweepVerdict {
    /// The verdict on `results`, which are those of the sweep `record`. `is_finished`: nothing is left to do.
    #[must_use]
    pub fn new(record: &SweepRecord, results: &SweepResults, is_finished: bool) -> Self {
        Self::of_settings(&record.settings(), results, is_finished, &Background::of_sweep(record))
    }

    /// The verdict on `results`, whose points belong to the settings `recorded`.
    #[must_use]
    pub fn of_settings(
        recorded: &[PointSetting],
        results: &SweepResults,
        is_finished: bool,
        background: &Background,
    ) -> Self {
        let Ranked { mut settings, outcome, reused_seeds, picked_from } = rank_settings(recorded, results, background);
        let has_leader = settings.first().is_some_and(|leader| leader.sample.is_some());
        if !background.ladders.is_empty() {
            settings.sort_by_key(|setting| setting.points.first().copied());
        }
        let conclusion = match &results.incomparable {
            Some(reason) => Conclusion::Incomparable { reason: reason.clone() },
            None if !has_leader && !reused_seeds.is_empty() => Conclusion::JudgedBefore,
            None if !has_leader => Conclusion::NoResult,
            None if !background.ladders.is_empty() => Conclusion::Rungs { ladders: background.ladders.clone() },
            None => conclude(&settings, outcome, results.objective.smallest_difference),
        };
        let mut verdict = Self {
            metric: results.objective.metric.clone(),
            confidence: CONFIDENCE,
            conclusion,
            settings,
            reused_seeds,
            picked_from,
            new_seeds: Vec::new(),
            row_noise: None,
            unequal_cost: None,
            edges: Vec::new(),
            words: Vec::new(),
        };
        if verdict.leader().is_none() {
            for setting in &mut verdict.settings {
                (setting.standing, setting.comparison, setting.rows) = (Standing::NotCompared, None, None);
            }
        }
        verdict.plan_new_seeds(recorded, results);
        verdict.row_noise = row_noise(results, &verdict.settings);
        verdict.unequal_cost = cost::find_unequal_cost(&verdict, results, background);
        verdict.edges = edges::find_edges(results, &verdict, &background.drawn);
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
            Conclusion::NoResult
                | Conclusion::JudgedBefore
                | Conclusion::Incomparable { .. }
                | Conclusion::Rungs { .. }
        );
        self.settings.first().filter(|_| is_known)
    }

    /// The setting that every other one is shown to be worse than, apart from those with the same numbers.
    #[must_use]
    pub fn best(&self) -> Option<&SettingResult> {
        self.settings.first().filter(|_| self.conclusion == Conclusion::Best)
    }

    /// The positions of the settings that may be the best: the leader, and those that are not shown to be worse.
    #[must_use]
    pub fn may_be_best(&self) -> Vec<usize> {
        let may_be = |standing| matches!(standing, Standing::Leader | Standing::Open | Standing::Equal);
        let all = self.settings.iter().enumerate();
        all.filter(|(_, setting)| setting.may_win() && may_be(setting.standing)).map(|(i, _)| i).collect()
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

    /// Computes what seeds show for the settings that may be as good as the leader, and proposes new ones.
    fn plan_new_seeds(&mut self, recorded: &[PointSetting], results: &SweepResults) {
        let of_interest = results.objective.smallest_difference;
        let mut needed = 0;
        let is_undecided = matches!(self.conclusion, Conclusion::Undecided { .. });
        for setting in self.settings.iter_mut().filter(|s| is_undecided && s.standing == Standing::Open) {
            let Some(comparison) = &mut setting.comparison else { continue };
            let contrast = comparison.compared.contrast;
            comparison.detectable = contrast.detectable(CONFIDENCE).filter(|_| self.picked_from.is_none());
            comparison.seeds_needed = contrast.seeds_needed(of_interest, CONFIDENCE);
            needed = needed.max(comparison.seeds_needed.unwrap_or(0));
        }
        if matches!(self.conclusion, Conclusion::OneSeed | Conclusion::JudgedBefore) && !self.reused_seeds.is_empty() {
            needed = FEWEST_NEW_SEEDS;
        }
        let used = recorded.iter().flat_map(|setting| &setting.points).map(|point| match point.seed.as_slice() {
            [(_, seed)] => seed.as_u64(),
            _ => None,
        });
        let highest = used.collect::<Option<Vec<u64>>>().and_then(|used| used.into_iter().max());
        if let Some(highest) = highest {
            self.new_seeds = (1..=needed as u64).filter_map(|i| highest.checked_add(i)).collect();
        }
    }
}

/// The settings of a sweep, ranked and compared.
pub(crate) struct Ranked {
    pub settings: Vec<SettingResult>,
    outcome: Outcome,
    reused_seeds: Vec<SeenSeeds>,
    picked_from: Option<usize>,
}

/// The settings of a sweep in the order of [`SweepVerdict::settings`].
pub(crate) fn rank_settings(recorded: &[PointSetting], results: &SweepResults, background: &Background) -> Ranked {
    let rows: BTreeMap<usize, &ResultsRow> = results.rows.iter().map(|row| (row.point, row)).collect();
    let mut settings: Vec<(SettingResult, Measured<'_>)> =
        recorded.iter().map(|setting| setting_result(setting, &rows)).collect();
    let goal = results.objective.goal();
    let measured = settings.iter().filter(|(setting, _)| setting.may_win()).map(|(_, measured)| measured.as_slice());
    let reused_seeds = background.seeds_to_leave_out(&measured.collect::<Vec<_>>());
    for (setting, measured) in settings.iter_mut().filter(|_| !reused_seeds.is_empty()) {
        measured.retain(|(seed, _)| !reused_seeds.iter().any(|seen| seen.contains(seed)));
        if setting.sample.is_some() {
            setting.sample = sample_of(measured);
            setting.state =
                if measured.is_empty() && setting.may_win() { SettingState::Unmeasured } else { setting.state };
        }
    }
    let candidates: Vec<usize> = (0..settings.len()).filter(|&i| settings[i].0.may_win()).collect();
    let tested: Vec<Measured<'_>> = candidates.iter().map(|&i| settings[i].1.clone()).collect();
    let rule = Rule {
        is_less_better: goal == Goal::Minimize,
        confidence: CONFIDENCE,
        smallest_difference: results.objective.smallest_difference,
        picked_from: background.picked_from(recorded.len(), !reused_seeds.is_empty()),
    };
    let (decision, picked_from) = (decide(&tested, &rule), rule.picked_from);
    let most = tested.iter().map(Vec::len).max().unwrap_or(0);
    for (k, &i) in candidates.iter().enumerate() {
        let setting = &mut settings[i].0;
        setting.standing = decision.standings[k];
        let compared = decision.comparisons[k];
        setting.comparison =
            compared.map(|compared| SettingComparison { compared, detectable: None, seeds_needed: None });
        setting.state = if tested[k].len() < most { SettingState::Incomplete } else { SettingState::Ranked };
    }
    let leader = decision.order.first().map(|&k| candidates[k]);
    for &i in candidates.iter().filter(|&&i| Some(i) != leader) {
        let tested = |at: usize| -> Vec<&SeedPoint> {
            let is_tested = |point: &&SeedPoint| settings[at].1.iter().any(|(seed, _)| **seed == point.seed);
            recorded[at].points.iter().filter(is_tested).collect()
        };
        let found = leader.and_then(|leader| compare_rows(&tested(i), &tested(leader), &rows));
        settings[i].0.rows = found;
    }
    let mut found: Vec<Option<SettingResult>> = settings.into_iter().map(|(setting, _)| Some(setting)).collect();
    let mut ranked: Vec<SettingResult> =
        decision.order.iter().filter_map(|&k| found.get_mut(candidates[k])?.take()).collect();
    let mut others: Vec<SettingResult> = found.into_iter().flatten().collect();
    others.sort_by_key(|setting| setting.state);
    ranked.extend(others);
    if ranked.len() > 1 {
        ranked.iter_mut().filter_map(|setting| setting.sample.as_mut()).for_each(|sample| sample.interval = None);
    }
    Ranked { settings: ranked, outcome: decision.outcome, reused_seeds, picked_from }
}

fn sample_of(measured: &Measured<'_>) -> Option<Sample> {
    Sample::new(&measured.iter().map(|(_, value)| *value).collect::<Vec<f64>>(), CONFIDENCE)
}

fn setting_result<'r>(setting: &'r PointSetting, rows: &BTreeMap<usize, &ResultsRow>) -> (SettingResult, Measured<'r>) {
    let rows = || setting.points.iter().filter_map(|member| Some((member, rows.get(&member.point)?)));
    let done = rows().filter(|(_, row)| row.status == PointStatus::Done && !row.diverged);
    let measured: Measured<'_> = done.filter_map(|(member, row)| Some((&member.seed, row.objective?))).collect();
    let diverged = rows().filter(|(_, row)| row.diverged).count();
    let was_stopped = rows().any(|(_, row)| row.status == PointStatus::Stopped);
    let sample = sample_of(&measured).filter(|_| diverged == 0);
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
        standing: Standing::NotCompared,
        comparison: None,
        rows: None,
    };
    (result, measured)
}

/// The conclusion from ranked settings, the first of which has a result.
fn conclude(settings: &[SettingResult], outcome: Outcome, smallest_difference: Option<f64>) -> Conclusion {
    // A seed that diverged is worse than any number.
    let is_judged = |s: &SettingResult| s.standing != Standing::NotCompared || s.state == SettingState::Diverged;
    let (are_all_judged, has_rival) = (settings.iter().all(is_judged), settings.iter().any(|s| s.comparison.is_some()));
    let seeds = settings.first().and_then(|leader| leader.sample).map_or(0, |sample| sample.n);
    let standing_of = |standings: &[Standing]| {
        let all = settings.iter().enumerate();
        all.filter(|(_, setting)| standings.contains(&setting.standing)).map(|(i, _)| i).collect::<Vec<usize>>()
    };
    match outcome {
        Outcome::Nothing => Conclusion::NoResult,
        Outcome::OneSetting if settings.len() == 1 => Conclusion::OneSetting,
        Outcome::OneSetting | Outcome::Same if seeds < 2 => Conclusion::OneSeed,
        Outcome::OneSeed => Conclusion::OneSeed,
        Outcome::Same => Conclusion::Same,
        Outcome::Best if are_all_judged && has_rival => Conclusion::Best,
        Outcome::OneSetting | Outcome::Best => Conclusion::BestOfCompared,
        Outcome::Equal => Conclusion::Equal {
            settings: standing_of(&[Standing::Leader, Standing::Equal]),
            within: smallest_difference.unwrap_or(0.0),
        },
        Outcome::Undecided => {
            Conclusion::Undecided { settings: standing_of(&[Standing::Leader, Standing::Equal, Standing::Open]) }
        }
    }
}

/// The rows behind the results that have all steps.
fn row_noise(results: &SweepResults, settings: &[SettingResult]) -> Option<RowNoise> {
    let sample = results.measured_on()?;
    let mean = |setting: &SettingResult| setting.sample.map(|sample| sample.mean);
    let leader = settings.first().and_then(mean)?;
    let rivals = settings.iter().skip(1).filter(|s| s.may_win() && s.standing != Standing::Same);
    let size = |setting: &SettingResult| match setting.comparison {
        Some(comparison) => Some(comparison.difference().abs()),
        None => Some((mean(setting)? - leader).abs()),
    };
    let sized = rivals.filter_map(|setting| Some((size(setting)?, setting.rows)));
    let nearest = sized.min_by(|(a, _), (b, _)| a.total_cmp(b));
    let may_hide = |(size, rows): (f64, Option<RowComparison>)| match rows {
        Some(rows) => rows.p >= 1.0 - CONFIDENCE,
        None => sample.standard_error.is_none_or(|error| error > size),
    };
    let may_hide_difference = nearest.is_some_and(may_hide);
    Some(RowNoise { sample, nearest_difference: nearest.map(|(size, _)| size), may_hide_difference })
}

/// The comparison of the points of a setting with the points of `leader` over their rows: seed by seed, or of one point each.
fn compare_rows(
    points: &[&SeedPoint],
    leader: &[&SeedPoint],
    rows: &BTreeMap<usize, &ResultsRow>,
) -> Option<RowComparison> {
    let rows_of = |member: &SeedPoint| rows.get(&member.point).and_then(|row| row.rows.as_deref());
    let is_pair = |own: &SeedPoint, other: &SeedPoint| own.seed == other.seed || points.len() == 1 && leader.len() == 1;
    let pairs = points.iter().filter_map(|own| Some((own, leader.iter().find(|other| is_pair(own, other))?)));
    let pairs: Vec<(&RowLosses, &RowLosses)> =
        pairs.filter_map(|(own, other)| Some((rows_of(own)?, rows_of(other)?))).collect();
    RowComparison::new(&pairs, CONFIDENCE)
}

#[cfg(test)]
mod tests;
