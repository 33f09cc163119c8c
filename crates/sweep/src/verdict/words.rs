//! A verdict in words.

use std::cmp::Ordering;

use runner_spec::format::{counted, decimals, printable, significant};
use runner_stats::{Interval, PairedComparison, PermutationMethod};

use super::{
    Conclusion, DecidingTest, EdgeOfRange, NoiseFloor, POWER, RowNoise, SettingComparison, SettingResult, SettingState,
    SweepVerdict,
};
use crate::points::value_text;
use crate::spec::{Goal, Objective};

/// The settings that a sentence names before it only counts the others.
const MAX_NAMED: usize = 4;
/// The decimals of a value that stands alone.
const SINGLE_DECIMALS: usize = 4;

/// The lines that state the conclusion of `verdict`.
#[expect(clippy::too_many_lines, reason = "one text")]
pub(super) fn describe(verdict: &SweepVerdict, objective: &Objective, is_finished: bool) -> Vec<String> {
    let so_far = if is_finished { "" } else { " so far" };
    // The points of an unfinished sweep cannot be changed.
    let more_seeds = if is_finished { "add `seeds: 3`" } else { "add `seeds: 3` once the sweep is finished" };
    let Some(leader) = verdict.settings.first() else { return Vec::new() };
    let metric = &*objective.label();
    let (name, mean) = (leader.name.clone(), mean_text(leader));
    let most = if objective.goal() == Goal::Minimize { "lowest" } else { "highest" };
    let names = |positions: &[usize]| list_names(&verdict.settings, positions);
    let mut lines = Vec::new();
    match &verdict.conclusion {
        Conclusion::NoResult => {}
        Conclusion::Incomparable { reason } => {
            lines.push(format!("best: none, because {metric} is not comparable: {}", printable(reason)));
        }
        Conclusion::Rungs { ladders } => {
            let named: Vec<String> = ladders.iter().map(|id| printable(id)).collect();
            let commands: Vec<String> = named.iter().map(|id| format!("`runner sweep fit {id}`")).collect();
            lines.push(format!(
                "rungs: sizes of the ladder {} do not compete, so none of them is the best; {} shows their law",
                named.join(" and of the ladder "),
                commands.join(" and ")
            ));
        }
        Conclusion::OneSetting => lines.push(format!("result{so_far}: {metric} {mean}")),
        Conclusion::OneSeed { tied } if !tied.is_empty() => {
            let same = names(&[&[0], &tied[..]].concat());
            lines.push(format!("tie{so_far}: {same} have the same {metric}, {mean}"));
        }
        Conclusion::OneSeed { .. } if is_behind_single(verdict, objective.goal()) => lines.push(format!(
            "of the settings with the most seeds, {name} has the {most} {metric}{so_far}: {mean}; one seed does not show whether \
             another setting is better: {more_seeds}"
        )),
        Conclusion::OneSeed { .. } => lines.push(format!(
            "{most} {metric}{so_far}: {name}, {mean}; one seed does not show whether it is better than the others: {more_seeds}"
        )),
        Conclusion::Tie { settings } => {
            let same = names(settings);
            lines.push(format!(
                "tie{so_far}: {same} have the same {metric} with every seed, {mean}{}",
                rest(verdict, settings.len()) + &left_out(verdict)
            ));
        }
        Conclusion::Best | Conclusion::BestOfFinished => {
            let finished = verdict.settings.iter().filter(|setting| setting.may_win()).count();
            let what = match (&verdict.conclusion, finished) {
                (Conclusion::Best, _) => "best".to_owned(),
                (_, 1) => "only setting with all steps".to_owned(),
                (_, n) => format!("best of the {n} settings with all steps"),
            };
            let mut line = format!("{what}{so_far}: {name}, {metric} {mean}");
            // The comparison that shows the least; of equal ones that with the best mean.
            let rivals = compared(verdict).filter(|(i, _)| verdict.settings[*i].may_win());
            let rival = rivals.rev().max_by(|(_, a), (_, b)| a.adjusted_p.total_cmp(&b.adjusted_p));
            if let Some((rival, comparison)) = rival {
                let difference = difference_text(verdict, rival, comparison);
                line = format!("{line}, better than {} by {difference}", verdict.settings[rival].name);
                line = format!("{line}, {}", p_text(comparison));
            }
            lines.push(line + &left_out(verdict));
        }
        Conclusion::NotCompared => {
            let means = |setting: &SettingResult| format!("{} {}", setting.name, mean_text(setting));
            let all: Vec<String> = verdict.settings.iter().filter(|setting| setting.may_win()).map(means).collect();
            lines.push(format!(
                "not compared{so_far}: {metric} of {}; they have no seed in common, and a seed moves all settings alike",
                all.join(", ")
            ) + &left_out(verdict));
        }
        Conclusion::WithinNoise { settings } => {
            let (rivals, strangers): (Vec<usize>, Vec<usize>) =
                settings[1..].iter().partition(|&&i| verdict.settings[i].comparison.is_some());
            let mut line = if rivals.is_empty() {
                format!("not decided{so_far}: {name} leads with {metric} {mean}")
            } else {
                format!("within noise{so_far}: {name} leads with {metric} {mean}, but {} may be as good", names(&rivals))
            };
            let first = rivals.iter().find_map(|&i| Some((i, verdict.settings[i].comparison.as_ref()?)));
            if let Some((i, comparison)) = first.filter(|(_, comparison)| comparison.paired.n > 1) {
                let which = if rivals.len() > 1 { format!("{} is ", verdict.settings[i].name) } else { String::new() };
                let (difference, p) = (difference_text(verdict, i, comparison), p_text(comparison));
                let relation = match objective.goal().order(comparison.paired.difference, 0.0) {
                    Ordering::Equal => "the same on average".to_owned(),
                    Ordering::Less => format!("better by {difference}"),
                    Ordering::Greater => format!("worse by {difference}"),
                };
                line = format!("{line}: {which}{relation}, {p}");
            }
            if !strangers.is_empty() {
                line = format!("{line}; {} not compared: no seed in common with {name}", names(&strangers));
            }
            lines.push(line + &left_out(verdict));
        }
    }
    // What is shown needs no more seeds.
    let is_open = matches!(verdict.conclusion, Conclusion::WithinNoise { .. });
    lines.extend(verdict.noise.map(|noise| noise_text(&noise, is_open)));
    if !lines.is_empty() {
        lines.extend(verdict.row_noise.map(|noise| row_noise_text(&noise)));
    }
    lines.extend(verdict.edges.iter().map(edge_text));
    lines
}

