//! Whether a run came out as another one of the same experiment: bit for bit, within a tolerance, or not.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint;
use super::error::StoreError;
use super::metrics::{EvalLine, MetricLine, TrainLine, each_metric};
use super::run_dir::{self, CHECKPOINTS, METRICS, TRACE};
use super::trace;
use crate::exec::Traced;

/// In the folder of a reproduction.
pub const VERDICT: &str = "verdict.json";

/// How two runs compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Every loss, norm, rate and evaluation, and the weights, have the same bits.
    Bitwise,
    /// No loss differs by more than the tolerance.
    WithinTolerance,
    Diverged,
}

/// A number that two runs do not have alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    pub step: u64,
    /// `loss`, `grad_norm`, `val_loss`, …
    pub what: String,
    /// `None`: not a finite number, or not there.
    pub original: Option<f64>,
    pub copy: Option<f64>,
    /// |original - copy| / |original|; `None` where that is no number.
    pub relative: Option<f64>,
}

/// The weights and moments after a step that both runs kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    pub step: u64,
    pub equal: bool,
}

/// The first tensor that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstTensor {
    pub step: u64,
    /// `None`: in the checkpoint of that step. Else as the traces say.
    pub traced: Option<Traced>,
    pub name: String,
}

/// `verdict.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub verdict: Judgement,
    /// Ids of the two runs.
    pub original: String,
    pub copy: String,
    /// Steps after this one were compared: up to it both have the record of the run that they began with.
    pub from_step: u64,
    pub to_step: u64,
    /// Steps and evaluations that both have.
    pub steps: u64,
    pub evaluations: u64,
    /// Of losses, relative.
    pub tolerance: f64,
    /// The largest relative difference of a loss.
    pub largest: Option<Difference>,
    /// The first number whose bits differ.
    pub first_bits: Option<Difference>,
    /// The first loss beyond the tolerance.
    pub diverged: Option<Difference>,
    /// `None` if there is no step whose weights both kept.
    pub weights: Option<Weights>,
    pub first_tensor: Option<FirstTensor>,
    /// Whether both runs were traced.
    pub traced: bool,
    /// What was found to have changed before the run.
    pub drift: Vec<String>,
}

/// What two records have in common.
#[derive(Debug, Default)]
struct Numbers {
    steps: u64,
    evaluations: u64,
    largest: Option<Difference>,
    first_bits: Option<Difference>,
    diverged: Option<Difference>,
}

/// Compares the run directories `original` and `copy` over the steps after `from` up to `until`.
///
/// # Errors
/// If a record or a checkpoint cannot be read.
pub fn compare(original: &Path, copy: &Path, from: u64, until: u64, tolerance: f64) -> Result<Verdict, StoreError> {
    let numbers = Numbers::of(&Record::read(original, from, until)?, &Record::read(copy, from, until)?, tolerance);
    let weights = weights(original, copy, from, until)?;
    let traces = trace::compare(&original.join(TRACE), &copy.join(TRACE), from, until)?;
    let differs = weights.as_ref().is_some_and(|w| !w.equal) || numbers.first_bits.is_some();
    let first_tensor = match traces.first {
        Some(line) => Some(FirstTensor { step: line.step, traced: Some(line.what), name: line.name }),
        None if differs => first_checkpoint_difference(original, copy, from, until)?,
        None => None,
    };
    let verdict = match (&numbers.diverged, differs || first_tensor.is_some()) {
        (Some(_), _) => Judgement::Diverged,
        (None, true) => Judgement::WithinTolerance,
        (None, false) => Judgement::Bitwise,
    };
    let id = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Verdict {
        verdict,
        original: id(original),
        copy: id(copy),
        from_step: from,
        to_step: until,
        steps: numbers.steps,
        evaluations: numbers.evaluations,
        tolerance,
        largest: numbers.largest,
        first_bits: numbers.first_bits,
        diverged: numbers.diverged,
        weights,
        first_tensor,
        traced: traces.common > 0,
        drift: Vec::new(),
    })
}

/// Steps of a run, and the evaluations after them.
#[derive(Debug, Default)]
struct Record {
    train: BTreeMap<u64, TrainLine>,
    eval: BTreeMap<u64, EvalLine>,
}

