//! A point of a sweep at work: `runner apply` in a process of its own, its progress, and its end.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{self, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde::Deserialize;

use crate::launch::{read_log_end, system};
use crate::sweep::segment_outcome::ProcessExit;
use runner_store::metrics::{EvalLine, TrainLine};
use runner_store::time;

/// A process to start.
#[derive(Debug, Clone)]
pub struct Work {
    /// Arguments of this program.
    pub arguments: Vec<OsString>,
    /// The file that receives the standard error of the process.
    pub log: PathBuf,
    /// The variables that the process must not see.
    pub hidden: Vec<String>,
    /// The graphics devices that the process may see, if it needs some.
    pub devices: Vec<String>,
}

/// The progress of a point, as its process last reported it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PointProgress {
    /// True if the process has found its run and is training.
    pub begun: bool,
    pub step: u64,
    pub steps: u64,
    pub loss: Option<f64>,
    pub tokens_per_second: Option<f64>,
    /// The newest evaluation.
    pub eval: Option<EvalLine>,
}

/// A process that was started. When it is dropped, it is asked to stop.
#[derive(Debug)]
pub struct Child {
    process: process::Child,
    status: Option<ExitStatus>,
    told: Arc<Mutex<PointProgress>>,
    log: PathBuf,
    /// The number of bytes in the log that earlier processes wrote.
    log_from: u64,
}

/// The lines of `runner apply --json` that report progress.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Line {
    Start { step: u64, steps: u64 },
    Train(TrainLine),
    Eval(EvalLine),
}

impl Work {
    /// Starts it. It gets SIGTERM, perhaps several, when the *thread* that calls this ends, however that ends (on Linux); Ctrl-C of a terminal
    /// does not reach it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn start(&self) -> io::Result<Child> {
        let mut errors = OpenOptions::new().append(true).create(true).open(&self.log)?;
        let log_from = errors.metadata()?.len();
        writeln!(errors, "--- {} runner {}", time::now(), self.arguments.join(OsStr::new(" ")).display())?;
        let mut command = system::own_command()?;
        command.args(&self.arguments).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
        for name in &self.hidden {
            command.env_remove(name);
        }
        if !self.devices.is_empty() {
            command.env(DEVICES, self.devices.join(","));
        }
        system::signal_at_end_of_thread(&mut command, libc::SIGTERM);
        let process = command.spawn()?;
        // From here on it is stopped if this fails.
        let mut child = Child { process, status: None, told: Arc::default(), log: self.log.clone(), log_from };
        if let Some(output) = child.process.stdout.take() {
            let told = child.told.clone();
            thread::Builder::new().name("point".to_owned()).spawn(move || listen(output, &told))?;
        }
        Ok(child)
    }
}

/// The graphics devices that a process sees.
pub const DEVICES: &str = "CUDA_VISIBLE_DEVICES";

fn listen(output: impl Read, told: &Mutex<PointProgress>) {
    for line in BufReader::new(output).split(b'\n') {
        let Ok(line) = line else { return };
        let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
        told.lock().unwrap_or_else(PoisonError::into_inner).update(line);
    }
}

impl PointProgress {
    fn update(&mut self, line: Line) {
        match line {
            Line::Start { step, steps } => (self.begun, self.step, self.steps) = (true, step, steps),
            Line::Train(train) => {
                (self.step, self.loss) = (train.step, train.loss);
                self.tokens_per_second = train.tokens_per_second;
            }
            Line::Eval(eval) => self.eval = Some(eval),
        }
    }
}

impl Child {
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The progress that the process last reported.
    #[must_use]
    pub fn told(&self) -> PointProgress {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How the process ended, if it has. Then it is reaped.
    pub fn ended(&mut self) -> Option<ProcessExit> {
        if self.status.is_none() {
            self.status = self.process.try_wait().ok().flatten();
        }
        let status = self.status?;
        Some(status.signal().map_or_else(|| ProcessExit::Exited(status.code().unwrap_or(-1)), ProcessExit::Killed))
    }

    /// Asks it to stop: it finishes its step, saves and ends. Asked again, it ends at once.
    pub fn stop(&mut self) {
        if self.ended().is_none() {
            terminate(self.process.id());
        }
    }

    /// The last error that this process wrote to its log.
    #[must_use]
    pub fn error(&self) -> Option<String> {
        last_error(&self.log, self.log_from)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The text after the last `error: ` at the beginning of a line of `log`, from byte `from` on.
fn last_error(log: &Path, from: u64) -> Option<String> {
    let text = read_log_end(log, from);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.iter().rposition(|line| line.starts_with("error"))?;
    let words: Vec<&str> = lines[last..].iter().map(|line| line.trim_end()).collect();
    let words = words.join("\n");
    Some(words.strip_prefix("error: ").map_or_else(|| words.clone(), str::to_owned))
}

fn terminate(pid: u32) {
    #[expect(unsafe_code, reason = "FFI")]
    // SAFETY: takes two numbers; the process is a child that was not reaped yet, so the number is still its own.
    unsafe {
        libc::kill(pid as libc::pid_t, libc::SIGTERM);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_told_last_counts() {
        let lines = "{\"kind\":\"start\",\"run\":\"r\",\"step\":3,\"steps\":9}\n\
                     {\"kind\":\"sample\",\"step\":3,\"prompt\":\"\",\"index\":0,\"text\":\"x\"}\n\
                     {\"kind\":\"train\",\"step\":4,\"loss\":2.5,\"tokens\":8,\"tokens_per_second\":10.0}\n\
                     rubbish\n{\"kind\":\"eval\",\"step\":4,\"val_loss\":2.0}\n{\"kind\":\"tra";
        let told = Mutex::new(PointProgress::default());
        listen(lines.as_bytes(), &told);
        let told = told.into_inner().unwrap();
        assert_eq!((told.begun, told.step, told.steps, told.loss), (true, 4, 9, Some(2.5)));
        assert_eq!(told.eval.unwrap().val_loss, Some(2.0));
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
