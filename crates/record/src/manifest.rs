//! `manifest.json`: the plan, program, machine, data and sessions of a run, and its status.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use runner_machine::host::{Git, Machine};
use runner_machine::platform::Platform;
use runner_spec::data::{DataFacts, DataPart};
use runner_spec::experiment::{AutoOr, Experiment, Parallel, Pipeline};
use runner_spec::format::{choice_name, counted};
use runner_spec::mesh::Mesh;
use runner_spec::plan::Plan;
use runner_spec::serde_defaults::is_default;

/// Version of the run directory's layout.
pub const FORMAT: u32 = 1;

/// The status of a run in its files. A killed process leaves `Running` behind; the lock shows whether a process works on the run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunStatus {
    #[default]
    Running,
    Done,
    Interrupted,
    Failed,
}

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    pub id: String,
    pub name: String,
    pub plan_hash: String,
    pub status: RunStatus,
    /// The reason of a failure.
    pub error: Option<String>,
    /// Optimizer steps of the whole run.
    pub steps: u64,
    /// RFC 3339, UTC: the first start and the last end.
    pub started: String,
    pub ended: Option<String>,
    /// The version of this program. The fields from here to `environment` describe the newest session.
    pub version: String,
    /// The working directory's repository.
    pub git: Option<Git>,
    pub machine: Machine,
    /// The arrangement of the ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Mesh>,
    /// The number of parts of each checkpoint, where it is not that of stages: replicas hold different parts of the state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint_parts: Option<usize>,
    /// The device of each rank.
    pub devices: Vec<String>,
    pub threads: usize,
    pub experiment_file: PathBuf,
    /// BLAKE3 hashes of `resolved.yaml` and `plan.json`.
    pub resolved_hash: String,
    pub plan_file_hash: String,
    /// `--set` flags as given.
    pub overrides: Vec<String>,
    /// The environment variables that the run read.
    pub environment: BTreeMap<String, String>,
    pub data: DataHashes,
    /// The run whose record and checkpoint this one began with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continued_from: Option<ContinuedFrom>,
    /// The run that this one was made from by `fork` or `reproduce`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<RunOrigin>,
    /// The point of a sweep, if the run is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sweep: Option<SweepPoint>,
    /// The template that the experiment file was rendered from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateUse>,
    /// The other files that the experiment was merged from, the lowest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<MergedFile>,
    /// True for the copy in a sealed run, which has the checkpoints of its end only if a verification needs them.
    #[serde(default, rename = "sealed", skip_serializing_if = "is_default")]
    pub is_sealed: bool,
    /// One for each process that worked on the run.
    pub sessions: Vec<Session>,
}

/// The run whose checkpoint a run began with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ContinuedFrom {
    /// The other run's id and plan.
    pub id: String,
    pub step: u64,
    pub plan_hash: String,
    /// True if this run's own plan computes those steps to the same bits. Then nothing but the time depends on the other run.
    #[serde(default, skip_serializing_if = "is_default")]
    pub is_same_computation: bool,
    /// Valid tokens that it had seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The evaluations of the other run that the record leaves out, with the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted_evaluations: Vec<String>,
    /// The hash of the checkpoint's weights and moments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_hash: Option<String>,
    /// The sessions that computed the inherited steps, if this is the same computation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sessions: Vec<Session>,
}

/// The run from which `fork` or `reproduce` made this run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunOrigin {
    /// Started with changed settings of that run, from its checkpoint after `step`, or from the start (`None`).
    Fork { id: String, step: Option<u64>, plan_hash: String },
    /// Repeats the training, from the start, or from that run's checkpoint with this hash of weights and moments.
    Reproduction {
        id: String,
        plan_hash: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state_hash: Option<String>,
    },
}

/// A point of a sweep, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepPoint {
    pub id: String,
    pub point: usize,
}

/// A file that an experiment was merged from, in addition to the experiment file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedFile {
    pub file: PathBuf,
    /// The key whose value it is; empty for a file with keys of the whole experiment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// True if its settings replace those of the experiment file; false if the experiment file replaces them.
    pub is_above: bool,
}

/// A template and the variables that it was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateUse {
    pub file: PathBuf,
    pub vars: serde_json::Map<String, serde_json::Value>,
}

/// Content hashes of the data and weights that a run read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHashes {
    pub tokenizer: String,
    pub train: String,
    pub validation: Option<String>,
    pub choice: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<String>,
    /// Hash of the initial weights, if they were read from files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

impl DataHashes {
    /// The content hash of `part`; `None` if the run has no such part.
    #[must_use]
    pub fn of(&self, part: DataPart) -> Option<&str> {
        match part {
            DataPart::Tokenizer => Some(&self.tokenizer),
            DataPart::Train => Some(&self.train),
            DataPart::Validation => self.validation.as_deref(),
            DataPart::Choice => self.choice.as_deref(),
            DataPart::Test => self.test.as_deref(),
            DataPart::Weights => self.weights.as_deref(),
        }
    }

