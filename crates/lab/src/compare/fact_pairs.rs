//! Facts about two experiments side by side: plans, data, program, machine, flags.

use serde::Serialize;
use serde_json::Value;

use super::bit_facts::{BIT_FACTS, FactChange, TEXT_READING, VARIABLES, fact_changes};
use super::classification::first_program;
use super::inherited_steps::InheritedSteps;
use super::planned_experiment::PlannedExperiment;
use runner_machine::doctor::is_shown_variable;
use runner_machine::host::Git;
use runner_record::manifest::{Manifest, Session};
use runner_spec::data::DataFacts;
use runner_spec::plan::Plan;
use runner_spec::program::{BlockRange, Device};

/// One fact of both experiments, a number or a text; `None` if it is unknown or absent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FactPair {
    pub name: &'static str,
    pub a: Option<Value>,
    pub b: Option<Value>,
    pub same: bool,
}

impl FactPair {
    fn new(name: &'static str, a: Option<Value>, b: Option<Value>) -> Self {
        Self { name, same: a == b, a, b }
    }
}

/// The program, machine and flags that ran an experiment, or would run it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
        let session = Session { threads: m.threads, overrides: m.overrides.clone(), ..newest };
        let mut environment = m.environment.clone();
        environment.extend(session.environment.clone());
        Self {
            git: m.git.clone(),
            vars: m.template.as_ref().map(|t| Value::from(t.vars.clone()).to_string()),
            session: Session { environment, ..session },
            changes,
        }
    }
}

/// The fact `name` of both experiments.
fn fact_pair<T: ?Sized, V: Into<Value>>(name: &'static str, a: &T, b: &T, of: impl Fn(&T) -> Option<V>) -> FactPair {
    FactPair::new(name, of(a).map(Into::into), of(b).map(Into::into))
}

