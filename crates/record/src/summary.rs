//! `summary.json`: the numbers of a run, computed from its metrics when a process stops working on it.

use std::iter::once;
use std::path::Path;

use runner_spec::event::Evaluation;
use runner_spec::format::{count, counted, loss, seconds};
use runner_spec::measure::{LossSample, Measure, Measured};
use serde::{Deserialize, Serialize};

use super::checkpoint::SavedPosition;
use super::error::RecordError;
use super::files::FileRecord;
use super::lines::for_each_record;
use super::manifest::{ContinuedFrom, RunStatus};
use super::metrics::MetricLine;

/// The whole file. What was not measured is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub id: String,
    pub status: RunStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// True if it failed because a number was not finite: then a retry would fail in the same way.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_finite: bool,
    /// The number of the last step, and of the last planned step.
    pub steps: u64,
    pub steps_total: u64,
    /// Valid tokens that the model has seen.
    pub tokens: u64,
    /// Training time of the model in seconds: the recorded steps of other runs from whose checkpoint this one started, and all sessions of
    /// this run. Of a killed session, the time in its recorded steps.
    pub wall_seconds: f64,
    /// The part of these totals that this run did itself.
    #[serde(flatten)]
    pub own: OwnAmounts,
    pub final_train_loss: Option<f64>,
    /// The last evaluation with a validation loss, or the last one if none has it.
    pub last_eval: Option<Evaluation>,
    /// The evaluation with the lowest validation loss among this run's own, not those of a run that it continues.
    pub best_eval: Option<Evaluation>,
    /// The result of the best checkpoint on the test data, where the experiment names some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<TestResult>,
    pub medians: Medians,
    /// The duration of a step that the plan predicted, where rates were known; compare `medians.step_ms`.
    pub predicted_step_ms: Option<f64>,
    /// True if the prediction comes from a calibration while other programs computed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_prediction_disturbed: bool,
    /// The peak of resident memory, and the planned memory, in bytes, summed over ranks.
    pub peak_rss_bytes: Option<u64>,
    pub planned_memory_bytes: u64,
    /// One entry per rank of a run with several ranks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranks: Vec<RankSummary>,
    /// BLAKE3 over step, tokens, weights and moments, and over the weights alone, of the newest checkpoint.
    pub final_hash: Option<String>,
    pub weights_hash: Option<String>,
    /// Size and hash of `metrics.jsonl` when the session ended. Summaries of earlier versions, and those that were written again, lack them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<FileRecord>,
}

/// The part of a run's totals that the run did itself. The rest comes from the run from whose checkpoint it started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnAmounts {
    #[serde(rename = "own_steps")]
    pub steps: u64,
    #[serde(rename = "own_tokens")]
    pub tokens: u64,
    #[serde(rename = "own_wall_seconds")]
    pub wall_seconds: f64,
}

/// The result of a checkpoint on the test data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    pub step: u64,
    /// Mean negative log-likelihood per token, in nats.
    pub loss: f64,
    pub perplexity: f64,
    /// The loss in bits per byte of text; `None` if the bytes are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bits_per_byte: Option<f64>,
    pub tokens: u64,
    /// The rows of these tokens, and the standard error of the loss over them; `None` for one row.
    pub rows: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
}

impl TestResult {
    /// The result as a line: `1.8400  perplexity 6.30 (SE 0.079)  (checkpoint of step 1,750, …)`. The step may be inherited from another run.
    #[must_use]
    pub fn text(&self, is_inherited: bool) -> String {
        let losses = [(Measure::VAL_PERPLEXITY, Some(self.perplexity)), (Measure::BITS_PER_BYTE, self.bits_per_byte)];
        let known = losses.into_iter().filter_map(|(measure, value)| Some((measure, value?)));
        let error = self.standard_error.map(|error| (Measure::VAL_LOSS_SE, error));
        let measured: Measured = known.chain(error).collect::<Measured>().with(Measure::VAL_LOSS, self.loss);
        let others = measured.losses().filter(|of| *of.measure != Measure::VAL_LOSS);
        let texts: Vec<String> = once(loss(self.loss)).chain(others.map(|of| of.to_string())).collect();
        let inherited = if is_inherited { "inherited " } else { "" };
        let (step, sample) = (count(self.step), self.sample());
        format!("{}  ({inherited}checkpoint of step {step}, {sample})", texts.join("  "))
    }

