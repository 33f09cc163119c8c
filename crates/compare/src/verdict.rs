//! Compares a run with its reproduction: bit for bit, within a tolerance, or diverged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::trace;
use runner_record::RecordError;
use runner_record::checkpoint::{self, StateHash};
use runner_record::files::file_name;
use runner_record::manifest::{Manifest, RunStatus};
use runner_record::metrics::{MetricLine, TrainLine};
use runner_record::record_check::{for_each_checked_metric, last_expected_step};
use runner_record::run_dir::{self, CHECKPOINTS, METRICS, RESOLVED, TRACE};
use runner_record::summary::Summary;
use runner_spec::event::{Evaluation, TracedTensor};
use runner_spec::format::shell_word;
use runner_spec::measure::{Measure, MeasureForm};

/// The result of a comparison.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every loss, gradient norm, learning rate and evaluation, and the weights, have the bits of the original.
    Bitwise,
    /// The numbers have the bits of the original; there are no weights of the original to compare.
    BitwiseNumbers,
    /// No loss differs by more than the tolerance, and all counts are equal.
    WithinTolerance,
    /// Everything compared is within the tolerance, but a step or an evaluation is missing on one side, or a record is damaged.
    #[default]
    Incomplete,
    Diverged,
}

/// A line that only one of two records has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingLine {
    pub step: u64,
    /// `step` or `evaluation`.
    pub what: String,
    /// True if it is missing in the original, false if it is missing in the copy.
    #[serde(rename = "in_original")]
    pub is_missing_in_original: bool,
}

/// A number that differs between two runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumberDifference {
    pub step: u64,
    /// `loss`, `grad_norm`, `val_loss`, …
    pub what: String,
    /// `None` if it is missing or not finite.
    pub original: Option<f64>,
    pub copy: Option<f64>,
    /// |original - copy| / |original|; `None` if that is not finite.
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
    /// The kind of the first traced tensor that differs; `None` if the difference is in the checkpoint of the step.
    pub traced: Option<TracedTensor>,
    pub name: String,
}

/// `verdict.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReproductionVerdict {
    pub verdict: Verdict,
    /// Ids of the two runs.
    pub original: String,
    pub copy: String,
    /// Steps after this one were compared. Up to it, both have the record of the run that they began with.
    pub from_step: u64,
    pub to_step: u64,
    /// Steps and evaluations that both have.
    pub steps: u64,
    pub evaluations: u64,
    /// Steps and evaluations that only one of them has, and the first.
    #[serde(default)]
    pub missing: u64,
    pub first_missing: Option<MissingLine>,
    /// Damage of the metrics of the original and of the copy, each in one sentence.
    #[serde(default)]
    pub record_damage: Vec<String>,
    /// The tolerance for losses, relative.
    pub tolerance: f64,
    /// The largest relative difference of a loss.
    pub largest: Option<NumberDifference>,
    /// The first number whose bits differ.
    pub first_bits: Option<NumberDifference>,
    /// The first loss beyond the tolerance, or the first count that differs.
    pub diverged: Option<NumberDifference>,
    /// The first share of right answers that differs. A change of rounding can change the answer to an item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<NumberDifference>,
    /// `None` if there is no step whose weights both runs kept.
    pub weights: Option<WeightComparison>,
    /// The reason why `weights` is `None`.
    pub weights_not_compared: Option<String>,
    pub first_tensor: Option<FirstDifferingTensor>,
    /// True if both runs were traced.
    pub traced: bool,
    /// The first step that both traced.
    pub traced_from: Option<u64>,
    /// Changes of program, machine and data since the original run.
    pub drift: Vec<String>,
}

/// The record of a run, read before the run is reproduced, so that it counts even if its folder is removed meanwhile.
#[derive(Debug)]
pub struct OriginalRun {
    path: PathBuf,
    /// Its folder may have a different name.
    id: String,
    from: u64,
    /// True if the run was complete.
    done: bool,
    /// The number of parts of its newest checkpoint. States in other parts have other hashes.
    parts: usize,
    record: RecordedMetrics,
    /// Damage of its metrics.
    damage: Option<String>,
    /// The last step that its metrics have or must have.
    last_step: u64,
    summary: Option<Summary>,
    /// The hash of each checkpoint.
    checkpoints: BTreeMap<u64, StateHash>,
}

