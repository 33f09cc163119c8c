//! Whether a run came out as another one of the same experiment: bit for bit, within a tolerance, or not.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::checkpoint::{self, StateHash};
use super::error::StoreError;
use super::metrics::{EvalLine, MetricLine, TrainLine, for_each_metric};
use super::run_dir::{self, CHECKPOINTS, METRICS, TRACE};
use super::summary::Summary;
use super::trace;
use runner_spec::event::Traced;

/// In the folder of a reproduction.
pub const VERDICT: &str = "verdict.json";

/// How two runs compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Every loss, norm, rate and evaluation of the original is there again, and the weights, with the same bits.
    Bitwise,
    /// As `Bitwise`, but there are no weights of the original that could be compared.
    BitwiseNumbers,
    /// No loss differs by more than the tolerance.
    WithinTolerance,
    /// What could be compared is within the tolerance, but a step or an evaluation is missing on one side.
    Incomplete,
    Diverged,
}

/// A line that one record has and the other one does not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingLine {
    pub step: u64,
    /// `step` or `evaluation`.
    pub what: String,
    /// Whether the original lacks it, or else the copy.
    pub in_original: bool,
}

/// A number that two runs do not have alike.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumberDifference {
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
pub struct WeightComparison {
    pub step: u64,
    pub equal: bool,
}

/// The first tensor that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstDifferingTensor {
    pub step: u64,
    /// `None`: in the checkpoint of that step. Else as the traces say.
    pub traced: Option<Traced>,
    pub name: String,
}

/// `verdict.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReproductionVerdict {
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
    /// Steps and evaluations that only one of them has, and the first.
    #[serde(default)]
    pub missing: u64,
    #[serde(default)]
    pub first_missing: Option<MissingLine>,
    /// Of losses, relative.
    pub tolerance: f64,
    /// The largest relative difference of a loss.
    pub largest: Option<NumberDifference>,
    /// The first number whose bits differ.
    pub first_bits: Option<NumberDifference>,
    /// The first loss beyond the tolerance.
    pub diverged: Option<NumberDifference>,
    /// `None` if there is no step whose weights both kept.
    pub weights: Option<WeightComparison>,
    /// Why not, then.
    #[serde(default)]
    pub weights_not_compared: Option<String>,
    pub first_tensor: Option<FirstDifferingTensor>,
    /// Whether both runs were traced.
    pub traced: bool,
    /// The first step that both traced.
    #[serde(default)]
    pub traced_from: Option<u64>,
    /// What was found to have changed before the run.
    pub drift: Vec<String>,
}

/// What two records have in common.
#[derive(Debug, Default)]
struct Numbers {
    steps: u64,
    evaluations: u64,
    missing: u64,
    first_missing: Option<MissingLine>,
    largest: Option<NumberDifference>,
    first_bits: Option<NumberDifference>,
    diverged: Option<NumberDifference>,
}

/// What is known of a run before it is done again, so that it counts even if its folder is removed meanwhile.
#[derive(Debug)]
pub struct OriginalRun {
    path: PathBuf,
    from: u64,
    /// Whether it was at its end.
    done: bool,
    record: RecordedMetrics,
    summary: Option<Summary>,
    /// The hash of each checkpoint.
    checkpoints: BTreeMap<u64, StateHash>,
}

impl OriginalRun {
    /// Of the run directory `path`, whose steps after `from` are its own.
    ///
    /// # Errors
    /// If its record cannot be read, or is gone.
    pub fn read(path: &Path, from: u64, done: bool) -> Result<Self, StoreError> {
        let metrics = path.join(METRICS);
        fs::metadata(&metrics).map_err(StoreError::io("reading", &metrics))?;
        let record = RecordedMetrics::read(path, from, u64::MAX)?;
        let folder = path.join(CHECKPOINTS);
        let hashes = checkpoint::steps(&folder).into_iter().filter(|step| *step > from);
        let checkpoints = hashes.filter_map(|step| Some((step, checkpoint::recorded_hash(&folder, step)?))).collect();
        Ok(Self { path: path.to_owned(), from, done, record, summary: run_dir::summary(path)?, checkpoints })
    }

