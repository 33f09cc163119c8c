//! A run's `metrics.jsonl` as the page draws it: curves, the time of a step by phase, evaluations.

use std::path::Path;

use serde::Serialize;

use super::thin::{Series, mean, short, thin};
use runner_store::StoreError;
use runner_store::metrics::{EvalLine, MetricLine, TrainLine, for_each_metric};
use runner_store::summary::median;

/// Points of the table that says how many tokens and seconds a step is at.
const AXIS: usize = 400;
/// Columns of the picture of phases.
const PHASES: usize = 160;
/// Evaluations beyond this many are thinned to it.
const EVALS: usize = 1000;

/// All of a run's metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Curves {
    /// Steps recorded, the last of them, and how many training lines could not be used.
    pub steps: usize,
    pub last_step: u64,
    pub loss: Option<Series>,
    pub lr: Option<Series>,
    pub grad_norm: Option<Series>,
    pub tokens_per_second: Option<Series>,
    pub mfu: Option<Series>,
    pub axis: Axis,
    pub phases: Option<Phases>,
    pub medians: Medians,
    pub evals: Vec<EvalLine>,
    /// The last training loss, and the evaluation with the lowest validation loss.
    pub final_loss: Option<f64>,
    pub best_eval: Option<EvalLine>,
    pub tokens: u64,
    pub seconds: f64,
}

/// Where a step lies on the other axes; between these points it is a straight line.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Axis {
    pub step: Vec<u64>,
    pub tokens: Vec<u64>,
    /// In steps: without evaluations, checkpoints and pauses.
    pub seconds: Vec<f64>,
}

/// The mean time of a step by phase, in buckets of steps; milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Phases {
    /// The last step of each bucket, and how many steps one holds.
    pub x: Vec<u64>,
    pub bucket: usize,
    pub data: Vec<Option<f64>>,
    pub forward: Vec<Option<f64>>,
    pub backward: Vec<Option<f64>>,
    pub optimizer: Vec<Option<f64>>,
    pub communication: Vec<Option<f64>>,
    /// What is left of the whole step.
    pub other: Vec<Option<f64>>,
}

/// Medians over the steps that the run did itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Medians {
    pub step_ms: Option<f64>,
    pub data: Option<f64>,
    pub forward: Option<f64>,
    pub backward: Option<f64>,
    pub optimizer: Option<f64>,
    pub communication: Option<f64>,
    pub other: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub mfu: Option<f64>,
}

/// Reads `metrics`; each curve has at most `most` points. Steps up to `skip` were another run's: medians leave them out.
///
/// # Errors
/// If the file cannot be read; one that is not there is empty.
pub fn read(metrics: &Path, skip: u64, most: usize) -> Result<Curves, StoreError> {
    let (mut train, mut evals) = (Vec::new(), Vec::new());
    for_each_metric(metrics, &mut |line| match line {
        MetricLine::Train(line) => train.push(line),
        MetricLine::Eval(line) => evals.push(line),
    })?;
    // Lines of a file that was tampered with may be in any order; the page's charts need them ascending.
    train.sort_by_key(|t| t.step);
    train.dedup_by_key(|t| t.step);
    evals.sort_by_key(|e| e.step);
    Ok(curves(&train, evals, skip, most))
}

fn curves(train: &[TrainLine], mut evals: Vec<EvalLine>, skip: u64, most: usize) -> Curves {
    let series = |value: fn(&TrainLine) -> Option<f64>| {
        let points: Vec<_> = train.iter().map(|t| (t.step, value(t))).collect();
        thin(&points, most)
    };
    let best = evals.iter().filter(|e| e.val_loss.is_some_and(f64::is_finite));
    let best_eval = best.min_by(|a, b| a.val_loss.unwrap_or(0.0).total_cmp(&b.val_loss.unwrap_or(0.0))).cloned();
    if evals.len() > EVALS {
        let n = evals.len();
        evals = (0..EVALS).map(|i| evals[i * (n - 1) / (EVALS - 1)].clone()).collect();
    }
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
        medians: medians(train, skip),
        evals,
        final_loss: train.last().and_then(|t| t.loss),
        best_eval,
        tokens: train.iter().fold(0, |sum, t| sum.saturating_add(t.tokens)),
        seconds: short(train.iter().filter_map(|t| t.step_ms).sum::<f64>() / 1e3),
    }
}

