//! The check of a run's record: of its metrics, that each step is there once, and that they agree with the manifest, the summary and the
//! checkpoints; of its plan and experiment, that they are the files that the run wrote.

use std::path::Path;

use runner_files::open_regular;
use runner_spec::event::Evaluation;
use runner_spec::format::counted;

use super::checkpoint;
use super::error::RecordError;
use super::lines::{describe_damaged_lines, for_each_record};
use super::lock::RunLock;
use super::manifest::{Manifest, RunStatus};
use super::metrics::MetricLine;
use super::run_dir::{CHECKPOINTS, METRICS, PLAN, RESOLVED, SUMMARY};
use super::step_coverage::StepCoverage;
use super::summary::Summary;

/// The steps of the lines that were read.
#[derive(Debug, Default)]
struct RecordedSteps {
    train: StepCoverage,
    eval: StepCoverage,
    /// Steps of evaluations in the summary that the metrics lack, or have with other numbers.
    replaced: Vec<u64>,
}

/// Calls `take` with each line of the metrics of the run directory `run`, in order. Evaluations in `summary` replace lines that are missing
/// or have other numbers; a summary that is older than the last session does not count. Returns a sentence about what is damaged or missing.
///
/// # Errors
/// If the file cannot be read. A missing file is empty.
pub fn for_each_checked_metric(
    run: &Path,
    manifest: &Manifest,
    summary: Option<&Summary>,
    take: &mut dyn FnMut(MetricLine),
) -> Result<Option<String>, RecordError> {
    // Before the metrics: while the run trains they only grow, and a run writes its metrics before its checkpoint.
    let saved = checkpoint::newest_step(&run.join(CHECKPOINTS));
    let (path, mut steps) = (run.join(METRICS), RecordedSteps::default());
    let summary = summary.filter(|summary| summary.is_current(manifest.status));
    let mut recorded: Vec<&Evaluation> =
        summary.iter().flat_map(|summary| [&summary.best_eval, &summary.last_eval]).flatten().collect();
    recorded.sort_by_key(|eval| eval.step);
    recorded.dedup_by_key(|eval| eval.step);
    let mut recorded = recorded.into_iter().peekable();
    let read = for_each_record(&path, &mut |line: MetricLine| {
        while let Some(missing) = recorded.next_if(|eval| eval.step < line.step()) {
            steps.replaced.push(missing.step);
            take(MetricLine::Eval(missing.clone()));
        }
        let MetricLine::Eval(eval) = &line else {
            steps.train.add(line.step());
            return take(line);
        };
        steps.eval.add(eval.step);
        let other = recorded.next_if(|other| other.step == eval.step).filter(|other| *other != eval);
        steps.replaced.extend(other.map(|other| other.step));
        take(other.map_or(line.clone(), |other| MetricLine::Eval(other.clone())));
    })?;
    for missing in recorded {
        steps.replaced.push(missing.step);
        take(MetricLine::Eval(missing.clone()));
    }
    let is_training = manifest.status != RunStatus::Done && RunLock::is_held(run);
    let torn = u64::from(is_training && read.is_torn_at_end);
    let damaged = describe_damaged_lines(&path, read.damaged - torn);
    let label = if damaged.is_some() { String::new() } else { format!("{}: ", path.display()) };
    let mut problems: Vec<String> = damaged.into_iter().collect();
    problems.extend(steps.describe_disorder());
    // Another process has perhaps changed the other files since they were read.
    if !is_training {
        problems.extend(steps.describe_lost_steps(manifest, summary, saved));
        let written = summary.and_then(|summary| summary.metrics.as_ref());
        if problems.is_empty() && written.is_some_and(|written| *written != read.content) {
            problems.push(format!("it was changed after the run ended: its size or hash does not match {SUMMARY}"));
        }
    }
    Ok((!problems.is_empty()).then(|| label + &problems.join("; ")))
}

/// Describes what is damaged or missing in the metrics of the run directory `run`; `None` if nothing is.
///
/// # Errors
/// If the file cannot be read.
pub fn find_damage_of_metrics(
    run: &Path,
    manifest: &Manifest,
    summary: Option<&Summary>,
) -> Result<Option<String>, RecordError> {
    for_each_checked_metric(run, manifest, summary, &mut |_| {})
}

