//! A run's `metrics.jsonl` as the page draws it: curves, the time of a step by phase, evaluations.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::thin::{Series, mean, rounded, spread, thin};
use runner_record::RecordError;
use runner_record::manifest::Manifest;
use runner_record::metrics::{MetricLine, TrainLine};
use runner_record::record_check::for_each_checked_metric;
use runner_record::summary::{Summary, median};
use runner_spec::event::Evaluation;

/// Points of the table that converts a step to tokens and seconds.
const AXIS_POINTS: usize = 400;
/// Buckets of steps in the picture of phases.
const PHASE_BUCKETS: usize = 160;
/// Evaluations that are shown at most; of more, some are left out.
const MAX_EVALS: usize = 1000;

/// All metrics of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Curves {
    /// The number of recorded steps.
    pub(crate) steps: usize,
    pub(crate) last_step: u64,
    pub(crate) loss: Option<Series>,
    pub(crate) lr: Option<Series>,
    pub(crate) grad_norm: Option<Series>,
    pub(crate) tokens_per_second: Option<Series>,
    pub(crate) mfu: Option<Series>,
    pub(crate) axis: Axis,
    pub(crate) phases: Option<PhaseSeries>,
    pub(crate) medians: Medians,
    pub(crate) evals: Vec<Evaluation>,
    pub(crate) final_loss: Option<f64>,
    /// The evaluation with the lowest validation loss among those that the run did itself.
    pub(crate) best_eval: Option<Evaluation>,
    /// Tokens of all recorded steps, and the time in them; and of those that the run did itself.
    pub(crate) tokens: u64,
    pub(crate) own_tokens: u64,
    pub(crate) seconds: f64,
    pub(crate) own_seconds: f64,
}

/// Points that convert a step to tokens and seconds. The page interpolates between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Axis {
    pub(crate) step: Vec<u64>,
    pub(crate) tokens: Vec<u64>,
    /// The time in steps, without evaluations, checkpoints and pauses.
    pub(crate) seconds: Vec<f64>,
}

/// Reads a time in milliseconds.
type ReadTime = fn(&TrainLine) -> Option<f64>;

/// The phases of a step, and what reads the time of each in milliseconds.
const PHASES: [(&str, ReadTime); 6] = [
    ("data", |t| t.data_ms),
    ("forward", |t| t.forward_ms),
    ("backward", |t| t.backward_ms),
    ("optimizer", |t| t.optimizer_ms),
    ("communication", |t| t.comm_ms),
    // The part of the step that belongs to no phase.
    ("other", other_ms),
];

/// A value for each phase of a step.
type PhaseTimes<T> = BTreeMap<&'static str, T>;

/// The mean times of the phases in buckets of steps.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct PhaseSeries {
    /// The last step of each bucket.
    pub(crate) x: Vec<u64>,
    /// Steps in a bucket.
    pub(crate) bucket: usize,
    #[serde(flatten)]
    pub(crate) times: PhaseTimes<Vec<Option<f64>>>,
}

/// Medians over the steps that the run did itself in its newest layout.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Medians {
    pub(crate) step_ms: Option<f64>,
    #[serde(flatten)]
    pub(crate) times: PhaseTimes<Option<f64>>,
    pub(crate) tokens_per_second: Option<f64>,
    pub(crate) mfu: Option<f64>,
}

/// Reads the metrics of the run directory `run`; each curve has at most `max_points` points. Medians leave out the steps that another run or a different
/// layout did.
/// A missing file is empty. Damaged and missing lines are reported in `problems`.
///
/// # Errors
/// If the file cannot be read.
pub(crate) fn read_curves(
    run: &Path,
    manifest: &Manifest,
    summary: Option<&Summary>,
    max_points: usize,
    problems: &mut Vec<String>,
) -> Result<Curves, RecordError> {
    let (mut train, mut evals) = (Vec::new(), Vec::new());
    let problem = for_each_checked_metric(run, manifest, summary, &mut |line| match line {
        MetricLine::Train(line) => train.push(line),
        MetricLine::Eval(line) => evals.push(line),
    })?;
    problems.extend(problem);
    // Lines of an edited file may be in any order; the page's charts need them ascending.
    train.sort_by_key(|t| t.step);
    train.dedup_by_key(|t| t.step);
    evals.sort_by_key(|e| e.step);
    let (inherited_steps, layout_began) = (manifest.inherited_steps(), manifest.newest_layout_began());
    Ok(curves(&train, evals, [inherited_steps, manifest.foreign_steps()], layout_began, max_points))
}