impl Record {
    fn read(run: &Path, from: u64, until: u64) -> Result<Self, StoreError> {
        let mut record = Self::default();
        each_metric(&run.join(METRICS), &mut |line| match line {
            MetricLine::Train(line) if (from + 1..=until).contains(&line.step) => {
                record.train.insert(line.step, line);
            }
            // One before the first step counts, unless it was taken over.
            MetricLine::Eval(line) if line.step <= until && (line.step > from || from == 0) => {
                record.eval.insert(line.step, line);
            }
            _ => {}
        })?;
        Ok(record)
    }
}

impl Numbers {
    fn of(original: &Record, copy: &Record, tolerance: f64) -> Self {
        let mut numbers = Self::default();
        let all: std::collections::BTreeSet<u64> = original.train.keys().chain(original.eval.keys()).copied().collect();
        for step in all {
            if let (Some(a), Some(b)) = (original.train.get(&step), copy.train.get(&step)) {
                numbers.steps += 1;
                numbers.loss(step, "loss", a.loss, b.loss, tolerance);
                numbers.bits(step, "grad_norm", a.grad_norm, b.grad_norm);
                numbers.bits(step, "lr", a.lr, b.lr);
                numbers.bits(step, "tokens", Some(a.tokens as f64), Some(b.tokens as f64));
            }
            if let (Some(a), Some(b)) = (original.eval.get(&step), copy.eval.get(&step)) {
                numbers.evaluations += 1;
                numbers.loss(step, "val_loss", a.val_loss, b.val_loss, tolerance);
                numbers.bits(step, "hellaswag_acc", a.hellaswag_acc, b.hellaswag_acc);
                numbers.bits(step, "hellaswag_acc_norm", a.hellaswag_acc_norm, b.hellaswag_acc_norm);
            }
        }
        numbers
    }

    fn bits(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>) {
        if original.map(f64::to_bits) != copy.map(f64::to_bits) && self.first_bits.is_none() {
            self.first_bits = Some(Difference::new(step, what, original, copy));
        }
    }

    fn loss(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>, tolerance: f64) {
        self.bits(step, what, original, copy);
        if original.map(f64::to_bits) == copy.map(f64::to_bits) {
            return;
        }
        let difference = Difference::new(step, what, original, copy);
        let size = |d: &Difference| d.relative.unwrap_or(f64::INFINITY);
        if size(&difference) > tolerance && self.diverged.is_none() {
            self.diverged = Some(difference.clone());
        }
        if self.largest.as_ref().is_none_or(|largest| size(&difference) > size(largest)) {
            self.largest = Some(difference);
        }
    }
}

impl Difference {
    fn new(step: u64, what: &str, original: Option<f64>, copy: Option<f64>) -> Self {
        let relative = original.zip(copy).map(|(a, b)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE));
        Self { step, what: what.to_owned(), original, copy, relative: relative.filter(|r| r.is_finite()) }
    }
}

/// Of the last step, if both ended there, else of the newest checkpoint that both have.
fn weights(original: &Path, copy: &Path, from: u64, until: u64) -> Result<Option<Weights>, StoreError> {
    if let (Some(a), Some(b)) = (run_dir::summary(original)?, run_dir::summary(copy)?)
        && (a.steps, b.steps) == (until, until)
        && (a.error.is_none(), b.error.is_none()) == (true, true)
        && let (Some(a), Some(b)) = (a.final_hash, b.final_hash)
    {
        return Ok(Some(Weights { step: until, equal: a == b }));
    }
    let newest = common(original, copy, from, until).next_back();
    Ok(newest.map(|(step, equal)| Weights { step, equal }))
}

/// The steps after `from` of which both keep a checkpoint, and whether they are equal.
fn common<'a>(
    original: &'a Path,
    copy: &'a Path,
    from: u64,
    until: u64,
) -> impl DoubleEndedIterator<Item = (u64, bool)> + 'a {
    let steps = checkpoint::steps(&original.join(CHECKPOINTS));
    steps.into_iter().filter(move |step| (from + 1..=until).contains(step)).filter_map(move |step| {
        let hash = |run: &Path| checkpoint::recorded_hash(&run.join(CHECKPOINTS), step);
        Some((step, hash(original)? == hash(copy)?))
    })
}

