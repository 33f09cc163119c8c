//! What the differences of two plans mean: one class, decided by their hashes, and the parts that make it up.

use serde::Serialize;

use super::inherited_steps::BeginningComparison;
use super::planned_experiment::PlannedExperiment;
use runner_spec::data::{ChoiceFacts, SplitFacts};
use runner_spec::experiment::Samples;
use runner_spec::plan::Plan;
use runner_spec::program::{Instruction, Program};

/// What two experiments are to each other, from equal to different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceClass {
    /// The same plan hash, and nothing else that is kept of a run differs.
    SameRun,
    /// The same plan hash: other names, logs, checkpoints or places.
    Bookkeeping,
    /// The same numbers up to rounding: what is computed is divided or ordered otherwise.
    Rounding,
    /// Other numbers.
    Mathematics,
}

/// What of the mathematics differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MathematicsPart {
    Data,
    Model,
    InitialWeights,
    Optimizer,
    Schedule,
    Batch,
    TrainingLength,
    Precision,
    Seed,
    Evaluation,
    /// The checkpoint that a run began with is of another mathematics.
    Beginning,
}

impl MathematicsPart {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Model => "model",
            Self::InitialWeights => "initial weights",
            Self::Optimizer => "optimizer",
            Self::Schedule => "schedule",
            Self::Batch => "batch",
            Self::TrainingLength => "training length",
            Self::Precision => "precision",
            Self::Seed => "seed",
            Self::Evaluation => "evaluation",
            Self::Beginning => "beginning",
        }
    }
}

/// What becomes of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingEquality {
    /// The same on the same kind of processor, bit for bit.
    SameBits,
    /// The same up to rounding.
    Rounding,
    Other,
}

/// What the differences mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Classification {
    pub class: DifferenceClass,
    /// Of class `mathematics`: what of it differs.
    pub parts: Vec<MathematicsPart>,
    pub training: TrainingEquality,
    /// In words.
    pub meaning: String,
}

/// What is measured, apart from how it is computed.
#[derive(Debug, PartialEq)]
struct Evaluation<'a> {
    at_start: bool,
    evaluate: Option<Schedule>,
    sample: Option<Schedule>,
    loss: Option<(&'a SplitFacts, u64)>,
    choice: Option<&'a ChoiceFacts>,
    samples: Option<&'a Samples>,
    test: Option<&'a SplitFacts>,
}

/// How often something is done in a run.
#[derive(Debug)]
struct Schedule {
    every: u64,
    /// After the last step alone.
    once: bool,
}

impl PartialEq for Schedule {
    fn eq(&self, other: &Self) -> bool {
        self.every == other.every || (self.once && other.once)
    }
}

/// Rows of the validation split that an evaluation reads; `None` without one.
#[must_use]
pub fn validation_rows(plan: &Plan) -> Option<u64> {
    let program = first(plan)?;
    let rows = (program.eval.loss?.batches as u64).saturating_mul(program.batch.micro_batch as u64);
    Some(rows.min(plan.data.validation.as_ref()?.rows))
}

impl<'a> Evaluation<'a> {
    fn of(plan: &'a Plan) -> Option<Self> {
        let program = first(plan)?;
        let due = |wanted: Instruction| {
            let periodic = program.periodic.iter().find(|p| p.instruction == wanted)?;
            Some(Schedule { every: periodic.every, once: periodic.every >= program.steps })
        };
        Some(Self {
            at_start: program.start.contains(&Instruction::Evaluate),
            evaluate: due(Instruction::Evaluate),
            sample: due(Instruction::Sample),
            loss: plan.data.validation.as_ref().zip(validation_rows(plan)),
            choice: plan.data.choice.as_ref().filter(|_| program.eval.choice_items.is_some()),
            samples: program.eval.samples.as_ref(),
            test: plan.data.test.as_ref(),
        })
    }
}

/// The program of the first rank: what differs among ranks is layout.
pub fn first(plan: &Plan) -> Option<&Program> {
    plan.ranks.first().map(|rank| &rank.program)
}

/// Whether both measure the same, at the same steps.
pub fn same_evaluation(a: &Plan, b: &Plan) -> bool {
    Evaluation::of(a) == Evaluation::of(b)
}

/// Whether ranks are on the same devices of their machines.
pub fn same_devices(a: &Plan, b: &Plan) -> bool {
    a.ranks.iter().map(|r| r.device).eq(b.ranks.iter().map(|r| r.device))
}

fn clip(program: &Program) -> Option<&Instruction> {
    program.step.iter().find(|i| matches!(i, Instruction::ClipNorm { .. }))
}

