//! Interpolates measured times: between two measured sizes, a time is a power of the size.

/// Time at `size`, given (size, time) in any order. Between points the time per unit is interpolated over the logarithms;
/// beyond the largest it stays; below the smallest, the part of the time that does not depend on the size stays.
pub(crate) fn by_size(points: impl Iterator<Item = (f64, f64)>, size: f64) -> Option<f64> {
    let mut points: Vec<(f64, f64)> = points.filter(|p| p.0 > 0.0 && p.1 > 0.0).collect();
    points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (*points.first()?, *points.last()?);
    if size >= last.0 {
        return Some(last.1 / last.0 * size);
    }
    if size <= first.0 {
        let Some(second) = points.get(1) else { return Some(first.1 / first.0 * size) };
        let slope = (second.1 - first.1) / (second.0 - first.0);
        let fixed = first.1 - slope * first.0;
        return Some(if fixed > 0.0 && slope > 0.0 { fixed + slope * size } else { first.1 / first.0 * size });
    }
    let above = points.iter().position(|p| p.0 >= size)?;
    let (a, b) = (points[above.saturating_sub(1)], points[above]);
    Some(between((a.0, a.1 / a.0), (b.0, b.1 / b.0), size) * size)
}

/// A rate at `width`, given (width, rate) ascending; the nearest point's beyond them.
pub(crate) fn by_width(points: &[(f64, f64)], width: f64) -> Option<f64> {
    let (first, last) = (*points.first()?, *points.last()?);
    if width <= first.0 {
        return Some(first.1);
    }
    if width >= last.0 {
        return Some(last.1);
    }
    let above = points.iter().position(|p| p.0 >= width)?;
    Some(between(points[above.saturating_sub(1)], points[above], width))
}

/// Linear over logarithms, or over the values where one is 0.
fn between(a: (f64, f64), b: (f64, f64), x: f64) -> f64 {
    if b.0 <= a.0 {
        return b.1;
    }
    let t = (x.ln() - a.0.ln()) / (b.0.ln() - a.0.ln());
    if a.1 > 0.0 && b.1 > 0.0 { (a.1.ln() * (1.0 - t) + b.1.ln() * t).exp() } else { a.1 * (1.0 - t) + b.1 * t }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_met_and_powers_between_them_exact() {
        let square = |x: f64| 3.0 * x * x;
        let points = [1.0, 4.0, 64.0].map(|x| (x, square(x)));
        for x in [1.0, 2.0, 4.0, 10.0, 64.0] {
            let got = by_size(points.into_iter().rev(), x).expect("inside");
            // Logarithms and back.
            assert!((got - square(x)).abs() < 1e-9 * square(x), "{x}: {got}");
        }
        assert_eq!(by_size(points.into_iter(), 128.0), Some(2.0 * square(64.0)));
        assert_eq!(by_size(std::iter::empty(), 1.0), None);
    }

    #[test]
    fn small_sizes_keep_what_does_not_go_with_size() {
        // 5 + 2·size.
        let points = [(10.0, 25.0), (20.0, 45.0)];
        assert_eq!(by_size(points.into_iter(), 1.0), Some(7.0));
    }

    #[test]
    fn rates_stay_beyond_the_ends() {
        let points = [(64.0, 2.0), (256.0, 8.0)];
        assert_eq!([by_width(&points, 1.0), by_width(&points, 999.0)], [Some(2.0), Some(8.0)]);
        let middle = by_width(&points, 128.0).expect("inside");
        assert!((middle - 4.0).abs() < 1e-12);
    }
}
