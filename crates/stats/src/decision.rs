//! The rule by which results of several settings are judged: which one leads, which ones are worse, and whether one is the best.
//!
//! - **Best**: the leader is the best if each rival is shown to be worse than it. This is an intersection-union test (Berger 1982,
//!   "Multiparameter hypothesis testing and acceptance sampling"): the claim is false only if some rival is as good, and the test of that
//!   rival alone is wrong in at most 5% of cases. So p-values are not corrected for the number of settings.
//! - **Worse**: a single setting is called worse by a p-value that is corrected for all pairs of settings ([`holm_of_leader`]), because the
//!   same results have chosen the leader.
//! - **Equal**: two settings are equal if the interval of their difference lies within the smallest difference of interest (two one-sided
//!   tests: Schuirmann 1987, "A comparison of the two one-sided tests procedure and the power approach").

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::contrast::Contrast;
use crate::holm::{holm_of_leader, pairs_of};
use crate::sample::{Interval, Sample};

/// What the rule takes into account apart from the results.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rule {
    pub is_less_better: bool,
    /// The probability of intervals; a p-value below 1 − it shows a difference.
    pub confidence: f64,
    /// Settings that differ by less count as equal.
    pub smallest_difference: Option<f64>,
    /// The number of settings from which these were picked by their results; each pair of them may be the one that was picked. `None` if these
    /// are all settings.
    pub picked_from: Option<usize>,
}

/// What results show.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    pub outcome: Outcome,
    /// The positions of the settings: the leader, the others with several seeds by their means, then those with one seed.
    pub order: Vec<usize>,
    /// What the results show of each setting.
    pub standings: Vec<Standing>,
    /// The comparison of each setting with the leader; `None` for the leader and for what is not compared.
    pub comparisons: Vec<Option<Compared>>,
}

/// The conclusion from the settings that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// There is no setting.
    Nothing,
    /// There is one setting.
    OneSetting,
    /// Fewer than two different settings have several seeds.
    OneSeed,
    /// All settings have the same values.
    Same,
    /// Each compared setting is worse than the leader.
    Best,
    /// Each compared setting is worse than the leader or equal to it.
    Equal,
    Undecided,
}

/// What results show of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    Leader,
    /// It has the leader's value with every seed.
    Same,
    Worse,
    /// The difference to the leader is smaller than the smallest one of interest.
    Equal,
    /// It may be as good as the leader.
    Open,
    /// It has one seed, or the leader has.
    NotCompared,
}

/// A setting compared with the leader.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    #[serde(flatten)]
    pub contrast: Contrast,
    /// The p-value, corrected for the number of pairs of settings.
    pub adjusted_p: f64,
}

/// Judges settings by their finite `results`: for each setting its values with their seeds.
#[must_use]
pub fn decide<S: PartialEq>(results: &[Vec<(S, f64)>], rule: &Rule) -> Decision {
    let first_same: Vec<usize> =
        (0..results.len()).map(|i| (0..i).find(|&j| has_same_values(&results[i], &results[j])).unwrap_or(i)).collect();
    let order = ranked(results, rule);
    let mut decision = Decision {
        outcome: Outcome::Nothing,
        standings: vec![Standing::NotCompared; results.len()],
        comparisons: vec![None; results.len()],
        order,
    };
    let Some(&leader) = decision.order.first() else { return decision };
    let is_distinct = |i: &usize| first_same[*i] == *i && first_same[leader] != *i;
    let rivals: Vec<(usize, Contrast)> = (0..results.len())
        .filter(is_distinct)
        .filter_map(|i| Some((i, Contrast::new(&results[i], &results[leader], rule.confidence)?)))
        .collect();
    let adjusted = adjusted_ps(&rivals, rule);
    let judged = judge(&rivals, &adjusted, rule);
    for (i, same) in first_same.iter().enumerate() {
        let found = rivals.iter().position(|(rival, _)| rival == same);
        if i == leader {
            decision.standings[i] = Standing::Leader;
        } else if *same == first_same[leader] {
            decision.standings[i] = Standing::Same;
        } else if let Some(k) = found {
            decision.standings[i] = judged[k];
            decision.comparisons[i] = Some(Compared { contrast: rivals[k].1, adjusted_p: adjusted[k] });
        }
    }
    let is_all_same = first_same.iter().all(|same| *same == first_same[leader]);
    decision.outcome = match results.len() {
        1 => Outcome::OneSetting,
        _ if is_all_same => Outcome::Same,
        _ if rivals.is_empty() => Outcome::OneSeed,
        _ if judged.iter().all(|standing| *standing == Standing::Worse) => Outcome::Best,
        _ if judged.contains(&Standing::Open) => Outcome::Undecided,
        _ => Outcome::Equal,
    };
    decision
}

/// True if both settings have the same seeds, at least two, and the same value with each.
fn has_same_values<S: PartialEq>(a: &[(S, f64)], b: &[(S, f64)]) -> bool {
    a.len() > 1 && a.len() == b.len() && a.iter().all(|pair| b.contains(pair))
}