/// What of the mathematics differs between two plans.
#[must_use]
pub fn parts(a: &Plan, b: &Plan) -> Vec<MathematicsPart> {
    let (Some(p), Some(q)) = (first(a), first(b)) else { return Vec::new() };
    let data = |plan: &Plan| (plan.data.train.clone(), plan.data.tokenizer_hash.clone(), plan.data.tokenizer_vocab);
    let table = [
        (
            MathematicsPart::Data,
            data(a) != data(b) || (p.batch.length, p.batch.order) != (q.batch.length, q.batch.order),
        ),
        (MathematicsPart::Model, p.model != q.model),
        (MathematicsPart::InitialWeights, a.data.weights != b.data.weights),
        (
            MathematicsPart::Optimizer,
            p.optimizer != q.optimizer || p.schedule.peak != q.schedule.peak || clip(p) != clip(q),
        ),
        (
            MathematicsPart::Schedule,
            (p.schedule.warmup_steps, p.schedule.warmup_from, p.schedule.decay)
                != (q.schedule.warmup_steps, q.schedule.warmup_from, q.schedule.decay),
        ),
        (MathematicsPart::Batch, p.batch.sequences != q.batch.sequences),
        (MathematicsPart::TrainingLength, p.steps != q.steps),
        (MathematicsPart::Precision, (p.precision, p.master_weights) != (q.precision, q.master_weights)),
        (MathematicsPart::Seed, p.seed != q.seed),
        (MathematicsPart::Evaluation, !same_evaluation(a, b)),
    ];
    table.into_iter().filter(|(_, differ)| *differ).map(|(part, _)| part).collect()
}

/// The class of `a` and `b`. `kept`: whether a setting differs that a run keeps, though it changes no number.
#[must_use]
pub fn verdict(a: &PlannedExperiment, b: &PlannedExperiment, kept: bool) -> Classification {
    if a.plan.hash == b.plan.hash {
        let (class, meaning) = if kept {
            (DifferenceClass::Bookkeeping, "bookkeeping only: the plan is the same, and so is every number")
        } else {
            (DifferenceClass::SameRun, "same run: the plan is the same, and so is every number")
        };
        return Classification {
            class,
            parts: Vec::new(),
            training: TrainingEquality::SameBits,
            meaning: meaning.to_owned(),
        };
    }
    let (p, q) = (a.effective(), b.effective());
    if p.math_hash != q.math_hash {
        let parts = parts(p, q);
        let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
        let meaning = format!("other mathematics: {}", names.join(", "));
        return Classification {
            class: DifferenceClass::Mathematics,
            parts,
            training: TrainingEquality::Other,
            meaning,
        };
    }
    let training = training(a, b);
    if !same_evaluation(p, q) {
        let how = if training == TrainingEquality::SameBits { "bit for bit" } else { "up to rounding" };
        let meaning = format!("other mathematics: evaluation alone; training is the same, {how}");
        return Classification {
            class: DifferenceClass::Mathematics,
            parts: vec![MathematicsPart::Evaluation],
            training,
            meaning,
        };
    }
    let meaning = match training {
        TrainingEquality::SameBits => {
            "same mathematics, and the same bits: what differs in the plans has no effect here"
        }
        _ => "same mathematics, other rounding",
    };
    Classification { class: DifferenceClass::Rounding, parts: Vec::new(), training, meaning: meaning.to_owned() }
}

impl Classification {
    /// What the differences mean if the two also `began` so.
    #[must_use]
    pub fn with(mut self, began: BeginningComparison) -> Self {
        match began {
            BeginningComparison::Otherwise => {
                self.parts.push(MathematicsPart::Beginning);
                let names: Vec<&str> = self.parts.iter().map(|part| part.name()).collect();
                self.meaning = format!("other mathematics: {}", names.join(", "));
                (self.class, self.training) = (DifferenceClass::Mathematics, TrainingEquality::Other);
            }
            BeginningComparison::Rounding if self.training == TrainingEquality::SameBits => {
                self.training = TrainingEquality::Rounding;
                let meaning = match self.class {
                    DifferenceClass::Mathematics => {
                        "other mathematics: evaluation alone; training is the same, up to rounding"
                    }
                    _ => "same mathematics, other rounding: they began under other plans",
                };
                meaning.clone_into(&mut self.meaning);
                self.class = self.class.max(DifferenceClass::Rounding);
            }
            BeginningComparison::Alike | BeginningComparison::Rounding => {}
        }
        self
    }
}

/// Of two that compute the same: whether the steps are the same programs, once both evaluate alike.
fn training(a: &PlannedExperiment, b: &PlannedExperiment) -> TrainingEquality {
    let mut experiment = b.experiment.clone();
    experiment.eval = a.experiment.eval.clone();
    // What is computed again has the same bits.
    experiment.train.recompute = a.experiment.train.recompute;
    let mut other = b.clone();
    (other.data.validation, other.data.choice) = (a.data.validation.clone(), a.data.choice.clone());
    other.data.test.clone_from(&a.data.test);
    match other.replanned(&experiment) {
        Ok(plan) if plan.hash == a.effective().hash => TrainingEquality::SameBits,
        _ => TrainingEquality::Rounding,
    }
}
