//! The classification of the differences between two plans: a class, decided by their hashes, and the parts of the mathematics that differ.

use serde::Serialize;

use super::inherited_steps::InheritedStepsComparison;
use super::planned_experiment::PlannedExperiment;
use runner_spec::data::{ChoiceFacts, SplitFacts};
use runner_spec::experiment::Samples;
use runner_spec::plan::Plan;
use runner_spec::program::{Instruction, Program};

/// The class of the differences between two experiments, from equal to different.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceClass {
    /// The plan hashes are equal, and nothing else that is recorded of a run differs.
    SameRun,
    /// The plan hashes are equal, but names, logs, checkpoints or places differ.
    Bookkeeping,
    /// The numbers are equal up to rounding: the computation is divided or ordered differently.
    Rounding,
    /// The numbers differ.
    Mathematics,
}

runner_record::named_enum! {
    /// A part of the mathematics that differs.
    pub enum MathematicsPart {
        Data = "data",
        Model = "model",
        InitialWeights = "initial_weights",
        Optimizer = "optimizer",
        Schedule = "schedule",
        Batch = "batch",
        TrainingLength = "training_length",
        Precision = "precision",
        Seed = "seed",
        Evaluation = "evaluation",
        /// The run started from a checkpoint of other mathematics.
        Beginning = "beginning",
    }
}

/// The degree to which the trained weights are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrainingEquality {
    /// Equal bit for bit on the same kind of processor.
    SameBits,
    /// Equal up to rounding.
    Rounding,
    Other,
}

/// The meaning of the differences.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Classification {
    pub class: DifferenceClass,
    /// The parts that differ, in the class `mathematics`.
    pub parts: Vec<MathematicsPart>,
    pub training: TrainingEquality,
    /// The classification as a phrase.
    pub meaning: String,
}

/// The measurements of a run, apart from how they are computed.
#[derive(Debug, PartialEq)]
struct Evaluation<'a> {
    at_start: bool,
    evaluate: Option<ExecutionInterval>,
    sample: Option<ExecutionInterval>,
    loss: Option<(&'a SplitFacts, u64)>,
    choice: Option<&'a ChoiceFacts>,
    samples: Option<&'a Samples>,
    test: Option<&'a SplitFacts>,
}

/// The steps after which an instruction is executed in a run.
#[derive(Debug)]
struct ExecutionInterval {
    every: u64,
    /// True if it is executed after the last step only.
    is_last_only: bool,
}

impl PartialEq for ExecutionInterval {
    fn eq(&self, other: &Self) -> bool {
        self.every == other.every || (self.is_last_only && other.is_last_only)
    }
}

impl<'a> Evaluation<'a> {
    fn of_plan(plan: &'a Plan) -> Option<Self> {
        let program = first_program(plan)?;
        let due = |wanted: Instruction| {
            let periodic = program.periodic.iter().find(|p| p.instruction == wanted)?;
            Some(ExecutionInterval { every: periodic.every, is_last_only: periodic.every >= program.steps })
        };
        Some(Self {
            at_start: program.start.contains(&Instruction::Evaluate),
            evaluate: due(Instruction::Evaluate),
            sample: due(Instruction::Sample),
            loss: plan.data.validation.as_ref().zip(plan.validation_rows()),
            choice: plan.data.choice.as_ref().filter(|_| program.eval.choice_items.is_some()),
            samples: program.eval.samples.as_ref(),
            test: plan.data.test.as_ref(),
        })
    }
}

/// The program of the first rank. The programs of the other ranks differ in the layout only.
pub fn first_program(plan: &Plan) -> Option<&Program> {
    plan.ranks.first().map(|rank| &rank.program)
}

/// True if both plans measure the same at the same steps.
pub fn same_evaluation(a: &Plan, b: &Plan) -> bool {
    Evaluation::of_plan(a) == Evaluation::of_plan(b)
}

/// True if the ranks of both plans are on the same devices of their machines.
pub fn same_devices(a: &Plan, b: &Plan) -> bool {
    a.ranks.iter().map(|r| r.device).eq(b.ranks.iter().map(|r| r.device))
}

