//! The outcomes of two runs: losses step by step, where they diverge, final figures.

use std::collections::BTreeMap;

use serde::Serialize;

use super::run_record::{RunFigures, RunRecord};
use runner_record::metrics::TrainLine;

/// Relative difference of losses beyond which they are more than rounding: f32 has seven digits, and sums in another order
/// cost some of them.
pub const TOLERANCE: f64 = 1e-4;

/// Both losses of a step; `None`: not finite. `relative` is |a − b| / max(|a|, |b|).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LossPair {
    pub step: u64,
    pub a: Option<f64>,
    pub b: Option<f64>,
    pub relative: Option<f64>,
}

/// The outcomes of two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutcomeComparison {
    /// The number of steps that both runs have done.
    pub common_steps: u64,
    /// The losses at the powers of ten and at the last common step.
    pub losses: Vec<LossPair>,
    /// The first step whose losses are not the same bits.
    pub first_difference: Option<u64>,
    /// The first whose losses differ by more than `tolerance`, relatively.
    pub first_beyond: Option<u64>,
    pub tolerance: f64,
    pub largest: Option<LossPair>,
    pub a: RunFigures,
    pub b: RunFigures,
    /// True if both ended with the same weights and moments; `None` if a run has not ended.
    pub same_state: Option<bool>,
    pub same_weights: Option<bool>,
    /// True if their checkpoints have the same parts. Otherwise equal weights have different hashes.
    pub same_layout: bool,
}

/// Compares what two runs recorded.
#[must_use]
pub fn compare_outcomes(a: &RunRecord, b: &RunRecord) -> OutcomeComparison {
    let (x, y) = (a.figures(), b.figures());
    let same = |p: &Option<String>, q: &Option<String>| Some(p.as_ref()? == q.as_ref()?);
    let mut out = OutcomeComparison {
        common_steps: 0,
        losses: Vec::new(),
        first_difference: None,
        first_beyond: None,
        tolerance: TOLERANCE,
        largest: None,
        same_state: same(&x.final_hash, &y.final_hash),
        same_layout: a.manifest.parts_of_checkpoints() == b.manifest.parts_of_checkpoints(),
        same_weights: same(&x.weights_hash, &y.weights_hash),
        a: x,
        b: y,
    };
    let mut power = 1;
    let mut last = None;
    let of_b: BTreeMap<u64, &TrainLine> = b.steps().map(|line| (line.step, line)).collect();
    for (p, q) in a.steps().filter_map(|p| Some((p, *of_b.get(&p.step)?))) {
        let relative = p.loss.zip(q.loss).and_then(|(a, b)| relative_difference(a, b));
        let pair = LossPair { step: p.step, a: p.loss, b: q.loss, relative };
        out.common_steps += 1;
        let same = p.loss.map(f64::to_bits) == q.loss.map(f64::to_bits);
        if !same && out.first_difference.is_none() {
            out.first_difference = Some(p.step);
        }
        // A finite number and NaN differ by more than any tolerance.
        if !same && pair.relative.is_none_or(|r| r > TOLERANCE) && out.first_beyond.is_none() {
            out.first_beyond = Some(p.step);
        }
        if pair.relative > out.largest.and_then(|l| l.relative) {
            out.largest = Some(pair);
        }
        last = Some(pair);
        if p.step == power {
            out.losses.push(pair);
        }
        while power <= p.step {
            power = power.saturating_mul(10);
        }
    }
    out.losses.extend(last.filter(|l| out.losses.last().is_none_or(|known| known.step != l.step)));
    out
}

fn relative_difference(a: f64, b: f64) -> Option<f64> {
    let scale = a.abs().max(b.abs());
    Some(if scale > 0.0 { (a - b).abs() / scale } else { 0.0 }).filter(|r| r.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_record::MetricLine;
    use runner_record::catalog::ListedStatus;
    use runner_record::manifest::Manifest;

    fn record(losses: &[f64]) -> RunRecord {
        let line = |(i, &loss): (usize, &f64)| {
            let loss = Some(loss).filter(|loss| loss.is_finite());
            MetricLine::Train(TrainLine { step: i as u64 + 1, tokens: 10, loss, ..TrainLine::default() })
        };
        RunRecord {
            problems: Vec::new(),
            path: "r".into(),
            status: ListedStatus::Done,
            manifest: Manifest::new(&compiled(&experiment()), "e.yaml".into(), vec![], String::new()),
            summary: None,
            lines: losses.iter().enumerate().map(line).collect(),
        }
    }

    #[test]
    fn runs_part_where_the_bits_do_and_where_more_than_rounding_does() {
        let (mut a, mut b) = (vec![4.0; 25], vec![4.0; 23]);
        b[2] = 4.0 + 1e-9;
        b[11] = 4.001;
        (a[15], b[15]) = (f64::NAN, f64::NAN);
        let found = compare_outcomes(&record(&a), &record(&b));
        assert_eq!((found.common_steps, found.first_difference, found.first_beyond), (23, Some(3), Some(12)));
        assert_eq!(found.losses.iter().map(|l| l.step).collect::<Vec<_>>(), [1, 10, 23]);
        assert_eq!(found.largest.unwrap().step, 12);
        let equal = compare_outcomes(&record(&a), &record(&a));
        assert_eq!((equal.first_difference, equal.first_beyond), (None, None));
        assert_eq!(compare_outcomes(&record(&[]), &record(&a)).common_steps, 0);
        let nan = compare_outcomes(&record(&[1.0, f64::NAN]), &record(&[1.0, 2.0]));
        assert_eq!((nan.first_difference, nan.first_beyond), (Some(2), Some(2)));
    }
}
