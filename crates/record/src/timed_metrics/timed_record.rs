//! The metrics of a run, with the time of day of each line.
//!
//! Lines of `metrics.jsonl` record how long a step took, not when it ended. The manifest records when each session started, and after
//! which step. So the time of a step is the start of its session plus the durations of the session's steps up to it. Neither
//! file has the time that a session spent between steps (preparing data, evaluations, checkpoints), so the times of lines are
//! early by that much.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::columns::{MetricValues, task_names};
use crate::error::RecordError;
use crate::files::file_name;
use crate::lines::for_each_record;
use crate::manifest::{Manifest, Session};
use crate::metrics::{MetricLine, TrainLine};
use crate::record_check::{describe_changed_descriptions, for_each_checked_metric};
use crate::run_dir::{self, MANIFEST, METRICS};
use crate::time;

/// The metrics of a run directory.
#[derive(Debug, Clone)]
pub struct TimedRecord {
    pub id: String,
    /// Warnings about metrics that are damaged, or lack something, and about changed settings.
    pub problems: Vec<String>,
    /// The tasks that its evaluations score.
    pub tasks: BTreeSet<String>,
    path: PathBuf,
    clock: Clock,
}

/// A line of the metrics.
#[derive(Debug)]
pub struct TimedLine {
    pub step: u64,
    /// Seconds since 1970-01-01T00:00:00Z.
    pub wall_time: f64,
    pub values: MetricValues,
}

impl TimedRecord {
    /// Opens the run directory `path`.
    ///
    /// # Errors
    /// If its manifest or metrics cannot be read.
    pub fn open(path: &Path) -> Result<Self, RecordError> {
        let manifest = run_dir::read_manifest(path)?;
        // The first steps of a run that continues another run were done before its first session.
        let first = manifest.sessions.first().map_or(0, |s| s.from_step);
        let (mut inherited_seconds, mut tasks) = (0.0, BTreeSet::new());
        // A summary that cannot be read counts as missing.
        let summary = run_dir::read_summary(path).ok().flatten();
        let problem = for_each_checked_metric(path, &manifest, summary.as_ref(), &mut |line| match line {
            MetricLine::Train(t) if t.step <= first => inherited_seconds += step_seconds(&t),
            MetricLine::Train(_) => {}
            MetricLine::Eval(evaluation) => tasks.extend(task_names(&evaluation)),
        })?;
        let clock = Clock::new(&manifest, &path.join(MANIFEST), inherited_seconds)?;
        let problems = problem.into_iter().chain(describe_changed_descriptions(path, &manifest)).collect();
        Ok(Self { id: file_name(path), problems, tasks, path: path.to_owned(), clock })
    }

    /// The time at which the run began, in seconds since 1970.
    pub fn started(&self) -> f64 {
        self.clock.started
    }

    /// Calls `take` with each line of the metrics, in order. Returns the number of lines.
    ///
    /// # Errors
    /// If the file cannot be read; the first error of `take`, after which it is not called again.
    pub fn for_each_line<E: From<RecordError>>(
        &self,
        take: &mut dyn FnMut(TimedLine) -> Result<(), E>,
    ) -> Result<u64, E> {
        self.read_lines(&mut self.clock(), take)
    }

    /// Does the work of `for_each_line`, and moves `clock` behind the last line.
    pub(super) fn read_lines<E: From<RecordError>>(
        &self,
        clock: &mut Clock,
        take: &mut dyn FnMut(TimedLine) -> Result<(), E>,
    ) -> Result<u64, E> {
        let (mut count, mut failed) = (0, None);
        for_each_record(&self.path.join(METRICS), &mut |line: MetricLine| {
            if failed.is_none() {
                count += 1;
                failed = take(clock.advance(&line)).err();
            }
        })?;
        failed.map_or(Ok(count), Err)
    }

    /// A clock before the first line.
    pub(super) fn clock(&self) -> Clock {
        self.clock.clone()
    }
}

fn step_seconds(line: &TrainLine) -> f64 {
    line.step_ms.filter(|ms| *ms > 0.0).unwrap_or(0.0) / 1e3
}

/// Computes the times of lines, which it is given in order.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    started: f64,
    /// The step after which each session began, and the time.
    sessions: Vec<(u64, f64)>,
    next_session: usize,
    now: f64,
    /// The last step, and the tokens that the model has seen after it. They are unknown once a step is missing.
    step: u64,
    tokens: Option<u64>,
}