fn curves(
    train: &[TrainLine],
    mut evals: Vec<Evaluation>,
    [inherited_steps, foreign_steps]: [u64; 2],
    layout_began: u64,
    max_points: usize,
) -> Curves {
    let series = |value: fn(&TrainLine) -> Option<f64>| {
        let points: Vec<_> = train.iter().map(|t| (t.step, value(t))).collect();
        thin(&points, max_points)
    };
    let own_evals = evals.iter().filter(|e| foreign_steps == 0 || e.step > foreign_steps);
    let losses = own_evals.filter_map(|e| Some((e, e.val_loss()?)));
    let best_eval = losses.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(eval, _)| eval.clone());
    if evals.len() > MAX_EVALS {
        evals = spread(evals.len(), MAX_EVALS).map(|i| evals[i].clone()).collect();
    }
    let totals = |first: u64| {
        let counted = || train.iter().filter(move |t| t.step > first);
        let tokens = counted().fold(0_u64, |sum, t| sum.saturating_add(t.tokens));
        (tokens, rounded(counted().filter_map(|t| t.step_ms).sum::<f64>() / 1e3))
    };
    let ((tokens, seconds), (own_tokens, own_seconds)) = (totals(0), totals(inherited_steps));
    Curves {
        steps: train.len(),
        last_step: train.last().map_or(0, |t| t.step),
        loss: series(|t| t.loss),
        lr: series(|t| t.lr),
        grad_norm: series(|t| t.grad_norm),
        tokens_per_second: series(|t| t.tokens_per_second),
        mfu: series(|t| t.mfu),
        axis: axis(train),
        phases: phases(train),
        medians: medians(train, layout_began),
        evals,
        final_loss: train.last().and_then(|t| t.loss),
        best_eval,
        tokens,
        own_tokens,
        seconds,
        own_seconds,
    }
}

fn axis(train: &[TrainLine]) -> Axis {
    let mut out = Axis { step: vec![0], tokens: vec![0], seconds: vec![0.0] };
    let stride = train.len().div_ceil(AXIS_POINTS).max(1);
    let (mut tokens, mut ms) = (0u64, 0.0);
    for (i, line) in train.iter().enumerate() {
        tokens = tokens.saturating_add(line.tokens);
        ms += line.step_ms.unwrap_or(0.0);
        if (i + 1) % stride == 0 || i + 1 == train.len() {
            out.step.push(line.step);
            out.tokens.push(tokens);
            out.seconds.push(rounded(ms / 1e3));
        }
    }
    out
}

/// The part of a step that belongs to no phase. With several ranks, communication overlaps the phases of the first rank, so
/// nothing may be left.
fn other_ms(t: &TrainLine) -> Option<f64> {
    let parts = [t.data_ms, t.forward_ms, t.backward_ms, t.optimizer_ms, t.comm_ms];
    Some((t.step_ms? - parts.iter().flatten().sum::<f64>()).max(0.0))
}

fn phases(train: &[TrainLine]) -> Option<PhaseSeries> {
    if !train.iter().any(|t| t.forward_ms.is_some() || t.backward_ms.is_some()) {
        return None;
    }
    let bucket = train.len().div_ceil(PHASE_BUCKETS).max(1);
    let means = |value: fn(&TrainLine) -> Option<f64>| {
        train.chunks(bucket).map(|part| mean(part.iter().filter_map(value)).map(rounded)).collect()
    };
    let times = PHASES.into_iter().map(|(name, value)| (name, means(value))).collect();
    Some(PhaseSeries { x: train.chunks(bucket).map(|part| part[part.len() - 1].step).collect(), bucket, times })
}

