//! A verdict in words: the answer and what to do next in a line each, then the details.

use std::cmp::Ordering;

use runner_spec::format::{count, counted, decimals, printable, seconds, significant};
use runner_stats::{Interval, MAX_NEW_SEEDS, Standing, Test};

use super::{Conclusion, EdgeOfRange, SettingComparison, SettingResult, SettingState, SweepVerdict, UnequalCost};
use crate::points::{describe_points, value_text};
use crate::record::{SeenSeed, describe_values};
use crate::spec::{BudgetKind, Goal, Objective};

/// The characters that the answer and the next step have at most, if names can be left out for it.
const ANSWER_WIDTH: usize = 120;
/// How much a line says, the preferred way first.
const STYLES: [Style; 4] = [
    Style { named: 4, by_points: false, has_metric: true },
    Style { named: 2, by_points: false, has_metric: true },
    Style { named: 2, by_points: false, has_metric: false },
    Style { named: 2, by_points: true, has_metric: false },
];
/// The new seeds that a line names one by one.
const MAX_LISTED_SEEDS: usize = 8;
/// The decimals of a value that stands alone.
const SINGLE_DECIMALS: usize = 4;

/// How much a line says.
#[derive(Debug, Clone, Copy)]
struct Style {
    /// The settings that are named before the others are counted.
    named: usize,
    /// True if settings are named by the numbers of their points instead of by what varies.
    by_points: bool,
    has_metric: bool,
}

/// What sentences about a verdict need.
struct Words<'v> {
    verdict: &'v SweepVerdict,
    objective: &'v Objective,
    is_finished: bool,
    style: Style,
}

/// The lines that state the conclusion of `verdict`.
pub(super) fn describe(verdict: &SweepVerdict, objective: &Objective, is_finished: bool) -> Vec<String> {
    let with = |style| Words { verdict, objective, is_finished, style };
    let fitting = |line: &dyn Fn(&Words<'_>) -> Option<String>| {
        let mut lines = STYLES.into_iter().filter_map(|style| line(&with(style)));
        let first = lines.next()?;
        let fits = |line: &String| line.chars().count() <= ANSWER_WIDTH;
        Some(if fits(&first) { first } else { lines.find(fits).unwrap_or(first) })
    };
    let Some(answer) = fitting(&|words| words.answer()) else { return Vec::new() };
    let words = with(STYLES[0]);
    let mut lines: Vec<String> = [Some(answer), fitting(&|words| words.next_step())].into_iter().flatten().collect();
    lines.extend(words.reused());
    if verdict.conclusion == Conclusion::Same {
        lines.extend(words.left_out());
    } else if verdict.leader().is_some() {
        lines.extend(words.left_out());
        lines.extend(words.tests());
        lines.extend(words.noise());
        lines.extend(verdict.unequal_cost.as_ref().map(cost_text));
        lines.extend(words.rows());
        lines.extend(verdict.edges.iter().map(edge_text));
    }
    lines
}

