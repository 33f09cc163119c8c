//! Sends what a server lacks of a run, from the position that the run directory keeps.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Instant;

use runner_record::files::read_small;
use runner_record::manifest::{Manifest, RunOrigin, RunStatus};
use runner_record::run_dir::{self, MLFLOW, RESOLVED, read_manifest};
use runner_record::time;
use runner_record::timed_metrics::{MetricTail, TimedLine};
use serde_json::{Value, json};

use crate::client::{Client, Credentials, FileContent, MlflowError, ServerAnswer};
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
#[derive(Debug)]
pub struct RunFile {
    pub name: &'static str,
    pub content: FileContent,
}

/// The result of sending lines.
#[derive(Debug, Clone, Copy)]
pub struct SentLines {
    /// Lines that were sent.
    pub count: u64,
    /// False if the deadline came before the last line was sent.
    pub is_all: bool,
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
    /// True if this process has set the run's status on the server to running, and knows what the server has.
    is_registered: bool,
}

impl Upload {
    /// An upload of the run directory `run` to `server`. Nothing has been sent yet.
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
            is_registered: false,
        })
    }

    /// Sends the lines of the metrics that were not sent yet; before the first ones, the run with its parameters. No batch of lines
    /// is started after `deadline`.
    ///
    /// # Errors
    /// If the server does not accept them: the next call continues where this one failed.
    pub fn send_new(&mut self, deadline: Option<Instant>) -> Result<SentLines, MlflowError> {
        self.register_session()?;
        let result = self.send_lines(deadline);
        // After an error the server may have the lines although its answer was lost: it is asked for its position again.
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
            self.waiting.retain(|line| !self.position.has_line(line.values.kind(), line.step));
            let (metrics, lines) = next_batch(&self.waiting);
            if lines > 0 {
                if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                    return Ok(SentLines { count, is_all: false });
                }
                self.post("runs/log-batch", &json!({"run_id": self.position.run_id, "metrics": metrics}))?;
                for line in self.waiting.drain(..lines) {
                    self.position.add_line(line.values.kind(), line.step);
                }
                self.position.write(&self.run)?;
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
        self.post("runs/update", &json!({"run_id": self.position.run_id, "status": status, "end_time": ended}))?;
        self.is_registered = false;
        Ok(())
    }

    /// Sends each of `files` once. Returns the warning about those that the server does not have then; if it cannot be reached, no other
    /// file is tried.
    pub fn send_files(&self, files: &[RunFile]) -> Option<String> {
        let describe = |missing: &[&str], reason: &str| {
            (!missing.is_empty())
                .then(|| format!("MLflow at {} did not receive {}: {reason}", self.position.uri, missing.join(", ")))
        };
        let Some(folder) = artifact_folder(&self.position.artifact_uri) else {
            let names: Vec<&str> = files.iter().map(|file| file.name).collect();
            return describe(&names, "files are sent only where the server stores them itself (mlflow-artifacts:)");
        };
        let (mut missing, mut first) = (Vec::new(), None);
        for (i, RunFile { name, content }) in files.iter().enumerate() {
            let path = if folder.is_empty() { (*name).to_owned() } else { format!("{folder}/{name}") };
            let result = self.client.put_file(&path, content);
            let Err(error) = result.and_then(|answer| require_content(answer, &self.run, &path)) else { continue };
            let is_away = matches!(error, MlflowError::Unreachable(_));
            first = first.or(Some(error.to_string()));
            if is_away {
                missing.extend(files[i..].iter().map(|file| file.name));
                break;
            }
            missing.push(*name);
        }
        describe(&missing, &first.unwrap_or_default())
    }

    /// Sets the run's status on the server to running, and asks which lines it has; finds or creates the run there if the run directory
    /// does not know it.
    fn register_session(&mut self) -> Result<(), MlflowError> {
        if self.is_registered {
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
        let known = self.read_position()?;
        let missing = missing_parameters(&self.run, known)?;
        for part in missing.chunks(MAX_PARAMETERS) {
            self.post("runs/log-batch", &json!({"run_id": self.position.run_id, "params": part}))?;
        }
        self.is_registered = true;
        Ok(())
    }

    /// Moves the position behind the lines that the server has. A process may have been killed before it could write that they were sent.
    /// Returns the names of the parameters that the server has.
    fn read_position(&mut self) -> Result<BTreeSet<String>, MlflowError> {
        let run =
            require_content(self.client.get("runs/get", "run_id", &self.position.run_id)?, &self.run, "runs/get")?;
        for metric in run["run"]["data"]["metrics"].as_array().into_iter().flatten() {
            // The server sends numbers of 64 bits as texts, or as numbers.
            let step = metric["step"].as_u64().or_else(|| metric["step"].as_str()?.parse().ok());
            if let (Some(key), Some(step)) = (metric["key"].as_str(), step) {
                let kind = if key.starts_with("eval/") { "eval" } else { "train" };
                self.position.add_line(kind, step);
            }
        }
        let parameters = run["run"]["data"]["params"].as_array().into_iter().flatten();
        Ok(parameters.filter_map(|parameter| parameter["key"].as_str().map(str::to_owned)).collect())
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
        if matches!(answer, ServerAnswer::Missing) {
            answer = match self.client.post("experiments/create", &json!({"name": name}))? {
                // Another run has just created it.
                ServerAnswer::Exists => find()?,
                created => {
                    return text_of(&require_content(created, &self.run, "experiments/create")?, "experiment_id");
                }
            };
        }
        text_of(&require_content(answer, &self.run, "experiments/get-by-name")?["experiment"], "experiment_id")
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, MlflowError> {
        require_content(self.client.post(path, body)?, &self.run, path)
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

/// The folder of the server's own store at `artifact_uri`; `None` if the files are elsewhere.
fn artifact_folder(artifact_uri: &str) -> Option<String> {
    let place = artifact_uri.strip_prefix("mlflow-artifacts:")?;
    let path = place.strip_prefix("//").map_or(Some(place), |rest| rest.find('/').map(|at| &rest[at..]));
    Some(path.unwrap_or_default().trim_matches('/').to_owned())
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

/// The content of `answer`, the one to `path` about the run directory `run`.
fn require_content(answer: ServerAnswer, run: &Path, path: &str) -> Result<Value, MlflowError> {
    match answer {
        ServerAnswer::Done(value) => Ok(value),
        ServerAnswer::Missing => Err(MlflowError::Refused(format!(
            "the server no longer has the run or experiment that {path} asks for; remove its entry from {} to send \
             the run as a new one",
            run.join(MLFLOW).display()
        ))),
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
