//! Sends what a server lacks of a run. The server itself says what it has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Instant;

use runner_record::files::read_small;
use runner_record::manifest::{Manifest, RunOrigin, RunStatus};
use runner_record::run_dir::{self, RESOLVED, read_manifest};
use runner_record::time;
use runner_record::timed_metrics::{MetricTail, TimedLine};
use serde_json::{Value, json};

use crate::client::{Client, Credentials, MlflowError, ServerAnswer};
use crate::parameters::parameters_of;

/// The server's limits of one request.
const MAX_METRICS: usize = 1000;
const MAX_PARAMETERS: usize = 100;
/// Lines that are read at once.
const LINES_PER_READ: usize = 256;
/// The tag by which the run is found on the server.
const KEY_TAG: &str = "runner.key";

/// A server, and the experiment on it that gets the run.
#[derive(Debug, Clone)]
pub struct Server {
    pub uri: String,
    pub experiment: String,
    pub credentials: Credentials,
}

/// The result of sending lines.
#[derive(Debug, Clone, Copy)]
pub struct SentLines {
    /// Lines that were sent.
    pub count: u64,
    /// False if the deadline came before the last line was sent.
    pub is_all: bool,
}

/// The run on the server.
#[derive(Debug, Default)]
struct ServedRun {
    /// The server's own id of the run; empty before the server knows the run.
    id: String,
    /// For each kind of line, `train` or `eval`, the last step whose line the server has.
    sent: BTreeMap<String, u64>,
}

impl ServedRun {
    /// True if the server has the line of `kind` after `step`. A line that is written again after a resume has the same numbers.
    fn has_line(&self, kind: &str, step: u64) -> bool {
        self.sent.get(kind).is_some_and(|sent| step <= *sent)
    }

    /// Counts the line of `kind` after `step` as sent.
    fn add_line(&mut self, kind: &str, step: u64) {
        let sent = self.sent.entry(kind.to_owned()).or_default();
        *sent = step.max(*sent);
    }
}

/// The connection of a run with a server.
#[derive(Debug)]
pub struct Upload {
    run: PathBuf,
    client: Client,
    /// The name of the experiment on the server.
    experiment: String,
    served: ServedRun,
    tail: MetricTail,
    /// Lines that were read and not sent.
    waiting: VecDeque<TimedLine>,
    /// True if this process has set the run's status on the server to running, and knows what the server has.
    is_registered: bool,
}

impl Upload {
    /// An upload of the run directory `run` to `server`. Nothing has been sent yet.
    pub fn new(run: &Path, server: &Server) -> Self {
        Self {
            run: run.to_owned(),
            client: Client::new(&server.uri, server.credentials.clone()),
            experiment: server.experiment.clone(),
            served: ServedRun::default(),
            tail: MetricTail::new(run),
            waiting: VecDeque::new(),
            is_registered: false,
        }
    }

    /// Sends the lines of the metrics that were not sent yet; before the first ones, the run with its parameters. No batch of lines
    /// is started after `deadline`.
    ///
    /// # Errors
    /// If the server does not accept them: the next call continues where this one failed.
    pub fn send_new(&mut self, deadline: Option<Instant>) -> Result<SentLines, MlflowError> {
        self.register_session()?;
        let result = self.send_lines(deadline);
        // After an error the server may have the lines although its answer was lost: it is asked again what it has.
        self.is_registered = result.is_ok();
        result
    }