impl OriginalRun {
    /// Reads the record of the run directory `path`, with its manifest and its summary.
    ///
    /// # Errors
    /// If its record is missing or cannot be read.
    pub fn read(path: &Path, manifest: &Manifest, summary: Option<Summary>) -> Result<Self, RecordError> {
        let metrics = path.join(METRICS);
        fs::metadata(&metrics).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                // The settings of a fork alone make no run that starts at step 0.
                let again = if manifest.continued_from.is_some() {
                    String::new()
                } else {
                    let resolved = path.join(RESOLVED).display().to_string();
                    let command = format!("runner apply {} --new", shell_word(&resolved));
                    format!(", or train the run again without a comparison: `{command}`")
                };
                RecordError::damaged(
                    &metrics,
                    format!(
                        "the losses of the run are missing, so a reproduction has nothing to compare with; restore the \
                         file from a copy{again}"
                    ),
                )
            }
            _ => RecordError::io("reading", &metrics)(error),
        })?;
        let folder = path.join(CHECKPOINTS);
        let saved = checkpoint::saved_steps(&folder)?;
        let from = manifest.foreign_steps();
        let (record, damage) = RecordedMetrics::read(path, manifest, summary.as_ref(), u64::MAX)?;
        let recorded = record.train.keys().next_back().copied();
        let last_step = last_expected_step(manifest, summary.as_ref(), saved.last().copied(), recorded);
        let hashes = saved.into_iter().filter(|step| *step > from);
        let checkpoints = hashes.filter_map(|step| Some((step, checkpoint::recorded_hash(&folder, step)?))).collect();
        let done = manifest.status == RunStatus::Done;
        let id = if manifest.id.is_empty() { file_name(path) } else { manifest.id.clone() };
        let parts = manifest.parts_of_checkpoints();
        Ok(Self { path: path.to_owned(), id, from, done, parts, record, damage, last_step, summary, checkpoints })
    }

    /// Leaves out everything but the steps after `from` up to `last`: only these are compared.
    pub fn limit_to(&mut self, from: u64, last: u64) {
        (self.from, self.last_step) = (from, last);
        self.record.train.retain(|step, _| (from + 1..=last).contains(step));
        self.record.eval.retain(|step, _| *step <= last && (*step > from || from == 0));
        self.checkpoints.retain(|step, _| *step > from);
    }

    /// The last step that its metrics have or must have; 0 if it has none.
    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    /// The damage of its metrics.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }
}

/// Compares `original` with the run directory `copy` of the manifest `of_copy`, over all steps of the original's own.
///
/// # Errors
/// If the copy's record or a checkpoint cannot be read.
pub fn compare(
    original: &OriginalRun,
    copy: &Path,
    of_copy: &Manifest,
    tolerance: f64,
) -> Result<ReproductionVerdict, RecordError> {
    let (from, until) = (original.from, original.last_step.max(original.from));
    let summary = run_dir::read_summary(copy)?;
    let (record, damage) = RecordedMetrics::read(copy, of_copy, summary.as_ref(), until)?;
    let mut verdict = ReproductionVerdict {
        original: original.id.clone(),
        copy: file_name(copy),
        from_step: from,
        to_step: until,
        tolerance,
        record_damage: original.damage.iter().cloned().chain(damage).collect(),
        ..ReproductionVerdict::default()
    };
    verdict.compare_metrics(original, &record);
    let (mut weights, mut unequal) = compare_weights(original, copy, of_copy, summary.as_ref());
    // Checkpoints that are divided differently have different hashes of the same tensors.
    let has_same_tensors = |step| {
        let (a, b) = (original.path.join(CHECKPOINTS), copy.join(CHECKPOINTS));
        let both_kept = [&a, &b].iter().all(|folder| checkpoint::recorded_hash(folder, step).is_some());
        Ok::<bool, RecordError>(both_kept && checkpoint::first_difference(&a, &b, step)?.is_none())
    };
    if let Some(weights) = weights.as_mut().filter(|weights| !weights.equal) {
        weights.equal = has_same_tensors(weights.step)?;
    }
    if let Some(step) = unequal
        && has_same_tensors(step)?
    {
        unequal = None;
    }
    let traces = trace::compare(&original.path.join(TRACE), &copy.join(TRACE), from, until)?;
    (verdict.traced, verdict.traced_from) = (traces.common > 0, traces.begins);
    let traced =
        traces.first.map(|line| FirstDifferingTensor { step: line.step, traced: Some(line.what), name: line.name });
    // A trace that begins late, or skips a step of a checkpoint, does not contain the first difference.
    let in_checkpoint = match unequal {
        Some(step) if traced.as_ref().is_none_or(|first| step < first.step) => {
            checkpoint_difference(&original.path, copy, step)?
        }
        _ => None,
    };
    verdict.first_tensor = in_checkpoint.or(traced);
    if weights.is_none() {
        let reason = if original.checkpoints.is_empty() && final_hash(original.summary.as_ref(), until).is_none() {
            "the original has neither a checkpoint of these steps nor a hash of its final state"
        } else {
            "the two runs have no checkpoint of the same step"
        };
        verdict.weights_not_compared = Some(reason.to_owned());
    }
    let differs = unequal.is_some()
        || verdict.first_bits.is_some()
        || weights.as_ref().is_some_and(|w| !w.equal)
        || verdict.first_tensor.is_some();
    verdict.verdict = if verdict.diverged.is_some() {
        Verdict::Diverged
    } else if verdict.first_missing.is_some() || verdict.steps == 0 || !verdict.record_damage.is_empty() {
        Verdict::Incomplete
    } else if differs {
        Verdict::WithinTolerance
    } else if weights.is_none() {
        Verdict::BitwiseNumbers
    } else {
        Verdict::Bitwise
    };
    verdict.weights = weights;
    Ok(verdict)
}

