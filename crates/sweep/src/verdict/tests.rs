use runner_stats::Test;
use serde_json::{Value, json};

use super::*;
use crate::record::SeenSeed;
use crate::spec::{Budget, BudgetKind};
use crate::testing::finished;

/// The verdict on finished points of these rates, each with the results of seeds 1, 2, …; NaN stands for divergence.
fn verdict(settings: &[(f64, &[f64])]) -> SweepVerdict {
    let points: Vec<(Value, u64, f64)> = settings
        .iter()
        .flat_map(|(lr, results)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .collect();
    let (record, results) = finished(&points);
    SweepVerdict::new(&record, &results, true)
}

fn rates(verdict: &SweepVerdict) -> Vec<f64> {
    verdict.settings.iter().map(|setting| setting.values[0].1.as_f64().unwrap()).collect()
}

const LUCKY: [f64; 4] = [2.11, 2.08, 1.90, 2.05];
const STEADY: [f64; 4] = [1.9251, 1.9263, 1.9188, 1.9322];

fn comparison(verdict: &SweepVerdict, position: usize) -> SettingComparison {
    verdict.settings[position].comparison.unwrap()
}

fn kind(verdict: &SweepVerdict) -> String {
    serde_json::to_value(&verdict.conclusion).unwrap()["kind"].as_str().unwrap().to_owned()
}

#[test]
fn the_best_setting_is_that_of_the_best_mean_not_of_the_luckiest_seed() {
    let found = verdict(&[(0.02, &LUCKY), (0.01, &STEADY)]);
    assert_eq!(rates(&found), [0.01, 0.02]);
    assert_eq!(found.settings[0].points, [5, 6, 7, 8]);
    assert_eq!((found.settings[1].standing, kind(&found).as_str(), found.best()), (Standing::Open, "undecided", None));
    let rival = comparison(&found, 1);
    assert_eq!(rival.compared.adjusted_p, rival.compared.contrast.p, "two settings are one comparison");
    assert!(rival.detectable.unwrap().difference > rival.difference(), "{rival:?}");
    assert_eq!((rival.seeds_needed, &found.new_seeds[..]), (Some(8), &[5, 6, 7, 8, 9, 10, 11, 12][..]));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    not decided by val_loss: lr=0.01 leads lr=0.02 by 0.11 (95% -0.03 to 0.25, p 0.093)
    next: train these with `seeds: [5, 6, 7, 8, 9, 10, 11, 12]` (16 runs), which shows a difference of 0.11 in 4 of 5 cases
    test: paired t-test over 4 seeds
    noise: in 4 of 5 cases 4 seeds show a difference to lr=0.02 of 0.19 (0.11 to 0.71)
    ");
}

#[test]
fn a_setting_that_every_other_is_worse_than_is_the_best() {
    let worse: Vec<f64> = STEADY.iter().zip([0.1, 0.11, 0.12, 0.09]).map(|(y, d)| y + d).collect();
    let far: Vec<f64> = STEADY.iter().zip([0.9, 0.92, 0.91, 0.95]).map(|(y, d)| y + d).collect();
    let found = verdict(&[(0.3, &far), (0.02, &worse), (0.01, &STEADY)]);
    assert_eq!((rates(&found), &found.conclusion), (vec![0.01, 0.02, 0.3], &Conclusion::Best));
    assert_eq!(found.best().unwrap().points, [9, 10, 11, 12]);
    assert_eq!([0, 1, 2].map(|i| words::label(&found, i)), ["best", "worse", "worse"]);
    insta::assert_snapshot!(found.words.join("\n"), @r"
    best: lr=0.01, val_loss 1.9256 (4 seeds), better than lr=0.02 by 0.105 (95% 0.084 to 0.126, p < 0.001) and than 1 other
    test: paired t-test over 4 seeds
    edge: `lr` 0.01 is the lowest of 3 values: a lower one may be better
    ");
}

#[test]
fn with_many_seeds_a_verdict_has_a_permutation_test_too() {
    let a: Vec<f64> = (0..8).map(|i| 2.0 + 0.01 * f64::from(i % 3)).collect();
    let b: Vec<f64> = a.iter().enumerate().map(|(i, y)| y + 0.05 + 0.001 * i as f64).collect();
    let found = verdict(&[(0.1, &a), (0.2, &b)]);
    let contrast = comparison(&found, 1).compared.contrast;
    assert_eq!((contrast.test, contrast.permutation.unwrap().p), (Test::PairedT, 2.0 / 256.0));
    assert_eq!(found.conclusion, Conclusion::Best);
    insta::assert_snapshot!(found.words.join("\n"), @r"
    best: lr=0.1, val_loss 2.0088 (8 seeds), better than lr=0.2 by 0.0535 (95% 0.0515 to 0.0555, p < 0.001)
    test: paired t-test over 8 seeds; permutation test p 0.0078
    ");
}

#[test]
fn equal_numbers_are_one_setting_and_one_seed_shows_nothing() {
    let far = STEADY.map(|y| y + 1.0 + y / 100.0);
    let found = verdict(&[(0.01, &STEADY), (0.02, &STEADY), (0.3, &far)]);
    assert_eq!((found.conclusion.clone(), found.settings[1].standing), (Conclusion::Best, Standing::Same));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    best: lr=0.01, val_loss 1.9256 (4 seeds), better than lr=0.3 by 1.019256 (95% 1.019169 to 1.019343, p < 0.001)
    same numbers as lr=0.01: lr=0.02
    test: paired t-test over 4 seeds
    edge: `lr` 0.01 is the lowest of 3 values: a lower one may be better
    ");
    let found = verdict(&[(0.01, &STEADY), (0.02, &STEADY)]);
    assert_eq!(found.conclusion, Conclusion::Same);
    insta::assert_snapshot!(found.words.join("\n"), @"same: lr=0.01 and lr=0.02 have the same val_loss with every seed, 1.9256 (4 seeds)");
    let found = verdict(&[(0.01, &[1.5]), (0.02, &[1.5]), (0.3, &[2.5])]);
    assert_eq!(found.conclusion, Conclusion::OneSeed);
    insta::assert_snapshot!(found.words.join("\n"), @r"
    no conclusion: one seed each; lowest val_loss 1.5000 at point 1 (lr=0.01) and point 2 (lr=0.02)
    next: add `seeds: 3`; one seed does not show the noise
    ");
    let found = verdict(&[(0.02, &[1.6]), (0.01, &[1.5])]);
    assert_eq!((found.conclusion.clone(), found.best()), (Conclusion::OneSeed, None));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    no conclusion: one seed each; lowest val_loss 1.5000 at point 2 (lr=0.01)
    next: add `seeds: 3`; one seed does not show the noise
    ");
    let found = verdict(&[(0.01, &STEADY)]);
    assert_eq!(found.conclusion, Conclusion::OneSetting);
    insta::assert_snapshot!(found.words.join("\n"), @"result: val_loss 1.9256 (95% 1.9169 to 1.9343, 4 seeds)");
}

#[test]
fn settings_that_differ_by_less_than_matters_are_equal() {
    let near: Vec<f64> = STEADY.iter().zip([0.0011, 0.0012, 0.0010, 0.0011]).map(|(y, d)| y + d).collect();
    let far = STEADY.map(|y| y + 1.0 + y / 100.0);
    let points: Vec<(Value, u64, f64)> = [(0.01, &STEADY[..]), (0.02, &near[..]), (0.3, &far[..])]
        .iter()
        .flat_map(|(lr, results)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .collect();
    let (record, mut results) = finished(&points);
    results.objective.smallest_difference = Some(0.01);
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(found.conclusion, Conclusion::Equal { settings: vec![0, 1], within: 0.01 });
    assert_eq!((found.best(), found.settings[1].label.as_str()), (None, "equal"));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    equal within 0.010: lr=0.01 and lr=0.02 (difference 0.00110, 95% 0.00097 to 0.00123); 1 other is worse
    test: paired t-test over 4 seeds
    ");
}

#[test]
fn seeds_that_an_earlier_sweep_has_judged_do_not_count() {
    // The first three seeds show the difference, and the new ones do not.
    let a = [1.00, 1.10, 0.95, 1.2, 1.0, 1.1];
    let b = [1.10, 1.19, 1.06, 1.22, 1.1, 1.3];
    let points: Vec<(Value, u64, f64)> = [(0.01, a), (0.02, b)]
        .iter()
        .flat_map(|(lr, results)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .collect();
    let (mut record, results) = finished(&points);
    let seeds = |numbers: std::ops::RangeInclusive<u64>| {
        numbers.map(|n| SeenSeed(vec![("seed".to_owned(), json!(n))])).collect()
    };
    record.seen = vec![SeenSeeds { sweep: "s-1".to_owned(), other_settings: 0, seed_count: 3, seeds: seeds(1..=3) }];
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!((comparison(&found, 1).compared.contrast.n, kind(&found).as_str()), (3, "undecided"));
    assert_eq!(
        (found.settings[0].sample.unwrap().n, found.settings[0].measured, found.new_seeds.first()),
        (3, 6, Some(&7))
    );
    insta::assert_snapshot!(found.words.join("\n"), @r"
    not decided by val_loss: lr=0.01 leads lr=0.02 by 0.11 (95% -0.12 to 0.33, p 0.18)
    next: train these with `seeds: [7, 8, 9, 10, 11, 12, 13, 14]` (16 runs), which shows a difference of 0.11 in 4 of 5 cases
    reused: seeds 1, 2, 3 were judged in s-1, so only new seeds count
    test: paired t-test over 3 seeds
    noise: in 4 of 5 cases 3 seeds show a difference to lr=0.02 of 0.29 (0.15 to 1.9)
    ");
    // One new seed for each setting does not show the noise, and the judged ones are not proposed again.
    record.seen = vec![SeenSeeds { sweep: "s-1".to_owned(), other_settings: 0, seed_count: 5, seeds: seeds(1..=5) }];
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!((&found.conclusion, &found.new_seeds[..]), (&Conclusion::OneSeed, &[7, 8, 9][..]));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    no conclusion: one new seed each; lowest val_loss 1.1000 at lr=0.01
    next: add new seeds: `seeds: [7, 8, 9]`
    reused: seeds 1, 2, 3, 4, 5 were judged in s-1, so only new seeds count
    ");
    // Without new seeds it is the earlier verdict, corrected if that was on more settings.
    record.seen = vec![SeenSeeds { sweep: "s-1".to_owned(), other_settings: 7, seed_count: 6, seeds: seeds(1..=6) }];
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!((found.reused_seeds.len(), found.picked_from), (0, Some(9)));
    assert!(
        found.words.iter().any(|line| line.contains("p times 36, the pairs of the 9 settings")),
        "{:?}",
        found.words
    );
    // Two earlier sweeps that each judged a part of the seeds leave none, and so does one that judged more seeds than these.
    let parts = [seeds(1..=3), seeds(4..=6)];
    record.seen = parts
        .into_iter()
        .map(|seeds| SeenSeeds { sweep: "s-1".to_owned(), other_settings: 0, seed_count: 3, seeds })
        .collect();
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!((&found.conclusion, found.best(), found.new_seeds.len()), (&Conclusion::JudgedBefore, None, 3));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    no conclusion: earlier sweeps have judged all of these seeds
    next: add new seeds: `seeds: [7, 8, 9]`
    reused: seeds 1, 2, 3, 4, 5, 6 were judged in s-1, s-1, so only new seeds count
    ");
    record.seen = vec![SeenSeeds { sweep: "s-1".to_owned(), other_settings: 0, seed_count: 9, seeds: seeds(1..=6) }];
    assert_eq!(SweepVerdict::new(&record, &results, true).conclusion, Conclusion::JudgedBefore);
    // A look at one seed of the same settings chose nothing.
    record.seen = vec![SeenSeeds { sweep: "s-1".to_owned(), other_settings: 0, seed_count: 1, seeds: seeds(1..=1) }];
    assert_eq!(SweepVerdict::new(&record, &results, true).reused_seeds.len(), 0);
}

#[test]
fn a_setting_with_one_seed_is_left_out_by_name() {
    let found = verdict(&[(0.01, &STEADY), (0.02, &STEADY.map(|y| y + 0.1 + y / 100.0)), (0.5, &[2.0])]);
    assert_eq!((rates(&found)[2], &found.conclusion), (0.5, &Conclusion::BestOfCompared));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    best of the 2 that were compared: lr=0.01, val_loss 1.9256 (4 seeds), better than lr=0.02 by 0.119256 (95% 0.119169 to 0.119343, p < 0.001)
    not compared: point 9 (lr=0.5) has one seed
    test: paired t-test over 4 seeds
    edge: `lr` 0.01 is the lowest of 3 values: a lower one may be better
    ");
}

#[test]
fn groups_without_common_seeds_are_compared_by_welchs_test() {
    let points: Vec<(Value, u64, f64)> = (STEADY.iter().zip(1..).map(|(y, seed)| (json!(0.01), seed, *y)))
        .chain(STEADY.iter().zip(5..).map(|(y, seed)| (json!(0.02), seed, y + 0.004)))
        .collect();
    let (record, results) = finished(&points);
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(comparison(&found, 1).compared.contrast.test, Test::Welch);
    insta::assert_snapshot!(found.words.join("\n"), @r"
    not decided by val_loss: lr=0.01 leads lr=0.02 by 0.0040 (95% -0.0055 to 0.0135, p 0.34)
    next: train these with the same new seeds, so that they are compared seed by seed
    test: Welch's t-test of lr=0.02, which shares too few seeds with the leader
    ");
}

#[test]
fn a_difference_over_seeds_may_be_absent_on_other_rows() {
    let worse = STEADY.map(|y| y + 0.5 + y / 100.0);
    let points: Vec<(Value, u64, f64)> = [(0.01, STEADY), (0.02, worse)]
        .iter()
        .flat_map(|(lr, results)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .collect();
    let (record, mut results) = finished(&points);
    let mut words = |worse_row: [f64; 3], may_hide: bool| {
        for row in &mut results.rows {
            let losses = if row.point <= 4 { vec![1.0, 2.0, 3.0] } else { worse_row.to_vec() };
            row.rows = Some(std::sync::Arc::new(RowLosses { losses, tokens: vec![1.0; 3] }));
            row.measured_on = Some(LossSample { tokens: 3, rows: 3, standard_error: Some(0.5) });
        }
        let found = SweepVerdict::new(&record, &results, true);
        let noise = found.row_noise.unwrap();
        assert_eq!(noise.may_hide_difference, may_hide);
        found.words.into_iter().find(|line| line.starts_with("rows: ")).unwrap()
    };
    insta::assert_snapshot!(words([1.5, 2.52, 3.51], false), @"rows: measured on 3 tokens in 3 rows, standard error 0.50; on other rows of this kind, with these seeds, lr=0.01 leads lr=0.02 by 0.510 (95% 0.485 to 0.535, p < 0.001)");
    insta::assert_snapshot!(words([1.5, 4.0, 2.0], true), @"rows: measured on 3 tokens in 3 rows, standard error 0.50; on other rows of this kind, with these seeds, lr=0.01 leads lr=0.02 by 0.5 (95% -3.2 to 4.2, p 0.62); on other rows there may be no difference");
}

#[test]
fn a_diverged_setting_alone_makes_no_other_one_the_best() {
    let found = verdict(&[(0.01, &STEADY), (10.0, &[f64::NAN, 1.0, 1.0, 1.0])]);
    assert_eq!((&found.conclusion, found.best()), (&Conclusion::BestOfCompared, None));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    only setting with all steps: lr=0.01, val_loss 1.9256 (4 seeds)
    not compared: 1 setting diverged
    ");
}

#[test]
fn equal_differences_show_nothing_with_few_seeds() {
    let (points, level) = ([1.0, 2.0, 3.0], |y: &f64| y + 0.25);
    let found = verdict(&[(0.01, &points), (0.02, &points.iter().map(level).collect::<Vec<f64>>())]);
    assert_eq!(kind(&found), "undecided");
    insta::assert_snapshot!(found.words.join("\n"), @r"
    not decided by val_loss: lr=0.01 leads lr=0.02 by 0.2500 (p 0.25)
    next: train these with 6 or more new seeds: all differences are equal, and fewer seeds show nothing of that
    test: permutation test where all differences are equal
    ");
}

#[test]
fn a_verdict_names_unequal_costs() {
    let worse = STEADY.map(|y| y + 0.5 + y / 100.0);
    let points: Vec<(Value, u64, f64)> = [(0.01, STEADY), (0.02, worse)]
        .iter()
        .flat_map(|(lr, results)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .collect();
    let (mut record, mut results) = finished(&points);
    let of_leader = |point: usize| point <= 4;
    for row in &mut results.rows {
        row.tokens = Some(if of_leader(row.point) { 2000 } else { 1000 });
        row.seconds = Some(if of_leader(row.point) { 7.7 } else { 4.3 });
    }
    let line = |record: &SweepRecord, results: &SweepResults| {
        let words = SweepVerdict::new(record, results, true).words;
        words.into_iter().find(|line| line.starts_with("cost") || line.starts_with("budget"))
    };
    insta::assert_snapshot!(line(&record, &results).unwrap(), @"cost: 1,000 tokens to 2,000 tokens for a setting, a ratio of 2.0; 2,000 tokens for the leader");
    record.budget = Some(Budget { kind: BudgetKind::Time, amount: 3.0 });
    insta::assert_snapshot!(line(&record, &results).unwrap(), @"budget: 4.3 s to 7.7 s for a setting, a ratio of 1.8; 7.7 s for the leader");
    results.rows.iter_mut().for_each(|row| row.seconds = Some(4.3));
    assert_eq!(line(&record, &results), None);
}

#[test]
fn a_setting_with_a_diverged_seed_is_never_the_best() {
    let mut diverged = STEADY.map(|y| y - 1.0);
    diverged[2] = f64::NAN;
    let worse = STEADY.map(|y| y + 0.5 + y / 100.0);
    let found = verdict(&[(10.0, &diverged), (0.01, &STEADY), (0.02, &worse)]);
    assert_eq!((rates(&found), &found.conclusion), (vec![0.01, 0.02, 10.0], &Conclusion::Best));
    let last = &found.settings[2];
    assert_eq!((last.state, last.diverged, last.sample), (SettingState::Diverged, 1, None));
    assert_eq!(words::label(&found, 2), "1 of 4 diverged");
    assert_eq!(found.words[1], "not compared: 1 setting diverged");
}

#[test]
fn results_that_do_not_compare_have_no_leader() {
    let (record, mut results) =
        finished(&[(json!(0.1), 1, 1.0), (json!(0.1), 2, 1.1), (json!(0.2), 1, 1.02), (json!(0.2), 2, 1.09)]);
    assert!(SweepVerdict::new(&record, &results, true).settings[1].comparison.is_some());
    results.incomparable = Some("the tokenizers differ".to_owned());
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(found.words, ["no conclusion: val_loss does not compare: the tokenizers differ"]);
    assert!(found.settings.iter().all(|setting| setting.comparison.is_none()) && found.leader().is_none());
}

#[test]
fn what_early_stopping_ended_was_not_tested() {
    let points: Vec<(Value, u64, f64)> =
        (0..6).map(|i| (json!([0.1, 0.2, 0.3][i / 2]), i as u64 % 2, 2.0 + i as f64)).collect();
    let (record, mut results) = finished(&points);
    for row in results.rows.iter_mut().filter(|row| row.point > 2) {
        (row.status, row.objective) = (PointStatus::Stopped, Some(9.0));
    }
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(
        (&found.conclusion, found.best(), found.leader().unwrap().measured),
        (&Conclusion::BestOfCompared, None, 2)
    );
    assert_eq!(found.words[0], "only setting with all steps: lr=0.1, val_loss 2.50 (2 seeds)");
    assert_eq!(found.words[1], "not compared: 2 settings stopped early");
}

#[test]
fn a_setting_without_all_its_seeds_is_not_ranked_and_may_win() {
    let (record, mut results) = finished(&[
        (json!(0.1), 1, 2.0),
        (json!(0.1), 2, 2.1),
        (json!(0.1), 3, 2.2),
        (json!(0.2), 1, 1.0),
        (json!(0.2), 2, 1.1),
        (json!(0.2), 3, 1.2),
    ]);
    for row in results.rows.iter_mut().filter(|row| row.point > 4) {
        (row.status, row.objective) = (PointStatus::Queued, None);
    }
    let found = SweepVerdict::new(&record, &results, false);
    assert_eq!((rates(&found), found.settings[1].state), (vec![0.1, 0.2], SettingState::Incomplete));
    assert_eq!(found.conclusion, Conclusion::OneSeed, "one seed is measured of both: {found:?}");
    assert!(found.words[0].contains(" so far: "), "{:?}", found.words);
}

#[test]
fn a_better_group_with_fewer_seeds_is_the_best_over_the_common_seeds() {
    // Seeds 4 and 5 are easy, so the worse setting has the better mean over all its seeds.
    let worse = [2.50, 2.60, 2.55, 2.10, 2.05];
    let better = [2.40, 2.501, 2.449];
    let found = verdict(&[(0.1, &worse), (0.2, &better)]);
    assert!(found.settings[0].sample.unwrap().mean > found.settings[1].sample.unwrap().mean);
    assert_eq!((rates(&found), &found.conclusion), (vec![0.2, 0.1], &Conclusion::Best));
    let line = &found.words[0];
    assert!(line.starts_with("best: lr=0.2, ") && line.contains("better than lr=0.1 by 0.1000 ("), "{line}");
    assert!(found.words.contains(&"test: paired t-test over 3 seeds".to_owned()), "{:?}", found.words);
    // The same groups, with the better one in more seeds.
    let found = verdict(&[(0.1, &worse[..3]), (0.2, &[2.40, 2.501, 2.449, 2.9, 2.9])]);
    assert_eq!((rates(&found), &found.conclusion), (vec![0.2, 0.1], &Conclusion::Best));
    // Noise: what is not shown is not reversed either.
    let found = verdict(&[(0.1, &worse), (0.2, &[2.40, 2.601, 2.549])]);
    assert_eq!(rates(&found), [0.2, 0.1]);
    let line = &found.words[0];
    assert!(line.starts_with("not decided by val_loss: lr=0.2 leads lr=0.1 by "), "{line}");
}

#[test]
fn a_setting_is_called_better_if_each_one_is_worse_than_another() {
    // Over their common seeds, 0.1 is better than 0.2, 0.2 than 0.3, and 0.3 than 0.1.
    let nan = f64::NAN;
    let seeds = [[1.0, 1.0, 3.0, 3.2, nan, nan], [2.0, 2.1, nan, nan, 1.0, 1.1], [nan, nan, 2.0, 2.1, 2.0, 2.3]];
    let points: Vec<(Value, u64, f64)> = (seeds.iter().zip([0.1, 0.2, 0.3]))
        .flat_map(|(results, lr)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .filter(|(_, _, y)| !y.is_nan())
        .chain([(json!(0.1), 7, 2.0)])
        .collect();
    let (record, results) = finished(&points);
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(rates(&found)[0], 0.1);
    let (line, third) = (&found.words[0], found.settings.iter().position(|s| s.name == "lr=0.3").unwrap());
    assert!(comparison(&found, third).difference() < 0.0);
    assert!(line.contains("lr=0.1 leads lr=0.2") && !line.contains("worse"), "{line}");
}

#[test]
fn only_what_was_tested_is_called_worse() {
    let far = STEADY.map(|y| y + 1.0 + y / 100.0);
    let points: Vec<(Value, u64, f64)> = [(0.01, STEADY), (0.02, STEADY), (0.3, far), (0.4, far), (0.5, far)]
        .iter()
        .flat_map(|(lr, results)| results.iter().zip(1..).map(move |(y, seed)| (json!(lr), seed, *y)))
        .collect();
    let (record, mut results) = finished(&points);
    for row in results.rows.iter_mut().filter(|row| row.point > 12) {
        row.status = if row.point > 16 { PointStatus::Failed } else { PointStatus::Stopped };
        row.objective = None;
    }
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(found.conclusion, Conclusion::BestOfCompared);
    insta::assert_snapshot!(found.words.join("\n"), @r"
    best of the 2 that were compared: lr=0.01, val_loss 1.9256 (4 seeds), better than lr=0.3 by 1.019256 (95% 1.019169 to 1.019343, p < 0.001)
    not compared: lr=0.5 has no result; 1 setting stopped early
    same numbers as lr=0.01: lr=0.02
    test: paired t-test over 4 seeds
    edge: `lr` 0.01 is the lowest of 3 values: a lower one may be better
    ");
    for row in results.rows.iter_mut().filter(|row| row.point > 4) {
        (row.status, row.objective) = (PointStatus::Failed, None);
    }
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!((&found.conclusion, found.best()), (&Conclusion::BestOfCompared, None));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    only setting with all steps: lr=0.01, val_loss 1.9256 (4 seeds)
    not compared: lr=0.02, lr=0.3, lr=0.4 and lr=0.5 have no result
    ");
}

#[test]
fn a_verdict_is_data() {
    let found = serde_json::to_value(verdict(&[(0.02, &LUCKY), (0.01, &STEADY)])).unwrap();
    assert_eq!(found["conclusion"], json!({"kind": "undecided", "settings": [0, 1]}));
    let setting = &found["settings"][1];
    assert_eq!((&setting["values"], &setting["state"]), (&json!({"lr": 0.02}), &json!("ranked")));
    assert_eq!(
        (&found["metric"], &found["confidence"], &setting["standing"]),
        (&json!("val_loss"), &json!(0.95), &json!("open"))
    );
    assert_eq!((&found["new_seeds"][0], &setting["sample"]["interval"]), (&json!(5), &Value::Null));
    for field in ["difference", "interval", "p", "adjusted_p", "test", "detectable", "seeds_needed"] {
        assert!(!setting["comparison"][field].is_null(), "{field}: {setting}");
    }
}

#[test]
fn rungs_of_a_ladder_do_not_compete() {
    let points: Vec<(Value, u64, f64)> = [(8, 0.5), (16, 0.0)]
        .iter()
        .flat_map(|(size, more)| STEADY.iter().zip(1..).map(move |(y, seed)| (json!(size), seed, y + more)))
        .collect();
    let (mut record, results) = finished(&points);
    record.is_ladder = true;
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(found.conclusion, Conclusion::Rungs { ladders: vec![record.id.clone()] });
    assert_eq!((found.best(), found.leader()), (None, None));
    assert_eq!(rates(&found), [8.0, 16.0], "in the order of their size");
    assert!(found.settings.iter().all(|setting| setting.comparison.is_none() && setting.label.is_empty()));
    insta::assert_snapshot!(found.words.join("\n"), @"rungs: sizes of the ladder s-12345678 do not compete, so none of them is the best; `runner sweep fit s-12345678` shows their law");
}

#[test]
fn an_edge_is_named_if_every_candidate_is_there() {
    let edge = |points: &[(Value, f64)], drawn: bool| {
        let seeds = |(lr, y): &(Value, f64)| [(lr.clone(), 7, *y), (lr.clone(), 8, y * 1.001)];
        let (mut record, results) = finished(&points.iter().flat_map(seeds).collect::<Vec<_>>());
        record.drawn = if drawn { vec!["lr".to_owned()] } else { Vec::new() };
        match &SweepVerdict::new(&record, &results, true).edges[..] {
            [EdgeOfRange { name, is_highest, values, .. }] => Some((name.clone(), *is_highest, *values)),
            [] => None,
            other => panic!("{other:?}"),
        }
    };
    let lr = |is_highest, values| Some(("lr".to_owned(), is_highest, values));
    let lowest = [(json!(0.1), 1.0), (json!(10_000), f64::NAN), (json!(0.5), 2.0)];
    assert_eq!(edge(&lowest, false), lr(false, 3));
    assert_eq!(edge(&lowest, true), None, "drawn values have no range");
    assert_eq!(edge(&[(json!(1), 3.0), (json!(2.5), 2.0), (json!(4), 1.0), (json!(5), 1.5)], false), None, "inside");
    assert_eq!(edge(&[(json!(1), 3.0), (json!(2), 1.5), (json!(4), 1.0)], false), lr(true, 3));
    assert_eq!(edge(&[(json!(1), 1.0), (json!(2), 2.0)], false), None, "two values have no inside");
    assert_eq!(
        edge(&[(json!(1), 1.0), (json!(2), 2.0), (json!(null), 2.0)], false),
        None,
        "null is beyond every number"
    );
    // The middle value may be as good, so nothing is at the edge.
    let found = verdict(&[(0.1, &[1.0, 1.2]), (0.2, &[1.1, 1.15]), (0.3, &[2.0, 2.3])]);
    assert_eq!((kind(&found).as_str(), found.edges.len()), ("undecided", 0));
    // One seed does not show what may be the best.
    assert_eq!(verdict(&[(0.1, &[1.0]), (0.2, &[1.1]), (0.3, &[2.0])]).edges, []);
}