/// The p-values of the rivals, corrected for all pairs of settings.
fn adjusted_ps(rivals: &[(usize, Contrast)], rule: &Rule) -> Vec<f64> {
    let ps: Vec<f64> = rivals.iter().map(|(_, contrast)| contrast.p).collect();
    match rule.picked_from {
        Some(all) => ps.iter().map(|p| (p * pairs_of(all) as f64).min(1.0)).collect(),
        None => holm_of_leader(&ps),
    }
}

/// What is shown of each of `rivals`.
fn judge(rivals: &[(usize, Contrast)], adjusted: &[f64], rule: &Rule) -> Vec<Standing> {
    let is_behind = |contrast: &Contrast| rule.is_better(0.0, contrast.difference);
    let is_equal = |contrast: &Contrast| {
        // Without spread there is no interval, and nothing is shown.
        let inside = |Interval { low, high }: Interval, least: f64| -least < low && high < least;
        contrast.interval.zip(rule.smallest_difference).is_some_and(|(interval, least)| inside(interval, least))
    };
    let standing = |contrast: &Contrast, p: f64| match (is_equal(contrast), is_behind(contrast)) {
        (true, _) => Standing::Equal,
        (false, true) if p < 1.0 - rule.confidence => Standing::Worse,
        _ => Standing::Open,
    };
    let alone = |((_, contrast), adjusted): (&(usize, Contrast), &f64)| {
        standing(contrast, if rule.picked_from.is_some() { *adjusted } else { contrast.p })
    };
    let together: Vec<Standing> = rivals.iter().zip(adjusted).map(alone).collect();
    if !together.contains(&Standing::Open) {
        return together;
    }
    rivals.iter().zip(adjusted).map(|((_, contrast), p)| standing(contrast, *p)).collect()
}

impl Rule {
    fn is_better(&self, a: f64, b: f64) -> bool {
        if self.is_less_better { a < b } else { a > b }
    }

    fn order(&self, a: f64, b: f64) -> Ordering {
        if self.is_less_better { a.total_cmp(&b) } else { b.total_cmp(&a) }
    }
}