fn axis(train: &[TrainLine]) -> Axis {
    let mut out = Axis { step: vec![0], tokens: vec![0], seconds: vec![0.0] };
    let stride = train.len().div_ceil(AXIS).max(1);
    let (mut tokens, mut ms) = (0u64, 0.0);
    for (i, line) in train.iter().enumerate() {
        tokens = tokens.saturating_add(line.tokens);
        ms += line.step_ms.unwrap_or(0.0);
        if (i + 1) % stride == 0 || i + 1 == train.len() {
            out.step.push(line.step);
            out.tokens.push(tokens);
            out.seconds.push(short(ms / 1e3));
        }
    }
    out
}

/// What a step's parts leave of it. In runs with several ranks communication overlaps the first rank's phases, so there may
/// be nothing left.
fn other(t: &TrainLine) -> Option<f64> {
    let parts = [t.data_ms, t.forward_ms, t.backward_ms, t.optimizer_ms, t.comm_ms];
    Some((t.step_ms? - parts.iter().flatten().sum::<f64>()).max(0.0))
}

fn phases(train: &[TrainLine]) -> Option<Phases> {
    if !train.iter().any(|t| t.forward_ms.is_some() || t.backward_ms.is_some()) {
        return None;
    }
    let bucket = train.len().div_ceil(PHASES).max(1);
    let mut out = Phases { bucket, ..Phases::default() };
    for part in train.chunks(bucket) {
        let of = |value: fn(&TrainLine) -> Option<f64>| mean(part.iter().filter_map(value)).map(short);
        out.x.push(part[part.len() - 1].step);
        out.data.push(of(|t| t.data_ms));
        out.forward.push(of(|t| t.forward_ms));
        out.backward.push(of(|t| t.backward_ms));
        out.optimizer.push(of(|t| t.optimizer_ms));
        out.communication.push(of(|t| t.comm_ms));
        out.other.push(of(other));
    }
    Some(out)
}

fn medians(train: &[TrainLine], skip: u64) -> Medians {
    let of = |value: fn(&TrainLine) -> Option<f64>| {
        let own = train.iter().filter(|t| t.step > skip);
        median(&mut own.filter_map(value).filter(|v| v.is_finite()).collect::<Vec<_>>()).map(short)
    };
    Medians {
        step_ms: of(|t| t.step_ms),
        data: of(|t| t.data_ms),
        forward: of(|t| t.forward_ms),
        backward: of(|t| t.backward_ms),
        optimizer: of(|t| t.optimizer_ms),
        communication: of(|t| t.comm_ms),
        other: of(other),
        tokens_per_second: of(|t| t.tokens_per_second),
        mfu: of(|t| t.mfu),
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
        let curves = curves(&train, vec![], 0, 100);
        let axis = curves.axis;
        assert!(axis.step.len() <= AXIS + 2 && axis.step.len() == axis.tokens.len());
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
        assert_eq!((phases.forward[0], phases.other[0], phases.communication[0]), (Some(2.0), Some(1.5), None));
        let mut busy = line(1);
        busy.comm_ms = Some(5.0);
        assert_eq!(other(&busy), Some(0.0), "never negative");
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
        let curves = read(&path, 0, 100).unwrap();
        assert_eq!(curves.loss.unwrap().x, [1, 2]);
        assert_eq!(curves.best_eval.unwrap().step, 1);
        assert_eq!(read(&dir.path().join("none"), 0, 100).unwrap().steps, 0);
    }
}
