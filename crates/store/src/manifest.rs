//! `manifest.json`: what ran where, when and on what, and how it stands.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use runner_machine::host::{Git, Machine};
use runner_spec::data::DataFacts;
use runner_spec::mesh::Mesh;
use runner_spec::plan::Plan;

/// Version of the run directory's layout.
pub const FORMAT: u32 = 1;

/// How a run stands. A process that is killed leaves `Running` behind; whether one is at work is what the lock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    Running,
    Done,
    Interrupted,
    Failed,
}

/// The whole file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub id: String,
    pub name: String,
    pub plan_hash: String,
    pub status: RunStatus,
    /// Why it failed.
    pub error: Option<String>,
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// RFC 3339, UTC: the first start and the last end.
    pub started: String,
    pub ended: Option<String>,
    /// Version of this program, and the rest of where it ran: of the newest session.
    pub version: String,
    /// The working directory's repository.
    pub git: Option<Git>,
    pub machine: Machine,
    /// How the ranks are arranged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Mesh>,
    /// Of each rank.
    pub devices: Vec<String>,
    pub threads: usize,
    pub experiment_file: PathBuf,
    /// `--set` flags as given.
    pub overrides: Vec<String>,
    /// Of the environment only what the run read.
    pub environment: BTreeMap<String, String>,
    pub data: DataHashes,
    /// The run whose record and checkpoint this one began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_from: Option<ContinuedFrom>,
    /// The run that this one was made from by `fork` or `reproduce`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<RunOrigin>,
    /// The point of a sweep that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepPoint>,
    /// The template that the experiment file was rendered from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateUse>,
    /// One for each process that worked on the run.
    pub sessions: Vec<Session>,
}

/// Where a run began that did not begin at step 0: after `step` of another run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinuedFrom {
    /// The other run's id and plan.
    pub id: String,
    pub step: u64,
    pub plan_hash: String,
}

/// Where a run that was made from another one comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOrigin {
    /// Begun with that run's settings, changed; from its checkpoint after `step`, or from the start (`None`).
    Fork { id: String, step: Option<u64>, plan_hash: String },
    /// The same again.
    Reproduction { id: String, plan_hash: String },
}

/// A point of a sweep, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepPoint {
    pub id: String,
    pub point: usize,
}

/// A template and the variables that it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateUse {
    pub file: PathBuf,
    pub vars: serde_json::Map<String, serde_json::Value>,
}

/// Content hashes of what went in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHashes {
    pub tokenizer: String,
    pub train: String,
    pub validation: Option<String>,
    pub choice: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// Of the weights that training started from, where it did not draw them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

impl From<&DataFacts> for DataHashes {
    fn from(facts: &DataFacts) -> Self {
        Self {
            tokenizer: facts.tokenizer_hash.clone(),
            train: facts.train.hash.clone(),
            validation: facts.validation.as_ref().map(|v| v.hash.clone()),
            choice: facts.choice.as_ref().map(|c| c.hash.clone()),
            test: facts.test.as_ref().map(|t| t.hash.clone()),
            weights: facts.weights.as_ref().map(|w| w.hash.clone()),
        }
    }
}

/// One process's part in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    pub started: String,
    pub ended: Option<String>,
    pub from_step: u64,
    pub to_step: Option<u64>,
    pub version: String,
    pub commit: Option<String>,
    pub threads: usize,
    /// How often all ranks were started again after one had died.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
    #[serde(default)]
    pub machine: Machine,
    /// `--set` flags of this session, and the environment that it read.
    #[serde(default)]
    pub overrides: Vec<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Where a session runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionContext {
    pub git: Option<Git>,
    pub machine: Machine,
    pub threads: usize,
    pub overrides: Vec<String>,
    pub environment: BTreeMap<String, String>,
}

impl Manifest {
    /// Of a run of `plan` that has not started.
    #[must_use]
    pub fn new(plan: &Plan, experiment_file: PathBuf, overrides: Vec<String>, started: String) -> Self {
        Self {
            format: FORMAT,
            id: String::new(),
            name: plan.experiment_name.clone(),
            plan_hash: plan.hash.clone(),
            status: RunStatus::Running,
            error: None,
            steps: plan.totals.steps,
            started,
            ended: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            git: None,
            machine: Machine::default(),
            layout: Some(plan.mesh),
            devices: plan.ranks.iter().map(|rank| rank.device.to_string()).collect(),
            threads: 0,
            experiment_file,
            overrides,
            environment: BTreeMap::new(),
            data: DataHashes::from(&plan.data),
            continued_from: None,
            origin: None,
            sweep: None,
            template: None,
            sessions: Vec::new(),
        }
    }

    /// Whether it may be taken for the run of its plan: not if it began in the middle of another by `fork`, or only shows
    /// whether another comes out the same.
    #[must_use]
    pub fn stands_for_its_plan(&self) -> bool {
        !matches!(self.origin, Some(RunOrigin::Fork { step: Some(_), .. } | RunOrigin::Reproduction { .. }))
    }

    /// Why a session on `here` may not give the bits that an uninterrupted run would: the sums inside a matrix product are
    /// cut by the processor's caches, and another version may compute otherwise.
    #[must_use]
    pub fn foreign_bits(&self, here: &Machine) -> Option<String> {
        let last = self.sessions.last()?;
        let version = env!("CARGO_PKG_VERSION");
        if last.version != version {
            return Some(format!("began with version {}, goes on with {version}: bits may differ", last.version));
        }
        let name = |machine: &Machine| machine.cpu.clone().unwrap_or_else(|| "an unknown processor".to_owned());
        let other = last.machine.cpu != here.cpu;
        other.then(|| format!("began on {}, goes on with {}: bits may differ", name(&last.machine), name(here)))
    }

    /// Notes that a process starts at `from_step`, and where.
    pub fn begin(&mut self, from_step: u64, place: SessionContext, started: String) {
        self.status = RunStatus::Running;
        self.error = None;
        self.ended = None;
        env!("CARGO_PKG_VERSION").clone_into(&mut self.version);
        (self.git, self.machine, self.threads) = (place.git, place.machine, place.threads);
        self.sessions.push(Session {
            started,
            ended: None,
            from_step,
            to_step: None,
            version: self.version.clone(),
            commit: self.git.as_ref().map(|git| git.commit.clone()),
            threads: self.threads,
            restarts: 0,
            machine: self.machine.clone(),
            overrides: place.overrides,
            environment: place.environment,
        });
    }

    /// Notes that the newest session starts all ranks again.
    pub fn restart(&mut self) {
        if let Some(session) = self.sessions.last_mut() {
            session.restarts += 1;
        }
    }

    /// Notes how the newest session ended, after `to_step`.
    pub fn end(&mut self, status: RunStatus, error: Option<String>, to_step: u64, ended: String) {
        (self.status, self.error) = (status, error);
        if let Some(session) = self.sessions.last_mut() {
            session.ended = Some(ended.clone());
            session.to_step = Some(to_step);
        }
        self.ended = Some(ended);
    }
}
