//! The whole comparison of two sides, as data: what `runner diff --json` prints.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::classification::{Classification, DifferenceClass, MathematicsPart, TrainingEquality, verdict};
use super::fact_pairs::{self, FactPair, Invocation};
use super::inherited_steps::{self, InheritedSteps};
use super::outcome_comparison::{OutcomeComparison, outcomes};
use super::planned_experiment::PlannedExperiment;
use super::run_record::RunRecord;
use super::setting_effect::{SettingEffect, effect};
use super::settings::{self, SettingGroup};

/// A side, and where it is from.
#[derive(Debug, Clone)]
pub struct DiffInput {
    pub label: String,
    /// The experiment file, or the run's folder.
    pub path: PathBuf,
    pub side: PlannedExperiment,
    /// Of a run.
    pub record: Option<RunRecord>,
    pub setting: Invocation,
}

/// What a side is called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiffSide {
    /// `run` or `file`.
    pub kind: &'static str,
    pub label: String,
    pub path: PathBuf,
    /// Of a run: `done`, `running`, …
    pub status: Option<&'static str>,
}

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChangedSetting {
    pub key: String,
    pub group: SettingGroup,
    /// `null` also where a side does not have the key: see `in_a` and `in_b`.
    pub a: Option<Value>,
    pub b: Option<Value>,
    pub in_a: bool,
    pub in_b: bool,
    pub effect: SettingEffect,
}

/// All that differs between two sides.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    pub a: DiffSide,
    pub b: DiffSide,
    pub class: DifferenceClass,
    pub parts: Vec<MathematicsPart>,
    pub training: TrainingEquality,
    /// The class in words.
    pub meaning: String,
    /// Whether data was read, or told apart by its names alone.
    pub data_read: bool,
    pub settings: Vec<ChangedSetting>,
    pub plan: Vec<FactPair>,
    pub data: Vec<FactPair>,
    pub program: Vec<FactPair>,
    pub machine: Vec<FactPair>,
    pub invocation: Vec<FactPair>,
    /// Of two runs.
    pub outcomes: Option<OutcomeComparison>,
    pub notes: Vec<String>,
}

fn named(compared: &DiffInput) -> DiffSide {
    DiffSide {
        kind: if compared.record.is_some() { "run" } else { "file" },
        label: compared.label.clone(),
        path: compared.path.clone(),
        status: compared.record.as_ref().map(|r| r.standing.name()),
    }
}

/// Of a run.
fn ancestors(compared: &DiffInput) -> Vec<InheritedSteps> {
    let Some(record) = &compared.record else { return Vec::new() };
    inherited_steps::ancestors(&record.path, &record.manifest, &compared.side)
}

/// Compares `a` and `b`. `notes`: what was found out when they were read.
#[must_use]
pub fn diff(a: &DiffInput, b: &DiffInput, data_read: bool, notes: Vec<String>) -> Diff {
    let settings: Vec<ChangedSetting> = settings::differences(&a.side.experiment, &b.side.experiment)
        .into_iter()
        .map(|d| {
            let effect = effect(&d, &a.side, &b.side);
            ChangedSetting {
                in_a: d.a.is_some(),
                in_b: d.b.is_some(),
                key: d.key,
                group: d.group,
                a: d.a,
                b: d.b,
                effect,
            }
        })
        .collect();
    let kept = settings.iter().any(|s| s.effect == SettingEffect::Bookkeeping);
    let (began_a, began_b) = (ancestors(a), ancestors(b));
    let began = inherited_steps::began((&a.side, &began_a), (&b.side, &began_b));
    let Classification { class, parts, training, meaning } = verdict(&a.side, &b.side, kept).with(began);
    let mut plan = fact_pairs::plan(&a.side, &b.side);
    plan.extend(fact_pairs::beginning(&began_a, &began_b));
    Diff {
        a: named(a),
        b: named(b),
        class,
        parts,
        training,
        meaning,
        data_read,
        settings,
        plan,
        data: if data_read { fact_pairs::data(&a.side.data, &b.side.data) } else { Vec::new() },
        program: fact_pairs::program(&a.setting, &b.setting),
        machine: fact_pairs::machine(&a.setting, &b.setting),
        invocation: fact_pairs::invocation(&a.setting, &b.setting),
        outcomes: a.record.as_ref().zip(b.record.as_ref()).map(|(a, b)| outcomes(a, b)),
        notes,
    }
}