/// Those of `plan.json` and `resolved.yaml` in the run directory `run` whose hash is not the one in the manifest.
///
/// # Errors
/// If a file cannot be read.
pub fn changed_descriptions(run: &Path, manifest: &Manifest) -> Result<Vec<&'static str>, RecordError> {
    let recorded = [(PLAN, &manifest.plan_file_hash), (RESOLVED, &manifest.resolved_hash)];
    let mut changed = Vec::new();
    for (name, hash) in recorded {
        let file = run.join(name);
        let mut hasher = blake3::Hasher::new();
        let read = open_regular(&file).and_then(|opened| hasher.update_reader(opened).map(drop));
        read.map_err(RecordError::io("reading", &file))?;
        if *hash != hasher.finalize().to_hex().as_str() {
            changed.push(name);
        }
    }
    Ok(changed)
}

/// The warning of a command that shows settings of the run directory `run`, if `plan.json` or `resolved.yaml` is not as the run wrote it. A file
/// that cannot be read is reported by the command that reads it.
#[must_use]
pub fn describe_changed_descriptions(run: &Path, manifest: &Manifest) -> Option<String> {
    let changed = changed_descriptions(run, manifest).ok().filter(|changed| !changed.is_empty())?;
    let (run, files) = (run.display(), changed.join(" and "));
    Some(format!(
        "{run}: {files} changed since the run started, so the settings shown may differ from those that it trained \
         with; `runner reproduce {run} --check` compares them"
    ))
}

/// The last step that the record of a run has or must have: that of its summary, unless the run was resumed since; else that of its newest
/// checkpoint or its last line. A run that is done has all its steps.
pub fn last_expected_step(
    manifest: &Manifest,
    summary: Option<&Summary>,
    saved: Option<u64>,
    recorded: Option<u64>,
) -> u64 {
    let planned = (manifest.status == RunStatus::Done).then_some(manifest.steps);
    let summary = summary.filter(|summary| summary.is_current(manifest.status)).map(|summary| summary.steps);
    planned.into_iter().chain(summary).chain(saved).chain(recorded).max().unwrap_or(0)
}

impl RecordedSteps {
    /// Describes lines that are repeated or out of order.
    fn describe_disorder(&self) -> Option<String> {
        let repeated = self.train.repeated() + self.eval.repeated();
        if repeated > 0 {
            return Some(format!("{} of steps that an earlier line records", counted(repeated, "line")));
        }
        (!self.train.is_ascending() || !self.eval.is_ascending()).then(|| "its lines are not in order".to_owned())
    }

