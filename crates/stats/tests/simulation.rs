//! What the tests promise holds for simulated seeds: how often equal settings are called different, and how often different ones are.

#![allow(clippy::unwrap_used)]

use runner_spec::philox::Philox;
use runner_stats::{PairedComparison, Sample, holm, holm_of_leader, paired_t_power};

const TRIALS: u64 = 1000;
const SEEDS: usize = 8;

/// Results of two settings over `SEEDS` seeds, the second worse by `difference`. A seed moves both by ten times the noise of their
/// difference, as the order of the data does.
fn results(stream: Philox, trial: u64, difference: f64) -> [Vec<f64>; 2] {
    let draws: Vec<[f64; 4]> = (0..SEEDS as u64).map(|seed| stream.normals(trial * SEEDS as u64 + seed)).collect();
    let noise = 1.0 / std::f64::consts::SQRT_2;
    [0, 1].map(|setting| {
        draws.iter().map(|d| 2.0 + 10.0 * d[0] + noise * d[setting + 1] + difference * setting as f64).collect()
    })
}

/// The share of the trials in which `is_shown` is true.
fn share(is_shown: impl Fn(u64) -> bool) -> f64 {
    (0..TRIALS).filter(|trial| is_shown(*trial)).count() as f64 / TRIALS as f64
}

/// Three and a half standard errors of a share of `TRIALS` trials.
fn slack(share: f64) -> f64 {
    3.5 * (share * (1.0 - share) / TRIALS as f64).sqrt()
}

#[test]
fn equal_settings_are_called_different_in_five_of_a_hundred_comparisons() {
    let stream = Philox::new(36, "equal settings");
    let compare = |trial| {
        let [a, b] = results(stream, trial, 0.0);
        PairedComparison::new(&a, &b, 0.95).unwrap()
    };
    let by_t = share(|trial| compare(trial).t.unwrap().p < 0.05);
    assert!((by_t - 0.05).abs() < slack(0.05), "{by_t}");
    let by_permutation = share(|trial| compare(trial).permutation.p < 0.05);
    // Of the p-values k/128 the largest below 0.05 is 6/128.
    assert!((by_permutation - 6.0 / 128.0).abs() < slack(6.0 / 128.0), "{by_permutation}");
    let covered = share(|trial| compare(trial).interval.unwrap().contains(0.0));
    assert!((covered - 0.95).abs() < slack(0.05), "{covered}");
}

#[test]
fn intervals_of_means_contain_the_mean_in_ninety_five_of_a_hundred_samples() {
    let stream = Philox::new(37, "means");
    let covered = share(|trial| {
        let values: Vec<f64> = stream.normals(trial).into_iter().map(|x| 5.0 + x).collect();
        Sample::new(&values, 0.95).unwrap().interval.unwrap().contains(5.0)
    });
    assert!((covered - 0.95).abs() < slack(0.05), "{covered}");
}

#[test]
fn different_settings_are_shown_as_often_as_computed() {
    let stream = Philox::new(38, "different settings");
    for difference in [0.5, 1.0, 1.5] {
        let shown = share(|trial| {
            let [a, b] = results(stream, trial, difference);
            PairedComparison::new(&a, &b, 0.95).unwrap().t.unwrap().p < 0.05
        });
        let power = paired_t_power(SEEDS, 1.0, difference, 0.05);
        assert!((shown - power).abs() < slack(power), "{difference}: {shown} {power}");
    }
}

#[test]
fn a_family_of_comparisons_claims_a_difference_in_at_most_five_of_a_hundred() {
    let stream = Philox::new(39, "families");
    let claims = share(|trial| {
        // Ten independent comparisons.
        let ps: Vec<f64> = (0..10)
            .map(|i| {
                let [a, b] = results(stream, trial * 10 + i, 0.0);
                PairedComparison::new(&a, &b, 0.95).unwrap().t.unwrap().p
            })
            .collect();
        holm(&ps).iter().any(|p| *p < 0.05)
    });
    assert!(claims < 0.05 + slack(0.05), "{claims}");
}

/// The settings of a family whose mean is `means[i]` and whose noise is `noise[i]`: the index of the one with the smallest mean result, and
/// those that are shown to be worse than it.
fn shown_worse(stream: Philox, trial: u64, means: &[f64], noise: &[f64]) -> (usize, Vec<usize>) {
    let results: Vec<Vec<f64>> = (0..means.len())
        .map(|setting| {
            let draw =
                |seed: u64| stream.normals((trial * means.len() as u64 + setting as u64) * SEEDS as u64 + seed)[0];
            (0..SEEDS as u64).map(|seed| means[setting] + noise[setting] * draw(seed)).collect()
        })
        .collect();
    let mean = |setting: usize| results[setting].iter().sum::<f64>();
    let leader = (0..means.len()).min_by(|&a, &b| mean(a).total_cmp(&mean(b))).unwrap();
    let others: Vec<usize> = (0..means.len()).filter(|&setting| setting != leader).collect();
    let p = |&other: &usize| PairedComparison::new(&results[other], &results[leader], 0.95).unwrap().t.unwrap().p;
    let adjusted = holm_of_leader(&others.iter().map(p).collect::<Vec<f64>>());
    (leader, others.into_iter().zip(adjusted).filter(|(_, p)| *p < 0.05).map(|(other, _)| other).collect())
}

#[test]
fn a_sweep_over_equal_settings_claims_a_difference_in_at_most_five_of_a_hundred_cases() {
    let stream = Philox::new(40, "sweeps");
    for (means, noise) in [
        (vec![0.0; 3], vec![1.0; 3]),
        (vec![0.0; 10], vec![1.0; 10]),
        (vec![0.0, 0.0, 9.0, 9.0, 9.0], vec![1.0; 5]),
        // The best setting among noisy ones that are worse.
        (vec![0.0, 1.0, 1.0, 1.0, 1.0], vec![0.2, 3.0, 3.0, 3.0, 3.0]),
        (vec![0.0, 0.3, 0.6, 0.9], vec![1.0; 4]),
    ] {
        let wrong = share(|trial| {
            let (leader, worse) = shown_worse(stream, trial, &means, &noise);
            worse.iter().any(|&other| means[other] <= means[leader])
        });
        assert!(wrong < 0.05 + slack(0.05), "{means:?}: {wrong}");
    }
    // Of two settings it is as often as of a single comparison.
    let wrong = share(|trial| !shown_worse(stream, trial, &[0.0; 2], &[1.0; 2]).1.is_empty());
    assert!((wrong - 0.05).abs() < slack(0.05), "{wrong}");
}