/// The positions of the settings: of those with the most seeds the one with the best mean leads, unless another setting with several seeds is
/// better than it over their common seeds. A mean over other seeds does not compare, as a seed moves all settings alike.
fn ranked<S: PartialEq>(results: &[Vec<(S, f64)>], rule: &Rule) -> Vec<usize> {
    let mean = |i: usize| {
        let values: Vec<f64> = results[i].iter().map(|(_, value)| *value).collect();
        Sample::new(&values, rule.confidence).map_or(f64::NAN, |sample| sample.mean)
    };
    let means: Vec<f64> = (0..results.len()).map(mean).collect();
    let most = results.iter().map(Vec::len).max().unwrap_or(0);
    let mut order: Vec<usize> = (0..results.len()).collect();
    let rank = |i: usize| (results[i].len() < 2, results[i].len() < most);
    order.sort_by(|&a, &b| rank(a).cmp(&rank(b)).then(rule.order(means[a], means[b])));
    if results.iter().all(|values| values.len() == most) {
        return order;
    }
    let several = || order.iter().copied().filter(|&i| results[i].len() > 1);
    let beats = |a: usize, b: usize| {
        let common = Contrast::new(&results[a], &results[b], rule.confidence).filter(Contrast::is_paired);
        common.is_some_and(|contrast| rule.is_better(contrast.difference, 0.0))
    };
    let leader = several().find(|&i| !several().any(|j| j != i && beats(j, i)));
    if let Some(at) = order.iter().position(|i| Some(*i) == leader) {
        order[..=at].rotate_right(1);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contrast::Test;

    const RULE: Rule = Rule { is_less_better: true, confidence: 0.95, smallest_difference: None, picked_from: None };

    fn seeds(values: &[f64]) -> Vec<(usize, f64)> {
        values.iter().copied().enumerate().collect()
    }

    /// A leader and rivals that differ from it by these differences for each seed.
    fn against(leader: &[f64], differences: &[&[f64]]) -> Vec<Vec<(usize, f64)>> {
        let rival = |differences: &&[f64]| leader.iter().zip(*differences).map(|(a, d)| a + d).collect::<Vec<f64>>();
        [leader.to_vec()].into_iter().chain(differences.iter().map(rival)).map(|values| seeds(&values)).collect()
    }

    const LEADER: [f64; 4] = [1.0, 1.3, 0.9, 1.2];

    #[test]
    fn the_best_needs_no_correction_and_a_worse_setting_does() {
        // p = 0.025 and 0.014: each below 0.05 alone, and not if they are multiplied by the pairs of three settings.
        let [near, far] = [[0.10, 0.14, 0.04, 0.09_f64], [0.2, 0.3, 0.10, 0.21]];
        let found = decide(&against(&LEADER, &[&near, &far]), &RULE);
        let ps = |found: &Decision| {
            found.comparisons.iter().flatten().map(|c| (c.contrast.p, c.adjusted_p)).collect::<Vec<_>>()
        };
        assert!(ps(&found).iter().all(|(p, _)| *p < 0.05), "{:?}", ps(&found));
        assert_eq!((found.outcome, &found.standings[1..]), (Outcome::Best, &[Standing::Worse; 2][..]));
        // With a rival that may be as good, none is the best, and the others must stand the correction.
        let found = decide(&against(&LEADER, &[&near, &far, &[0.05, -0.01, 0.01, 0.02]]), &RULE);
        assert!(ps(&found)[..2].iter().all(|(p, adjusted)| *p < 0.05 && *adjusted > 0.05), "{:?}", ps(&found));
        assert_eq!((found.outcome, found.standings[1]), (Outcome::Undecided, Standing::Open));
        // The same for settings that were picked from ten.
        let picked = Rule { picked_from: Some(10), ..RULE };
        let found = decide(&against(&LEADER, &[&near]), &picked);
        assert_eq!(
            (found.outcome, found.comparisons[1].unwrap().adjusted_p),
            (Outcome::Undecided, 1.0_f64.min(45.0 * ps(&found)[0].0))
        );
    }

    #[test]
    fn settings_that_differ_by_less_than_matters_are_equal() {
        let rule = Rule { smallest_difference: Some(0.01), ..RULE };
        // Shown to be worse, and by too little to matter.
        let shown = [0.0010, 0.0011, 0.0012, 0.0011];
        assert_eq!(decide(&against(&LEADER, &[&shown]), &RULE).outcome, Outcome::Best);
        let found = decide(&against(&LEADER, &[&shown, &[0.5, 0.52, 0.51, 0.53]]), &rule);
        assert_eq!((found.outcome, &found.standings[1..]), (Outcome::Equal, &[Standing::Equal, Standing::Worse][..]));
        // Not shown to be worse, and equal.
        assert_eq!(decide(&against(&LEADER, &[&[0.001, -0.001, 0.0005, 0.0]]), &rule).outcome, Outcome::Equal);
        // The interval reaches beyond what matters.
        assert_eq!(decide(&against(&LEADER, &[&[0.02, -0.01, 0.01, 0.0]]), &rule).outcome, Outcome::Undecided);
        // A difference that may matter.
        assert_eq!(decide(&against(&LEADER, &[&[0.012, 0.008, 0.011, 0.010]]), &rule).outcome, Outcome::Best);
    }

    #[test]
    fn settings_with_the_same_values_count_once() {
        let rival = [0.10, 0.14, 0.04, 0.09];
        let once = decide(&against(&LEADER, &[&rival]), &RULE);
        let thrice = decide(&against(&LEADER, &[&rival, &[0.0; 4], &rival, &rival]), &RULE);
        assert_eq!((once.outcome, thrice.outcome), (Outcome::Best, Outcome::Best));
        assert_eq!(thrice.comparisons[1].unwrap().adjusted_p, once.comparisons[1].unwrap().adjusted_p);
        assert_eq!(thrice.standings[2..], [Standing::Same, Standing::Worse, Standing::Worse]);
        assert_eq!(decide(&against(&LEADER, &[&[0.0; 4]]), &RULE).outcome, Outcome::Same);
        // One value may be the same by chance.
        assert_eq!(decide(&against(&LEADER[..1], &[&[0.0]]), &RULE).outcome, Outcome::OneSeed);
        // Equal differences have no interval, so they are not shown to be small.
        let rule = Rule { smallest_difference: Some(0.01), ..RULE };
        assert_eq!(decide(&against(&LEADER, &[&[0.25; 4]]), &rule).outcome, Outcome::Undecided);
    }

    #[test]
    fn one_seed_is_left_out_and_groups_without_common_seeds_are_compared() {
        let mut settings = against(&LEADER, &[&[0.5, 0.52, 0.51, 0.53], &[-0.5, 0.0, 0.0, 0.0]]);
        settings[2].truncate(1);
        let found = decide(&settings, &RULE);
        assert_eq!((found.outcome, found.standings[2]), (Outcome::Best, Standing::NotCompared));
        assert_eq!(found.order, [0, 1, 2]);
        // The same results with other seeds.
        settings[1].iter_mut().for_each(|(seed, _)| *seed += 10);
        let found = decide(&settings, &RULE).comparisons[1].unwrap().contrast;
        assert_eq!((found.test, found.n, found.sd), (Test::Welch, 4, None));
        // SciPy: ttest_ind([1.5, 1.82, 1.41, 1.73], [1, 1.3, 0.9, 1.2], equal_var=False).
        assert!((found.p - 0.008_131_005_845_626).abs() < 1e-12, "{found:?}");
        let one = vec![vec![(0, 1.0)], vec![(0, 2.0)]];
        assert_eq!(decide(&one, &RULE).outcome, Outcome::OneSeed);
        assert_eq!(decide::<u8>(&[], &RULE).outcome, Outcome::Nothing);
        assert_eq!(decide(&one[..1], &RULE).outcome, Outcome::OneSetting);
    }

    #[test]
    fn higher_may_be_better() {
        let rule = Rule { is_less_better: false, ..RULE };
        let found = decide(&against(&LEADER, &[&[0.5, 0.52, 0.51, 0.53]]), &rule);
        assert_eq!((found.outcome, found.order), (Outcome::Best, vec![1, 0]));
    }
}
