//! Shows the metrics of a run in other programs while the run trains: TensorBoard's event file, and an MLflow server. Neither can stop
//! the run: what they lack follows from the record.

use std::path::Path;
use std::time::{Duration, Instant};

use runner_mlflow::{Credentials, MlflowError, SendOutcome, Sender, Server};
use runner_record::RecordError;
use runner_record::run_dir;
use runner_record::timed_metrics::LiveEventFile;
use runner_spec::event::Event;
use runner_spec::experiment;

use runner_inputs::{Host, RunEvent, RunObserver};
use runner_threads::stop::StopSwitch;

/// A wait for a server that takes longer is announced.
const ANNOUNCED_WAIT: Duration = Duration::from_secs(1);

/// The programs that show one session of a run.
#[derive(Debug, Default)]
pub(crate) struct Tracking {
    event_file: Option<LiveEventFile>,
    mlflow: Option<(Sender, String)>,
    /// Warnings that have not been shown.
    warnings: Vec<String>,
}

/// The server that `mlflow` names. It receives the credentials in the environment of `host` if a variable names the same server, or if the user
/// named it with a flag (`is_given`).
pub fn server_of_experiment(mlflow: &experiment::Mlflow, name: &str, host: &Host, is_given: bool) -> Server {
    let variable = |name: &str| host.environment.get(name).cloned();
    Server {
        uri: mlflow.uri.clone(),
        experiment: mlflow.experiment.clone().unwrap_or_else(|| name.to_owned()),
        credentials: if is_given {
            Credentials::from_environment(&variable)
        } else {
            Credentials::for_server(&mlflow.uri, &variable)
        },
    }
}

impl Tracking {
    /// Starts what `experiment` asks for, for the run directory `run` whose session has started.
    pub(crate) fn start(experiment: &experiment::Experiment, run: &Path, host: &Host) -> Self {
        let mut tracking = Self::default();
        if experiment.log.tensorboard {
            tracking.reopen_event_file(run);
        }
        if let Some(mlflow) = &experiment.log.mlflow {
            match Sender::start(run, &server_of_experiment(mlflow, &experiment.name, host, false)) {
                Ok(sender) => tracking.mlflow = Some((sender, mlflow.uri.clone())),
                Err(error) => tracking.warnings.push(format!("MLflow at {}: {error}", mlflow.uri)),
            }
        }
        tracking
    }

    /// Starts over after the record was cut back to a checkpoint.
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

    fn give_up_event_file(&mut self, error: &RecordError) {
        self.event_file = None;
        self.warnings.push(format!(
            "cannot write TensorBoard's event file: {error}; the run continues without it, and `runner \
             export-metrics --tensorboard` writes one later"
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
            self.warnings.push(format!("{}; training continues, and the thread tries again", describe(uri, &problem)));
        }
        std::mem::take(&mut self.warnings)
    }

    /// Makes everything in the event file visible.
    pub(crate) fn flush(&mut self) {
        if let Some(Err(error)) = self.event_file.as_mut().map(LiveEventFile::flush) {
            self.give_up_event_file(&error);
        }
    }

    /// Sends the end of the run `name` in the run directory `run`, which is recorded, to the server. If this takes long, `observer` receives a
    /// note; `stop` can end the wait. Returns the last warnings.
    pub(crate) fn finish(
        self,
        run: &Path,
        name: &str,
        stop: &StopSwitch,
        observer: &mut dyn RunObserver,
    ) -> Vec<String> {
        let mut warnings = self.warnings;
        let Some((sender, uri)) = self.mlflow else { return warnings };
        warnings.extend(describe_privacy(run, &uri));
        let problem = stop.wait(|is_waiting| {
            let (started, mut is_announced) = (Instant::now(), false);
            let mut keeps_waiting = || {
                if !is_announced && started.elapsed() >= ANNOUNCED_WAIT {
                    is_announced = true;
                    let text = format!(
                        "mlflow: the session has ended; still sending its record to {uri}; Ctrl-C ends this wait"
                    );
                    observer.observe(&RunEvent::Note(&text));
                }
                is_waiting()
            };
            match sender.finish(&mut keeps_waiting) {
                Ok(SendOutcome::Sent) => None,
                Ok(SendOutcome::WaitEnded) => Some(format!("the wait for MLflow at {uri} was interrupted")),
                Err(error) => Some(describe(&uri, &error)),
            }
        });
        let advice = format!(
            "`runner export-metrics {name} --mlflow {uri}` sends what is missing, with your MLflow credentials"
        );
        warnings.extend(problem.map(|problem| format!("{problem}; {advice}")));
        warnings
    }
}

/// The message about `error` of sending to the server at `uri`.
pub fn describe(uri: &str, error: &MlflowError) -> String {
    match error {
        MlflowError::Store(error) => format!("the record cannot be sent to MLflow at {uri}: {error}"),
        MlflowError::Unreachable(_) | MlflowError::Refused(_) => {
            format!("MLflow at {uri} did not accept the metrics: {error}")
        }
    }
}

/// The warning that the server at `uri` gets no parameters of the run directory `run`, if the run is private.
#[must_use]
pub fn describe_privacy(run: &Path, uri: &str) -> Option<String> {
    run_dir::has_private_settings(run)
        .then(|| format!("only its owner may read the settings of the run, so MLflow at {uri} gets no parameters"))
}
