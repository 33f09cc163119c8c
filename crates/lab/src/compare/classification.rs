//! The classification of the differences between two plans: a class, decided by their hashes, and the parts of the mathematics that differ.

use serde::Serialize;

use super::facts::MathematicsPart;
use super::inherited_steps::InheritedStepsComparison;
use super::plan_facts::{differing_parts, same_evaluation};
use super::planned_experiment::PlannedExperiment;

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