    /// The last of its own steps.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.record.train.keys().next_back().copied()
    }
}

/// Compares `original` and the run directory `copy` over all steps that the original has of its own.
///
/// # Errors
/// If the copy's record or a checkpoint cannot be read.
pub fn compare(original: &OriginalRun, copy: &Path, tolerance: f64) -> Result<ReproductionVerdict, StoreError> {
    let from = original.from;
    let until = original.last().unwrap_or(from);
    let record = RecordedMetrics::read(copy, from, until)?;
    let numbers = Numbers::of(original, &record, until, tolerance);
    let (weights, unequal) = weights(original, copy, until)?;
    let traces = trace::compare(&original.path.join(TRACE), &copy.join(TRACE), from, until)?;
    let differs = unequal.is_some() || numbers.first_bits.is_some() || weights.as_ref().is_some_and(|w| !w.equal);
    let traced =
        traces.first.map(|line| FirstDifferingTensor { step: line.step, traced: Some(line.what), name: line.name });
    // A trace that begins late, or skips what a checkpoint shows, does not have the first.
    let kept = match unequal {
        Some(step) if traced.as_ref().is_none_or(|first| step < first.step) => {
            checkpoint_difference(&original.path, copy, step)?
        }
        _ => None,
    };
    let first_tensor = kept.or(traced);
    let differs = differs || first_tensor.is_some();
    let verdict = if numbers.diverged.is_some() {
        Judgement::Diverged
    } else if numbers.first_missing.is_some() || numbers.steps == 0 {
        Judgement::Incomplete
    } else if differs {
        Judgement::WithinTolerance
    } else if weights.is_none() {
        Judgement::BitwiseNumbers
    } else {
        Judgement::Bitwise
    };
    let weights_not_compared = weights.is_none().then(|| {
        let why = if original.checkpoints.is_empty() && original.end(until).is_none() {
            "the original keeps neither a checkpoint of these steps nor the hash of its end"
        } else {
            "there is no step of which both keep a checkpoint"
        };
        why.to_owned()
    });
    let id = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ReproductionVerdict {
        verdict,
        original: id(&original.path),
        copy: id(copy),
        from_step: from,
        to_step: until,
        steps: numbers.steps,
        evaluations: numbers.evaluations,
        missing: numbers.missing,
        first_missing: numbers.first_missing,
        tolerance,
        largest: numbers.largest,
        first_bits: numbers.first_bits,
        diverged: numbers.diverged,
        weights,
        weights_not_compared,
        first_tensor,
        traced: traces.common > 0,
        traced_from: traces.begins,
        drift: Vec::new(),
    })
}

/// Steps of a run, and the evaluations after them.
#[derive(Debug, Default)]
struct RecordedMetrics {
    train: BTreeMap<u64, TrainLine>,
    eval: BTreeMap<u64, EvalLine>,
}

