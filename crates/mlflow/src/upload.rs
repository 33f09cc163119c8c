//! Sends what a server lacks of a run, from the position that the run directory keeps.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use runner_store::files::read_small;
use runner_store::manifest::{Manifest, RunOrigin, RunStatus};
use runner_store::run_dir::{RESOLVED, read_manifest};
use runner_store::time;
use runner_store::timed_metrics::{MetricTail, TimedLine};
use serde_json::{Value, json};

use crate::client::{Answer, Client, Credentials, MlflowError};
use crate::parameters::parameters_of;
use crate::position::SentPosition;

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

/// A file that is shown beside the run.
#[derive(Debug, Clone)]
pub struct RunFile {
    pub name: &'static str,
    pub content: Vec<u8>,
}

/// The connection of a run with a server.
#[derive(Debug)]
pub struct Upload {
    run: PathBuf,
    client: Client,
    /// The run id is empty before the server knows the run.
    position: SentPosition,
    tail: MetricTail,
    /// Lines that were read and not sent.
    waiting: VecDeque<TimedLine>,
    /// True if this process has told the server that the run goes on.
    has_begun: bool,
}

impl Upload {
    /// An upload of the run directory `run` to `server`, to which nothing is sent yet.
    ///
    /// # Errors
    /// If the position in the run directory is damaged.
    pub fn new(run: &Path, server: &Server) -> Result<Self, MlflowError> {
        let uri = server.uri.trim_end_matches('/');
        let position = SentPosition::read(run, uri, &server.experiment)?.unwrap_or_else(|| SentPosition {
            uri: uri.to_owned(),
            experiment: server.experiment.clone(),
            ..SentPosition::default()
        });
        Ok(Self {
            run: run.to_owned(),
            client: Client::new(uri, server.credentials.clone()),
            position,
            tail: MetricTail::new(run),
            waiting: VecDeque::new(),
            has_begun: false,
        })
    }

    /// Sends the lines of the metrics that were not sent yet; before the first ones, the run with its parameters. Returns the number
    /// of lines.
    ///
    /// # Errors
    /// If the server does not take them: the next call goes on where this one failed.
    pub fn send_new(&mut self) -> Result<u64, MlflowError> {
        self.begin()?;
        let result = self.send_lines();
        // After an error the server may have the lines although its answer was lost: it is asked for its position again.
        self.has_begun = result.is_ok();
        result
    }

    fn send_lines(&mut self) -> Result<u64, MlflowError> {
        let mut sent = 0;
        loop {
            if self.waiting.is_empty() {
                self.waiting = self.tail.read_new(LINES_PER_READ)?.into();
                if self.waiting.is_empty() {
                    return Ok(sent);
                }
            }
            self.waiting.retain(|line| !self.position.has_line(line.values.kind(), line.step));
            let (metrics, lines) = next_batch(&self.waiting);
            if lines > 0 {
                self.post("runs/log-batch", &json!({"run_id": self.position.run_id, "metrics": metrics}))?;
                for line in self.waiting.drain(..lines) {
                    self.position.add_line(line.values.kind(), line.step);
                }
                self.position.write(&self.run)?;
                sent += lines as u64;
            }
        }
    }

    /// Sends `files`, and how the run ended, after everything else.
    ///
    /// # Errors
    /// If the server does not take them.
    pub fn finish(&mut self, files: &[RunFile]) -> Result<(), MlflowError> {
        // Other places are storage of which this program does not know the interface.
        let folder = self.position.artifact_uri.strip_prefix("mlflow-artifacts:").map(|place| {
            let path = place.strip_prefix("//").map_or(Some(place), |rest| rest.find('/').map(|at| &rest[at..]));
            path.unwrap_or_default().trim_matches('/').to_owned()
        });
        for RunFile { name, content } in files.iter().filter(|_| folder.is_some()) {
            let path = format!("{}/{name}", folder.as_deref().unwrap_or_default());
            done(self.client.put_file(&path, content)?, &path)?;
        }
        let manifest = read_manifest(&self.run)?;
        let status = match manifest.status {
            RunStatus::Done => "FINISHED",
            RunStatus::Failed => "FAILED",
            RunStatus::Interrupted => "KILLED",
            RunStatus::Running => return Ok(()),
        };
        let ended = manifest.ended.as_deref().and_then(time::parse).map(milliseconds);
        self.post("runs/update", &json!({"run_id": self.position.run_id, "status": status, "end_time": ended}))?;
        self.has_begun = false;
        Ok(())
    }

