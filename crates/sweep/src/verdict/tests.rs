use serde_json::{Value, json};

use super::*;
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

#[test]
fn the_best_setting_is_that_of_the_best_mean_not_of_the_luckiest_seed() {
    let found = verdict(&[(0.02, &LUCKY), (0.01, &STEADY)]);
    assert_eq!(rates(&found), [0.01, 0.02]);
    assert_eq!(found.settings[0].points, [5, 6, 7, 8]);
    let comparison = found.settings[1].comparison.as_ref().unwrap();
    // Four seeds have a p of 0.125 at least by permutation, so the t-test decides.
    assert_eq!((comparison.test, comparison.paired.permutation.smallest_p), (Some(DecidingTest::T), 0.125));
    assert_eq!(comparison.adjusted_p, comparison.paired.t.unwrap().p, "two settings are one comparison");
    assert_eq!((comparison.is_worse, &found.conclusion), (false, &Conclusion::WithinNoise { settings: vec![0, 1] }));
    assert_eq!(found.best(), None);
    let noise = found.noise.unwrap();
    assert_eq!((noise.rival, noise.seeds), (1, 4));
    assert!(noise.smallest_shown > noise.observed && noise.seeds_needed.unwrap() > 4, "{noise:?}");
    insta::assert_snapshot!(found.words.join("\n"), @r"
    within noise: lr=0.01 leads with val_loss 1.9256 ± 0.0087 (4 seeds), but lr=0.02 may be as good: worse by 0.11 (-0.03 to 0.25), p = 0.093 (paired t-test, for normal differences; the permutation test cannot give a p below 0.125 with 4 seeds)
    noise: 4 seeds show differences of 0.19 or more, with a probability of 80%; if the true difference is 0.11, 8 new seeds show it with a probability of 80%
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
    best: lr=0.01, val_loss 1.9256 ± 0.0087 (4 seeds), better than lr=0.02 by 0.105 (0.084 to 0.126), p < 0.001 (paired t-test, for normal differences; the permutation test cannot give a p below 0.375 with 4 seeds and 3 pairs)
    noise: 4 seeds show differences of 0.040 or more, with a probability of 80%
    edge: the leading `lr` is 0.01, the lowest of 3 values: a lower one may be better
    ");
}

#[test]
fn with_many_seeds_the_permutation_test_decides() {
    let a: Vec<f64> = (0..8).map(|i| 2.0 + 0.01 * f64::from(i % 3)).collect();
    let b: Vec<f64> = a.iter().enumerate().map(|(i, y)| y + 0.05 + 0.001 * i as f64).collect();
    let found = verdict(&[(0.1, &a), (0.2, &b)]);
    let comparison = found.settings[1].comparison.as_ref().unwrap();
    assert_eq!((comparison.test, comparison.adjusted_p), (Some(DecidingTest::Permutation), 2.0 / 256.0));
    assert_eq!(found.conclusion, Conclusion::Best);
    assert!(found.words[0].ends_with("p = 0.0078 (exact permutation test)"), "{:?}", found.words);
}

#[test]
fn equal_numbers_are_a_tie_and_one_seed_shows_nothing() {
    let far = STEADY.map(|y| y + 1.0 + y / 100.0);
    let found = verdict(&[(0.01, &STEADY), (0.02, &STEADY), (0.3, &far)]);
    assert_eq!(found.conclusion, Conclusion::Tie { settings: vec![0, 1] });
    assert_eq!((found.best(), found.noise), (None, None));
    insta::assert_snapshot!(found.words.join("\n"), @r"
    tie: lr=0.01 and lr=0.02 have the same val_loss with every seed, 1.9256 ± 0.0087 (4 seeds); the other setting is worse
    edge: the leading `lr` is 0.01, the lowest of 3 values: a lower one may be better
    ");
    let found = verdict(&[(0.01, &[1.5]), (0.02, &[1.5]), (0.3, &[2.5])]);
    assert_eq!(found.conclusion, Conclusion::OneSeed { tied: vec![1] });
    insta::assert_snapshot!(found.words.join("\n"), @r"
    tie: point 1 (lr=0.01) and point 2 (lr=0.02) have the same val_loss, 1.5000 (1 seed)
    edge: the leading `lr` is 0.01, the lowest of 3 values: a lower one may be better
    ");
    let found = verdict(&[(0.02, &[1.6]), (0.01, &[1.5])]);
    assert_eq!((found.conclusion.clone(), found.best()), (Conclusion::OneSeed { tied: Vec::new() }, None));
    insta::assert_snapshot!(found.words.join("\n"), @"lowest val_loss: point 2 (lr=0.01), 1.5000 (1 seed); one seed does not show whether it is better than the others: add `seeds: 3`");
    let found = verdict(&[(0.01, &STEADY)]);
    assert_eq!(found.conclusion, Conclusion::OneSetting);
    insta::assert_snapshot!(found.words.join("\n"), @"result: val_loss 1.9256 ± 0.0087 (4 seeds)");
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
    assert!(found.words[0].ends_with("; 1 setting diverged"), "{:?}", found.words);
}

#[test]
fn results_that_do_not_compare_have_no_leader() {
    let (record, mut results) =
        finished(&[(json!(0.1), 1, 1.0), (json!(0.1), 2, 1.1), (json!(0.2), 1, 1.02), (json!(0.2), 2, 1.09)]);
    assert_eq!(SweepVerdict::new(&record, &results, true).noise.unwrap().seeds, 2);
    results.incomparable = Some("the tokenizers differ".to_owned());
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!(found.words, ["best: none, because val_loss is not comparable: the tokenizers differ"]);
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
        (&Conclusion::BestOfFinished, None, 2)
    );
    assert!(found.words[0].starts_with("only setting with all steps: lr=0.1, val_loss 2.5 "), "{:?}", found.words);
    assert!(found.words[0].ends_with("; 2 settings stopped early, without a test"), "{:?}", found.words);
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
    assert!(matches!(found.conclusion, Conclusion::OneSeed { .. }), "one seed is measured of both: {found:?}");
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
    assert!(line.contains(" over 3 common seeds, p < 0.001 "), "{line}");
    // The same groups, with the better one in more seeds.
    let found = verdict(&[(0.1, &worse[..3]), (0.2, &[2.40, 2.501, 2.449, 2.9, 2.9])]);
    assert_eq!((rates(&found), &found.conclusion), (vec![0.2, 0.1], &Conclusion::Best));
    // Noise: what is not shown is not reversed either.
    let found = verdict(&[(0.1, &worse), (0.2, &[2.40, 2.601, 2.549])]);
    assert_eq!(rates(&found), [0.2, 0.1]);
    let line = &found.words[0];
    assert!(
        line.starts_with("within noise: lr=0.2 leads ") && line.contains("but lr=0.1 may be as good: worse by "),
        "{line}"
    );
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
    assert!(found.settings[third].comparison.as_ref().unwrap().paired.difference < 0.0);
    assert!(line.contains("lr=0.1 leads") && !line.contains("lr=0.3 is worse"), "{line}");
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
    assert_eq!(found.conclusion, Conclusion::Tie { settings: vec![0, 1] });
    let ending = "; 1 setting is worse; 1 setting stopped early, without a test; lr=0.5 has no result";
    assert!(found.words[0].ends_with(ending), "{:?}", found.words);
    for row in results.rows.iter_mut().filter(|row| row.point > 4) {
        (row.status, row.objective) = (PointStatus::Failed, None);
    }
    let found = SweepVerdict::new(&record, &results, true);
    assert_eq!((&found.conclusion, found.best()), (&Conclusion::BestOfFinished, None));
    let ending = "; lr=0.02, lr=0.3, lr=0.4 and lr=0.5 have no result";
    let line = &found.words[0];
    assert!(line.starts_with("only setting with all steps: lr=0.01, ") && line.ends_with(ending), "{line}");
}

#[test]
fn a_verdict_is_data() {
    let found = serde_json::to_value(verdict(&[(0.02, &LUCKY), (0.01, &STEADY)])).unwrap();
    assert_eq!(found["conclusion"], json!({"kind": "within_noise", "settings": [0, 1]}));
    let setting = &found["settings"][1];
    assert_eq!((&setting["values"], &setting["state"]), (&json!({"lr": 0.02}), &json!("ranked")));
    for field in ["difference", "interval", "permutation", "t", "adjusted_p", "is_worse", "test"] {
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
fn the_best_value_may_be_at_the_edge_of_its_range() {
    let edge = |points: &[(Value, f64)]| {
        let points: Vec<_> = points.iter().map(|(lr, y)| (lr.clone(), 7, *y)).collect();
        let (record, results) = finished(&points);
        match &SweepVerdict::new(&record, &results, true).edges[..] {
            [EdgeOfRange { name, is_highest, values, .. }] => Some((name.clone(), *is_highest, *values)),
            [] => None,
            other => panic!("{other:?}"),
        }
    };
    let lr = |is_highest, values| Some(("lr".to_owned(), is_highest, values));
    assert_eq!(edge(&[(json!(0.1), 1.0), (json!(10_000), f64::NAN), (json!(0.5), 2.0)]), lr(false, 3));
    assert_eq!(edge(&[(json!(1), 3.0), (json!(2.5), 2.0), (json!(4), 1.0), (json!(5), 1.5)]), None, "inside");
    assert_eq!(edge(&[(json!(1), 3.0), (json!(2), 1.5), (json!(4), 1.0)]), lr(true, 3));
    assert_eq!(edge(&[(json!(1), 1.0), (json!(2), 2.0)]), None, "two values have no inside");
    assert_eq!(edge(&[(json!(1), 1.0), (json!(2), 2.0), (json!(null), 2.0)]), None, "null is beyond every number");
}
