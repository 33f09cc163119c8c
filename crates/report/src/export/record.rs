//! A run's metrics as rows with times of day, and its samples.
//!
//! Lines of `metrics.jsonl` say how long a step took, not when it was. The manifest says when each session began and after
//! which step: a step's time is its session's start and the times of the session's steps up to it. What a session did between
//! steps (preparing data, evaluations, checkpoints) is in neither, so times fall behind by as much.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use runner_store::lines::for_each_line;
use runner_store::manifest::{Manifest, Session};
use runner_store::metrics::{EvalLine, MetricLine, TrainLine, for_each_metric};
use runner_store::run_dir;
use runner_store::run_dir::{METRICS, SAMPLES};
use runner_store::{StoreError, time};

/// A run to be exported.
#[derive(Debug, Clone)]
pub struct Record {
    pub id: String,
    path: PathBuf,
    clock: Clock,
}

/// A line of the metrics. What it does not have is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub step: u64,
    /// Seconds since 1970-01-01T00:00:00Z.
    pub wall_time: f64,
    pub line: MetricLine,
}

/// A line of the samples.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Sample {
    pub step: u64,
    pub prompt: String,
    pub index: u64,
    pub text: String,
}

impl Record {
    /// Of the run directory `path`.
    ///
    /// # Errors
    /// If its manifest or metrics cannot be read.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let manifest = run_dir::manifest(path)?;
        // Steps of another run, which this one continues, were before its first session.
        let first = manifest.sessions.first().map_or(0, |s| s.from_step);
        let mut earlier = 0.0;
        if first > 0 {
            for_each_metric(&path.join(METRICS), &mut |line| match line {
                MetricLine::Train(t) if t.step <= first => earlier += seconds(&t),
                _ => {}
            })?;
        }
        let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { id, path: path.to_owned(), clock: Clock::new(&manifest, earlier) })
    }

    /// When the run began, in seconds since 1970.
    #[must_use]
    pub fn started(&self) -> f64 {
        self.clock.started
    }

    /// The experiment with all its values, if it can be read.
    #[must_use]
    pub fn resolved(&self) -> Option<String> {
        std::fs::read_to_string(self.path.join(run_dir::RESOLVED)).ok()
    }

    /// Calls `row` with each line of the metrics, in order; how many there were.
    ///
    /// # Errors
    /// If the file cannot be read; whatever `row` says, and then it is not called again.
    pub fn rows<E: From<StoreError>>(&self, row: &mut dyn FnMut(Row) -> Result<(), E>) -> Result<u64, E> {
        let (mut clock, mut count, mut failed) = (self.clock.clone(), 0, None);
        for_each_metric(&self.path.join(METRICS), &mut |line| {
            if failed.is_none() {
                let (step, wall_time) = clock.at(&line);
                count += 1;
                failed = row(Row { step, wall_time, line }).err();
            }
        })?;
        failed.map_or(Ok(count), Err)
    }

    /// Calls `sample` with each line of the samples and its time, in order. Lines that are none are passed over.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn samples(&self, times: &[(u64, f64)], sample: &mut dyn FnMut(f64, Sample)) -> Result<(), StoreError> {
        for_each_line(&self.path.join(SAMPLES), &mut |bytes| {
            if let Ok(line) = serde_json::from_slice::<Sample>(bytes) {
                let before = times.partition_point(|(step, _)| *step <= line.step);
                let when = before.checked_sub(1).and_then(|i| times.get(i)).map_or(self.clock.started, |(_, t)| *t);
                sample(when, line);
            }
            Ok(())
        })
    }
}

fn seconds(line: &TrainLine) -> f64 {
    line.step_ms.filter(|ms| *ms > 0.0).unwrap_or(0.0) / 1e3
}

/// Gives lines their times, in order.
#[derive(Debug, Clone)]
struct Clock {
    started: f64,
    /// The step after which each session began, and when.
    sessions: Vec<(u64, f64)>,
    next: usize,
    now: f64,
}

impl Clock {
    /// `earlier`: seconds in the steps before the first session.
    fn new(manifest: &Manifest, earlier: f64) -> Self {
        let started = time::parse(&manifest.started).unwrap_or(0.0);
        let session = |s: &Session| Some((s.from_step, time::parse(&s.started)?));
        let mut sessions: Vec<(u64, f64)> = Vec::new();
        for (from, at) in manifest.sessions.iter().filter_map(session) {
            // What earlier sessions did after that step was done again.
            sessions.retain(|(earlier, _)| *earlier < from);
            sessions.push((from, at));
        }
        let now = sessions.first().map_or(started, |(_, at)| *at) - earlier;
        Self { started, sessions, next: 0, now }
    }

