//! The whole comparison of two experiments or runs, as data: the output of `runner diff --json`.

use std::path::PathBuf;

use serde::Serialize;

use super::classification::{Classification, DifferenceClass, classify};
use super::fact_pairs::{self, FactPair, Invocation};
use super::inherited_steps::{self, InheritedSteps};
use super::outcome_comparison::{OutcomeComparison, compare_outcomes};
use super::planned_experiment::PlannedExperiment;
use super::run_record::RunRecord;
use super::setting_effect::{SettingEffect, effect_of_setting};
use super::settings::{self, SettingDifference};

/// An experiment or run to compare.
#[derive(Debug, Clone)]
pub struct DiffInput {
    pub label: String,
    /// The experiment file, or the run's folder.
    pub path: PathBuf,
    pub side: PlannedExperiment,
    /// The record, if it is a run.
    pub record: Option<RunRecord>,
    pub setting: Invocation,
}

/// The name and kind of an experiment or run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiffSide {
    /// `run` or `file`.
    pub kind: &'static str,
    pub label: String,
    pub path: PathBuf,
    /// The status of a run: `done`, `running`, …
    pub status: Option<&'static str>,
}

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangedSetting {
    #[serde(flatten)]
    pub difference: SettingDifference,
    pub in_a: bool,
    pub in_b: bool,
    pub effect: SettingEffect,
}

/// All differences between two experiments or runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    pub a: DiffSide,
    pub b: DiffSide,
    #[serde(flatten)]
    pub classification: Classification,
    /// True if data was read; false if it was compared by its names only.
    pub data_read: bool,
    pub settings: Vec<ChangedSetting>,
    pub plan: Vec<FactPair>,
    pub data: Vec<FactPair>,
    pub program: Vec<FactPair>,
    pub machine: Vec<FactPair>,
    pub invocation: Vec<FactPair>,
    /// The consequences of other programs and machines for the bits.
    pub bits: Vec<String>,
    /// The outcomes, if both are runs.
    pub outcomes: Option<OutcomeComparison>,
    pub notes: Vec<String>,
}

impl Diff {
    /// True if both are the same run by their plans, and their recorded losses do not contradict that.
    #[must_use]
    pub fn is_same_run(&self) -> bool {
        self.classification.class == DifferenceClass::SameRun && !self.has_contradicting_losses()
    }

    /// True if recorded losses differ although the plans are the same.
    #[must_use]
    pub fn has_contradicting_losses(&self) -> bool {
        let is_same_plan = matches!(self.classification.class, DifferenceClass::SameRun | DifferenceClass::Bookkeeping);
        is_same_plan && self.outcomes.as_ref().is_some_and(|outcomes| outcomes.first_difference.is_some())
    }
}

fn describe_side(compared: &DiffInput) -> DiffSide {
    DiffSide {
        kind: if compared.record.is_some() { "run" } else { "file" },
        label: compared.label.clone(),
        path: compared.path.clone(),
        status: compared.record.as_ref().map(|r| r.status.name()),
    }
}

/// The runs from which a run inherited steps; none for an experiment file.
fn ancestors(compared: &DiffInput) -> Vec<InheritedSteps> {
    let Some(record) = &compared.record else { return Vec::new() };
    inherited_steps::ancestors(&record.path, &record.manifest, &compared.side)
}

/// Compares `a` and `b`. `notes` are remarks from reading them.
#[must_use]
pub fn diff(a: &DiffInput, b: &DiffInput, data_read: bool, notes: Vec<String>) -> Diff {
    let settings: Vec<ChangedSetting> = settings::differences(&a.side.experiment, &b.side.experiment)
        .into_iter()
        .map(|difference| ChangedSetting {
            in_a: difference.a.is_some(),
            in_b: difference.b.is_some(),
            effect: effect_of_setting(&difference, &a.side, &b.side),
            difference,
        })
        .collect();
    let has_bookkeeping = settings.iter().any(|s| s.effect == SettingEffect::Bookkeeping);
    let (began_a, began_b) = (ancestors(a), ancestors(b));
    let inherited = inherited_steps::compare_inherited_steps((&a.side, &began_a), (&b.side, &began_b));
    let classification = classify(&a.side, &b.side, has_bookkeeping).with_inherited_steps(inherited);
    let mut plan = fact_pairs::compare_plans(&a.side, &b.side);
    plan.extend(fact_pairs::compare_starts(&began_a, &began_b));
    Diff {
        a: describe_side(a),
        b: describe_side(b),
        classification,
        data_read,
        settings,
        plan,
        data: if data_read { fact_pairs::compare_data(&a.side.data, &b.side.data) } else { Vec::new() },
        program: fact_pairs::compare_programs(&a.setting, &b.setting),
        machine: fact_pairs::compare_machines(&a.setting, &b.setting),
        invocation: fact_pairs::compare_invocations(&a.setting, &b.setting),
        bits: fact_pairs::describe_bit_differences(&a.setting, &b.setting),
        outcomes: a.record.as_ref().zip(b.record.as_ref()).map(|(a, b)| compare_outcomes(a, b)),
        notes,
    }
}
