//! How the run goes: `batch`, `train`, `optimizer`, `schedule` and `eval`.

use super::experiment::{Batch, Decay, Eval, EvalLoss, HellaSwag, Optimizer, Samples, Schedule, Train, Warmup};
use super::raw::{RawBatch, RawDecay, RawEval, RawOptimizer, RawSchedule, RawTrain};
use super::raw_eval::{RawHellaSwag, RawLoss, RawSamples};
use super::resolve::Resolver;
use super::resolve_model::{divisors_near, join_or, multiples_near};

const DEFAULT_SEQUENCES: usize = 32;
const DEFAULT_MICRO_BATCH: usize = 8;
const DEFAULT_STEPS: u64 = 1000;

impl Resolver<'_> {
    /// `length`: inputs per row, if that is known.
    pub(crate) fn batch(&mut self, raw: &RawBatch, length: Option<usize>) -> Option<Batch> {
        let sequences = match (raw.sequences, raw.tokens) {
            (Some(sequences), _) => sequences,
            (None, None) => DEFAULT_SEQUENCES,
            (None, Some(tokens)) => {
                let length = length?;
                if tokens % length != 0 {
                    self.error(
                        &["batch.tokens"],
                        format!(
                            "`batch.tokens` is not a whole number of rows: {tokens} = {}·{length} + {}",
                            tokens / length,
                            tokens % length
                        ),
                        format!("nearest: {}", join_or(&multiples_near(tokens, length))),
                    );
                    return None;
                }
                let from = self.layers.origin("batch.tokens", false).unwrap_or_default();
                self.notes.insert("batch.sequences", format!("batch.tokens / {length}, {from}"));
                tokens / length
            }
        };
        let Some(micro_batch) = raw.micro_batch else {
            self.notes.insert("batch.micro_batch", "default (largest divisor of sequences up to 8)".into());
            let micro_batch = (1..=DEFAULT_MICRO_BATCH).rev().find(|m| sequences % m == 0).unwrap_or(1);
            return Some(Batch { sequences, micro_batch });
        };
        if sequences % micro_batch != 0 {
            let keys = ["batch.micro_batch", "batch.sequences", "batch.tokens"];
            let name = if raw.tokens.is_some() { "the sequences of `batch.tokens`" } else { "`batch.sequences`" };
            if micro_batch > sequences {
                self.error(
                    &keys,
                    format!("`batch.micro_batch` is more than {name}: {micro_batch} > {sequences}"),
                    format!("make micro_batch at most {sequences}, or sequences at least {micro_batch}"),
                );
            } else {
                self.error(
                    &keys,
                    format!(
                        "`batch.micro_batch` does not divide {name}: {sequences} = {}·{micro_batch} + {}",
                        sequences / micro_batch,
                        sequences % micro_batch
                    ),
                    format!(
                        "nearest: micro_batch {}; sequences {}",
                        join_or(&divisors_near(sequences, micro_batch)),
                        join_or(&multiples_near(sequences, micro_batch))
                    ),
                );
            }
            return None;
        }
        Some(Batch { sequences, micro_batch })
    }

    pub(crate) fn optimizer(&mut self, raw: &RawOptimizer) -> Optimizer {
        match *raw {
            RawOptimizer::Adamw { lr, betas, eps, weight_decay } => {
                for (i, beta) in betas.iter().enumerate() {
                    if !(0.0..1.0).contains(beta) {
                        self.error(
                            &[&format!("optimizer.adamw.betas.{i}")],
                            format!("a beta lies in [0, 1), and is {beta}"),
                            "common are [0.9, 0.95] and [0.9, 0.999]",
                        );
                    }
                }
                Optimizer::Adamw { lr, betas, eps, weight_decay }
            }
            RawOptimizer::Sgd { lr, momentum } => Optimizer::Sgd { lr, momentum },
        }
    }

    pub(crate) fn schedule(&mut self, raw: &RawSchedule, train: Option<&Train>) -> Schedule {
        let warmup = Warmup { steps: raw.warmup.steps, from: raw.warmup.from };
        if let Some(steps) = train.and_then(|t| t.steps)
            && warmup.steps > steps
        {
            let default = if self.given("train.steps") { "" } else { " (the default)" };
            self.error(
                &["schedule.warmup.steps", "train.steps"],
                format!("a warmup longer than the run: {} steps of {steps}{default}", warmup.steps),
                format!("make `schedule.warmup.steps` at most {steps}, or `train.steps` at least {}", warmup.steps),
            );
        }
        let decay = match raw.decay {
            RawDecay::Cosine { final_, steps } => Decay::Cosine { final_, steps },
            RawDecay::Linear { final_, steps } => Decay::Linear { final_, steps },
            RawDecay::Step { every, gamma } => Decay::Step { every, gamma },
            RawDecay::Constant {} => Decay::Constant {},
        };
        Schedule { warmup, decay }
    }

    /// `validation`: whether there is validation data, if that is known.
    pub(crate) fn eval(&mut self, raw: RawEval, validation: Option<bool>) -> Option<Eval> {
        let loss = match raw.loss {
            Some(Some(RawLoss { batches })) => {
                if validation == Some(false) {
                    self.error(
                        &["eval.loss", "data.validation"],
                        "`eval.loss` needs validation data, and `data.validation` is null",
                        "add `validation: {fraction: 0.1}` or a source of its own under `data`, or write `loss: null`",
                    );
                }
                Some(EvalLoss { batches })
            }
            Some(None) => None,
            None => (validation != Some(false)).then(|| EvalLoss { batches: RawLoss::default().batches }),
        };
        let hellaswag = match raw.hellaswag {
            Some(given) => Some(self.hellaswag(given)?),
            None => None,
        };
        Some(Eval { every: raw.every, at_start: raw.at_start, loss, hellaswag, samples: raw.samples.map(samples) })
    }

    fn hellaswag(&mut self, raw: RawHellaSwag) -> Option<HellaSwag> {
        let RawHellaSwag { file, builtin, limit } = raw;
        if file.is_none() && builtin.is_none() {
            self.error(
                &["eval.hellaswag", "eval.hellaswag.file", "eval.hellaswag.builtin"],
                "`eval.hellaswag` names no items",
                "give `file:` a JSONL file, or `builtin: stories`",
            );
            return None;
        }
        let file = match file {
            Some(text) => Some(self.file("eval.hellaswag.file", &text)?),
            None => None,
        };
        Some(HellaSwag { file, builtin, limit })
    }
}

fn samples(raw: RawSamples) -> Samples {
    let RawSamples { prompts, count, max_tokens, top_k, temperature, top_p, seed } = raw;
    Samples { prompts, count, max_tokens, top_k, temperature, top_p, seed }
}

/// How long the run is; `None` if the file says it in two ways, which is reported where it stands.
pub(crate) fn train(raw: &RawTrain) -> Option<Train> {
    let steps = match (raw.steps, raw.epochs, raw.tokens) {
        (None, None, None) => Some(DEFAULT_STEPS),
        (steps, _, _) => steps,
    };
    let count = usize::from(steps.is_some()) + usize::from(raw.epochs.is_some()) + usize::from(raw.tokens.is_some());
    (count == 1).then_some(Train { steps, epochs: raw.epochs, tokens: raw.tokens, clip_norm: raw.clip_norm })
}