    /// The parts that differ from those of `other`.
    #[must_use]
    pub fn differing_parts(&self, other: &Self) -> Vec<DataPart> {
        DataPart::ALL.into_iter().filter(|part| self.of(*part) != other.of(*part)).collect()
    }
}

impl From<&DataFacts> for DataHashes {
    fn from(facts: &DataFacts) -> Self {
        let hash = |part| facts.hash_of(part).map(str::to_owned);
        Self {
            tokenizer: facts.tokenizer_hash.clone(),
            train: facts.train.hash.clone(),
            validation: hash(DataPart::Validation),
            choice: hash(DataPart::Choice),
            test: hash(DataPart::Test),
            weights: hash(DataPart::Weights),
        }
    }
}

/// The work of one process on a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub started: String,
    pub ended: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub from_step: u64,
    pub to_step: Option<u64>,
    pub version: String,
    pub commit: Option<String>,
    pub threads: usize,
    /// The number of times that all ranks were restarted after one had failed: by a launcher before this session, and in it.
    #[serde(default, skip_serializing_if = "is_default")]
    pub restarts: u32,
    #[serde(default)]
    pub machine: Machine,
    /// `--set` flags of this session.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// The environment variables that it read, and those of the allow-list of `machine::doctor`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// `None` if no session started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    /// The division of the work among ranks; `None` if no session started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<SessionLayout>,
    /// [`TEXT_READING_RULE`](runner_spec::data::TEXT_READING_RULE) of the program.
    pub text_reading_rule: u32,
}

/// The settings that divide the work of a session among ranks. They change the order of sums, and nothing else.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionLayout {
    /// The section `parallel` of the experiment.
    pub parallel: Parallel,
    /// Rows of a forward pass.
    pub micro_batch: usize,
}

impl SessionLayout {
    /// The layout of `experiment`.
    #[must_use]
    pub fn of(experiment: &Experiment) -> Self {
        Self { parallel: experiment.parallel.clone(), micro_batch: experiment.batch.micro_batch }
    }

    /// `experiment` under this layout, evaluated on the same rows. How often its ranks are restarted stays.
    #[must_use]
    pub fn apply(&self, experiment: &Experiment) -> Experiment {
        let mut changed = experiment.clone();
        changed.parallel = Parallel { max_restarts: experiment.parallel.max_restarts, ..self.parallel.clone() };
        if changed.batch.micro_batch != self.micro_batch {
            changed.eval.loss = changed.eval.loss.map(|loss| loss.in_rows(experiment.batch.micro_batch));
        }
        changed.batch.micro_batch = self.micro_batch;
        changed
    }

    /// The layout in words, such as `ddp of 2 replicas, shard: optimizer, micro-batches of 4 rows`.
    #[must_use]
    pub fn describe(&self) -> String {
        let shard = self.parallel.shard.map_or_else(String::new, |shard| format!(", shard: {}", choice_name(&shard)));
        self.describe_with(&shard)
    }

    /// What the order of sums depends on, in words: the layout without what replicas divide.
    #[must_use]
    pub fn describe_sums(&self) -> String {
        self.describe_with("")
    }

    fn describe_with(&self, shard: &str) -> String {
        let Parallel { mode, replicas, pipeline, .. } = &self.parallel;
        let mut text = choice_name(mode);
        // Buckets and devices of one kind are left out: sums are those of single numbers, in the order of ranks.
        if let Some(pipeline) = pipeline {
            let Pipeline { stages, schedule, chunks, partition, .. } = pipeline;
            let _ = write!(text, " of {stages} stages ({}", choice_name(schedule));
            if *chunks > 1 {
                let _ = write!(text, ", {chunks} chunks");
            }
            if let AutoOr::Given(layers) = partition {
                let _ = write!(text, ", layers {layers:?}");
            }
            text.push(')');
        }
        if *replicas > 1 {
            let _ = write!(text, " of {replicas} replicas");
        }
        format!("{text}{shard}, micro-batches of {}", counted(self.micro_batch as u64, "row"))
    }
}

impl Manifest {
    /// The manifest of a run of `plan` that has not started.
    pub fn new(plan: &Plan, experiment_file: PathBuf, overrides: Vec<String>, started: String) -> Self {
        let mut manifest = Self {
            format: FORMAT,
            name: plan.experiment_name.clone(),
            plan_hash: plan.hash.clone(),
            steps: plan.totals.steps,
            started,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            experiment_file,
            overrides,
            data: DataHashes::from(&plan.data),
            ..Self::default()
        };
        manifest.set_layout(plan);
        manifest
    }

