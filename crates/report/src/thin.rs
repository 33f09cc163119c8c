//! Long series are shortened for pages and pictures. The lowest and the highest value of each bucket stay, so that no spike is lost.

use serde::Serialize;

/// A series as it is drawn.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Series {
    /// Steps, ascending.
    pub(crate) x: Vec<u64>,
    /// `None` for values that are not finite or were not measured.
    pub(crate) y: Vec<Option<f64>>,
    /// The means of the buckets of a shortened series. The page smooths these, because extremes alone would dominate the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean: Option<BucketMeans>,
    /// The number of points before the series was shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thinned_from: Option<usize>,
}

/// The mean of each bucket, at the step in its middle.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct BucketMeans {
    pub(crate) x: Vec<u64>,
    pub(crate) y: Vec<Option<f64>>,
}

/// At most `max_points` of `points` (step, value): the first, the last, and of each bucket in between the lowest and the highest.
/// `None` if no point has a value.
pub(crate) fn thin(points: &[(u64, Option<f64>)], max_points: usize) -> Option<Series> {
    let finite = |value: Option<f64>| value.filter(|v| v.is_finite());
    if !points.iter().any(|p| finite(p.1).is_some()) {
        return None;
    }
    let mut out = Series::default();
    let mut push = |(step, value): (u64, Option<f64>)| {
        out.x.push(step);
        out.y.push(finite(value).map(rounded));
    };
    let max_points = max_points.max(4);
    if points.len() <= max_points {
        points.iter().copied().for_each(push);
        return Some(out);
    }
    let inner = &points[1..points.len() - 1];
    let buckets = (max_points - 2) / 2;
    let mut means = BucketMeans::default();
    push(points[0]);
    for bucket in 0..buckets {
        let part = &inner[inner.len() * bucket / buckets..inner.len() * (bucket + 1) / buckets];
        extremes(part).for_each(&mut push);
        if let Some(middle) = part.get(part.len() / 2) {
            means.x.push(middle.0);
            means.y.push(mean(part.iter().filter_map(|p| finite(p.1))).map(rounded));
        }
    }
    push(points[points.len() - 1]);
    out.mean = Some(means);
    out.thinned_from = Some(points.len());
    Some(out)
}

/// The points with the lowest and the highest value, in order; the first point if none has a value.
fn extremes(part: &[(u64, Option<f64>)]) -> impl Iterator<Item = (u64, Option<f64>)> + '_ {
    let values = || part.iter().enumerate().filter_map(|(i, p)| p.1.filter(|v| v.is_finite()).map(|v| (i, v)));
    let lowest = values().min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i);
    let highest = values().max_by(|a, b| a.1.total_cmp(&b.1)).map_or(0, |(i, _)| i);
    let indices = if lowest == highest { vec![lowest] } else { vec![lowest.min(highest), lowest.max(highest)] };
    indices.into_iter().filter_map(|i| part.get(i).copied())
}

/// `few` of the indices below `n`, evenly spread, the first and the last among them.
pub(crate) fn spread(n: usize, few: usize) -> impl Iterator<Item = usize> {
    (0..few).map(move |i| i * (n - 1) / (few - 1))
}

/// The mean of `values`; `None` if there are none.
pub(crate) fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0u32), |(sum, n), v| (sum + v, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}

/// `value` rounded to six significant digits: more than a screen shows, and half the bytes.
pub(crate) fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(n: u64, value: impl Fn(u64) -> Option<f64>) -> Vec<(u64, Option<f64>)> {
        (1..=n).map(|step| (step, value(step))).collect()
    }

    #[test]
    fn short_series_stay_as_they_are() {
        let series = thin(&points(10, |s| Some(s as f64)), 10).unwrap();
        assert_eq!((series.x.len(), series.thinned_from, series.mean), (10, None, None));
    }

    #[test]
    fn ends_and_extremes_stay() {
        let spike = |s: u64| match s {
            777 => Some(1e6),
            31_234 => Some(-5.0),
            s => Some((s as f64 * 0.01).sin() + 2.0),
        };
        let all = points(100_000, spike);
        let series = thin(&all, 2000).unwrap();
        assert!(series.x.len() <= 2000 && series.x.len() > 1900, "{}", series.x.len());
        assert_eq!(series.thinned_from, Some(100_000));
        assert_eq!((series.x[0], *series.x.last().unwrap()), (1, 100_000));
        assert!(series.x.windows(2).all(|w| w[0] < w[1]), "steps ascend");
        let at = |step| series.y[series.x.iter().position(|&x| x == step).unwrap()];
        assert_eq!((at(777), at(31_234)), (Some(1e6), Some(-5.0)));
        let means = series.mean.unwrap();
        assert_eq!(means.x.len(), 999);
        assert!(means.y.iter().skip(10).all(|y| y.is_some_and(|y| (0.0..=3.0).contains(&y))));
    }

    #[test]
    fn nan_leaves_a_gap() {
        let series = thin(&points(3, |s| (s != 2).then_some(f64::from(s as u32))), 10).unwrap();
        assert_eq!(series.y, [Some(1.0), None, Some(3.0)]);
        let infinite = thin(&[(1, Some(f64::INFINITY)), (2, Some(1.0))], 10).unwrap();
        assert_eq!(infinite.y, [None, Some(1.0)]);
        assert_eq!(thin(&points(5, |_| None), 10), None);
        assert_eq!(thin(&[], 10), None);
        // All of the middle is missing.
        let long = thin(&points(1000, |s| (s == 1).then_some(1.0)), 10).unwrap();
        assert!(long.x.len() <= 10 && long.y[0] == Some(1.0) && long.y[1].is_none());
    }

    #[test]
    fn numbers_are_shown_with_six_digits() {
        assert_eq!([rounded(1.0 / 3.0), rounded(123_456_789.0), rounded(0.0)], [0.333_333, 123_457_000.0, 0.0]);
    }
}