impl Words<'_> {
    /// Decided or not, which, and by how much.
    fn answer(&self) -> Option<String> {
        let Self { verdict, objective, .. } = self;
        let leader = verdict.settings.first()?;
        let so_far = if self.is_finished { "" } else { " so far" };
        let metric = &*objective.label();
        let one_seed = if verdict.reused_seeds.is_empty() { "one seed" } else { "one new seed" };
        let (name, mean) = (self.names(&[0]), mean_text(leader));
        Some(match &verdict.conclusion {
            Conclusion::NoResult => return None,
            Conclusion::JudgedBefore => format!("no conclusion{so_far}: earlier sweeps have judged all of these seeds"),
            Conclusion::Incomparable { reason } => {
                format!("no conclusion: {metric} does not compare: {}", printable(reason))
            }
            Conclusion::Rungs { ladders } => {
                let named: Vec<String> = ladders.iter().map(|id| printable(id)).collect();
                let commands: Vec<String> = named.iter().map(|id| format!("`runner sweep fit {id}`")).collect();
                format!(
                    "rungs: sizes of the ladder {} do not compete, so none of them is the best; {} shows their law",
                    named.join(" and of the ladder "),
                    commands.join(" and ")
                )
            }
            Conclusion::OneSetting => format!("result{so_far}: {metric} {mean}"),
            Conclusion::OneSeed if leader.sample.is_some_and(|sample| sample.n > 1) => {
                format!("no conclusion{so_far}: only {name} has several seeds, {metric} {mean}")
            }
            Conclusion::OneSeed => {
                let most = if objective.goal() == Goal::Minimize { "lowest" } else { "highest" };
                let value = leader.sample.map(|sample| sample.mean);
                let has_it = |i: &usize| verdict.settings[*i].sample.map(|sample| sample.mean) == value;
                let equal: Vec<usize> = (0..verdict.settings.len()).filter(has_it).collect();
                let value = value.map_or_else(String::new, |value| number_text(value, 0.0));
                format!("no conclusion{so_far}: {one_seed} each; {most} {metric} {value} at {}", self.names(&equal))
            }
            Conclusion::Same => {
                let all: Vec<usize> = (0..verdict.settings.len()).collect();
                format!("same{so_far}: {} have the same {metric} with every seed, {mean}", self.names(&all))
            }
            Conclusion::Best | Conclusion::BestOfCompared => {
                let compared = 1 + self.rivals().count();
                let what = match (&verdict.conclusion, compared) {
                    (Conclusion::Best, _) => "best".to_owned(),
                    (_, 1) => "only setting with all steps".to_owned(),
                    (_, n) => format!("best of the {n} that were compared"),
                };
                let metric = if self.style.has_metric { format!("{metric} ") } else { String::new() };
                format!("{what}{so_far}: {name}, {metric}{mean}{}", self.better_than())
            }
            Conclusion::Equal { settings, within } => {
                let (same, others) = (self.names(settings), self.worse_others());
                let difference = self.named_rival().map_or_else(String::new, |(_, comparison)| {
                    let (size, interval) = size_text(comparison.difference(), comparison.interval());
                    format!(" (difference {size}{})", interval.map_or_else(String::new, |text| format!(", {text}")))
                });
                format!("equal within {}{so_far}: {same}{difference}{others}", significant(*within, 2))
            }
            Conclusion::Undecided { settings } => {
                let by = if self.style.has_metric { format!(" by {metric}") } else { String::new() };
                format!("not decided{by}{so_far}: {}", self.lead(settings))
            }
        })
    }

    /// What to do next, if something is open.
    fn next_step(&self) -> Option<String> {
        let Self { verdict, .. } = self;
        // The points of an unfinished sweep cannot be changed.
        let later = if self.is_finished { "" } else { " once the sweep is finished" };
        match &verdict.conclusion {
            Conclusion::OneSeed if verdict.reused_seeds.is_empty() => {
                Some(format!("next: add `seeds: 3`{later}; one seed does not show the noise"))
            }
            Conclusion::OneSeed | Conclusion::JudgedBefore => {
                Some(format!("next: add new seeds{later}: {}", self.new_seeds(3)))
            }
            Conclusion::Undecided { settings } => Some(self.next_of_undecided(settings, later)),
            _ => None,
        }
    }

    /// Which seeds decide between `settings`, the ones that may be the best.
    fn next_of_undecided(&self, settings: &[usize], later: &str) -> String {
        let comparisons = || settings.iter().filter_map(|&i| self.verdict.settings[i].comparison);
        let given = self.objective.smallest_difference;
        let sizes = comparisons().map(|comparison| comparison.difference().abs());
        let nearest = significant(given.or_else(|| sizes.min_by(f64::total_cmp)).unwrap_or(f64::NAN), 2);
        let needed = comparisons().filter_map(|comparison| comparison.seeds_needed).max();
        if comparisons().any(|comparison| comparison.compared.contrast.test == Test::Welch) {
            format!("next: train these with the same new seeds{later}, so that they are compared seed by seed")
        } else if let Some(needed) = needed {
            let (seeds, runs) = (self.new_seeds(needed), count((needed * settings.len()) as u64));
            format!(
                "next: train these with {seeds} ({runs} runs){later}, which shows a difference of {nearest} in 4 of 5 cases"
            )
        } else if comparisons().any(|comparison| comparison.compared.contrast.test == Test::Permutation) {
            format!(
                "next: train these with 6 or more new seeds{later}: all differences are equal, and fewer seeds show nothing of that"
            )
        } else if given.is_some() {
            format!("next: a difference of {nearest} needs more than {MAX_NEW_SEEDS} new seeds")
        } else {
            format!(
                "next: {nearest} is within the noise; in a new sweep, `objective.smallest_difference` can say which differences matter"
            )
        }
    }

    /// `` `seeds: [5, 6, 7]` ``, or their number if seeds are not single numbers.
    fn new_seeds(&self, needed: usize) -> String {
        match self.verdict.new_seeds.as_slice() {
            [] => format!("{needed} new seeds"),
            [first, .., last] if self.verdict.new_seeds.len() > MAX_LISTED_SEEDS => {
                format!("the {needed} seeds {first} to {last}")
            }
            seeds => {
                let list: Vec<String> = seeds.iter().map(ToString::to_string).collect();
                format!("`seeds: [{}]`", list.join(", "))
            }
        }
    }

    /// `lr=0.02 leads lr=0.01 by 0.090 (95% -0.005 to 0.185, p 0.057); 1 more may be best, 2 worse`: the best of the rivals that may be as good.
    fn lead(&self, settings: &[usize]) -> String {
        let Some((i, comparison)) = self.named_rival() else { return self.names(settings) };
        let lead = format!("{} by {}", self.order(i, comparison.difference()), self.size_of(comparison));
        let worse = self.verdict.settings.iter().filter(|setting| setting.standing == Standing::Worse).count();
        let counts = [(settings.len() - 2, "more may be best"), (worse, "worse")];
        let rest: Vec<String> = counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        if rest.is_empty() { lead } else { format!("{lead}; {}", rest.join(", ")) }
    }

    /// The difference of a rival with the p that decides: of this pair alone, or corrected if the settings were picked.
    fn size_of(&self, comparison: &SettingComparison) -> String {
        let compared = &comparison.compared;
        let p = if self.verdict.picked_from.is_some() { compared.adjusted_p } else { compared.contrast.p };
        size_and_p_text(comparison.difference(), comparison.interval(), p)
    }

    /// `lr=0.02 leads lr=0.01`, or the other way round: by the sign of the `difference` of the setting at `rival` to the leader.
    fn order(&self, rival: usize, difference: f64) -> String {
        let is_behind = self.objective.goal().order(0.0, difference) == Ordering::Less;
        let [a, b] = if is_behind { [0, rival] } else { [rival, 0] };
        format!("{} leads {}", self.names(&[a]), self.names(&[b]))
    }

    /// `, better than lr=0.02 by 0.105 (95% 0.084 to 0.126, p 0.002) and than 2 others`: the comparison that shows the least.
    fn better_than(&self) -> String {
        let Some((i, least)) = self.named_rival() else { return String::new() };
        let others = match self.rivals().count() - 1 {
            0 => String::new(),
            n => format!(" and than {}", counted(n as u64, "other")),
        };
        format!(", better than {} by {}{others}", self.names(&[i]), self.size_of(least))
    }

    /// `; 2 others are worse`.
    fn worse_others(&self) -> String {
        let is_worse = |setting: &&SettingResult| setting.standing == Standing::Worse;
        match self.verdict.settings.iter().filter(is_worse).count() {
            0 => String::new(),
            1 => "; 1 other is worse".to_owned(),
            n => format!("; {n} others are worse"),
        }
    }

    /// The positions of the settings that are compared with the leader, and the comparisons.
    fn rivals(&self) -> impl DoubleEndedIterator<Item = (usize, &SettingComparison)> {
        let all = self.verdict.settings.iter().enumerate();
        all.filter_map(|(i, setting)| Some((i, setting.comparison.as_ref()?)))
    }

    /// `reused: seeds 1, 2, 3 were judged in ext-88505bd6, so only new seeds count`.
    fn reused(&self) -> Option<String> {
        let seen = &self.verdict.reused_seeds;
        let mut seeds: Vec<&SeenSeed> = Vec::new();
        for seed in seen.iter().flat_map(|seen| &seen.seeds) {
            if !seeds.contains(&seed) {
                seeds.push(seed);
            }
        }
        let text = |SeenSeed(seed): &&SeenSeed| match seed.as_slice() {
            [(_, value)] => printable(&value_text(value)),
            _ => describe_values(seed),
        };
        let texts: Vec<String> = seeds.iter().take(MAX_LISTED_SEEDS).map(text).collect();
        let more = if seeds.len() > texts.len() { ", ..." } else { "" };
        let (s, were) = if seeds.len() == 1 { ("", "was") } else { ("s", "were") };
        let sweeps: Vec<String> = seen.iter().map(|seen| printable(&seen.sweep)).collect();
        let (texts, sweeps) = (texts.join(", "), sweeps.join(", "));
        (!seeds.is_empty())
            .then(|| format!("reused: seed{s} {texts}{more} {were} judged in {sweeps}, so only new seeds count"))
    }

    /// The settings that are not compared, with the reasons; and those with the leader's numbers.
    fn left_out(&self) -> Vec<String> {
        let settings = &self.verdict.settings;
        let positions = |holds: &dyn Fn(&SettingResult) -> bool| {
            (0..settings.len()).filter(|&i| holds(&settings[i])).collect::<Vec<usize>>()
        };
        let has = |positions: &[usize]| if positions.len() == 1 { "has" } else { "have" };
        let one_seed = positions(&|s| s.standing == Standing::NotCompared && s.may_win());
        let without = positions(&|s| s.state == SettingState::Unmeasured && s.measured == 0);
        let judged = positions(&|s| s.state == SettingState::Unmeasured && s.measured > 0);
        let counts = |state| settings.iter().filter(|setting| setting.state == state).count() as u64;
        let is_one_seed = self.verdict.conclusion == Conclusion::OneSeed;
        let reasons = [
            (!one_seed.is_empty() && !is_one_seed)
                .then(|| format!("{} {} one seed", self.names(&one_seed), has(&one_seed))),
            (!without.is_empty()).then(|| format!("{} {} no result", self.names(&without), has(&without))),
            (!judged.is_empty()).then(|| format!("{} {} no new seed", self.names(&judged), has(&judged))),
            Some(counts(SettingState::Stopped))
                .filter(|n| *n > 0)
                .map(|n| format!("{} stopped early", counted(n, "setting"))),
            Some(counts(SettingState::Diverged))
                .filter(|n| *n > 0)
                .map(|n| format!("{} diverged", counted(n, "setting"))),
        ];
        let reasons: Vec<String> = reasons.into_iter().flatten().collect();
        let same = positions(&|s| s.standing == Standing::Same);
        let is_said = matches!(self.verdict.conclusion, Conclusion::Same | Conclusion::OneSeed);
        let same = (!same.is_empty() && !is_said)
            .then(|| format!("same numbers as {}: {}", self.names(&[0]), self.names(&same)));
        (!reasons.is_empty()).then(|| format!("not compared: {}", reasons.join("; "))).into_iter().chain(same).collect()
    }

    /// Which tests the answer and the table rest on.
    fn tests(&self) -> Option<String> {
        let contrasts = || self.rivals().map(|(_, comparison)| comparison.compared.contrast);
        let paired = || contrasts().filter(|contrast| contrast.test == Test::PairedT).map(|contrast| contrast.n);
        let mut parts: Vec<String> = Vec::new();
        if let Some(n) = paired().min() {
            let least = if paired().all(|other| other == n) { "" } else { "at least " };
            parts.push(format!("paired t-test over {least}{n} seeds"));
        }
        if contrasts().any(|contrast| contrast.test == Test::Permutation) {
            parts.push("permutation test where all differences are equal".to_owned());
        }
        let groups: Vec<usize> =
            self.rivals().filter(|(_, c)| !c.compared.contrast.is_paired()).map(|(i, _)| i).collect();
        if !groups.is_empty() {
            parts
                .push(format!("Welch's t-test of {}, which shares too few seeds with the leader", self.names(&groups)));
        }
        let permutations = contrasts().filter_map(|contrast| Some(contrast.permutation?.p));
        if let Some(p) = permutations.max_by(f64::total_cmp) {
            let most = if self.rivals().count() > 1 { "p up to" } else { "p" };
            parts.push(format!("permutation test {most} {}", p_value_text(p)));
        }
        if let Some(n) = self.verdict.picked_from {
            parts.push(format!(
                "p times {}, the pairs of the {n} settings from which these were picked",
                n * (n - 1) / 2
            ));
        } else if self.rivals().count() > 1 && matches!(self.verdict.conclusion, Conclusion::Undecided { .. }) {
            parts.push(format!("`worse` by p corrected for {} settings", self.rivals().count() + 1));
        }
        (!parts.is_empty()).then(|| format!("test: {}", parts.join("; ")))
    }

    /// What the seeds can show for the settings that are open.
    fn noise(&self) -> Option<String> {
        let shown = |(i, comparison): (usize, &SettingComparison)| {
            let found = comparison.detectable?;
            let [difference, low, high] =
                [found.difference, found.interval.low, found.interval.high].map(|x| significant(x, 2));
            let n = comparison.compared.contrast.n;
            Some(format!("{n} seeds show a difference to {} of {difference} ({low} to {high})", self.names(&[i])))
        };
        let texts: Vec<String> = self.rivals().filter_map(shown).take(2).collect();
        (!texts.is_empty()).then(|| format!("noise: in 4 of 5 cases {}", texts.join(", and ")))
    }

    /// `rows: measured on 2,048 tokens in 32 rows, standard error 0.051; over rows like these lr=0.01 leads lr=0.02 by 0.090 (95% 0.02 to 0.16,
    /// p 0.01) with these seeds`: for the rival that the answer names, or else the nearest one.
    fn rows(&self) -> Option<String> {
        let settings = &self.verdict.settings;
        let noise = self.verdict.row_noise.as_ref();
        let items = settings.iter().find_map(|setting| setting.rows).map(|found| found.rows);
        // An accuracy is measured on items.
        let (measured, what) = match (noise, items) {
            (Some(noise), _) => (format!("rows: measured on {}", noise.sample), "rows"),
            (None, Some(items)) => (format!("items: measured on {}", counted(items as u64, "item")), "items"),
            (None, None) => return None,
        };
        let rival = self.named_rival().map(|(i, _)| i).or_else(|| settings.iter().position(|s| s.rows.is_some()));
        if let Some((i, rows)) = rival.and_then(|i| Some((i, settings[i].rows?))) {
            let size = size_and_p_text(rows.difference, Some(rows.interval), rows.p);
            let order = self.order(i, rows.difference);
            let is_shown = rows.p < 1.0 - self.verdict.confidence;
            let doubt = if is_shown { String::new() } else { format!("; on other {what} there may be no difference") };
            return Some(format!(
                "{measured}; on other {what} of this kind, with these seeds, {order} by {size}{doubt}"
            ));
        }
        let Some(noise) = noise else { return Some(measured) };
        let Some(difference) = noise.nearest_difference.filter(|_| noise.may_hide_difference) else {
            return Some(measured);
        };
        let advice = "use more validation rows to see whether settings differ on other text";
        Some(match noise.sample.standard_error {
            None => format!("{measured}, which shows nothing about other text: {advice}"),
            Some(_) => format!(
                "{measured}: more than the difference of {}; all settings were measured on the same rows, so the error of the \
                 difference is smaller, but unknown: {advice}",
                significant(difference, 2)
            ),
        })
    }

    /// The rival that the answer names: the one that is shown the least to be worse, or of those that may be the best the first.
    fn named_rival(&self) -> Option<(usize, &SettingComparison)> {
        let p = |comparison: &SettingComparison| comparison.compared.contrast.p;
        match &self.verdict.conclusion {
            Conclusion::Undecided { .. } => {
                self.rivals().find(|(i, _)| self.verdict.settings[*i].standing == Standing::Open)
            }
            Conclusion::Equal { settings, .. } => self.rivals().find(|(i, _)| settings.contains(i)),
            _ => self.rivals().rev().max_by(|(_, a), (_, b)| p(a).total_cmp(&p(b))),
        }
    }

    fn names(&self, positions: &[usize]) -> String {
        let Style { named, by_points, .. } = self.style;
        let name = |&i: &usize| {
            let setting = &self.verdict.settings[i];
            if by_points { describe_points(&setting.points, usize::MAX) } else { setting.name.clone() }
        };
        let mut names: Vec<String> = positions.iter().take(named).map(name).collect();
        let more = positions.len().saturating_sub(named);
        let last = if more > 0 { format!("{more} more") } else { names.pop().unwrap_or_default() };
        if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
    }
}