/// True if a setting with fewer seeds than the leader has a better mean.
fn is_behind_single(verdict: &SweepVerdict, goal: Goal) -> bool {
    let mean = |setting: &SettingResult| setting.sample.map(|sample| sample.mean);
    let leader = verdict.settings.first().and_then(mean);
    let others = || verdict.settings.iter().skip(1).filter_map(mean);
    leader.is_some_and(|leader| others().any(|other| goal.order(other, leader) == Ordering::Less))
}

/// The positions of the settings with a comparison, and the comparisons.
fn compared(verdict: &SweepVerdict) -> impl DoubleEndedIterator<Item = (usize, &SettingComparison)> {
    verdict.settings.iter().enumerate().filter_map(|(i, setting)| Some((i, setting.comparison.as_ref()?)))
}

/// The settings that cannot be the best for other reasons than their mean.
fn left_out(verdict: &SweepVerdict) -> String {
    let count = |state: SettingState| verdict.settings.iter().filter(|setting| setting.state == state).count() as u64;
    let part = |state, what: &str| match count(state) {
        0 => String::new(),
        n => format!("; {} {what}", counted(n, "setting")),
    };
    let without_result: Vec<usize> =
        (0..verdict.settings.len()).filter(|&i| verdict.settings[i].state == SettingState::Unmeasured).collect();
    let unmeasured = match without_result.len() {
        0 => String::new(),
        n => {
            let has = if n == 1 { "has" } else { "have" };
            format!("; {} {has} no result", list_names(&verdict.settings, &without_result))
        }
    };
    part(SettingState::Stopped, "stopped early, without a test")
        + &part(SettingState::Diverged, "diverged")
        + &unmeasured
}