    /// Describes what the metrics of the run with this `manifest` lack, and where they differ from its other files.
    fn describe_lost_steps(&self, manifest: &Manifest, summary: Option<&Summary>, saved: Option<u64>) -> Vec<String> {
        let (mut problems, planned) = (Vec::new(), manifest.steps);
        if self.train.last().max(self.eval.last()) > Some(planned) {
            problems.push(format!("it records steps after the run's last step, {planned}"));
        }
        let all = last_expected_step(manifest, summary, saved, self.train.last().filter(|last| *last <= planned));
        if let Some(first) = self.train.first_missing(all) {
            let count = self.train.count_through(all);
            problems.push(format!("only {count} of {all} steps are recorded; the first missing step is {first}"));
        }
        if !self.replaced.is_empty() {
            let steps = self.replaced.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
            problems.push(format!(
                "the evaluation after step {steps} is missing or differs from {SUMMARY}, which is used instead"
            ));
        }
        let is_whole = manifest.status == RunStatus::Done && !manifest.is_sealed;
        if let Some(step) = saved.filter(|step| is_whole && *step != planned) {
            problems.push(format!("the run has finished {planned} steps, but the newest checkpoint records {step}"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{FileRecord, dir_name};

    fn train(step: u64) -> String {
        format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":1.0,\"tokens\":1}}\n")
    }

    fn eval(step: u64, loss: &str) -> String {
        format!("{{\"kind\":\"eval\",\"step\":{step},\"val_loss\":{loss}}}\n")
    }

    /// A run of four steps that is done, evaluated after the second and the last.
    struct Fixture {
        dir: tempfile::TempDir,
        manifest: Manifest,
        summary: Summary,
    }

    impl Fixture {
        fn new() -> Self {
            let status = RunStatus::Done;
            Self {
                dir: tempfile::tempdir().unwrap(),
                manifest: Manifest { status, steps: 4, ..Manifest::default() },
                summary: Summary { status, steps: 4, ..Summary::default() },
            }
        }

        fn lines() -> [String; 6] {
            [train(1), train(2), eval(2, "1.5"), train(3), train(4), eval(4, "2.5")]
        }

        /// What the check finds.
        fn read(&self, text: &str) -> String {
            std::fs::write(self.dir.path().join(METRICS), text).unwrap();
            let problem = find_damage_of_metrics(self.dir.path(), &self.manifest, Some(&self.summary));
            problem.unwrap().unwrap_or_default()
        }

        fn save_checkpoint(&self, step: u64) {
            let folder = self.dir.path().join(CHECKPOINTS);
            std::fs::create_dir_all(folder.join(dir_name(step))).unwrap();
        }
    }

    #[test]
    fn lost_and_repeated_lines_are_found_without_a_hash() {
        let (fixture, whole) = (Fixture::new(), Fixture::lines());
        let text = whole.concat();
        for (changed, found) in [
            (String::new(), "only 0 of 4 steps are recorded; the first missing step is 1"),
            (
                [&whole[..3], &whole[4..]].concat().concat(),
                "only 3 of 4 steps are recorded; the first missing step is 3",
            ),
            (whole[1..].concat(), "only 3 of 4 steps are recorded; the first missing step is 1"),
            (format!("{text}{text}"), "6 lines of steps that an earlier line records"),
            ([&whole[3..], &whole[..3]].concat().concat(), "its lines are not in order"),
            (
                [&whole[..4], &[train(5), eval(4, "2.5")]].concat().concat(),
                "only 3 of 4 steps are recorded; the first missing step is 4",
            ),
            (format!("{text}{}", train(5)), "it records steps after the run's last step, 4"),
            (format!("{text}{}", eval(8, "1.0")), "it records steps after the run's last step, 4"),
            (format!("{text}{{"), "1 torn or damaged line left out"),
        ] {
            let problem = fixture.read(&changed);
            assert!(problem.contains(found), "{found}: {problem}");
        }
    }

    #[test]
    fn any_change_is_found_by_the_hash() {
        let (mut fixture, text) = (Fixture::new(), Fixture::lines().concat());
        let blake3 = blake3::hash(text.as_bytes()).to_hex().to_string();
        fixture.summary.metrics = Some(FileRecord { bytes: text.len() as u64, blake3 });
        assert_eq!(fixture.read(&text), "");
        let changed = text.replacen("\"loss\":1.0", "\"loss\":2.0", 1);
        let problem = fixture.read(&changed);
        assert!(problem.contains("it was changed after the run ended: its size or hash does not match"), "{problem}");
        // The summary of an earlier session does not count: a run that was killed has other lines.
        fixture.manifest.status = RunStatus::Running;
        assert_eq!(fixture.read(&changed), "");
    }

    #[test]
    fn the_newest_checkpoint_and_the_manifest_count() {
        let mut fixture = Fixture::new();
        let text = Fixture::lines()[..3].concat();
        fixture.save_checkpoint(3);
        fixture.manifest.status = RunStatus::Running;
        let problem = fixture.read(&text);
        assert!(problem.contains("2 of 3 steps are recorded"), "{problem}");
        assert_eq!(fixture.read(&[text.clone(), train(3), train(4)].concat()), "", "steps after the checkpoint");
        // The run is at work: its checkpoint may be of steps that a new session repeats.
        let _lock = RunLock::take(fixture.dir.path()).unwrap();
        assert_eq!(fixture.read(&format!("{text}{{\"ki")), "");
        assert!(fixture.read(&[text.clone(), train(2)].concat()).contains(
            "1 line of steps that an earlier line \
            records"
        ));
        fixture.manifest.status = RunStatus::Done;
        let problem = fixture.read(&Fixture::lines().concat());
        assert!(problem.contains("the run has finished 4 steps, but the newest checkpoint records 3"), "{problem}");
    }
}
