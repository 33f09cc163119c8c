//! Facts of two sides next to each other: what the plans come to, data, program, machine, flags.

use serde::Serialize;

use super::class::{first, validation_rows};
use super::side::Side;
use crate::data::{DataFacts, SplitFacts};
use crate::plan::Plan;
use crate::plan::program::Device;
use crate::report::format::{bytes, count};
use crate::store::manifest::Manifest;
use crate::store::{Git, Machine};

/// One fact of both sides; `None`: not known, or not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    pub name: String,
    pub a: Option<String>,
    pub b: Option<String>,
    pub same: bool,
}

/// Where and by what a side was run, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setting {
    pub version: String,
    pub git: Option<Git>,
    pub machine: Machine,
    pub threads: usize,
    pub sets: Vec<String>,
    /// Of a template.
    pub vars: Option<String>,
    pub environment: Vec<String>,
}

impl From<&Manifest> for Setting {
    fn from(m: &Manifest) -> Self {
        Self {
            version: m.version.clone(),
            git: m.git.clone(),
            machine: m.machine.clone(),
            threads: m.threads,
            sets: m.overrides.clone(),
            vars: m.template.as_ref().map(|t| serde_json::Value::from(t.vars.clone()).to_string()),
            environment: m.environment.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        }
    }
}

fn fact(name: &str, a: Option<String>, b: Option<String>) -> Fact {
    Fact { name: name.to_owned(), same: a == b, a, b }
}

/// The first digits of a hash.
fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// What the plans come to: sizes, lengths, layout. Hashes in full.
#[must_use]
pub fn plan(a: &Side, b: &Side) -> Vec<Fact> {
    type Of = fn(&Plan) -> Option<String>;
    let table: [(&str, Of); 13] = [
        ("plan hash", |p| Some(p.hash.clone())),
        ("mathematics hash", |p| Some(p.math_hash.clone())),
        ("parameters", |p| Some(count(p.totals.parameters))),
        ("vocabulary", |p| first(p).map(|p| count(p.model.vocab_size as u64))),
        ("steps", |p| Some(count(p.totals.steps))),
        ("tokens a step", |p| Some(count(p.totals.tokens_per_step))),
        ("tokens in all", |p| Some(count(p.totals.tokens))),
        ("micro-batches a step", |p| Some(count(p.totals.accumulation_steps as u64))),
        ("ranks", |p| Some(count(p.world_size as u64))),
        ("devices", |p| Some(devices(p))),
        ("layers by stage", layers),
        ("computed in", |p| p.ranks.first().map(|r| r.precision.clone())),
        ("validation rows read", |p| validation_rows(p).map(count)),
    ];
    table.into_iter().map(|(name, of)| fact(name, of(&a.plan), of(&b.plan))).collect()
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

/// Layers of each stage's chunks: `[2, 2]`; chunks of one stage are joined by +.
fn layers(plan: &Plan) -> Option<String> {
    let last = plan.ranks.iter().flat_map(|r| &r.chunks).map(|c| c.end).max()?.saturating_sub(1);
    let stage = |chunks: &[crate::plan::program::Blocks]| {
        let counts = chunks.iter().map(|c| c.end.min(last).saturating_sub(c.start.max(1)).to_string());
        counts.collect::<Vec<_>>().join("+")
    };
    let stages = plan.ranks.iter().filter(|r| r.replica == 0).map(|r| stage(&r.chunks));
    Some(format!("[{}]", stages.collect::<Vec<_>>().join(", ")))
}

/// Content and extent of data.
#[must_use]
pub fn data(a: &DataFacts, b: &DataFacts) -> Vec<Fact> {
    let mut out = vec![
        fact("tokenizer", Some(short(&a.tokenizer_hash)), Some(short(&b.tokenizer_hash))),
        fact("tokenizer ids", Some(count(a.tokenizer_vocab as u64)), Some(count(b.tokenizer_vocab as u64))),
    ];
    let mut split = |name: &str, a: Option<&SplitFacts>, b: Option<&SplitFacts>| {
        type Of = fn(&SplitFacts) -> String;
        let table: [(&str, Of); 4] = [
            ("", |s| short(&s.hash)),
            (" rows", |s| count(s.rows)),
            (" tokens", |s| count(s.tokens)),
            (" documents", |s| count(s.documents)),
        ];
        for (what, of) in table {
            out.push(fact(&format!("{name}{what}"), a.map(of), b.map(of)));
        }
    };
    split("train", Some(&a.train), Some(&b.train));
    split("validation", a.validation.as_ref(), b.validation.as_ref());
    let choice = |facts: &DataFacts| facts.choice.as_ref().map(|c| format!("{} items, {}", c.items, short(&c.hash)));
    out.push(fact("multiple choice", choice(a), choice(b)));
    out.retain(|f| f.a.is_some() || f.b.is_some());
    out
}

/// Version of the program and commit of the working directory.
#[must_use]
pub fn program(a: &Setting, b: &Setting) -> Vec<Fact> {
    let commit = |s: &Setting| {
        let git = s.git.as_ref()?;
        Some(format!("{}{}", short(&git.commit), if git.dirty { " and changes" } else { "" }))
    };
    let mut out = vec![fact("version", Some(a.version.clone()), Some(b.version.clone()))];
    out.push(fact("git commit", commit(a), commit(b)));
    out.retain(|f| f.a.is_some() || f.b.is_some());
    out
}

/// Processor and threads. Any number of threads gives the same bits.
#[must_use]
pub fn machine(a: &Setting, b: &Setting) -> Vec<Fact> {
    let fact = |name: &str, of: &dyn Fn(&Setting) -> Option<String>| fact(name, of(a), of(b));
    let mut out = vec![
        fact("processor", &|s| s.machine.cpu.clone().or_else(|| Some(s.machine.arch.clone())).filter(|t| !t.is_empty())),
        fact("cores", &|s| Some(s.machine.cores.to_string()).filter(|_| s.machine.cores > 0)),
        fact("memory", &|s| s.machine.memory_bytes.map(bytes)),
        fact("threads", &|s| Some(s.threads.to_string()).filter(|_| s.threads > 0)),
        fact("system", &|s| Some(s.machine.os.clone()).filter(|t| !t.is_empty())),
    ];
    out.retain(|f| f.a.is_some() || f.b.is_some());
    out
}

/// Flags, variables of templates and of the environment.
#[must_use]
pub fn invocation(a: &Setting, b: &Setting) -> Vec<Fact> {
    let joined = |list: &[String]| Some(list.join(", ")).filter(|text| !text.is_empty());
    let mut out = vec![
        fact("--set", joined(&a.sets), joined(&b.sets)),
        fact("template variables", a.vars.clone(), b.vars.clone()),
        fact("environment", joined(&a.environment), joined(&b.environment)),
    ];
    out.retain(|f| f.a.is_some() || f.b.is_some());
    out
}