/// What a table says of the setting at `position` of `verdict`.
#[must_use]
pub(super) fn label(verdict: &SweepVerdict, position: usize) -> String {
    let Some(setting) = verdict.settings.get(position) else { return String::new() };
    let trained = setting.measured + setting.diverged;
    let text = match (setting.state, setting.standing) {
        (SettingState::Diverged, _) => return format!("{} of {trained} diverged", setting.diverged),
        (SettingState::Stopped, _) => "stopped early",
        (SettingState::Unmeasured, _) if setting.measured > 0 => "no new seed",
        (SettingState::Unmeasured, _) => "no result",
        (..) if matches!(verdict.conclusion, Conclusion::Incomparable { .. }) => "not comparable",
        (..) if matches!(verdict.conclusion, Conclusion::Rungs { .. } | Conclusion::OneSetting) => "",
        (_, Standing::Leader) if verdict.conclusion == Conclusion::Best => "best",
        (_, Standing::Leader) => "leads",
        (_, Standing::Same) => "same numbers",
        (_, Standing::Worse) => "worse",
        (_, Standing::Equal) => "equal",
        (_, Standing::Open) => "may be best",
        (_, Standing::NotCompared) => "one seed",
    };
    text.to_owned()
}

/// `1.9256 (4 seeds)`; of a single setting with its interval, `2.534 (95% 2.482 to 2.586, 5 seeds)`.
#[must_use]
pub fn mean_text(setting: &SettingResult) -> String {
    let Some(sample) = setting.sample else { return "unknown".to_owned() };
    let seeds = counted(sample.n as u64, "seed");
    match sample.interval {
        Some(interval) => {
            let text = |value: f64| number_text(value, interval.half_width());
            format!("{} (95% {} to {}, {seeds})", text(sample.mean), text(interval.low), text(interval.high))
        }
        None => format!("{} ({seeds})", number_text(sample.mean, sample.sd.unwrap_or(0.0))),
    }
}