/// The end of a sentence on `tied` equal settings: how many others were tested and are worse.
fn rest(verdict: &SweepVerdict, tied: usize) -> String {
    let is_worse = |i: usize, comparison: &SettingComparison| comparison.is_worse && verdict.settings[i].may_win();
    let worse = compared(verdict).filter(|(i, comparison)| is_worse(*i, comparison)).count();
    match (worse, verdict.settings.len() == tied + worse) {
        (0, _) => String::new(),
        (1, true) => "; the other setting is worse".to_owned(),
        (1, false) => "; 1 setting is worse".to_owned(),
        (n, true) => format!("; the other {n} settings are worse"),
        (n, false) => format!("; {n} settings are worse"),
    }
}

/// What a table says of the setting at `position` of `verdict`.
#[must_use]
pub(super) fn label(verdict: &SweepVerdict, position: usize) -> String {
    let Some(setting) = verdict.settings.get(position) else { return String::new() };
    let trained = setting.measured + setting.diverged;
    match (setting.state, &setting.comparison) {
        (SettingState::Diverged, _) => format!("{} of {trained} diverged", setting.diverged),
        (SettingState::Stopped, _) => "stopped early".to_owned(),
        (SettingState::Unmeasured, _) => "no result".to_owned(),
        (_, _) if matches!(verdict.conclusion, Conclusion::Incomparable { .. }) => "not comparable".to_owned(),
        (_, _) if matches!(verdict.conclusion, Conclusion::Rungs { .. }) => String::new(),
        (_, None) if position == 0 && verdict.conclusion == Conclusion::Best => "best".to_owned(),
        (_, None) if verdict.conclusion == Conclusion::OneSetting => String::new(),
        (_, None) if position == 0 && verdict.conclusion != Conclusion::NotCompared => "leads".to_owned(),
        (_, None) => "no seed in common".to_owned(),
        (_, Some(comparison)) if comparison.paired.is_identical => "the same numbers".to_owned(),
        (_, Some(comparison)) if comparison.paired.n < 2 => "one seed".to_owned(),
        (_, Some(comparison)) if comparison.is_worse => "worse".to_owned(),
        (SettingState::Ranked | SettingState::Incomplete, Some(_)) => "within noise".to_owned(),
    }
}

fn list_names(settings: &[SettingResult], positions: &[usize]) -> String {
    let mut names: Vec<String> = positions.iter().take(MAX_NAMED).map(|&i| settings[i].name.clone()).collect();
    let more = positions.len().saturating_sub(MAX_NAMED);
    let last = if more > 0 { format!("{more} more") } else { names.pop().unwrap_or_default() };
    if names.is_empty() { last } else { format!("{} and {last}", names.join(", ")) }
}

/// `1.9256 ± 0.0083 (4 seeds)`: the mean and half the width of its interval.
#[must_use]
pub fn mean_text(setting: &SettingResult) -> String {
    let Some(sample) = setting.sample else { return "unknown".to_owned() };
    match sample.interval {
        Some(interval) => {
            let half = interval.half_width();
            let (mean, half) = (number_text(sample.mean, half), number_text(half, half));
            format!("{mean} ± {half} ({} seeds)", sample.n)
        }
        None => format!("{} (1 seed)", number_text(sample.mean, 0.0)),
    }
}

/// `0.10 (0.02 to 0.19)`: the size of the difference between the leader and the setting at `position`, and its interval in the direction of the
/// difference; with the number of common seeds, if one of them has more.
fn difference_text(verdict: &SweepVerdict, position: usize, comparison: &SettingComparison) -> String {
    let n = comparison.paired.n;
    let has_more = |i: usize| verdict.settings.get(i).is_some_and(|setting| setting.measured > n);
    let over = if has_more(0) || has_more(position) { format!(" over {n} common seeds") } else { String::new() };
    size_text(&comparison.paired) + &over
}

