//! The classification of the differences between two plans: a class, decided by their hashes, and the parts of the mathematics that differ.

use serde::Serialize;

use super::facts::{MathematicsPart, Meaning};
use super::inherited_steps::InheritedStepsComparison;
use super::plan_facts::{devices, differing_facts, differing_parts, have_same_kinds};
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

/// Classifies the differences between `a` and `b`, which inherited steps as `inherited` says. `has_bookkeeping` is true if a setting differs
/// that a run records, although it changes no number.
#[must_use]
pub fn classify(
    a: &PlannedExperiment,
    b: &PlannedExperiment,
    has_bookkeeping: bool,
    inherited: InheritedStepsComparison,
) -> Classification {
    let (p, q) = (a.effective(), b.effective());
    let (is_same_plan, is_same_mathematics) = (a.plan.hash == b.plan.hash, p.math_hash == q.math_hash);
    let mut parts = if is_same_plan { Vec::new() } else { differing_parts(p, q) };
    if is_same_mathematics {
        parts.retain(|part| *part == MathematicsPart::Evaluation);
    }
    let mut training = match (is_same_plan, is_same_mathematics) {
        (true, _) => TrainingEquality::SameBits,
        (_, true) if differing_facts(p, q).any(|(_, meaning)| meaning == Meaning::Rounding) => {
            TrainingEquality::Rounding
        }
        (_, true) => TrainingEquality::SameBits,
        _ => TrainingEquality::Other,
    };
    let began_under_other_plans =
        inherited == InheritedStepsComparison::Rounding && training == TrainingEquality::SameBits;
    if inherited == InheritedStepsComparison::Different {
        parts.push(MathematicsPart::Beginning);
        training = TrainingEquality::Other;
    } else if began_under_other_plans {
        training = TrainingEquality::Rounding;
    }
    let class = if !is_same_mathematics || !parts.is_empty() {
        DifferenceClass::Mathematics
    } else if !is_same_plan || began_under_other_plans {
        DifferenceClass::Rounding
    } else if has_bookkeeping {
        DifferenceClass::Bookkeeping
    } else {
        DifferenceClass::SameRun
    };
    let meaning = match (class, training) {
        (DifferenceClass::SameRun, _) => "same run: the plans are equal, so every number should be equal",
        (DifferenceClass::Bookkeeping, _) => "bookkeeping only: the plans are equal, so every number should be equal",
        (DifferenceClass::Rounding, TrainingEquality::SameBits) => {
            "same mathematics, and the same bits: what differs in the plans has no effect here"
        }
        (DifferenceClass::Rounding, _) if began_under_other_plans => {
            "same mathematics, different rounding: they started under different plans"
        }
        (DifferenceClass::Rounding, _) if !have_same_kinds(p, q) => {
            let meaning = format!(
                "same mathematics on different devices, which round differently: A on {}, B on {}",
                devices(p),
                devices(q)
            );
            return Classification { class, parts, training, meaning };
        }
        (DifferenceClass::Rounding, _) => "same mathematics, different rounding",
        (DifferenceClass::Mathematics, TrainingEquality::SameBits) => {
            "different mathematics: only the evaluation; training is the same, bit for bit"
        }
        (DifferenceClass::Mathematics, TrainingEquality::Rounding) => {
            "different mathematics: only the evaluation; training is the same, up to rounding"
        }
        (DifferenceClass::Mathematics, TrainingEquality::Other) => {
            let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
            let meaning = format!("different mathematics: {}", names.join(", ").replace('_', " "));
            return Classification { class, parts, training, meaning };
        }
    };
    Classification { class, parts, training, meaning: meaning.to_owned() }
}