impl Clock {
    /// The clock of the run with `manifest`, which was read from `manifest_file`. `inherited_seconds` is the duration of the steps before
    /// the first session.
    ///
    /// # Errors
    /// If a time in the manifest is damaged.
    fn new(manifest: &Manifest, manifest_file: &Path, inherited_seconds: f64) -> Result<Self, RecordError> {
        let moment = |text: &str| {
            time::parse(text)
                .ok_or_else(|| RecordError::damaged(manifest_file, format!("`started` must be a time, found {text:?}")))
        };
        let started = moment(&manifest.started)?;
        let mut sessions: Vec<(u64, f64)> = Vec::new();
        for Session { from_step, started, .. } in &manifest.sessions {
            let (from, at) = (*from_step, moment(started)?);
            // This session repeated the steps that earlier sessions did after `from`.
            sessions.retain(|(earlier, _)| *earlier < from);
            sessions.push((from, at));
        }
        let now = sessions.first().map_or(started, |(_, at)| *at) - inherited_seconds;
        Ok(Self { started, sessions, next_session: 0, now, step: 0, tokens: Some(0) })
    }

    /// `line`, the next one, with its time.
    pub(super) fn advance(&mut self, line: &MetricLine) -> TimedLine {
        let step = line.step();
        let begins = |from: u64| match line {
            MetricLine::Train(_) => from < step,
            // A resumed session does not repeat the evaluation of its first step, but a new run evaluates before any step.
            MetricLine::Eval(_) => from < step || from == 0,
        };
        while let Some((_, at)) = self.sessions.get(self.next_session).filter(|(from, _)| begins(*from)) {
            self.now = self.now.max(*at);
            self.next_session += 1;
        }
        if let MetricLine::Train(train) = line {
            self.now += step_seconds(train);
            let is_next = step == self.step + 1;
            self.tokens = self.tokens.filter(|_| is_next).and_then(|tokens| tokens.checked_add(train.tokens));
            self.step = step;
        }
        let tokens = self.tokens.filter(|_| step == self.step);
        TimedLine { step, wall_time: self.now, values: MetricValues::new(line, tokens) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::columns;
    use super::*;
    use crate::testing::{eval, timed_run, train};
    use runner_plan::testing::{compiled, experiment};

    #[test]
    fn tokens_add_up_until_a_step_is_missing() {
        let root = tempfile::tempdir().unwrap();
        let lines = [eval(0, "4.0"), train(1, "3.0"), train(2, "3.0"), eval(2, "3.0"), train(4, "3.0"), eval(4, "3.0")];
        let sessions = [(0, "2026-01-01T00:00:10.000Z")];
        let path = timed_run(root.path(), &compiled(&experiment()), &sessions, &lines.concat());
        let mut found = Vec::new();
        let mut take = |line: TimedLine| {
            let scalars = line.values.scalars();
            let scalar = scalars.iter().find(|(tag, _)| tag == "train/cumulative_tokens").map(|(_, value)| *value);
            found.push((line.step, line.values.integer(&columns(&BTreeSet::new())[1]), scalar));
            Ok::<(), RecordError>(())
        };
        TimedRecord::open(&path).unwrap().for_each_line(&mut take).unwrap();
        let known = [(0, Some(0), None), (1, Some(8), Some(8.0)), (2, Some(16), Some(16.0)), (2, Some(16), None)];
        assert_eq!(found, [&known[..], &[(4, None, None); 2]].concat());
    }

    fn times(sessions: &[(u64, &str)], lines: &str) -> Vec<(u64, f64)> {
        let root = tempfile::tempdir().unwrap();
        let path = timed_run(root.path(), &compiled(&experiment()), sessions, lines);
        let mut out = Vec::new();
        let base = time::parse("2026-01-01").unwrap();
        let record = TimedRecord::open(&path).unwrap();
        let mut take = |line: TimedLine| {
            out.push((line.step, line.wall_time - base));
            Ok::<(), RecordError>(())
        };
        record.for_each_line(&mut take).unwrap();
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
        // The checkpoint after step 2 was damaged: the last session continued from step 1.
        let back = [one[0], (2, "2026-01-01T00:01:00.000Z"), (1, "2026-01-01T00:02:00.000Z")];
        assert_eq!(times(&back, &lines), [(0, 10.0), (1, 10.5), (2, 120.5), (2, 120.5), (3, 121.0)]);
        // The first two steps are another run's.
        let continued = [(2, "2026-01-01T01:00:00.000Z")];
        assert_eq!(times(&continued, &lines), [(0, 3599.0), (1, 3599.5), (2, 3600.0), (2, 3600.0), (3, 3600.5)]);
    }
}
