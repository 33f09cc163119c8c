//! `mlflow.json`: for each server the last step that was sent.

use std::path::Path;

use runner_record::RecordError;
use runner_record::files::{check_format, if_present, read_json, write_json};
use runner_record::run_dir::MLFLOW;
use serde::{Deserialize, Serialize};

/// The version of the file.
const FORMAT: u32 = 1;

/// The whole file.
#[derive(Debug, Default, Serialize, Deserialize)]
struct MlflowPositions {
    format: u32,
    servers: Vec<SentPosition>,
}

/// The position of one server.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SentPosition {
    pub(crate) uri: String,
    /// The name of the experiment on the server.
    pub(crate) experiment: String,
    /// The server's own id of the run.
    pub(crate) run_id: String,
    /// The place of the run's files.
    pub(crate) artifact_uri: String,
    /// The last step whose line was sent, and the last step whose evaluation was sent.
    pub(crate) train_step: Option<u64>,
    pub(crate) eval_step: Option<u64>,
}

fn read(run: &Path) -> Result<MlflowPositions, RecordError> {
    let path = run.join(MLFLOW);
    let Some(record) = if_present(read_json::<MlflowPositions>(&path))? else { return Ok(MlflowPositions::default()) };
    check_format(&path, record.format, FORMAT)?;
    Ok(record)
}

impl SentPosition {
    /// The position of the server `uri` in `run`, for `experiment`; `None` if nothing was sent.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(crate) fn read(run: &Path, uri: &str, experiment: &str) -> Result<Option<Self>, RecordError> {
        Ok(read(run)?.servers.into_iter().find(|server| server.is_for(uri, experiment)))
    }

    fn is_for(&self, uri: &str, experiment: &str) -> bool {
        self.uri == uri && self.experiment == experiment
    }

    /// Writes the position beside those of other servers.
    ///
    /// # Errors
    /// If the file is damaged or cannot be written.
    pub(crate) fn write(&self, run: &Path) -> Result<(), RecordError> {
        let mut record = read(run)?;
        record.format = FORMAT;
        record.servers.retain(|server| !server.is_for(&self.uri, &self.experiment));
        record.servers.push(self.clone());
        write_json(&run.join(MLFLOW), &record)
    }

    /// True if the line of `kind` after `step` was sent. A line that is written again after a resume has the same numbers.
    pub(crate) fn has_line(&self, kind: &str, step: u64) -> bool {
        let sent = if kind == "train" { self.train_step } else { self.eval_step };
        sent.is_some_and(|sent| step <= sent)
    }

    /// Counts the line of `kind` after `step` as sent.
    pub(crate) fn add_line(&mut self, kind: &str, step: u64) {
        let sent = if kind == "train" { &mut self.train_step } else { &mut self.eval_step };
        *sent = Some(sent.map_or(step, |sent| sent.max(step)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_its_position() {
        let dir = tempfile::tempdir().unwrap();
        let mut a = SentPosition { uri: "http://a".into(), experiment: "x".into(), ..SentPosition::default() };
        let b = SentPosition { uri: "http://b".into(), run_id: "1".into(), ..a.clone() };
        assert!(!a.has_line("eval", 0));
        a.write(dir.path()).unwrap();
        b.write(dir.path()).unwrap();
        a.add_line("train", 3);
        a.add_line("eval", 0);
        a.write(dir.path()).unwrap();
        assert_eq!(SentPosition::read(dir.path(), "http://a", "x").unwrap(), Some(a.clone()));
        assert_eq!(SentPosition::read(dir.path(), "http://b", "x").unwrap(), Some(b));
        assert_eq!(SentPosition::read(dir.path(), "http://b", "y").unwrap(), None);
        assert!(a.has_line("train", 3) && !a.has_line("train", 4) && a.has_line("eval", 0) && !a.has_line("eval", 3));
        std::fs::write(dir.path().join(MLFLOW), "{\"format\": 9, \"servers\": []}").unwrap();
        assert!(SentPosition::read(dir.path(), "http://a", "x").is_err());
    }
}