    /// What the loss was measured on.
    #[must_use]
    pub fn sample(&self) -> LossSample {
        LossSample { tokens: self.tokens, rows: self.rows, standard_error: self.standard_error }
    }
}

/// Memory of one rank of a run with several ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankSummary {
    pub rank: usize,
    pub stage: usize,
    pub replica: usize,
    /// `None` if the rank is a thread, or ended before it reported its peak.
    pub peak_rss_bytes: Option<u64>,
    pub planned_memory_bytes: u64,
}

/// Medians over the steps that the run did in its newest layout.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Medians {
    pub step_ms: Option<f64>,
    pub data_ms: Option<f64>,
    pub forward_ms: Option<f64>,
    pub backward_ms: Option<f64>,
    pub optimizer_ms: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm_ms: Option<f64>,
    pub tokens_per_second: Option<f64>,
    pub mfu: Option<f64>,
}

impl Summary {
    /// True if this is the summary of a run whose manifest has this status. The summary of a session before the run was resumed is out of
    /// date.
    #[must_use]
    pub fn is_current(&self, status: RunStatus) -> bool {
        self.status == status && status != RunStatus::Running
    }

    /// True if another run trained `step`.
    pub fn is_inherited(&self, step: u64) -> bool {
        step <= self.steps.saturating_sub(self.own.steps)
    }

    /// This summary of a run whose own sessions took `seconds`.
    #[must_use]
    pub fn with_own_seconds(self, seconds: f64) -> Self {
        let inherited = self.wall_seconds - self.own.wall_seconds;
        Self { wall_seconds: inherited + seconds, own: OwnAmounts { wall_seconds: seconds, ..self.own }, ..self }
    }

    /// The numbers that `metrics` records, the time in its steps among them; everything else is empty, for the caller to fill in. Own amounts
    /// leave out the steps of other runs, up to the one in `continued_from`. Medians also leave out the steps up to `layout_began`, which a
    /// different layout did. `saved` is the newest checkpoint: it counts where lines up to its step are missing.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn from_metrics(
        metrics: &Path,
        continued_from: Option<&ContinuedFrom>,
        layout_began: u64,
        saved: Option<&SavedPosition>,
    ) -> Result<Self, RecordError> {
        let began = continued_from.map_or(0, |from| from.step);
        let foreign = continued_from.filter(|from| !from.is_same_computation).map_or(0, |from| from.step);
        let is_own = |step: u64| foreign == 0 || step > foreign;
        let saved_step = saved.map_or(0, |saved| saved.step);
        let (mut inherited_tokens, mut tokens_since_saved) = (0_u64, 0_u64);
        let (mut ms, mut own_ms) = (0.0, 0.0);
        let mut summary = Self { steps: saved_step, ..Self::default() };
        let mut series: [Vec<f64>; SERIES] = Default::default();
        let read = for_each_record(metrics, &mut |line| match line {
            MetricLine::Train(t) => {
                summary.steps = summary.steps.max(t.step);
                ms += t.step_ms.unwrap_or(0.0);
                if t.step <= began {
                    inherited_tokens = inherited_tokens.saturating_add(t.tokens);
                } else {
                    own_ms += t.step_ms.unwrap_or(0.0);
                    if t.step > saved_step {
                        tokens_since_saved = tokens_since_saved.saturating_add(t.tokens);
                    }
                }
                summary.final_train_loss = t.loss;
                let phases = [t.step_ms, t.data_ms, t.forward_ms, t.backward_ms, t.optimizer_ms, t.comm_ms];
                let values = phases.into_iter().chain([t.tokens_per_second, t.mfu]);
                for (series, value) in series.iter_mut().zip(values).filter(|_| t.step > began.max(layout_began)) {
                    series.extend(value);
                }
            }
            MetricLine::Eval(e) => {
                // An evaluation of weights that another plan led to, perhaps on other rows, is not this run's best.
                let best = summary.best_eval.as_ref().and_then(Evaluation::val_loss);
                if is_own(e.step) && e.val_loss().is_some_and(|loss| best.is_none_or(|best| loss < best)) {
                    summary.best_eval = Some(e.clone());
                }
                let had_loss = summary.last_eval.as_ref().is_some_and(|last| last.val_loss().is_some());
                if e.val_loss().is_some() || !had_loss {
                    summary.last_eval = Some(e);
                }
            }
        })?;
        summary.metrics = Some(read.content);
        let inherited_tokens = continued_from.and_then(|from| from.tokens).unwrap_or(inherited_tokens);
        let saved_tokens = saved.map_or(inherited_tokens, |saved| saved.tokens.max(inherited_tokens));
        summary.tokens = saved_tokens.saturating_add(tokens_since_saved);
        // JSON has no infinity.
        summary.wall_seconds = (ms / 1e3).min(f64::MAX);
        summary.own = OwnAmounts {
            steps: summary.steps.saturating_sub(began),
            tokens: summary.tokens.saturating_sub(inherited_tokens),
            wall_seconds: (own_ms / 1e3).min(f64::MAX),
        };
        let best = summary.best_eval.as_ref().and_then(Evaluation::val_loss);
        let lost = saved.and_then(|saved| saved.best).filter(|saved| is_own(saved.step));
        if let Some(lost) = lost.filter(|lost| best.is_none_or(|best| lost.val_loss < best)) {
            summary.best_eval = Some(Evaluation::of_loss(lost.step, lost.val_loss));
        }
        let measured = saved.and_then(|saved| Some((saved.step, saved.val_loss?)));
        let last_step = summary.last_eval.as_ref().map_or(0, |last| last.step);
        if let Some((step, val_loss)) = measured.filter(|(step, _)| *step > last_step) {
            summary.last_eval = Some(Evaluation::of_loss(step, val_loss));
        }
        let [step_ms, data_ms, forward_ms, backward_ms, optimizer_ms, comm_ms, tokens_per_second, mfu] =
            series.each_mut().map(|series| median(series));
        summary.medians =
            Medians { step_ms, data_ms, forward_ms, backward_ms, optimizer_ms, comm_ms, tokens_per_second, mfu };
        Ok(summary)
    }
}