impl RecordedMetrics {
    fn read(run: &Path, from: u64, until: u64) -> Result<Self, StoreError> {
        let mut record = Self::default();
        for_each_metric(&run.join(METRICS), &mut |line| match line {
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
    fn of(known: &OriginalRun, copy: &RecordedMetrics, until: u64, tolerance: f64) -> Self {
        let mut numbers = Self::default();
        let original = &known.record;
        let steps = |record: &RecordedMetrics| {
            record.train.keys().chain(record.eval.keys()).copied().collect::<BTreeSet<u64>>()
        };
        for &step in steps(original).union(&steps(copy)).filter(|step| **step <= until) {
            match (original.train.get(&step), copy.train.get(&step)) {
                (Some(a), Some(b)) => {
                    numbers.steps += 1;
                    numbers.loss(step, "loss", a.loss, b.loss, tolerance);
                    numbers.bits(step, "grad_norm", a.grad_norm, b.grad_norm);
                    numbers.bits(step, "lr", a.lr, b.lr);
                    numbers.bits(step, "tokens", Some(a.tokens as f64), Some(b.tokens as f64));
                }
                (a, b) => numbers.only_one(step, "step", a.is_some(), b.is_some()),
            }
            match (original.eval.get(&step), copy.eval.get(&step)) {
                (Some(a), Some(b)) => {
                    numbers.evaluations += 1;
                    numbers.loss(step, "val_loss", a.val_loss, b.val_loss, tolerance);
                    numbers.bits(step, "hellaswag_acc", a.hellaswag_acc, b.hellaswag_acc);
                    numbers.bits(step, "hellaswag_acc_norm", a.hellaswag_acc_norm, b.hellaswag_acc_norm);
                }
                // A process that ended between its last step and the evaluation after it lacks nothing.
                (None, Some(_)) if step == until && !known.done => {}
                (a, b) => numbers.only_one(step, "evaluation", a.is_some(), b.is_some()),
            }
        }
        numbers
    }

    /// Notes a line if exactly one side has it.
    fn only_one(&mut self, step: u64, what: &str, original: bool, copy: bool) {
        if original != copy {
            self.missing += 1;
            let missing = || MissingLine { step, what: what.to_owned(), in_original: copy };
            self.first_missing.get_or_insert_with(missing);
        }
    }

    fn bits(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>) {
        if original.map(f64::to_bits) != copy.map(f64::to_bits) && self.first_bits.is_none() {
            self.first_bits = Some(NumberDifference::new(step, what, original, copy));
        }
    }

    fn loss(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>, tolerance: f64) {
        self.bits(step, what, original, copy);
        if original.map(f64::to_bits) == copy.map(f64::to_bits) {
            return;
        }
        let difference = NumberDifference::new(step, what, original, copy);
        let size = |d: &NumberDifference| d.relative.unwrap_or(f64::INFINITY);
        if size(&difference) > tolerance && self.diverged.is_none() {
            self.diverged = Some(difference.clone());
        }
        if self.largest.as_ref().is_none_or(|largest| size(&difference) > size(largest)) {
            self.largest = Some(difference);
        }
    }
}

impl NumberDifference {
    fn new(step: u64, what: &str, original: Option<f64>, copy: Option<f64>) -> Self {
        let relative = original.zip(copy).map(|(a, b)| (a - b).abs() / a.abs().max(f64::MIN_POSITIVE));
        Self { step, what: what.to_owned(), original, copy, relative: relative.filter(|r| r.is_finite()) }
    }
}

impl OriginalRun {
    /// The hash of its state after `until`, if it ended there.
    fn end(&self, until: u64) -> Option<&str> {
        end(self.summary.as_ref()?, until)
    }
}

fn end(summary: &Summary, until: u64) -> Option<&str> {
    (summary.steps == until && summary.error.is_none()).then_some(summary.final_hash.as_deref()).flatten()
}

/// Of the last step, if both ended there, else of the newest checkpoint that both have; and the first step whose checkpoints
/// are not equal.
fn weights(
    original: &OriginalRun,
    copy: &Path,
    until: u64,
) -> Result<(Option<WeightComparison>, Option<u64>), StoreError> {
    let folder = copy.join(CHECKPOINTS);
    let kept = original.checkpoints.range(..=until);
    let common: Vec<(u64, bool)> =
        kept.filter_map(|(&step, hash)| Some((step, checkpoint::recorded_hash(&folder, step)? == *hash))).collect();
    let unequal = common.iter().find(|(_, equal)| !equal).map(|(step, _)| *step);
    if let (Some(a), Some(summary)) = (original.end(until), run_dir::summary(copy)?)
        && let Some(b) = end(&summary, until)
    {
        return Ok((Some(WeightComparison { step: until, equal: a == b }), unequal));
    }
    Ok((common.last().map(|&(step, equal)| WeightComparison { step, equal }), unequal))
}

/// The first tensor that differs in the checkpoint of `step`; `None` also if the original's is gone by now.
fn checkpoint_difference(original: &Path, copy: &Path, step: u64) -> Result<Option<FirstDifferingTensor>, StoreError> {
    let (a, b) = (original.join(CHECKPOINTS), copy.join(CHECKPOINTS));
    if checkpoint::recorded_hash(&a, step).is_none() {
        return Ok(None);
    }
    let name = checkpoint::first_difference(&a, &b, step)?;
    Ok(name.map(|name| FirstDifferingTensor { step, traced: None, name }))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