    /// Step and time of the next line.
    fn at(&mut self, line: &MetricLine) -> (u64, f64) {
        let step = match line {
            MetricLine::Train(TrainLine { step, .. }) | MetricLine::Eval(EvalLine { step, .. }) => *step,
        };
        let begins = |from: u64| match line {
            MetricLine::Train(_) => from < step,
            // A resumed session repeats no evaluation of the step it begins with, but the first does one before any step.
            MetricLine::Eval(_) => from < step || from == 0,
        };
        while let Some((_, at)) = self.sessions.get(self.next).filter(|(from, _)| begins(*from)) {
            self.now = self.now.max(*at);
            self.next += 1;
        }
        if let MetricLine::Train(train) = line {
            self.now += seconds(train);
        }
        (step, self.now)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use runner_plan::testing::{compiled, experiment};
    use runner_store::run_dir::{MANIFEST, RunDir, RunFiles};

    /// A run of `lines` of metrics, whose sessions began after these steps at these times.
    pub(in crate::export) fn run(root: &Path, sessions: &[(u64, &str)], lines: &str, samples: &str) -> PathBuf {
        let plan = compiled(&experiment());
        let manifest = Manifest::new(&plan, "exp.yaml".into(), vec![], "2026-01-01T00:00:00.000Z".into());
        let files = RunFiles { experiment: "", resolved: "name: tiny\n", plan: &plan, manifest, template: None };
        let run = RunDir::create(root, files).unwrap();
        let path = run.path().to_owned();
        let mut manifest = run.manifest().clone();
        for (from, started) in sessions {
            let place = runner_store::SessionContext {
                git: None,
                machine: runner_machine::host::Machine::default(),
                threads: 1,
                overrides: vec![],
                environment: std::collections::BTreeMap::new(),
            };
            manifest.begin(*from, place, (*started).to_owned());
        }
        std::fs::write(path.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        std::fs::write(path.join(METRICS), lines).unwrap();
        std::fs::write(path.join(SAMPLES), samples).unwrap();
        path
    }

    pub(in crate::export) fn train(step: u64, loss: &str) -> String {
        format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":{loss},\"lr\":0.1,\"tokens\":8,\"step_ms\":500.0}}\n")
    }

    pub(in crate::export) fn eval(step: u64, loss: &str) -> String {
        format!("{{\"kind\":\"eval\",\"step\":{step},\"val_loss\":{loss}}}\n")
    }

    fn times(sessions: &[(u64, &str)], lines: &str) -> Vec<(u64, f64)> {
        let root = tempfile::tempdir().unwrap();
        let path = run(root.path(), sessions, lines, "");
        let mut out = Vec::new();
        let base = time::parse("2026-01-01").unwrap();
        let record = Record::open(&path).unwrap();
        let mut row = |row: Row| {
            out.push((row.step, row.wall_time - base));
            Ok::<(), StoreError>(())
        };
        record.rows(&mut row).unwrap();
        out
    }

    #[test]
    fn steps_are_timed_from_their_session_s_start() {
        let lines = [eval(0, "4.0"), train(1, "3.0"), train(2, "3.0"), eval(2, "3.0"), train(3, "3.0")].concat();
        let one = [(0, "2026-01-01T00:00:10.000Z")];
        assert_eq!(times(&one, &lines), [(0, 10.0), (1, 10.5), (2, 11.0), (2, 11.0), (3, 11.5)]);
        // Killed and resumed twice after step 2: the last session did step 3.
        let again = [one[0], (2, "2026-01-01T00:01:00.000Z"), (2, "2026-01-01T00:02:00.000Z")];
        assert_eq!(times(&again, &lines), [(0, 10.0), (1, 10.5), (2, 11.0), (2, 11.0), (3, 120.5)]);
        // The checkpoint after step 2 was damaged: the last session went on from step 1.
        let back = [one[0], (2, "2026-01-01T00:01:00.000Z"), (1, "2026-01-01T00:02:00.000Z")];
        assert_eq!(times(&back, &lines), [(0, 10.0), (1, 10.5), (2, 120.5), (2, 120.5), (3, 121.0)]);
        // The first two steps are another run's.
        let continued = [(2, "2026-01-01T01:00:00.000Z")];
        assert_eq!(times(&continued, &lines), [(0, 3599.0), (1, 3599.5), (2, 3600.0), (2, 3600.0), (3, 3600.5)]);
    }
}