/// The medians of the steps after `began`.
fn medians(train: &[TrainLine], began: u64) -> Medians {
    let median_of = |value: fn(&TrainLine) -> Option<f64>| {
        let own = train.iter().filter(|t| t.step > began);
        median(&mut own.filter_map(value).filter(|v| v.is_finite()).collect::<Vec<_>>()).map(rounded)
    };
    Medians {
        step_ms: median_of(|t| t.step_ms),
        times: PHASES.into_iter().map(|(name, value)| (name, median_of(value))).collect(),
        tokens_per_second: median_of(|t| t.tokens_per_second),
        mfu: median_of(|t| t.mfu),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn line(step: u64) -> TrainLine {
        let ms = |v| Some(v);
        TrainLine {
            step,
            loss: Some(1.0 / step as f64),
            tokens: 10,
            step_ms: ms(10.0),
            data_ms: ms(1.0),
            forward_ms: ms(2.0),
            backward_ms: ms(4.0),
            optimizer_ms: ms(1.5),
            ..TrainLine::default()
        }
    }

    #[test]
    fn steps_lie_on_all_axes() {
        let train: Vec<_> = (1..=1000).map(line).collect();
        // Of 1,000 steps the first 700 are another run's.
        let curves = curves(&train, vec![], [700, 700], 700, 100);
        assert_eq!((curves.last_step, curves.tokens, curves.seconds), (1000, 10_000, 10.0));
        assert_eq!((curves.own_tokens, curves.own_seconds), (3_000, 3.0));
        let axis = curves.axis;
        assert!(axis.step.len() <= AXIS_POINTS + 2 && axis.step.len() == axis.tokens.len());
        let last = axis.step.len() - 1;
        assert_eq!((axis.step[0], axis.tokens[0], axis.seconds[0]), (0, 0, 0.0));
        assert_eq!((axis.step[last], axis.tokens[last], axis.seconds[last]), (1000, 10_000, 10.0));
        assert_eq!(curves.loss.unwrap().thinned_from, Some(1000));
        assert_eq!((curves.mfu, curves.lr), (None, None));
    }

    #[test]
    fn phases_add_up_to_the_step() {
        let train: Vec<_> = (1..=1000).map(line).collect();
        let phases = phases(&train).unwrap();
        assert_eq!((phases.bucket, phases.x.len(), *phases.x.last().unwrap()), (7, 143, 1000));
        assert_eq!(
            (phases.times["forward"][0], phases.times["other"][0], phases.times["communication"][0]),
            (Some(2.0), Some(1.5), None)
        );
        let mut busy = line(1);
        busy.comm_ms = Some(5.0);
        assert_eq!(other_ms(&busy), Some(0.0), "never negative");
        assert_eq!(super::phases(&[]), None);
    }

    #[test]
    fn medians_leave_out_another_runs_steps() {
        let mut train: Vec<_> = (1..=4).map(line).collect();
        train[0].step_ms = Some(1e6);
        train[1].step_ms = Some(1e6);
        assert_eq!(medians(&train, 2).step_ms, Some(10.0));
    }

    #[test]
    fn a_torn_file_and_disorder_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let mut text = String::new();
        for step in [2, 1, 2] {
            writeln!(text, "{{\"kind\":\"train\",\"step\":{step},\"loss\":1.5,\"tokens\":1}}").unwrap();
        }
        text.push_str(
            "{\"kind\":\"eval\",\"step\":2,\"val_loss\":2.0}\n{\"kind\":\"eval\",\"step\":1,\"val_loss\":1.0}\n{\"ki",
        );
        std::fs::write(&path, text).unwrap();
        let mut problems = Vec::new();
        let manifest = Manifest { steps: 2, ..Manifest::default() };
        let curves = read_curves(dir.path(), &manifest, None, 100, &mut problems).unwrap();
        let torn = format!("{}: 1 torn or damaged line left out", path.display());
        assert_eq!(problems, [format!("{torn}; 1 line of steps that an earlier line records")]);
        assert_eq!(curves.loss.unwrap().x, [1, 2]);
        assert_eq!(curves.best_eval.unwrap().step, 1);
        assert_eq!(read_curves(&dir.path().join("none"), &manifest, None, 100, &mut problems).unwrap().steps, 0);
    }
}