    /// Tells the server that the run goes on, and asks which lines it has; finds or creates the run there if the run directory does not
    /// know it.
    fn begin(&mut self) -> Result<(), MlflowError> {
        if self.has_begun {
            return Ok(());
        }
        let manifest = read_manifest(&self.run)?;
        if self.position.run_id.is_empty() {
            let info = self.find_or_create_run(&manifest)?;
            self.position.run_id = text_of(&info, "run_id")?;
            self.position.artifact_uri = text_of(&info, "artifact_uri")?;
            self.position.write(&self.run)?;
        }
        self.post("runs/update", &json!({"run_id": self.position.run_id, "status": "RUNNING"}))?;
        self.read_position()?;
        if !self.position.has_parameters {
            let parameters = parameters_of(&read_small(&self.run.join(RESOLVED))?)?;
            for some in parameters.chunks(MAX_PARAMETERS) {
                let some: Vec<Value> = some.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
                self.post("runs/log-batch", &json!({"run_id": self.position.run_id, "params": some}))?;
            }
            self.position.has_parameters = true;
            self.position.write(&self.run)?;
        }
        self.has_begun = true;
        Ok(())
    }

    /// Moves the position behind the lines that the server has. A process may have been killed before it could write that they were sent.
    fn read_position(&mut self) -> Result<(), MlflowError> {
        let run = done(self.client.get("runs/get", "run_id", &self.position.run_id)?, "runs/get")?;
        for metric in run["run"]["data"]["metrics"].as_array().into_iter().flatten() {
            // The server sends numbers of 64 bits as texts, or as numbers.
            let step = metric["step"].as_u64().or_else(|| metric["step"].as_str()?.parse().ok());
            if let (Some(key), Some(step)) = (metric["key"].as_str(), step) {
                let kind = if key.starts_with("eval/") { "eval" } else { "train" };
                self.position.add_line(kind, step);
            }
        }
        Ok(())
    }

    /// The server's description of the run. A process that was killed after it had created the run left it without a position here.
    fn find_or_create_run(&self, manifest: &Manifest) -> Result<Value, MlflowError> {
        let experiment = self.experiment_id()?;
        let key = format!("{} {}", manifest.id, manifest.started);
        let filter = format!("tags.\"{KEY_TAG}\" = '{key}'");
        let found =
            self.post("runs/search", &json!({"experiment_ids": [&experiment], "filter": filter, "max_results": 1}))?;
        if let Some(run) = found["runs"].get(0) {
            return Ok(run["info"].clone());
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
        Ok(created["run"]["info"].clone())
    }

    /// The server's id of the experiment, which is created if it does not exist.
    fn experiment_id(&self) -> Result<String, MlflowError> {
        let name = &self.position.experiment;
        let find = || self.client.get("experiments/get-by-name", "experiment_name", name);
        let mut answer = find()?;
        if matches!(answer, Answer::Missing) {
            answer = match self.client.post("experiments/create", &json!({"name": name}))? {
                // Another run has just created it.
                Answer::Exists => find()?,
                created => return text_of(&done(created, "experiments/create")?, "experiment_id"),
            };
        }
        text_of(&done(answer, "experiments/get-by-name")?["experiment"], "experiment_id")
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, MlflowError> {
        done(self.client.post(path, body)?, path)
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
        metrics.extend(
            scalars
                .iter()
                .map(|(key, value)| json!({"key": key, "value": value, "timestamp": timestamp, "step": line.step})),
        );
    }
    (metrics, lines.len())
}

/// What the server shows beside the run.
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

/// The content of `answer`.
fn done(answer: Answer, path: &str) -> Result<Value, MlflowError> {
    match answer {
        Answer::Done(value) => Ok(value),
        Answer::Missing => Err(MlflowError::Refused(format!(
            "it no longer has what {path} names; without the entry in mlflow.json of the run directory, the run is sent as a new one"
        ))),
        Answer::Exists => Err(MlflowError::Refused(format!("it has what {path} creates already"))),
    }
}

fn text_of(value: &Value, key: &str) -> Result<String, MlflowError> {
    let text = value[key].as_str().filter(|text| !text.is_empty());
    text.map(str::to_owned)
        .ok_or_else(|| MlflowError::Refused(format!("its answer has no {key}: is it an MLflow server?")))
}

fn milliseconds(seconds: f64) -> i64 {
    (seconds * 1e3).round() as i64
}