/// The parts of the mathematics that differ between two plans.
#[must_use]
pub fn differing_parts(a: &Plan, b: &Plan) -> Vec<MathematicsPart> {
    let (Some(p), Some(q)) = (first_program(a), first_program(b)) else { return Vec::new() };
    let data = |plan: &Plan| (plan.data.train.clone(), plan.data.tokenizer_hash.clone(), plan.data.tokenizer_vocab);
    let table = [
        (
            MathematicsPart::Data,
            data(a) != data(b)
                || (p.batch.length, p.batch.order, p.batch.position)
                    != (q.batch.length, q.batch.order, q.batch.position),
        ),
        (MathematicsPart::Model, p.model != q.model),
        (MathematicsPart::InitialWeights, a.data.weights != b.data.weights),
        (
            MathematicsPart::Optimizer,
            p.optimizer != q.optimizer || p.schedule.peak != q.schedule.peak || p.clip_norm() != q.clip_norm(),
        ),
        (
            MathematicsPart::Schedule,
            (p.schedule.start, p.schedule.warmup_steps, p.schedule.warmup_from, p.schedule.decay)
                != (q.schedule.start, q.schedule.warmup_steps, q.schedule.warmup_from, q.schedule.decay),
        ),
        (MathematicsPart::Batch, p.batch.sequences != q.batch.sequences),
        (MathematicsPart::TrainingLength, p.steps != q.steps),
        (MathematicsPart::Precision, (p.precision, p.master_weights) != (q.precision, q.master_weights)),
        (MathematicsPart::Seed, p.seed != q.seed),
        (MathematicsPart::Evaluation, !same_evaluation(a, b)),
    ];
    table.into_iter().filter(|(_, differ)| *differ).map(|(part, _)| part).collect()
}

/// Classifies the differences between `a` and `b`. `has_bookkeeping` is true if a setting differs that a run records, although it changes
/// no number.
#[must_use]
pub fn classify(a: &PlannedExperiment, b: &PlannedExperiment, has_bookkeeping: bool) -> Classification {
    let (p, q) = (a.effective(), b.effective());
    let mut parts = Vec::new();
    let (class, training, meaning) = if a.plan.hash == b.plan.hash {
        let (class, meaning) = if has_bookkeeping {
            (DifferenceClass::Bookkeeping, "bookkeeping only: the plan is the same, so every number should be")
        } else {
            (DifferenceClass::SameRun, "same run: the plan is the same, so every number should be")
        };
        (class, TrainingEquality::SameBits, meaning.to_owned())
    } else if p.math_hash != q.math_hash {
        parts = differing_parts(p, q);
        (DifferenceClass::Mathematics, TrainingEquality::Other, describe_parts(&parts))
    } else if same_evaluation(p, q) {
        let training = compare_training(a, b);
        let meaning = match training {
            TrainingEquality::SameBits => {
                "same mathematics, and the same bits: what differs in the plans has no effect here"
            }
            _ => "same mathematics, other rounding",
        };
        (DifferenceClass::Rounding, training, meaning.to_owned())
    } else {
        parts.push(MathematicsPart::Evaluation);
        let training = compare_training(a, b);
        let how = if training == TrainingEquality::SameBits { "bit for bit" } else { "up to rounding" };
        let meaning = format!("other mathematics: evaluation alone; training is the same, {how}");
        (DifferenceClass::Mathematics, training, meaning)
    };
    Classification { class, parts, training, meaning }
}

fn describe_parts(parts: &[MathematicsPart]) -> String {
    let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
    format!("other mathematics: {}", names.join(", ").replace('_', " "))
}

impl Classification {
    /// The classification of two runs that also inherited steps from other runs.
    #[must_use]
    pub fn with_inherited_steps(mut self, inherited: InheritedStepsComparison) -> Self {
        match inherited {
            InheritedStepsComparison::Different => {
                self.parts.push(MathematicsPart::Beginning);
                self.meaning = describe_parts(&self.parts);
                (self.class, self.training) = (DifferenceClass::Mathematics, TrainingEquality::Other);
            }
            InheritedStepsComparison::Rounding if self.training == TrainingEquality::SameBits => {
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
            InheritedStepsComparison::Same | InheritedStepsComparison::Rounding => {}
        }
        self
    }
}

/// Compares the training of two experiments with the same mathematics: the plans with the same evaluation have equal hashes if the steps
/// are the same programs.
fn compare_training(a: &PlannedExperiment, b: &PlannedExperiment) -> TrainingEquality {
    let mut experiment = b.experiment.clone();
    experiment.eval = a.experiment.eval.clone();
    // Recomputed activations have the same bits.
    experiment.train.recompute = a.experiment.train.recompute;
    let mut other = b.clone();
    (other.data.validation, other.data.choice) = (a.data.validation.clone(), a.data.choice.clone());
    other.data.test.clone_from(&a.data.test);
    match other.replanned(&experiment) {
        Ok(plan) if plan.hash == a.effective().hash => TrainingEquality::SameBits,
        _ => TrainingEquality::Rounding,
    }
}