    /// The number of parts of each checkpoint of the newest layout.
    #[must_use]
    pub fn parts_of_checkpoints(&self) -> usize {
        self.checkpoint_parts.or(self.layout.map(|layout| layout.stages)).unwrap_or(1)
    }

    /// Records how `plan` arranges its ranks, and their devices.
    fn set_layout(&mut self, plan: &Plan) {
        let shards = plan.ranks.first().is_some_and(|rank| !rank.program.shards.is_empty());
        self.layout = Some(plan.mesh);
        self.checkpoint_parts = shards.then_some(plan.world_size);
        self.devices = plan.ranks.iter().map(|rank| rank.device.to_string()).collect();
    }

    /// True if `apply` may take this run for the run of its plan. A reproduction, and a fork that began in the middle of another run,
    /// do not count.
    pub fn stands_for_its_plan(&self) -> bool {
        !matches!(self.origin, Some(RunOrigin::Fork { step: Some(_), .. } | RunOrigin::Reproduction { .. }))
    }

    /// The step after which the sessions began that have the newest layout; the number of inherited steps if all have it. Times of steps
    /// before it are those of a different layout.
    pub fn newest_layout_began(&self) -> u64 {
        let newest = self.sessions.last().map(|session| &session.layout);
        let moved = self.sessions.iter().rposition(|session| Some(&session.layout) != newest);
        let first = moved.and_then(|moved| self.sessions.get(moved + 1));
        first.map_or(0, |session| session.from_step).max(self.inherited_steps())
    }

    /// The steps that other runs did, whose checkpoint this one began with.
    pub fn inherited_steps(&self) -> u64 {
        self.continued_from.as_ref().map_or(0, |from| from.step)
    }

    /// The first steps that this run's own plan does not compute: those that it inherited, unless they are the same to the bit.
    pub fn foreign_steps(&self) -> u64 {
        self.continued_from.as_ref().filter(|from| !from.is_same_computation).map_or(0, |from| from.step)
    }

    /// The sessions, those that computed inherited steps of the same computation among them, each with version and machine.
    pub fn described_sessions(&self) -> Vec<Session> {
        let inherited = self.continued_from.as_ref().map_or_else(Vec::new, |from| from.sessions.clone());
        let mut sessions = [inherited, self.sessions.clone()].concat();
        if sessions.is_empty() {
            let environment = self.environment.clone();
            sessions.push(Session { threads: self.threads, environment, ..Session::default() });
        }
        sessions
    }

    /// Records that `session` starts, by this program on a working folder of the state `git`, with the ranks of `plan`.
    pub fn begin_session(&mut self, git: Option<Git>, session: Session, plan: &Plan) {
        let commit = git.as_ref().map(|git| git.commit.clone());
        let session = Session { version: env!("CARGO_PKG_VERSION").to_owned(), commit, ..session };
        self.status = RunStatus::Running;
        self.error = None;
        self.ended = None;
        self.version.clone_from(&session.version);
        (self.git, self.machine, self.threads) = (git, session.machine.clone(), session.threads);
        self.set_layout(plan);
        self.sessions.push(session);
    }

    /// Records how the newest session ended, after `to_step`.
    pub fn end_session(&mut self, status: RunStatus, error: Option<String>, to_step: u64, ended: String) {
        if let Some(session) = self.sessions.last_mut() {
            session.ended = Some(ended.clone());
            session.to_step = Some(to_step);
            session.error.clone_from(&error);
        }
        (self.status, self.error) = (status, error);
        self.ended = Some(ended);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runner_spec::experiment::ShardedState;

    fn layout(micro_batch: usize, shard: Option<ShardedState>) -> SessionLayout {
        SessionLayout { parallel: Parallel { replicas: 2, shard, ..Parallel::single() }, micro_batch }
    }

    #[test]
    fn the_newest_layout_begins_where_the_last_other_one_ended() {
        let session = |from_step, micro_batch| Session {
            from_step,
            layout: Some(layout(micro_batch, None)),
            ..Session::default()
        };
        let began = |sessions: &[Session]| {
            Manifest { sessions: sessions.to_vec(), ..Manifest::default() }.newest_layout_began()
        };
        assert_eq!(began(&[]), 0);
        assert_eq!(began(&[session(0, 4), session(10, 4)]), 0);
        assert_eq!(began(&[session(0, 4), session(10, 2), session(20, 2)]), 10);
        assert_eq!(began(&[session(0, 4), session(10, 2), session(20, 4)]), 20);
    }

    #[test]
    fn sharding_is_described_and_changes_no_sum() {
        let (whole, sharded) = (layout(4, None), layout(4, Some(ShardedState::Gradients)));
        assert_eq!(sharded.describe(), "single of 2 replicas, shard: gradients, micro-batches of 4 rows");
        assert_eq!(sharded.describe_sums(), whole.describe());
    }
}
