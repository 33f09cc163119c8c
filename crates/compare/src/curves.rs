//! Curves of runs: a metric over steps or tokens, smoothed.

use std::borrow::Cow;

use super::run_record::RunRecord;
use runner_record::MetricLine;
use runner_spec::format::json_value;
use runner_spec::measure::Measure;

/// The metric of a curve, by its name in `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurveMetric(Cow<'static, str>);

impl CurveMetric {
    /// The metrics of steps that have curves.
    const OF_STEPS: [&str; 5] = ["loss", "lr", "grad_norm", "tokens_per_second", "mfu"];

    /// The metrics that every run may have. A task adds its scores, such as `hellaswag_acc_norm`.
    #[must_use]
    pub fn names() -> Vec<Cow<'static, str>> {
        let evaluated = Measure::all_fixed().filter(|measure| measure.is_evaluated() && measure.is_comparable());
        Self::OF_STEPS.map(Cow::from).into_iter().chain(evaluated.map(|measure| measure.key())).collect()
    }

    /// The metric with this name.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let of_task = Measure::of_key(name).filter(|measure| measure.task().is_some() && measure.is_comparable());
        let known = Self::names().into_iter().find(|known| known == name);
        known.or_else(|| Some(of_task?.key())).map(Self)
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

runner_record::named_enum! {
    /// The horizontal axis of a curve.
    pub enum CurveAxis {
        Step = "step",
        Tokens = "tokens",
    }
}

/// The curve of one run, x ascending. A NaN in y is a gap.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    pub label: String,
    pub points: Vec<(f64, f64)>,
}

/// The points of the curve of `metric` in `record`. Each value is the mean of the last `smooth` values.
#[must_use]
pub fn curve_points(record: &RunRecord, metric: &CurveMetric, axis: CurveAxis, smooth: usize) -> Vec<(f64, f64)> {
    let mut tokens = 0_u64;
    let mut points = Vec::new();
    for line in &record.lines {
        if let MetricLine::Train(train) = line {
            tokens = tokens.saturating_add(train.tokens);
        }
        // A line has the metrics of its kind; one that is not finite is `null`.
        if let Some(value) = json_value(line).get(metric.name()) {
            let x = match axis {
                CurveAxis::Step => line.step(),
                CurveAxis::Tokens => tokens,
            };
            points.push((x as f64, value.as_f64().unwrap_or(f64::NAN)));
        }
    }
    smoothed(points, smooth)
}

/// Replaces each y by the mean of the last `window` values. A value that is not finite starts a new window.
fn smoothed(mut points: Vec<(f64, f64)>, window: usize) -> Vec<(f64, f64)> {
    if window < 2 {
        return points;
    }
    let mut last = std::collections::VecDeque::with_capacity(window.min(points.len()));
    for (_, y) in &mut points {
        if !y.is_finite() {
            last.clear();
            continue;
        }
        if last.len() == window {
            last.pop_front();
        }
        last.push_back(*y);
        *y = last.iter().sum::<f64>() / last.len() as f64;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_of_the_last_ones() {
        let y = |points: Vec<(f64, f64)>| points.into_iter().map(|p| p.1).collect::<Vec<_>>();
        let points = vec![(1.0, 2.0), (2.0, 4.0), (3.0, 6.0), (4.0, f64::NAN), (5.0, 1.0)];
        assert_eq!(y(smoothed(points.clone(), 2))[..3], [2.0, 3.0, 5.0]);
        assert_eq!(y(smoothed(points.clone(), 2))[4], 1.0, "nothing goes over a gap");
        assert_eq!(y(smoothed(points, 1))[1], 4.0);
    }
}
