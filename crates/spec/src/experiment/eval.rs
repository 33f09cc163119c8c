//! The `eval` section.

use std::collections::BTreeMap;
use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::source::Source;
use super::task::{HELLASWAG, Task};

/// The measurements while training. A part that is `null` is left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Eval {
    /// Optimizer steps between evaluations; one always follows the last step. Multiple choice and samples may have their own interval.
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub every: u64,
    /// True to evaluate before the first step too.
    pub at_start: bool,
    /// Validation loss, perplexity and bits per byte. Default: 160 rows if there is validation data.
    pub loss: Option<EvalLoss>,
    /// The task `hellaswag`: multiple choice in HellaSwag's format. Default: none.
    pub hellaswag: Option<Task>,
    /// More tasks of multiple choice, by their names, which begin the names of their scores: `quiz` has `quiz_acc`. Each has the
    /// keys of `eval.hellaswag`. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if)]
    pub tasks: Option<BTreeMap<String, Task>>,
    /// Texts that the model continues. Default: none.
    pub samples: Option<Samples>,
    /// A source as in `data.train`. After the last step, the loss of the best checkpoint (by validation loss) on it is
    /// measured. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<Source>,
    /// At most this many rows of `test`, from its start. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000_000_000u64))]
    pub test_rows: Option<u64>,
}

impl Default for Eval {
    fn default() -> Self {
        Self {
            every: 250,
            at_start: false,
            loss: None,
            hellaswag: None,
            tasks: None,
            samples: None,
            test: None,
            test_rows: None,
        }
    }
}

impl Eval {
    /// The tasks, by their names.
    pub fn tasks(&self) -> impl Iterator<Item = (&str, &Task)> {
        let hellaswag = self.hellaswag.iter().map(|task| (HELLASWAG, task));
        hellaswag.chain(self.tasks.iter().flatten().map(|(name, task)| (name.as_str(), task)))
    }

    /// The tasks, by their names.
    pub fn tasks_mut(&mut self) -> impl Iterator<Item = (&str, &mut Task)> {
        let hellaswag = self.hellaswag.iter_mut().map(|task| (HELLASWAG, task));
        hellaswag.chain(self.tasks.iter_mut().flatten().map(|(name, task)| (name.as_str(), task)))
    }

    /// Replaces the tasks.
    pub fn set_tasks(&mut self, tasks: impl IntoIterator<Item = (String, Task)>) {
        let mut tasks: BTreeMap<String, Task> = tasks.into_iter().collect();
        self.hellaswag = tasks.remove(HELLASWAG);
        self.tasks = (!tasks.is_empty()).then_some(tasks);
    }

    /// Steps between scores of `task`.
    #[must_use]
    pub fn task_every(&self, task: &Task) -> u64 {
        task.every.unwrap_or(self.every)
    }

    /// Steps between samples.
    #[must_use]
    pub fn samples_every(&self) -> u64 {
        self.samples.as_ref().and_then(|samples| samples.every).unwrap_or(self.every)
    }
}