/// The first tensor of the first checkpoint that both have and that is not the same.
fn first_checkpoint_difference(
    original: &Path,
    copy: &Path,
    from: u64,
    until: u64,
) -> Result<Option<FirstTensor>, StoreError> {
    let Some((step, _)) = common(original, copy, from, until).find(|(_, equal)| !equal) else { return Ok(None) };
    let name = checkpoint::first_difference(&original.join(CHECKPOINTS), &copy.join(CHECKPOINTS), step)?;
    Ok(name.map(|name| FirstTensor { step, traced: None, name }))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::fs;

    use super::*;
    use crate::store::checkpoint::Checkpoints;
    use crate::store::testing::{random_state, values, with_buffer};

    /// A run directory with these losses, and a checkpoint of step 2 whose first weight is off by `weight`.
    fn run(losses: &[f64], weight: f32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut text = "{\"kind\":\"eval\",\"step\":0,\"val_loss\":9.0}\n".to_owned();
        for (step, loss) in (1..).zip(losses) {
            let _ = writeln!(
                text,
                "{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss:?},\"grad_norm\":1.0,\"tokens\":8}}"
            );
        }
        fs::write(dir.path().join(METRICS), text).unwrap();
        let state = random_state(2, 2);
        let mut numbers: Vec<f32> = values(&state).into_iter().map(f32::from_bits).collect();
        numbers[0] += weight;
        let checkpoints = Checkpoints::open(&dir.path().join(CHECKPOINTS), "abc", 9).unwrap();
        checkpoints.save(&with_buffer(&state, numbers), None).unwrap();
        dir
    }

    fn judged(a: &tempfile::TempDir, b: &tempfile::TempDir, from: u64) -> Verdict {
        compare(a.path(), b.path(), from, 4, 1e-4).unwrap()
    }

    #[test]
    fn equal_bits_are_bitwise() {
        let (a, b) = (run(&[4.0, 3.0, 2.0, 1.0], 0.0), run(&[4.0, 3.0, 2.0, 1.0], 0.0));
        let verdict = judged(&a, &b, 0);
        assert_eq!((verdict.verdict, verdict.steps, verdict.evaluations), (Judgement::Bitwise, 4, 1));
        assert_eq!(verdict.weights, Some(Weights { step: 2, equal: true }));
        assert_eq!((verdict.largest, verdict.first_bits, verdict.first_tensor), (None, None, None));
    }

    #[test]
    fn equal_losses_of_other_weights_are_not_bitwise() {
        let (a, b) = (run(&[4.0, 3.0], 0.0), run(&[4.0, 3.0], 1.0));
        let verdict = judged(&a, &b, 0);
        assert_eq!(verdict.verdict, Judgement::WithinTolerance);
        let first = verdict.first_tensor.unwrap();
        assert_eq!((first.step, first.traced), (2, None));
        assert!(first.name.contains("wte"), "{}", first.name);
    }

    #[test]
    fn differences_are_measured_and_placed() {
        let (a, b) = (run(&[4.0, 3.0, 2.0, 1.0], 0.0), run(&[4.0, 3.0, 2.0 + 1e-5, 1.0 + 1e-6], 0.0));
        let verdict = judged(&a, &b, 0);
        assert_eq!(verdict.verdict, Judgement::WithinTolerance);
        assert_eq!((verdict.first_bits.unwrap().step, verdict.largest.as_ref().unwrap().step), (3, 3));
        assert!((verdict.largest.unwrap().relative.unwrap() - 5e-6).abs() < 1e-9);
        let c = run(&[4.0, 3.0, 2.0 + 1e-5, 1.1], 0.0);
        let verdict = judged(&a, &c, 0);
        assert_eq!((verdict.verdict, verdict.diverged.unwrap().step), (Judgement::Diverged, 4));
        assert_eq!(verdict.first_bits.unwrap().step, 3);
        // What was taken over is not looked at.
        assert_eq!(judged(&run(&[1.0, 3.0], 0.0), &run(&[2.0, 3.0], 0.0), 1).verdict, Judgement::Bitwise);
    }

    #[test]
    fn a_loss_that_is_no_number_is_beyond_any_tolerance() {
        let (a, b) = (run(&[4.0, 3.0], 0.0), run(&[4.0, 3.0], 0.0));
        let text = fs::read_to_string(b.path().join(METRICS)).unwrap().replace("3.0", "null");
        fs::write(b.path().join(METRICS), text).unwrap();
        let verdict = judged(&a, &b, 0);
        let first = verdict.diverged.unwrap();
        assert_eq!(
            (verdict.verdict, first.original, first.copy, first.relative),
            (Judgement::Diverged, Some(3.0), None, None)
        );
    }
}