/// The steps of a run, and the evaluations after them.
#[derive(Debug, Default)]
struct RecordedMetrics {
    train: BTreeMap<u64, TrainLine>,
    eval: BTreeMap<u64, Evaluation>,
}

impl RecordedMetrics {
    /// Reads the run's own lines up to the step `until`. The second value is the damage of the metrics.
    fn read(
        run: &Path,
        manifest: &Manifest,
        summary: Option<&Summary>,
        until: u64,
    ) -> Result<(Self, Option<String>), RecordError> {
        let from = manifest.foreign_steps();
        let mut record = Self::default();
        let damage = for_each_checked_metric(run, manifest, summary, &mut |line| match line {
            MetricLine::Train(line) if (from + 1..=until).contains(&line.step) => {
                record.train.insert(line.step, line);
            }
            // An evaluation before the first step counts, unless it was copied from another run.
            MetricLine::Eval(line) if line.step <= until && (line.step > from || from == 0) => {
                record.eval.insert(line.step, line);
            }
            _ => {}
        })?;
        Ok((record, damage))
    }
}

impl ReproductionVerdict {
    fn compare_metrics(&mut self, original: &OriginalRun, copy: &RecordedMetrics) {
        let (done, until, original) = (original.done, self.to_step, &original.record);
        let steps = |record: &RecordedMetrics| {
            record.train.keys().chain(record.eval.keys()).copied().collect::<BTreeSet<u64>>()
        };
        for &step in steps(original).union(&steps(copy)).filter(|step| **step <= until) {
            match (original.train.get(&step), copy.train.get(&step)) {
                (Some(a), Some(b)) => {
                    self.steps += 1;
                    self.compare_loss(step, "loss", a.loss, b.loss);
                    self.compare_bits(step, "grad_norm", a.grad_norm, b.grad_norm);
                    let of_rate = a.lr.map(|lr| self.tolerance * lr);
                    self.compare_derived(step, "lr", a.lr, b.lr, of_rate);
                    self.compare_count(step, "tokens", Some(a.tokens), Some(b.tokens));
                    self.compare_derived(step, "epoch", a.epoch, b.epoch, None);
                }
                (a, b) => self.add_missing(step, "step", a.is_some(), b.is_some()),
            }
            match (original.eval.get(&step), copy.eval.get(&step)) {
                (Some(a), Some(b)) => {
                    self.evaluations += 1;
                    self.compare_evaluations(a, b);
                }
                // The original may have stopped between its last step and the evaluation after it.
                (None, Some(_)) if step == until && !done => {}
                (a, b) => self.add_missing(step, "evaluation", a.is_some(), b.is_some()),
            }
        }
    }

    /// Compares the evaluations `a` of the original and `b`.
    fn compare_evaluations(&mut self, a: &Evaluation, b: &Evaluation) {
        let (step, tolerance) = (a.step, self.tolerance);
        let (val_loss, rows) = (a.val_loss(), a.measured.get(&Measure::VAL_ROWS));
        let all = a.measured.iter().chain(b.measured.iter().filter(|(measure, _)| a.measured.get(measure).is_none()));
        for (measure, _) in all {
            let (key, of_a, of_b) = (&*measure.key(), a.measured.get(measure), b.measured.get(measure));
            match measure.form() {
                MeasureForm::Loss if *measure == Measure::VAL_LOSS => self.compare_loss(step, key, of_a, of_b),
                MeasureForm::Loss | MeasureForm::Rate => {
                    self.compare_derived(step, key, of_a, of_b, of_a.map(|value| tolerance * value));
                }
                MeasureForm::Perplexity => {
                    let [of_a, of_b] = [of_a, of_b].map(|perplexity| perplexity.map(f64::ln));
                    self.compare_derived(step, key, of_a, of_b, of_a.map(|loss| tolerance * loss));
                }
                // If the losses of rows are off by the tolerance, their standard error is off by as much, divided by the root of their number.
                MeasureForm::StandardError => {
                    let allowed = val_loss.zip(rows).map(|(loss, rows)| tolerance * loss / rows.sqrt());
                    self.compare_derived(step, key, of_a, of_b, allowed);
                }
                MeasureForm::Share => self.compare_share(step, key, of_a, of_b),
                MeasureForm::Count => self.compare_derived(step, key, of_a, of_b, None),
            }
        }
    }

