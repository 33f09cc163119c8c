//! Shows the metrics of a run in other programs while the run trains: TensorBoard's event file, and an MLflow server. Neither can stop
//! the run: what they lack follows from the record.

use std::path::Path;

use runner_mlflow::{Credentials, MlflowError, RunFile, Sender, Server};
use runner_spec::event::Event;
use runner_spec::experiment;
use runner_store::StoreError;
use runner_store::run_dir::{RESOLVED, SAMPLES, SUMMARY};
use runner_store::timed_metrics::LiveEventFile;

use crate::prepare::Host;

/// The programs that show one session of a run.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    event_file: Option<LiveEventFile>,
    mlflow: Option<(Sender, String)>,
    /// Warnings that nobody has seen.
    warnings: Vec<String>,
}

/// The server that `mlflow` names, with the credentials in the environment of `host`.
pub fn server(mlflow: &experiment::Mlflow, name: &str, host: &Host) -> Server {
    Server {
        uri: mlflow.uri.clone(),
        experiment: mlflow.experiment.clone().unwrap_or_else(|| name.to_owned()),
        credentials: Credentials::from_environment(&|name| host.environment.get(name).cloned()),
    }
}

impl Tracking {
    /// Starts what `experiment` asks for, for the run directory `run` whose session has begun.
    pub(crate) fn start(experiment: &experiment::Experiment, run: &Path, host: &Host) -> Self {
        let mut tracking = Self::default();
        if experiment.log.tensorboard {
            tracking.reopen_event_file(run);
        }
        if let Some(mlflow) = &experiment.log.mlflow {
            match Sender::start(run, &server(mlflow, &experiment.name, host)) {
                Ok(sender) => tracking.mlflow = Some((sender, mlflow.uri.clone())),
                Err(error) => tracking.warnings.push(format!("MLflow at {}: {error}", mlflow.uri)),
            }
        }
        tracking
    }

    /// Begins again after the record was cut back to a checkpoint.
    pub(crate) fn restart(&mut self, run: &Path) {
        if self.event_file.take().is_some() {
            self.reopen_event_file(run);
        }
    }

    fn reopen_event_file(&mut self, run: &Path) {
        match LiveEventFile::open(run) {
            Ok(file) => self.event_file = Some(file),
            Err(error) => self.give_up_event_file(&error),
        }
    }

    fn give_up_event_file(&mut self, error: &StoreError) {
        self.event_file = None;
        self.warnings.push(format!(
            "the event file of TensorBoard: {error}; the run goes on without it, and `runner export-metrics --tensorboard` writes one"
        ));
    }

    /// Shows `event`, which is recorded. `flush` makes everything up to it visible.
    pub(crate) fn add(&mut self, event: &Event, flush: bool) {
        let Some(file) = &mut self.event_file else { return };
        let result = file.add(event).and_then(|()| if flush { file.flush() } else { Ok(()) });
        if let Err(error) = result {
            self.give_up_event_file(&error);
        }
    }

    /// The warnings since the last call.
    pub(crate) fn take_warnings(&mut self) -> Vec<String> {
        if let Some((sender, uri)) = &self.mlflow
            && let Some(problem) = sender.take_problem()
        {
            self.warnings
                .push(format!("{}; the run goes on, and the rest is sent once it can be", describe(uri, &problem)));
        }
        std::mem::take(&mut self.warnings)
    }

    /// Shows the end of the run `name` in the run directory `run`, which is recorded. Returns the last warnings.
    pub(crate) fn finish(mut self, run: &Path, name: &str, host: &Host) -> Vec<String> {
        if let Some(Err(error)) = self.event_file.as_mut().map(LiveEventFile::flush) {
            self.give_up_event_file(&error);
        }
        let mut warnings = std::mem::take(&mut self.warnings);
        if let Some((sender, uri)) = self.mlflow {
            let (files, problem) = run_files(run, host);
            warnings.extend(problem);
            if let Err(error) = sender.finish(files) {
                warnings.push(format!(
                    "{}; `runner export-metrics {name} --mlflow {uri}` sends what is missing",
                    describe(&uri, &error)
                ));
            }
        }
        warnings
    }
}

fn describe(uri: &str, error: &MlflowError) -> String {
    format!("MLflow at {uri} does not take the metrics: {error}")
}

/// The files of the run directory `run` that a server shows beside the run, and the warning about the report, if it cannot be made.
pub fn run_files(run: &Path, host: &Host) -> (Vec<RunFile>, Option<String>) {
    let recorded = [RESOLVED, SAMPLES, SUMMARY].into_iter();
    // A run that samples nothing has no samples, and one that was killed no summary.
    let mut files: Vec<RunFile> =
        recorded.filter_map(|name| Some(RunFile { name, content: std::fs::read(run.join(name)).ok()? })).collect();
    match host.report_page.map(|page| page(run)) {
        Some(Ok(page)) => files.push(RunFile { name: "report.html", content: page.into_bytes() }),
        Some(Err(error)) => return (files, Some(format!("the report for MLflow: {error}"))),
        None => {}
    }
    (files, None)
}