fn size_text(paired: &PairedComparison) -> String {
    let sign = if paired.difference < 0.0 { -1.0 } else { 1.0 };
    let Some(interval) = paired.interval else { return number_text(paired.difference.abs(), 0.0) };
    let (a, b) = (sign * interval.low, sign * interval.high);
    let interval = Interval { low: a.min(b), high: a.max(b) };
    let text = |value: f64| number_text(value, interval.half_width());
    format!("{} ({} to {})", text(paired.difference.abs()), text(interval.low), text(interval.high))
}

/// `0.03`, or `< 0.001`.
#[must_use]
pub fn p_value_text(p: f64) -> String {
    if p < 0.001 { "< 0.001".to_owned() } else { significant(p, 2) }
}

/// `p = 0.03 (paired t-test, for normal differences; the permutation test cannot give a p below 0.125 with 4 seeds)`.
fn p_text(comparison: &SettingComparison) -> String {
    let SettingComparison { paired, test, adjusted_p, pairs, .. } = comparison;
    let p = p_value_text(*adjusted_p);
    let p = if p.starts_with('<') { format!("p {p}") } else { format!("p = {p}") };
    match test {
        None => p,
        Some(DecidingTest::T) => {
            let (n, least) = (paired.n, comparison.smallest_permutation_p);
            let pairs = if *pairs > 1 { format!(" and {pairs} pairs") } else { String::new() };
            format!(
                "{p} (paired t-test, for normal differences; the permutation test cannot give a p below {least} with {n} \
                 seeds{pairs})"
            )
        }
        Some(DecidingTest::Permutation) => {
            let how = match paired.permutation.method {
                PermutationMethod::Exact => "exact permutation test",
                PermutationMethod::MonteCarlo => "permutation test of 100,000 draws",
            };
            format!("{p} ({how})")
        }
    }
}

fn noise_text(noise: &NoiseFloor, names_seeds: bool) -> String {
    let NoiseFloor { seeds, smallest_shown, observed, seeds_needed, .. } = *noise;
    let shown = significant(smallest_shown, 2);
    let power = (POWER * 100.0).round();
    let mut line = format!("noise: {seeds} seeds show differences of {shown} or more, with a probability of {power}%");
    if names_seeds && smallest_shown > observed && observed > 0.0 {
        let observed = significant(observed, 2);
        let needed = seeds_needed.map_or_else(|| "only more than a million".to_owned(), |needed| needed.to_string());
        line = format!(
            "{line}; if the true difference is {observed}, {needed} new seeds show it with a probability of {power}%"
        );
    }
    line
}

fn edge_text(edge: &EdgeOfRange) -> String {
    let EdgeOfRange { name, value, is_highest, values } = edge;
    let (edge, beyond) = if *is_highest { ("highest", "higher") } else { ("lowest", "lower") };
    let (name, value) = (printable(name), printable(&value_text(value)));
    format!("edge: the leading `{name}` is {value}, the {edge} of {values} values: a {beyond} one may be better")
}

/// `measured on 2,048 tokens in 32 rows, standard error 0.051`, and what that says about the nearest difference.
fn row_noise_text(noise: &RowNoise) -> String {
    let measured = format!("measured on {}", noise.sample);
    let Some(difference) = noise.nearest_difference.filter(|_| noise.may_hide_difference) else { return measured };
    let advice = "use more validation rows to see whether settings differ on other text";
    match noise.sample.standard_error {
        None => format!("{measured}, which shows nothing about other text: {advice}"),
        Some(_) => format!(
            "{measured}: more than the difference of {}; all settings were measured on the same rows, so the error of the difference \
             is smaller, but unknown: {advice}",
            significant(difference, 2)
        ),
    }
}

/// `value` with as many decimals as give `scale` two significant digits; with four if there is no scale.
#[must_use]
pub fn number_text(value: f64, scale: f64) -> String {
    if scale > 0.0 && scale.is_finite() {
        return format!("{value:.0$}", decimals(scale, 2));
    }
    format!("{value:.SINGLE_DECIMALS$}")
}
