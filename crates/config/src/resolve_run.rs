//! The sections `train`, `optimizer`, `schedule` and `eval`.

use super::raw::{RawDecay, RawEval, RawOptimizer, RawSchedule, RawStep, RawTrain};
use super::raw_eval::{RawHellaSwag, RawLoss, RawSamples};
use super::resolve::Resolver;
use runner_spec::experiment::{
    Decay, Eval, EvalLoss, HellaSwag, Optimizer, Precision, Samples, Schedule, Train, Warmup,
};

const DEFAULT_STEPS: u64 = 1000;

impl Resolver<'_> {
    pub fn optimizer(&mut self, raw: &RawOptimizer) -> Optimizer {
        match *raw {
            RawOptimizer::Adamw { lr, betas, eps, weight_decay, decays } => {
                for (i, beta) in betas.iter().enumerate() {
                    if !(0.0..1.0).contains(beta) {
                        self.error(
                            &[&format!("optimizer.adamw.betas.{i}")],
                            format!("a beta lies in [0, 1), and is {beta}"),
                            "common are [0.9, 0.95] and [0.9, 0.999]",
                        );
                    }
                }
                Optimizer::Adamw { lr, betas, eps, weight_decay, decays }
            }
            RawOptimizer::Sgd { lr, momentum } => Optimizer::Sgd { lr, momentum },
        }
    }

    /// Reports `master_weights: false` under a precision other than bf16, where all weights are 32-bit.
    pub fn master_weights(&mut self, precision: Precision, master_weights: bool) {
        if master_weights || precision == Precision::Bf16 {
            return;
        }
        let name = if precision == Precision::Fp32 { "fp32" } else { "tf32" };
        self.error(
            &["master_weights", "precision"],
            format!("`master_weights: false` under `precision: {name}`, whose weights are 32-bit"),
            "delete it, or choose `precision: bf16`",
        );
    }

    pub fn schedule(&mut self, raw: &RawSchedule, train: Option<&Train>) -> Schedule {
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
            RawDecay::Step(RawStep { every, epochs, gamma }) => {
                if every.is_none() && epochs.is_none() {
                    self.error(
                        &["schedule.decay.step"],
                        "`schedule.decay.step` says `gamma`, and not when",
                        "give `every:` a number of steps, or `epochs: 1`",
                    );
                }
                Decay::Step { every, epochs, gamma }
            }
            RawDecay::Constant {} => Decay::Constant {},
        };
        Schedule { warmup, decay }
    }

    /// `validation`: whether there is validation data, if that is known.
    pub fn eval(&mut self, raw: RawEval, validation: Option<bool>) -> Option<Eval> {
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
        let test = match raw.test {
            Some(source) => Some(self.source(source, "eval.test")?),
            None => None,
        };
        let samples = raw.samples.map(samples);
        Some(Eval { every: raw.every, at_start: raw.at_start, loss, hellaswag, samples, test })
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

/// The length of the run; `None` if the file gives it in two ways, which is reported at its place.
pub(crate) fn train(raw: &RawTrain) -> Option<Train> {
    let steps = match (raw.steps, raw.epochs, raw.tokens) {
        (None, None, None) => Some(DEFAULT_STEPS),
        (steps, _, _) => steps,
    };
    let count = usize::from(steps.is_some()) + usize::from(raw.epochs.is_some()) + usize::from(raw.tokens.is_some());
    let (clip_norm, recompute) = (raw.clip_norm, raw.recompute);
    (count == 1).then_some(Train { steps, epochs: raw.epochs, tokens: raw.tokens, clip_norm, recompute })
}