/// Seconds spent in the steps after `from` that `metrics` records.
///
/// # Errors
/// If the file cannot be read.
pub fn step_seconds(metrics: &Path, from: u64) -> Result<f64, RecordError> {
    let mut ms = 0.0;
    for_each_record(metrics, &mut |line| {
        if let MetricLine::Train(t) = line
            && t.step > from
        {
            ms += t.step_ms.unwrap_or(0.0);
        }
    })?;
    Ok(ms / 1e3)
}

/// The number of medians.
const SERIES: usize = 8;

/// The middle value, or the mean of the two middle ones; sorts `values`.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n.is_multiple_of(2) => Some(f64::midpoint(values[middle - 1], values[middle])),
        _ => Some(values[middle]),
    }
}

/// One line that says how the run ended, and how good it is.
pub fn headline(summary: &Summary) -> String {
    let how = match summary.status {
        RunStatus::Done | RunStatus::Running => "done",
        RunStatus::Interrupted => "interrupted",
        RunStatus::Failed => "failed",
    };
    let steps = match summary.status {
        RunStatus::Done => count(summary.steps),
        _ => format!("{} of {}", count(summary.steps), count(summary.steps_total)),
    };
    let own = summary.own;
    let own = if own.steps == summary.steps {
        String::new()
    } else {
        let OwnAmounts { steps, tokens, wall_seconds } = own;
        format!("; in this run: {}, {} tokens in {}", counted(steps, "step"), count(tokens), seconds(wall_seconds))
    };
    let loss = summary.last_eval.as_ref().and_then(Evaluation::val_loss);
    let loss = loss.map_or_else(String::new, |loss| format!(", val loss {loss:.4}"));
    let bits = summary.last_eval.as_ref().and_then(|e| e.measured.bits_per_byte());
    let bits = bits.map_or_else(String::new, |bits| format!(" ({bits:.4} bits/byte)"));
    let (id, tokens, time) = (&summary.id, count(summary.tokens), seconds(summary.wall_seconds));
    format!("{how}: {id}, {steps} steps, {tokens} tokens in {time}{loss}{bits}{own}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::event::BestValidation;

    #[test]
    fn medians_are_computed() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn a_run_is_summarized_in_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        let train = |step: u64, loss: &str, ms: f64| {
            format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"tokens\":10,\"step_ms\":{ms:?}}}\n")
        };
        let eval = |step: u64, loss: f64| format!("{{\"kind\":\"eval\",\"step\":{step},\"val_loss\":{loss:?}}}\n");
        let lines = [
            train(1, "3.5", 100.0),
            eval(1, 3.0),
            train(2, "2.5", 200.0),
            eval(2, 2.0),
            train(3, "null", 600.0),
            eval(3, 2.5),
        ];
        std::fs::write(&path, lines.concat() + "torn").unwrap();
        let summary = Summary {
            id: "a".into(),
            status: RunStatus::Done,
            steps_total: 3,
            predicted_step_ms: Some(250.0),
            is_prediction_disturbed: true,
            peak_rss_bytes: Some(5),
            planned_memory_bytes: 6,
            final_hash: Some("s".into()),
            weights_hash: Some("w".into()),
            ..Summary::from_metrics(&path, None, 0, None).unwrap().with_own_seconds(1.0)
        };
        assert_eq!(summary.own, OwnAmounts { steps: 3, tokens: 30, wall_seconds: 1.0 });
        assert_eq!((summary.wall_seconds, summary.is_inherited(1)), (1.0, false));
        assert_eq!((summary.steps, summary.tokens, summary.final_train_loss), (3, 30, None));
        assert_eq!(summary.medians.step_ms, Some(200.0));
        assert_eq!(summary.medians.mfu, None);
        assert_eq!(Summary::from_metrics(&path, None, 2, None).unwrap().medians.step_ms, Some(600.0), "a new layout");
        assert_eq!(summary.last_eval.as_ref().unwrap().step, 3);
        assert_eq!(summary.best_eval.as_ref().unwrap().step, 2);
        assert_eq!((summary.final_hash.as_deref(), summary.weights_hash.as_deref()), (Some("s"), Some("w")));
        assert_eq!((step_seconds(&path, 0).unwrap(), step_seconds(&path, 2).unwrap()), (0.9, 0.6));
        let text = serde_json::to_string(&summary).unwrap();
        assert!(text.contains("\"status\":\"done\""));
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), summary);
        // Lines of steps up to the checkpoint may be lost.
        let best = Some(BestValidation { step: 1, val_loss: 1.5 });
        let saved = SavedPosition { step: 2, tokens: 25, data: None, best, val_loss: None };
        let summary = Summary::from_metrics(&path, None, 0, Some(&saved)).unwrap();
        let best = summary.best_eval.map(|best| (best.step, best.val_loss()));
        assert_eq!((summary.steps, summary.tokens, best), (3, 35, Some((1, Some(1.5)))));
        let from = ContinuedFrom { id: "other".into(), step: 2, tokens: Some(25), ..ContinuedFrom::default() };
        let continued = Summary::from_metrics(&path, Some(&from), 0, Some(&saved)).unwrap();
        // Step 3 is its own, of 10 tokens; the checkpoint of step 2 had seen 25.
        assert_eq!((continued.steps, continued.tokens, continued.wall_seconds), (3, 35, 0.9));
        assert_eq!(continued.own, OwnAmounts { steps: 1, tokens: 10, wall_seconds: 0.6 });
        assert_eq!([1, 2, 3].map(|step| continued.is_inherited(step)), [true, true, false]);
        let timed = continued.clone().with_own_seconds(2.0);
        assert!((timed.wall_seconds - 2.3).abs() < 1e-9 && timed.own.wall_seconds == 2.0, "{timed:?}");
        let text = serde_json::to_string(&timed).unwrap();
        assert!(text.contains("\"own_steps\":1,\"own_tokens\":10,\"own_wall_seconds\":2.0"), "{text}");
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap(), timed);
        let own = SavedPosition { step: 3, tokens: 36, ..saved };
        let own = Summary::from_metrics(&path, Some(&from), 0, Some(&own)).unwrap();
        assert_eq!((own.tokens, own.own.tokens), (36, 11));
        // Records of older versions do not have the tokens: those of the lines count.
        let older = ContinuedFrom { tokens: None, ..from };
        let older =
            Summary::from_metrics(&path, Some(&older), 0, Some(&SavedPosition { step: 2, tokens: 20, ..saved }));
        assert_eq!(older.map(|s| (s.tokens, s.own.tokens)).unwrap(), (30, 10));
        assert_eq!(continued.best_eval.unwrap().step, 3, "the best of another run is not this run's");
    }
}