/// `0.090 (95% -0.005 to 0.185, p 0.057)`: the size of a difference, and its interval in its direction.
fn size_and_p_text(difference: f64, interval: Option<Interval>, p: f64) -> String {
    let (size, interval) = size_text(difference, interval);
    let p = if p < 0.001 { "p < 0.001".to_owned() } else { format!("p {}", p_value_text(p)) };
    format!("{size} ({}{p})", interval.map_or_else(String::new, |interval| format!("{interval}, ")))
}

/// `0.090` and `95% -0.005 to 0.185`.
fn size_text(difference: f64, interval: Option<Interval>) -> (String, Option<String>) {
    let sign = if difference < 0.0 { -1.0 } else { 1.0 };
    let Some(interval) = interval else { return (number_text(difference.abs(), 0.0), None) };
    let (a, b) = (sign * interval.low, sign * interval.high);
    let text = |value: f64| number_text(value, interval.half_width());
    (text(difference.abs()), Some(format!("95% {} to {}", text(a.min(b)), text(a.max(b)))))
}

/// `0.03`, or `< 0.001`.
#[must_use]
pub fn p_value_text(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { significant(p, 2) }
}

fn cost_text(cost: &UnequalCost) -> String {
    let UnequalCost { unit, is_budget, leader, lowest, highest } = *cost;
    let amount = |x: f64| match unit {
        BudgetKind::Flops => format!("{x:.3e} FLOPs"),
        BudgetKind::Tokens => format!("{} tokens", count(x as u64)),
        BudgetKind::Time => seconds(x),
    };
    let (what, ratio) = (if is_budget { "budget" } else { "cost" }, significant(highest / lowest, 2));
    let [leader, lowest, highest] = [leader, lowest, highest].map(amount);
    format!("{what}: {lowest} to {highest} for a setting, a ratio of {ratio}; {leader} for the leader")
}

fn edge_text(edge: &EdgeOfRange) -> String {
    let EdgeOfRange { name, value, is_highest, values } = edge;
    let (edge, beyond) = if *is_highest { ("highest", "higher") } else { ("lowest", "lower") };
    let (name, value) = (printable(name), printable(&value_text(value)));
    format!("edge: `{name}` {value} is the {edge} of {values} values: a {beyond} one may be better")
}

/// `value` with as many decimals as give `scale` two significant digits; with four if there is no scale.
#[must_use]
pub fn number_text(value: f64, scale: f64) -> String {
    if scale > 0.0 && scale.is_finite() {
        return format!("{value:.0$}", decimals(scale, 2));
    }
    format!("{value:.SINGLE_DECIMALS$}")
}