    /// Compares numbers that may differ by `allowed`.
    fn compare_derived(
        &mut self,
        step: u64,
        what: &str,
        original: Option<f64>,
        copy: Option<f64>,
        allowed: Option<f64>,
    ) {
        self.compare_bits(step, what, original, copy);
        let difference = original.zip(copy).map(|(a, b)| (a - b).abs());
        let is_near = difference.is_some_and(|difference| difference <= allowed.map_or(0.0, f64::abs));
        if !is_near && original.map(f64::to_bits) != copy.map(f64::to_bits) {
            self.diverged.get_or_insert_with(|| NumberDifference::new(step, what, original, copy));
        }
    }

    /// Compares counts, which no order of sums changes.
    fn compare_count(&mut self, step: u64, what: &str, original: Option<u64>, copy: Option<u64>) {
        let [original, copy] = [original, copy].map(|count| count.map(|count| count as f64));
        self.compare_derived(step, what, original, copy, None);
    }

    /// Compares shares of right answers.
    fn compare_share(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>) {
        if original.map(f64::to_bits) != copy.map(f64::to_bits) {
            self.compare_bits(step, what, original, copy);
            self.share.get_or_insert_with(|| NumberDifference::new(step, what, original, copy));
        }
    }

    /// Notes a line if exactly one side has it.
    fn add_missing(&mut self, step: u64, what: &str, original: bool, copy: bool) {
        if original != copy {
            self.missing += 1;
            let missing = || MissingLine { step, what: what.to_owned(), is_missing_in_original: copy };
            self.first_missing.get_or_insert_with(missing);
        }
    }

    fn compare_bits(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>) {
        if original.map(f64::to_bits) != copy.map(f64::to_bits) && self.first_bits.is_none() {
            self.first_bits = Some(NumberDifference::new(step, what, original, copy));
        }
    }

    fn compare_loss(&mut self, step: u64, what: &str, original: Option<f64>, copy: Option<f64>) {
        self.compare_bits(step, what, original, copy);
        if original.map(f64::to_bits) == copy.map(f64::to_bits) {
            return;
        }
        let difference = NumberDifference::new(step, what, original, copy);
        let size = |d: &NumberDifference| d.relative.unwrap_or(f64::INFINITY);
        if size(&difference) > self.tolerance && self.diverged.is_none() {
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

/// The hash of the state after the step `until`, if the run ended there without an error.
fn final_hash(summary: Option<&Summary>, until: u64) -> Option<&str> {
    let summary = summary?;
    (summary.steps == until && summary.error.is_none()).then_some(summary.final_hash.as_deref()).flatten()
}

/// Compares the weights after the last step if both runs ended there, else those of the newest checkpoint that both have. Also
/// returns the first step whose checkpoints differ.
fn compare_weights(
    original: &OriginalRun,
    copy: &Path,
    of_copy: &Manifest,
    summary_of_copy: Option<&Summary>,
) -> (Option<WeightComparison>, Option<u64>) {
    let until = original.last_step.max(original.from);
    let folder = copy.join(CHECKPOINTS);
    let kept = original.checkpoints.range(..=until);
    let common: Vec<(u64, bool)> =
        kept.filter_map(|(&step, hash)| Some((step, checkpoint::recorded_hash(&folder, step)? == *hash))).collect();
    let unequal = common.iter().find(|(_, equal)| !equal).map(|(step, _)| *step);
    let (ours, theirs) = (original.summary.as_ref(), summary_of_copy);
    if let (Some(a), Some(b)) = (final_hash(ours, until), final_hash(theirs, until))
        && (a == b || original.parts == of_copy.parts_of_checkpoints())
    {
        return (Some(WeightComparison { step: until, equal: a == b }), unequal);
    }
    (common.last().map(|&(step, equal)| WeightComparison { step, equal }), unequal)
}

/// The first tensor that differs in the checkpoint of `step`; `None` also if the original's is gone by now.
fn checkpoint_difference(original: &Path, copy: &Path, step: u64) -> Result<Option<FirstDifferingTensor>, RecordError> {
    let (a, b) = (original.join(CHECKPOINTS), copy.join(CHECKPOINTS));
    if checkpoint::recorded_hash(&a, step).is_none() {
        return Ok(None);
    }
    let name = checkpoint::first_difference(&a, &b, step)?;
    Ok(name.map(|name| FirstDifferingTensor { step, traced: None, name }))
}

#[cfg(test)]
mod tests;
