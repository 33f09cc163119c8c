//! The process of a point of a sweep: `runner apply` and its arguments, its progress, and its exit.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;

use super::segment_outcome::SegmentEnd;
use crate::record::sweep_dir::{damaged_copy, point_file};
use crate::record::{PlannedPoint, SweepRecord};
use runner_files::{append_owned, read_log_end};
use runner_record::metrics::TrainLine;
use runner_record::{RecordError, time};
use runner_spec::diagnostic::ConfigError;
use runner_threads::{process, threads};

/// The variable that names the CUDA devices that a process sees.
pub(super) const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

/// The progress that the process of a point has reported.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReportedProgress {
    /// True if the process has found its run and is training.
    pub has_begun: bool,
    pub step: u64,
    pub loss: Option<f64>,
    pub tokens_per_second: Option<f64>,
}

/// The process that trains a point. When it is dropped, it is asked to stop.
#[derive(Debug)]
pub(super) struct PointProcess {
    child: Child,
    status: Option<ExitStatus>,
    progress: Arc<Mutex<ReportedProgress>>,
    log: PathBuf,
    /// The number of bytes in the log that earlier processes wrote.
    log_from: u64,
}

/// The lines of `runner apply --json` that report progress.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ProgressLine {
    Start { step: u64 },
    Train(Box<TrainLine>),
}

impl PointProcess {
    /// Starts this program with `arguments`; its standard error goes to the end of the file `log`. It does not see `hidden_variables`,
    /// and of the CUDA devices only `devices`, if there are any. It gets SIGTERM, perhaps several times, when the *thread* that calls
    /// this ends, however that ends (on Linux); Ctrl-C of a terminal does not reach it.
    ///
    /// # Errors
    /// If the system refuses.
    pub(super) fn start(
        arguments: &[OsString],
        log: PathBuf,
        hidden_variables: &[String],
        devices: &[String],
    ) -> io::Result<Self> {
        let mut errors = append_owned(&log)?;
        let log_from = errors.metadata()?.len();
        writeln!(errors, "--- {} runner {}", time::now(), arguments.join(OsStr::new(" ")).display())?;
        let mut command = process::own_command()?;
        command.args(arguments).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        for name in hidden_variables {
            command.env_remove(name);
        }
        if !devices.is_empty() {
            command.env(DEVICES, devices.join(","));
        }
        process::terminate_at_end_of_thread(&mut command);
        let child = command.spawn().map_err(|error| threads::explain_start_error("a process", &error))?;
        // From here on it is stopped if this fails.
        let mut process = Self { child, status: None, progress: Arc::default(), log, log_from };
        if let Some(output) = process.child.stdout.take() {
            let progress = process.progress.clone();
            threads::spawn("point", move || read_progress(output, &progress))?;
        }
        Ok(process)
    }

    /// The progress that the process last reported.
    pub(super) fn progress(&self) -> ReportedProgress {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The exit of the process, if it has exited. Then it is reaped.
    pub(super) fn exit(&mut self) -> Option<SegmentEnd> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        let status = self.status?;
        Some(status.signal().map_or_else(|| SegmentEnd::Exited(status.code().unwrap_or(-1)), SegmentEnd::Killed))
    }

    /// Asks the process to stop: it finishes its step, saves and exits. Asked again, it exits at once.
    pub(super) fn stop(&mut self) {
        if self.exit().is_none() {
            process::terminate_child(self.child.id());
        }
    }

    /// The last error that this process wrote to its log.
    pub(super) fn last_error(&self) -> Option<String> {
        last_error(&self.log, self.log_from)
    }
}

impl Drop for PointProcess {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Reads the lines of `output` until it ends, and keeps `progress` up to date.
fn read_progress(output: impl Read, progress: &Mutex<ReportedProgress>) {
    for line in BufReader::new(output).split(b'\n') {
        let Ok(line) = line else { return };
        let Ok(line) = serde_json::from_slice(&line) else { continue };
        let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
        match line {
            ProgressLine::Start { step } => (progress.has_begun, progress.step) = (true, step),
            ProgressLine::Train(train) => {
                (progress.step, progress.loss) = (train.step, train.loss);
                progress.tokens_per_second = train.tokens_per_second;
            }
        }
    }
}

/// The text after the last `error: ` at the beginning of a line of `log`, from byte `from` on.
pub(super) fn last_error(log: &Path, from: u64) -> Option<String> {
    let text = read_log_end(log, from);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().rposition(|line| line.starts_with("error"))?;
    let error = lines[last..].iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n");
    Some(error.strip_prefix("error: ").unwrap_or(&error).to_owned())
}

/// The arguments of `runner` that train `point` of the sweep in `path`, to step `until` or to its end.
///
/// # Errors
/// If the file of the point's experiment, which the sweep wrote, is missing or damaged.
pub fn point_arguments(
    path: &Path,
    record: &SweepRecord,
    point: &PlannedPoint,
    runs: &Path,
    threads: usize,
    until: Option<u64>,
) -> Result<Vec<OsString>, RecordError> {
    let file = point_file(path, point.index);
    let loaded = runner_config::load_resolved(&file).map_err(|mistakes| damaged_copy(&file, &mistakes))?;
    // A part of the file may be legal too. Another version may write the same experiment in other words.
    if record.version == env!("CARGO_PKG_VERSION") && runner_config::to_yaml(&loaded.experiment) != loaded.text {
        return Err(damaged_copy(&file, &ConfigError::new(Vec::new())));
    }
    let mut arguments: Vec<OsString> = vec!["apply".into(), file.into()];
    arguments.extend(["--runs".into(), runs.into(), "--threads".into(), threads.to_string().into()]);
    arguments.extend(["--expect-plan".into(), OsString::from(&point.plan_hash)]);
    arguments.extend(["--sweep-point".into(), format!("{}:{}", record.id, point.index).into()]);
    if let Some(step) = until {
        arguments.extend(["--until-step".into(), step.to_string().into()]);
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_report_counts() {
        let lines = "{\"kind\":\"start\",\"run\":\"r\",\"step\":3,\"steps\":9}\n\
                     {\"kind\":\"sample\",\"step\":3,\"prompt\":\"\",\"index\":0,\"text\":\"x\"}\n\
                     {\"kind\":\"train\",\"step\":4,\"loss\":2.5,\"tokens\":8,\"tokens_per_second\":10.0}\n\
                     rubbish\n{\"kind\":\"eval\",\"step\":4,\"val_loss\":2.0}\n{\"kind\":\"tra";
        let progress = Mutex::default();
        read_progress(lines.as_bytes(), &progress);
        let expected = ReportedProgress { has_begun: true, step: 4, loss: Some(2.5), tokens_per_second: Some(10.0) };
        assert_eq!(progress.into_inner().unwrap(), expected);
    }

    #[test]
    fn the_last_error_of_a_process_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let old = "error: of an earlier one\n";
        fs::write(&log, format!("{old}--- now\nrun    a: 5 steps\nerror: it failed:\n  because\n")).unwrap();
        assert_eq!(last_error(&log, old.len() as u64).unwrap(), "it failed:\n  because");
        fs::write(&log, format!("{old}--- now\n")).unwrap();
        assert_eq!(last_error(&log, old.len() as u64), None);
        fs::write(&log, format!("{}\nerror: x\n", "y".repeat(100_000))).unwrap();
        assert_eq!(last_error(&log, 0).unwrap(), "x");
    }
}