    fn send_lines(&mut self, deadline: Option<Instant>) -> Result<SentLines, MlflowError> {
        let mut count = 0;
        loop {
            if self.waiting.is_empty() {
                self.waiting = self.tail.read_new(LINES_PER_READ)?.into();
                if self.waiting.is_empty() {
                    return Ok(SentLines { count, is_all: true });
                }
            }
            self.waiting.retain(|line| !self.served.has_line(line.values.kind(), line.step));
            let (metrics, lines) = next_batch(&self.waiting);
            if lines > 0 {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(SentLines { count, is_all: false });
                }
                self.post("runs/log-batch", &json!({"run_id": self.served.id, "metrics": metrics}))?;
                for line in self.waiting.drain(..lines) {
                    self.served.add_line(line.values.kind(), line.step);
                }
                count += lines as u64;
            }
        }
    }

    /// Sends how the run ended, after its lines.
    ///
    /// # Errors
    /// If the server does not take it.
    pub fn send_status(&mut self) -> Result<(), MlflowError> {
        let manifest = read_manifest(&self.run)?;
        let status = match manifest.status {
            RunStatus::Done => "FINISHED",
            RunStatus::Failed => "FAILED",
            RunStatus::Interrupted => "KILLED",
            RunStatus::Running => return Ok(()),
        };
        let ended = manifest.ended.as_deref().and_then(time::parse).map(milliseconds);
        self.post("runs/update", &json!({"run_id": self.served.id, "status": status, "end_time": ended}))?;
        self.is_registered = false;
        Ok(())
    }

    /// Finds or creates the run on the server, asks what the server has of it, and sets its status to running.
    fn register_session(&mut self) -> Result<(), MlflowError> {
        if self.is_registered {
            return Ok(());
        }
        let run = self.find_or_create_run(&read_manifest(&self.run)?)?;
        let mut served = ServedRun { id: text_of(&run["info"], "run_id")?, ..ServedRun::default() };
        for metric in run["data"]["metrics"].as_array().into_iter().flatten() {
            // The server sends numbers of 64 bits as texts, or as numbers.
            let step = metric["step"].as_u64().or_else(|| metric["step"].as_str()?.parse().ok());
            if let (Some(key), Some(step)) = (metric["key"].as_str(), step) {
                served.add_line(if key.starts_with("eval/") { "eval" } else { "train" }, step);
            }
        }
        if served.id != self.served.id {
            // The run may have been deleted on the server: a new one gets all lines.
            (self.tail, self.waiting) = (MetricTail::new(&self.run), VecDeque::new());
        }
        self.served = served;
        self.post("runs/update", &json!({"run_id": self.served.id, "status": "RUNNING"}))?;
        let known = run["data"]["params"].as_array().into_iter().flatten();
        let known = known.filter_map(|parameter| parameter["key"].as_str().map(str::to_owned)).collect();
        let missing = missing_parameters(&self.run, known)?;
        for part in missing.chunks(MAX_PARAMETERS) {
            self.post("runs/log-batch", &json!({"run_id": self.served.id, "params": part}))?;
        }
        self.is_registered = true;
        Ok(())
    }

    /// The server's description of the run, which is found by its tag.
    fn find_or_create_run(&self, manifest: &Manifest) -> Result<Value, MlflowError> {
        let experiment = self.experiment_id()?;
        let key = format!("{} {}", manifest.id, manifest.started);
        let filter = format!("tags.\"{KEY_TAG}\" = '{key}'");
        let found =
            self.post("runs/search", &json!({"experiment_ids": [&experiment], "filter": filter, "max_results": 1}))?;
        if let Some(run) = found["runs"].get(0) {
            return Ok(run.clone());
        }
        let started = time::parse(&manifest.started).map(milliseconds);
        let created = self.post(
            "runs/create",
            &json!({
                "experiment_id": experiment,
                "run_name": manifest.id,
                "start_time": started,
                "tags": tags_of(manifest, &key),
            }),
        )?;
        Ok(created["run"].clone())
    }

    /// The server's id of the experiment, which is created if it does not exist.
    fn experiment_id(&self) -> Result<String, MlflowError> {
        let name = &self.experiment;
        let find = || self.client.get("experiments/get-by-name", "experiment_name", name);
        let mut answer = find()?;
        if matches!(answer, ServerAnswer::Missing) {
            answer = match self.client.post("experiments/create", &json!({"name": name}))? {
                // Another run has just created it.
                ServerAnswer::Exists => find()?,
                created => return text_of(&require_content(created, "experiments/create")?, "experiment_id"),
            };
        }
        text_of(&require_content(answer, "experiments/get-by-name")?["experiment"], "experiment_id")
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, MlflowError> {
        require_content(self.client.post(path, body)?, path)
    }
}

/// The metrics of the first lines of `lines` for one request, and the number of these lines.
fn next_batch(lines: &VecDeque<TimedLine>) -> (Vec<Value>, usize) {
    let mut metrics = Vec::new();
    for (count, line) in lines.iter().enumerate() {
        let scalars = line.values.scalars();
        if metrics.len() + scalars.len() > MAX_METRICS {
            return (metrics, count);
        }
        let timestamp = milliseconds(line.wall_time);
        let metric = |(key, value): &(String, f64)| json!({"key": key, "value": value, "timestamp": timestamp, "step": line.step});
        metrics.extend(scalars.iter().map(metric));
    }
    (metrics, lines.len())
}

/// The tags that the server shows beside the run.
fn tags_of(manifest: &Manifest, key: &str) -> Vec<Value> {
    let commit = manifest.git.as_ref().map(|git| git.commit.clone());
    let origin = manifest.origin.as_ref().map(|origin| match origin {
        RunOrigin::Fork { id, .. } => format!("fork of {id}"),
        RunOrigin::Reproduction { id, .. } => format!("reproduction of {id}"),
    });
    let sweep = manifest.sweep.as_ref().map(|point| format!("{}:{}", point.id, point.point));
    let tags = [
        (KEY_TAG, Some(key.to_owned())),
        ("runner.run_id", Some(manifest.id.clone())),
        ("runner.plan_hash", Some(manifest.plan_hash.clone())),
        ("runner.version", Some(manifest.version.clone())),
        ("runner.origin", origin),
        ("runner.sweep", sweep),
        ("mlflow.source.name", Some(manifest.experiment_file.display().to_string())),
        ("mlflow.source.git.commit", commit),
    ];
    tags.into_iter().filter_map(|(key, value)| Some(json!({"key": key, "value": value?}))).collect()
}

/// The parameters of the run directory `run` that are not in `known`. The server refuses another value of one that it has. Those of
/// a private run are not sent.
fn missing_parameters(run: &Path, mut known: BTreeSet<String>) -> Result<Vec<Value>, MlflowError> {
    if run_dir::has_private_settings(run) {
        return Ok(Vec::new());
    }
    let parameters = parameters_of(&read_small(&run.join(RESOLVED))?)?.into_iter();
    let missing = parameters.filter(|(key, _)| known.insert(key.clone()));
    Ok(missing.map(|(key, value)| json!({"key": key, "value": value})).collect())
}

/// The content of `answer`, the one to `path`.
fn require_content(answer: ServerAnswer, path: &str) -> Result<Value, MlflowError> {
    match answer {
        ServerAnswer::Done(value) => Ok(value),
        ServerAnswer::Missing => {
            Err(MlflowError::Refused(format!("the server does not have the run or experiment that {path} asks for")))
        }
        ServerAnswer::Exists => Err(MlflowError::Refused(format!("the server already has what {path} creates"))),
    }
}

fn text_of(value: &Value, key: &str) -> Result<String, MlflowError> {
    let text = value[key].as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| MlflowError::Refused(format!("its answer does not have {key}; is it an MLflow server?")))
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1e3).round() as i64
}

#[cfg(test)]
mod tests;