/// The part of the validation data that a validation loss reads, from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(extend("x-has-default" = true))]
pub enum EvalLoss {
    /// At most this many rows: the same ones in every layout and for every micro-batch.
    Rows(#[schemars(range(min = 1, max = 1_000_000_000_000u64))] u64),
    /// At most this many micro-batches, so a different `batch.micro_batch` reads different rows. Use `rows` instead.
    Batches(#[schemars(range(min = 1, max = 1_000_000_000))] usize),
}

impl Default for EvalLoss {
    fn default() -> Self {
        Self::Rows(160)
    }
}

impl EvalLoss {
    /// The number of rows that are read at most.
    #[must_use]
    pub fn rows(self, micro_batch: usize) -> u64 {
        match self {
            Self::Rows(rows) => rows,
            Self::Batches(batches) => (batches as u64).saturating_mul(micro_batch as u64),
        }
    }

    /// Counts rows instead of micro-batches of `micro_batch` rows, so that the layout does not change them.
    #[must_use]
    pub fn in_rows(self, micro_batch: usize) -> Self {
        Self::Rows(self.rows(micro_batch))
    }

    /// The form that programs have. Whole micro-batches are counted as such, so that a plan has the hash that it had when files
    /// could count micro-batches only.
    #[must_use]
    pub fn canonical(self, micro_batch: usize) -> Self {
        match (self, micro_batch as u64) {
            (Self::Rows(rows), size @ 1..) if rows.is_multiple_of(size) => Self::Batches((rows / size) as usize),
            (other, _) => other,
        }
    }
}

/// Texts that the model continues.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["prompts"]))]
pub struct Samples {
    /// The texts to continue.
    #[schemars(length(min = 1))]
    pub prompts: Vec<String>,
    /// Optimizer steps between samples; they always follow the last step. Default: `eval.every`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(!skip_serializing_if, range(min = 1, max = 1_000_000_000_000u64))]
    pub every: Option<u64>,
    /// Continuations of each prompt.
    #[schemars(range(min = 1, max = 10_000))]
    pub count: usize,
    /// Tokens per continuation.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_tokens: usize,
    /// Sample from this many of the most likely tokens; `null` for all.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub top_k: Option<usize>,
    /// Divides the logits; 0 always takes the most likely token, and other numbers must be at least 1e-6.
    #[schemars(range(min = 0, max = 1_000))]
    pub temperature: f64,
    /// Sample from the most likely tokens that together have this share of the probability that `top_k` leaves; `null` for all.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub top_p: Option<f64>,
    /// Seed of the sampling.
    pub seed: u64,
}

impl Samples {
    /// The smallest temperature above 0: logits divided by a much smaller one are not finite.
    pub const LEAST_TEMPERATURE: f64 = 1e-6;

    /// The most continuations in one batch. Products of so few rows take hardly longer than those of one row, and 32 continuations are enough
    /// work for 8 replicas.
    const BATCH: usize = 4;

    /// Advice if `temperature` is not valid.
    pub fn temperature_problem(temperature: f64) -> Option<String> {
        let is_valid = temperature == 0.0 || temperature.is_finite() && temperature >= Self::LEAST_TEMPERATURE;
        let least = Self::LEAST_TEMPERATURE;
        (!is_valid).then(|| format!("use 0 to always take the most likely token, or at least {least:e}"))
    }

    /// The batches in which continuations are drawn, in the order of prompts. They are the same for every number of replicas, because kernels
    /// round sums differently for other numbers of rows: so the texts do not depend on how replicas divide the batches.
    pub fn batches(&self) -> impl Iterator<Item = SampleBatch> {
        let (count, per_prompt) = (self.count, self.batches_per_prompt());
        (0..self.prompts.len()).flat_map(move |prompt| {
            let bound = move |part: usize| part * count / per_prompt;
            (0..per_prompt).map(move |part| SampleBatch { prompt, continuations: bound(part)..bound(part + 1) })
        })
    }

    /// Continuations in the largest batch.
    #[must_use]
    pub fn batch_rows(&self) -> usize {
        self.count.div_ceil(self.batches_per_prompt().max(1))
    }

    fn batches_per_prompt(&self) -> usize {
        self.count.div_ceil(Self::BATCH)
    }
}

/// Continuations of one prompt that a model draws side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleBatch {
    /// The index of the prompt.
    pub prompt: usize,
    /// The indices of the continuations.
    pub continuations: Range<usize>,
}

impl Default for Samples {
    fn default() -> Self {
        let prompts = Vec::new();
        Self {
            prompts,
            every: None,
            count: 1,
            max_tokens: 64,
            top_k: Some(50),
            temperature: 1.0,
            top_p: None,
            seed: 42,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_even_and_have_every_continuation_once() {
        for count in 0..40 {
            let samples = Samples { prompts: vec![String::new(); 3], count, ..Samples::default() };
            let lengths: Vec<usize> = samples.batches().map(|batch| batch.continuations.len()).collect();
            let (least, most) = (lengths.iter().min(), lengths.iter().max());
            assert!(most <= Some(&Samples::BATCH) && most.zip(least).is_none_or(|(most, least)| most - least <= 1));
            assert_eq!(most.copied().unwrap_or(0), samples.batch_rows());
            let all = samples.batches().flat_map(|batch| batch.continuations.map(move |index| (batch.prompt, index)));
            assert!(all.eq((0..3).flat_map(|prompt| (0..count).map(move |index| (prompt, index)))), "{count}");
        }
        let article = Samples { prompts: vec![String::new()], count: 32, ..Samples::default() };
        assert_eq!(article.batches().count(), 8, "one for each of 8 replicas");
    }
}
