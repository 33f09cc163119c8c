//! The whole comparison of two experiments or runs, as data: the output of `runner diff --json`.

use std::path::PathBuf;

use serde::Serialize;
use serde_json::Value;

use super::classification::{Classification, DifferenceClass, TrainingEquality, classify};
use super::facts::{Fact, FactChange, FactPair};
use super::inherited_steps::{self, InheritedSteps};
use super::outcome_comparison::{OutcomeComparison, compare_outcomes};
use super::plan_facts::{DATA_FACTS, PLAN_FIGURES};
use super::planned_experiment::PlannedExperiment;
use super::run_record::RunRecord;
use super::session_facts::{LAYOUT, MACHINE_FACTS, PROGRAM_FACTS, fact_changes};
use super::setting_effect::{SettingEffect, effect_of_setting};
use super::settings::{self, SettingDifference};
use runner_machine::host::Git;
use runner_record::manifest::{Manifest, Session};
use runner_spec::format::quoted_line;

/// An experiment or run to compare.
#[derive(Debug, Clone)]
pub struct DiffInput {
    pub label: String,
    /// The experiment file, or the run's folder.
    pub path: PathBuf,
    pub side: PlannedExperiment,
    /// The record, if it is a run.
    pub record: Option<RunRecord>,
    pub invocation: Invocation,
}

/// The program, machine and flags that ran an experiment, or would run it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Invocation {
    pub git: Option<Git>,
    /// The variables of the template.
    pub vars: Option<String>,
    /// The newest session of a run, or one that would start now.
    pub session: Session,
    /// The changes from each session of a run to the next.
    pub changes: Vec<FactChange>,
}

impl From<&Manifest> for Invocation {
    fn from(m: &Manifest) -> Self {
        let mut sessions = m.described_sessions();
        let changes = sessions.windows(2).flat_map(|pair| fact_changes(&pair[0], &pair[1])).collect();
        let newest = sessions.pop().unwrap_or_default();
        let mut environment = m.environment.clone();
        environment.extend(newest.environment.clone());
        Self {
            git: m.git.clone(),
            vars: m.template.as_ref().map(|t| Value::from(t.vars.clone()).to_string()),
            session: Session { threads: m.threads, overrides: m.overrides.clone(), environment, ..newest },
            changes,
        }
    }
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
    let mut classification = classify(&a.side, &b.side, has_bookkeeping, inherited);
    let bits = describe_bit_differences(a, b);
    if !bits.is_empty() && classification.training == TrainingEquality::SameBits {
        classification.meaning += ", up to what `bits may differ` names";
    }
    let mut plan: Vec<FactPair> = PLAN_FIGURES.iter().map(|fact| fact.pair(&a.side.plan, &b.side.plan)).collect();
    let began = |began: &[InheritedSteps]| began.first().map(|first| format!("step {} of {}", first.step, first.id));
    plan.extend(known([FactPair::of("began with", began(&began_a), began(&began_b))]));
    let data = DATA_FACTS.iter().map(|fact| fact.pair(&a.side.data, &b.side.data));
    let (x, y) = (&a.invocation, &b.invocation);
    let commit = |ran: &Invocation| {
        let git = ran.git.as_ref()?;
        Some(format!("{}{}", git.commit, if git.dirty { ", and changes" } else { "" }))
    };
    let joined =
        |ran: &Invocation| Some(quoted_line(&ran.session.overrides.join(", "))).filter(|text| !text.is_empty());
    let git = FactPair::of("git commit", commit(x), commit(y));
    let of_sessions = |fact: &Fact<Session>| fact.pair(&x.session, &y.session);
    Diff {
        a: describe_side(a),
        b: describe_side(b),
        classification,
        data_read,
        settings,
        plan,
        data: if data_read { known(data) } else { Vec::new() },
        program: known(PROGRAM_FACTS.iter().map(of_sessions).chain([git])),
        machine: known(MACHINE_FACTS.iter().map(of_sessions)),
        invocation: known([
            FactPair::of("--set", joined(x), joined(y)),
            FactPair::of("template variables", x.vars.clone(), y.vars.clone()),
            compare_environments(&x.session, &y.session),
        ]),
        bits,
        outcomes: a.record.as_ref().zip(b.record.as_ref()).map(|(a, b)| compare_outcomes(a, b)),
        notes,
    }
}

/// The facts that at least one side has.
fn known(facts: impl IntoIterator<Item = FactPair>) -> Vec<FactPair> {
    facts.into_iter().filter(FactPair::is_known).collect()
}

/// The consequences for the bits of the differences between programs, machines and variables, one sentence each: those between the newest
/// sessions, then those between the sessions of a run.
/// Layouts that follow from different settings are shown among those.
fn describe_bit_differences(a: &DiffInput, b: &DiffInput) -> Vec<String> {
    let has_other_plan = a.side.plan.hash != b.side.plan.hash;
    let (a, b) = (&a.invocation, &b.invocation);
    let between = fact_changes(&a.session, &b.session);
    let between = between.iter().filter(|c| c.name != LAYOUT || !has_other_plan);
    let between = between.map(|c| format!("{}: A has {}, B has {}: {}", c.name, c.was, c.is, c.meaning));
    let within = [("A", &a.changes), ("B", &b.changes)].into_iter().filter(|_| a.changes != b.changes);
    let within = within.flat_map(|(side, changes)| changes.iter().map(move |c| (side, c)));
    let within = within.map(|(side, c)| {
        format!("{}: a later session of {side} has {}, the one before {}: {}", c.name, c.is, c.was, c.meaning)
    });
    between.chain(within).collect()
}

/// Compares the environment variables: those that differ, or all of them if none does.
fn compare_environments(a: &Session, b: &Session) -> FactPair {
    let differ = a.environment != b.environment;
    let joined = |session: &Session, other: &Session| {
        let is_shown = |(name, value): &(&String, &String)| !differ || other.environment.get(*name) != Some(*value);
        let variables = session.environment.iter().filter(is_shown);
        let list: Vec<String> = variables.map(|(name, value)| quoted_line(&format!("{name}={value}"))).collect();
        (!list.is_empty()).then(|| list.join(", "))
    };
    FactPair::of("environment", joined(a, b), joined(b, a))
}
