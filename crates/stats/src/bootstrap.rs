//! The bootstrap (Efron 1979, "Bootstrap methods: another look at the jackknife"): intervals from samples drawn again with replacement.

use runner_spec::philox::Philox;

use crate::sample::Interval;

/// The indices of the resample `resample` of `n` values: n draws from 0 to n − 1, with replacement. They depend on nothing but the
/// arguments.
pub fn resample_indices(stream: Philox, resample: u32, n: usize) -> impl Iterator<Item = usize> {
    (0..n).map(move |i| {
        let words = stream.block([resample, (i / 4) as u32, 0, 0]);
        // The share of an index differs from 1/n by at most 2^-32.
        ((u64::from(words[i % 4]) * n as u64) >> 32) as usize
    })
}

/// The percentile interval of a statistic of `n` values, with the probability `confidence`: `statistic` is computed for the indices of each
/// of `resamples` resamples. Those for which it is `None` or not finite are left out. `None` if more than half are.
pub fn bootstrap_interval(
    stream: Philox,
    n: usize,
    resamples: u32,
    confidence: f64,
    statistic: &dyn Fn(&[usize]) -> Option<f64>,
) -> Option<Interval> {
    let of_resample = |resample: u32| statistic(&resample_indices(stream, resample, n).collect::<Vec<_>>());
    let mut found: Vec<f64> = (0..resamples).filter_map(of_resample).filter(|value| value.is_finite()).collect();
    if found.is_empty() || found.len() * 2 < resamples as usize {
        return None;
    }
    found.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Some(Interval { low: quantile(&found, tail), high: quantile(&found, 1.0 - tail) })
}

/// The quantile of sorted values, interpolated between the two next to it, as NumPy does by default.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let position = share.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, high) = (position.floor() as usize, position.ceil() as usize);
    sorted[low] + (position - position.floor()) * (sorted[high] - sorted[low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_every_index_equally_often_and_repeatably() {
        let stream = Philox::new(1, "test");
        let mut counts = [0_u32; 5];
        (0..10_000).flat_map(|resample| resample_indices(stream, resample, 5)).for_each(|i| counts[i] += 1);
        // 10,000 expected; five standard errors of a binomial count are 447.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 450), "{counts:?}");
        assert!(resample_indices(stream, 7, 5).eq(resample_indices(stream, 7, 5)));
        assert!(!resample_indices(stream, 7, 50).eq(resample_indices(stream, 8, 50)));
    }

    #[test]
    fn the_interval_of_a_mean_is_about_that_of_the_normal() {
        let stream = Philox::new(2, "test");
        let values: Vec<f64> = (0..100).flat_map(|i| stream.normals(i)).collect();
        let mean = |indices: &[usize]| Some(indices.iter().map(|&i| values[i]).sum::<f64>() / indices.len() as f64);
        let found = bootstrap_interval(Philox::new(3, "test"), values.len(), 2000, 0.95, &mean).unwrap();
        // 1.96 / √400 = 0.098; the bootstrap of 2,000 resamples is within a tenth.
        assert!((found.half_width() - 0.098).abs() < 0.01, "{found:?}");
        assert_eq!(bootstrap_interval(stream, 3, 10, 0.95, &|_| None), None);
        assert_eq!(quantile(&[1.0, 2.0, 4.0], 0.75), 3.0);
    }
}
