//! `manifest.json`: what ran where, when and on what, and how it stands.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::machine::{Git, Machine};
use crate::data::DataFacts;
use crate::plan::Plan;

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
    pub experiment_file: PathBuf,
    /// `--set` flags as given.
    pub overrides: Vec<String>,
    /// Of the environment only what the run read.
    pub environment: BTreeMap<String, String>,
    pub data: DataHashes,
    /// One for each process that worked on the run.
    pub sessions: Vec<Session>,
}

/// Content hashes of what went in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHashes {
    pub tokenizer: String,
    pub train: String,
    pub validation: Option<String>,
    pub choice: Option<String>,
}

impl From<&DataFacts> for DataHashes {
    fn from(facts: &DataFacts) -> Self {
        Self {
            tokenizer: facts.tokenizer_hash.clone(),
            train: facts.train.hash.clone(),
            validation: facts.validation.as_ref().map(|v| v.hash.clone()),
            choice: facts.choice.as_ref().map(|c| c.hash.clone()),
        }
    }
}

/// One process's part in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Version of this program.
    pub version: String,
    /// The working directory's repository.
    pub git: Option<Git>,
    pub machine: Machine,
    /// Of each rank.
    pub devices: Vec<String>,
    pub threads: usize,
    pub started: String,
    pub ended: Option<String>,
    pub from_step: u64,
    pub to_step: Option<u64>,
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
            experiment_file,
            overrides,
            environment: BTreeMap::new(),
            data: DataHashes::from(&plan.data),
            sessions: Vec::new(),
        }
    }
}