/// Compares the plans: sizes, lengths, layout.
#[must_use]
pub fn compare_plans(a: &PlannedExperiment, b: &PlannedExperiment) -> Vec<FactPair> {
    type Of = fn(&Plan) -> Option<Value>;
    let table: [(&'static str, Of); 13] = [
        ("plan hash", |p| Some(p.hash.as_str().into())),
        ("mathematics hash", |p| Some(p.math_hash.as_str().into())),
        ("parameters", |p| Some(p.totals.parameters.into())),
        ("vocabulary", |p| first_program(p).map(|p| p.model.vocab_size.into())),
        ("steps", |p| Some(p.totals.steps.into())),
        ("tokens a step", |p| Some(p.totals.tokens_per_step.into())),
        ("tokens in all", |p| Some(p.totals.tokens.into())),
        ("micro-batches a step", |p| Some(p.totals.accumulation_steps.into())),
        ("ranks", |p| Some(p.world_size.into())),
        ("devices", |p| Some(devices(p).into())),
        ("layers by stage", |p| layers(p).map(Into::into)),
        ("computed in", |p| p.ranks.first().map(|r| r.precision.as_str().into())),
        ("validation rows read", |p| p.validation_rows().map(Into::into)),
    ];
    table.into_iter().map(|(name, of)| fact_pair(name, &a.plan, &b.plan, of)).collect()
}

/// Compares the checkpoints that the runs started from; empty if both started at step 0.
#[must_use]
pub fn compare_starts(a: &[InheritedSteps], b: &[InheritedSteps]) -> Vec<FactPair> {
    let one =
        |ancestors: &[InheritedSteps]| ancestors.first().map(|first| format!("step {} of {}", first.step, first.id));
    known_facts([fact_pair("began with", a, b, one)])
}

/// The kinds of devices: `4 cpu`.
fn devices(plan: &Plan) -> String {
    let cuda = plan.ranks.iter().filter(|r| matches!(r.device, Device::Cuda(_))).count();
    match (plan.ranks.len() - cuda, cuda) {
        (cpu, 0) => format!("{cpu} cpu"),
        (0, cuda) => format!("{cuda} cuda"),
        (cpu, cuda) => format!("{cpu} cpu, {cuda} cuda"),
    }
}

/// The number of layers of each stage: `[2, 2]`. Chunks of one stage are joined by +.
fn layers(plan: &Plan) -> Option<String> {
    let model = &first_program(plan)?.model;
    let stage = |chunks: &[BlockRange]| {
        let counts = chunks.iter().map(|chunk| model.layers_in(chunk.range()).to_string());
        counts.collect::<Vec<_>>().join("+")
    };
    let stages = plan.ranks.iter().filter(|r| r.replica == 0).map(|r| stage(&r.chunks));
    Some(format!("[{}]", stages.collect::<Vec<_>>().join(", ")))
}

/// Compares content and size of the data.
#[must_use]
pub fn compare_data(a: &DataFacts, b: &DataFacts) -> Vec<FactPair> {
    type Of = fn(&DataFacts) -> Option<Value>;
    let table: [(&'static str, Of); 17] = [
        ("tokenizer", |d| Some(d.tokenizer_hash.as_str().into())),
        ("tokenizer ids", |d| Some(d.tokenizer_vocab.into())),
        ("train", |d| Some(d.train.hash.as_str().into())),
        ("train rows", |d| Some(d.train.rows.into())),
        ("train tokens", |d| Some(d.train.tokens.into())),
        ("train documents", |d| Some(d.train.documents.into())),
        ("validation", |d| Some(d.validation.as_ref()?.hash.as_str().into())),
        ("validation rows", |d| Some(d.validation.as_ref()?.rows.into())),
        ("validation tokens", |d| Some(d.validation.as_ref()?.tokens.into())),
        ("validation documents", |d| Some(d.validation.as_ref()?.documents.into())),
        ("test", |d| Some(d.test.as_ref()?.hash.as_str().into())),
        ("test rows", |d| Some(d.test.as_ref()?.rows.into())),
        ("test tokens", |d| Some(d.test.as_ref()?.tokens.into())),
        ("test documents", |d| Some(d.test.as_ref()?.documents.into())),
        ("multiple choice", |d| Some(d.choice.as_ref()?.hash.as_str().into())),
        ("multiple choice items", |d| Some(d.choice.as_ref()?.items.into())),
        ("initial weights", |d| Some(d.weights.as_ref()?.hash.as_str().into())),
    ];
    known_facts(table.into_iter().map(|(name, of)| fact_pair(name, a, b, of)))
}

/// The facts about the program among those on which bits depend; the others are facts about the machine.
const PROGRAM_FACTS: [&str; 4] = ["program", "sources", TEXT_READING, "target"];

/// Compares version, sources and target of the program, and the commit of the working directory.
#[must_use]
pub fn compare_programs(a: &Invocation, b: &Invocation) -> Vec<FactPair> {
    let commit = |s: &Invocation| {
        let git = s.git.as_ref()?;
        Some(format!("{}{}", git.commit, if git.dirty { ", and changes" } else { "" }))
    };
    known_facts(compare_bit_facts(a, b, true).chain([fact_pair("git commit", a, b, commit)]))
}

/// Compares processor, instruction sets, GPUs, their libraries, and threads. Any number of threads gives the same bits.
#[must_use]
pub fn compare_machines(a: &Invocation, b: &Invocation) -> Vec<FactPair> {
    type Of = fn(&Session) -> Option<Value>;
    let table: [(&'static str, Of); 4] = [
        ("cores", |s| Some(s.machine.cores).filter(|&n| n > 0).map(Into::into)),
        ("memory bytes", |s| s.machine.memory_bytes.map(Into::into)),
        ("threads", |s| Some(s.threads).filter(|&n| n > 0).map(Into::into)),
        ("system", |s| Some(s.machine.os.as_str()).filter(|os| !os.is_empty()).map(Into::into)),
    ];
    let others = table.into_iter().map(|(name, of)| fact_pair(name, &a.session, &b.session, of));
    known_facts(compare_bit_facts(a, b, false).chain(others))
}

/// Compares the facts on which bits depend, of the program or of the machine. A fact that one side does not record is not compared.
fn compare_bit_facts(a: &Invocation, b: &Invocation, of_program: bool) -> impl Iterator<Item = FactPair> {
    let facts = BIT_FACTS.iter().filter(move |fact| PROGRAM_FACTS.contains(&fact.name) == of_program);
    facts.filter(|fact| fact.name != VARIABLES).filter_map(|fact| {
        let (a, b) = (fact.value(&a.session)?, fact.value(&b.session)?);
        Some(FactPair::new(fact.name, Some(a.into()), Some(b.into())))
    })
}

/// The consequences for the bits of the differences between programs, machines and variables, one sentence each: those between the newest
/// sessions, then those between the sessions of a run.
#[must_use]
pub fn describe_bit_differences(a: &Invocation, b: &Invocation) -> Vec<String> {
    let between = fact_changes(&a.session, &b.session);
    let between = between.iter().map(|c| format!("{}: A has {}, B has {}: {}", c.name, c.was, c.is, c.meaning));
    let within = [("A", &a.changes), ("B", &b.changes)].into_iter().filter(|_| a.changes != b.changes);
    let within = within.flat_map(|(side, changes)| changes.iter().map(move |c| (side, c)));
    let within = within.map(|(side, c)| {
        format!("{}: a later session of {side} has {}, the one before {}: {}", c.name, c.is, c.was, c.meaning)
    });
    between.chain(within).collect()
}

/// Compares flags, variables of templates and of the environment.
#[must_use]
pub fn compare_invocations(a: &Invocation, b: &Invocation) -> Vec<FactPair> {
    let joined = |list: &[String]| Some(list.join(", ")).filter(|text| !text.is_empty());
    known_facts([
        fact_pair("--set", a, b, |s| joined(&s.session.overrides)),
        fact_pair("template variables", a, b, |s| s.vars.clone()),
        compare_environments(&a.session, &b.session),
    ])
}

/// Compares the environment variables: those that differ, or all of them if none does. Sessions of older versions recorded their own
/// variables alone.
fn compare_environments(a: &Session, b: &Session) -> FactPair {
    let both_recorded = a.platform.is_some() && b.platform.is_some();
    let differ = a.environment != b.environment;
    let joined = |session: &Session, other: &Session| {
        let is_compared = |name: &str| both_recorded || !is_shown_variable(name);
        let variables = session.environment.iter().filter(|(name, _)| is_compared(name));
        let variables = variables.filter(|(name, value)| !differ || other.environment.get(*name) != Some(value));
        let list: Vec<String> = variables.map(|(name, value)| format!("{name}={value}")).collect();
        (!list.is_empty()).then(|| Value::from(list.join(", ")))
    };
    FactPair::new("environment", joined(a, b), joined(b, a))
}

/// The facts that at least one experiment has.
fn known_facts(facts: impl IntoIterator<Item = FactPair>) -> Vec<FactPair> {
    facts.into_iter().filter(|f| f.a.is_some() || f.b.is_some()).collect()
}
