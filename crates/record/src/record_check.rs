//! The check of a run's record: of its metrics, that each step is there once and each planned evaluation, and that they agree with the
//! manifest, the summary and the checkpoints; of its plan and experiment, that they are the files that the run wrote.

use std::path::Path;

use runner_files::open_regular;
use runner_spec::format::counted;
use runner_spec::program::{Instruction, Periodic};
use serde::Deserialize;

use super::checkpoint;
use super::error::RecordError;
use super::files::read_plan;
use super::lines::{LinesRead, describe_damaged_lines};
use super::lock::RunLock;
use super::manifest::{Manifest, RunStatus};
use super::metrics::{MetricLine, for_each_metric};
use super::run_dir::{CHECKPOINTS, METRICS, PLAN, RESOLVED, SUMMARY};
use super::step_coverage::StepCoverage;
use super::summary::Summary;
use runner_spec::event::Evaluation;

/// The contents of the other files of a run, which its metrics must agree with.
#[derive(Debug)]
struct ExpectedRecord<'a> {
    run: &'a Path,
    manifest: &'a Manifest,
    /// The summary, unless the run was resumed since.
    summary: Option<&'a Summary>,
    /// The step of the newest checkpoint. A run writes its metrics before its checkpoint.
    saved: Option<u64>,
}

/// The steps of the lines that were read.
#[derive(Debug, Default)]
struct RecordedSteps {
    train: StepCoverage,
    eval: StepCoverage,
    /// Steps of evaluations in the summary that the metrics lack or have with other numbers.
    replaced: Vec<u64>,
}

/// Calls `take` with each line of the metrics of the run directory `run`, in order. Evaluations in `summary` replace lines that are missing or
/// have other numbers; a summary that is older than the last session does not count. Returns a sentence about what is damaged or missing.
///
/// # Errors
/// If the file cannot be read. A missing file is empty.
pub fn for_each_checked_metric(
    run: &Path,
    manifest: &Manifest,
    summary: Option<&Summary>,
    take: &mut dyn FnMut(MetricLine),
) -> Result<Option<String>, RecordError> {
    let summary = summary.filter(|summary| summary.is_current(manifest.status));
    // Before the metrics: while the run trains they only grow.
    let saved = checkpoint::newest_step(&run.join(CHECKPOINTS));
    let expected = ExpectedRecord { run, manifest, summary, saved };
    let (steps, read) = expected.read_lines(take)?;
    let path = run.join(METRICS);
    let is_training = manifest.status != RunStatus::Done && RunLock::is_held(run);
    let torn = u64::from(is_training && read.is_torn_at_end);
    let damaged = describe_damaged_lines(&path, read.damaged - torn);
    let label = if damaged.is_some() { String::new() } else { format!("{}: ", path.display()) };
    let mut problems: Vec<String> = damaged.into_iter().collect();
    // Another process has perhaps changed the other files since they were read.
    problems.extend(steps.describe_disorder());
    if !is_training {
        problems.extend(expected.find_missing_records(&steps, &read));
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

impl ExpectedRecord<'_> {
    /// Reads the metrics, and gives each line to `take`, with the evaluations of the summary in their places.
    fn read_lines(&self, take: &mut dyn FnMut(MetricLine)) -> Result<(RecordedSteps, LinesRead), RecordError> {
        let mut recorded: Vec<&Evaluation> =
            self.summary.iter().flat_map(|summary| [&summary.best_eval, &summary.last_eval]).flatten().collect();
        recorded.sort_by_key(|eval| eval.step);
        recorded.dedup_by_key(|eval| eval.step);
        let mut recorded = recorded.into_iter().peekable();
        let mut steps = RecordedSteps::default();
        let replace = |eval: &Evaluation, steps: &mut RecordedSteps, take: &mut dyn FnMut(MetricLine)| {
            steps.replaced.push(eval.step);
            take(MetricLine::Eval(eval.clone()));
        };
        let read = for_each_metric(&self.run.join(METRICS), &mut |line| {
            while let Some(missing) = recorded.next_if(|eval| eval.step < line.step()) {
                replace(missing, &mut steps, take);
            }
            match &line {
                MetricLine::Train(train) => steps.train.add(train.step),
                MetricLine::Eval(eval) => {
                    steps.eval.add(eval.step);
                    let other = recorded.next_if(|other| other.step == eval.step).filter(|other| *other != eval);
                    if let Some(other) = other {
                        return replace(other, &mut steps, take);
                    }
                }
            }
            take(line);
        })?;
        recorded.for_each(|missing| replace(missing, &mut steps, take));
        Ok((steps, read))
    }

    /// Describes what the metrics lack, and where they differ from the other files.
    fn find_missing_records(&self, steps: &RecordedSteps, read: &LinesRead) -> Vec<String> {
        let mut problems = Vec::new();
        let planned = self.manifest.steps;
        let last = steps.train.last().filter(|last| *last <= planned);
        if steps.train.last() != last {
            problems.push(format!("it records steps after the run's last step, {planned}"));
        }
        let all = last_expected_step(self.manifest, self.summary, self.saved, last);
        if let Some(first) = steps.train.first_missing(all) {
            let count = steps.train.count_through(all);
            problems.push(format!("only {count} of {all} steps are recorded; the first missing step is {first}"));
        }
        if !steps.replaced.is_empty() {
            let steps = steps.replaced.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
            problems.push(format!(
                "the evaluation after step {steps} is missing or differs from {SUMMARY}, which is used instead"
            ));
        }
        if self.manifest.status == RunStatus::Done {
            let saved = self.saved.filter(|_| !self.manifest.is_sealed);
            let summary = self.summary.map(|summary| summary.steps);
            for (step, file) in [(summary, SUMMARY), (saved, "the newest checkpoint")] {
                problems.extend(
                    step.filter(|step| *step != planned)
                        .map(|step| format!("the run has finished {planned} steps, but {file} records {step}")),
                );
            }
        }
        let written = self.summary.and_then(|summary| summary.metrics.as_ref());
        if written == Some(&read.content) {
            return problems;
        }
        problems.extend(self.describe_lost_evaluation(steps));
        if written.is_some() && problems.is_empty() && read.damaged == 0 {
            problems.push(format!("it was changed after the run ended: its size or hash does not match {SUMMARY}"));
        }
        problems
    }

    /// Names the first planned evaluation that the metrics lack. Evaluations of another run, which this one continues, and those after the
    /// newest checkpoint of a run that is not done do not count.
    fn describe_lost_evaluation(&self, steps: &RecordedSteps) -> Option<String> {
        let evaluations = PlannedEvaluations::read(self.run)?;
        let (planned, inherited) = (self.manifest.steps, self.manifest.foreign_steps());
        let through = if self.manifest.status == RunStatus::Done { planned } else { self.saved? };
        let first = if inherited > 0 { inherited + 1 } else { u64::from(!evaluations.at_start) };
        let due = |step: &u64| *step == 0 || evaluations.periodic.is_due(*step, planned);
        let is_recorded = steps.eval.finder();
        let is_lost = |step: &u64| !is_recorded(*step) && !steps.replaced.contains(step);
        let lost = (first..=through).filter(due).find(is_lost)?;
        Some(format!("the evaluation after step {lost} is missing"))
    }
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
}

/// The evaluations that the plan of a run asks for.
struct PlannedEvaluations {
    at_start: bool,
    periodic: Periodic,
}

impl PlannedEvaluations {
    /// `None` if nothing is evaluated, or this version cannot read the plan of the run directory `run`.
    fn read(run: &Path) -> Option<Self> {
        #[derive(Deserialize)]
        struct PlanFields {
            ranks: Vec<serde_json::Value>,
        }
        #[derive(Deserialize)]
        struct RankFields {
            program: ProgramFields,
        }
        #[derive(Deserialize)]
        struct ProgramFields {
            start: Vec<Instruction>,
            periodic: Vec<Periodic>,
        }
        let plan: PlanFields = read_plan(&run.join(PLAN)).ok()?;
        let RankFields { program } = serde_json::from_value(plan.ranks.into_iter().next()?).ok()?;
        let periodic = program.periodic.iter().find(|p| p.instruction == Instruction::Evaluate && p.every > 0)?;
        Some(Self { at_start: program.start.contains(&Instruction::Evaluate), periodic: periodic.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{FileRecord, dir_name};
    use crate::files::write_json;

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
            let line = |step, loss| Some(Evaluation::of_loss(step, loss));
            let status = RunStatus::Done;
            let summary =
                Summary { status, steps: 4, best_eval: line(2, 1.5), last_eval: line(4, 2.5), ..Summary::default() };
            Self {
                dir: tempfile::tempdir().unwrap(),
                manifest: Manifest { status, steps: 4, ..Manifest::default() },
                summary,
            }
        }

        fn lines() -> [String; 6] {
            [train(1), train(2), eval(2, "1.5"), train(3), train(4), eval(4, "2.5")]
        }

        fn write(&self, text: &str) {
            std::fs::write(self.dir.path().join(METRICS), text).unwrap();
        }

        /// The evaluations that a reader receives, and what the check finds.
        fn read(&self, text: &str) -> (Vec<(u64, Option<f64>)>, String) {
            self.write(text);
            let mut evals = Vec::new();
            let mut take = |line: MetricLine| match line {
                MetricLine::Eval(eval) => evals.push((eval.step, eval.val_loss())),
                MetricLine::Train(_) => {}
            };
            let problem = for_each_checked_metric(self.dir.path(), &self.manifest, Some(&self.summary), &mut take);
            (evals, problem.unwrap().unwrap_or_default())
        }

        fn save_checkpoint(&self, step: u64) {
            let folder = self.dir.path().join(CHECKPOINTS);
            std::fs::create_dir_all(folder.join(dir_name(step))).unwrap();
        }

        fn write_plan(&self) {
            let program =
                serde_json::json!({"start": ["evaluate"], "periodic": [{"every": 2, "instruction": "evaluate"}]});
            write_json(&self.dir.path().join(PLAN), &serde_json::json!({"ranks": [{"program": program}]})).unwrap();
        }
    }

    #[test]
    fn a_summary_supplies_missing_metrics() {
        let (fixture, whole) = (Fixture::new(), Fixture::lines());
        let expected = vec![(2, Some(1.5)), (4, Some(2.5))];
        assert_eq!(fixture.read(&whole.concat()), (expected.clone(), String::new()));
        for (at, lacks, line) in [(2, "2", None), (5, "4", None), (5, "4", Some("null")), (2, "2", Some("9.0"))] {
            let mut lines = whole.to_vec();
            lines[at] = line.map_or_else(String::new, |loss| eval(lacks.parse().unwrap(), loss));
            let (evals, problem) = fixture.read(&lines.concat());
            assert_eq!(evals, expected);
            assert!(problem.contains(&format!(": the evaluation after step {lacks} is missing or")), "{problem}");
        }
        let (evals, problem) = fixture.read(&whole[..3].concat());
        assert_eq!(evals, expected);
        assert!(problem.contains("2 of 4 steps are recorded") && problem.contains("after step 4"), "{problem}");
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
            (format!("{text}{{"), "1 torn or damaged line left out"),
        ] {
            let (_, problem) = fixture.read(&changed);
            assert!(problem.contains(found), "{found}: {problem}");
        }
    }

    #[test]
    fn any_change_is_found_by_the_hash() {
        let (mut fixture, text) = (Fixture::new(), Fixture::lines().concat());
        let blake3 = blake3::hash(text.as_bytes()).to_hex().to_string();
        fixture.summary.metrics = Some(FileRecord { bytes: text.len() as u64, blake3 });
        assert_eq!(fixture.read(&text).1, "");
        let changed = text.replacen("\"loss\":1.0", "\"loss\":2.0", 1);
        let (_, problem) = fixture.read(&changed);
        assert!(problem.contains("it was changed after the run ended: its size or hash does not match"), "{problem}");
        // If the plan is readable, the lost evaluation is named.
        fixture.write_plan();
        let (best, last) = (fixture.summary.best_eval.take(), fixture.summary.last_eval.take());
        let (_, problem) = fixture.read(&[eval(0, "9.0"), text.replacen(&eval(2, "1.5"), "", 1)].concat());
        assert!(problem.contains("the evaluation after step 2 is missing"), "{problem}");
        (fixture.summary.best_eval, fixture.summary.last_eval) = (best, last);
        // The summary of an earlier session does not count: a run that was killed has other lines.
        fixture.manifest.status = RunStatus::Running;
        assert_eq!(fixture.read(&changed).1, "");
    }

    #[test]
    fn planned_evaluations_must_be_there() {
        let mut fixture = Fixture::new();
        let text = [eval(0, "9.0"), Fixture::lines().concat()].concat();
        (fixture.summary.best_eval, fixture.summary.last_eval) = (None, None);
        fixture.write_plan();
        assert_eq!(fixture.read(&text).1, "");
        for step in [0, 2, 4] {
            let lost = text.split_inclusive('\n').filter(|line| !line.contains(&format!("\"eval\",\"step\":{step},")));
            let (_, problem) = fixture.read(&lost.collect::<String>());
            assert!(problem.ends_with(&format!("the evaluation after step {step} is missing")), "{problem}");
        }
        // A run that was killed after its checkpoint of step 2 need not have the evaluation of step 4.
        fixture.manifest.status = RunStatus::Running;
        fixture.save_checkpoint(2);
        assert_eq!(fixture.read(&text.replace(&eval(4, "2.5"), "")).1, "");
        assert!(fixture.read(&text.replace(&eval(2, "1.5"), "")).1.contains("after step 2 is missing"));
    }

    #[test]
    fn the_newest_checkpoint_and_the_manifest_count() {
        let mut fixture = Fixture::new();
        let text = Fixture::lines()[..3].concat();
        fixture.save_checkpoint(3);
        fixture.manifest.status = RunStatus::Running;
        let (_, problem) = fixture.read(&text);
        assert!(problem.contains("2 of 3 steps are recorded"), "{problem}");
        assert_eq!(fixture.read(&[text.clone(), train(3), train(4)].concat()).1, "", "steps after the checkpoint");
        // The run is at work: its checkpoint may be of steps that a new session repeats.
        let _lock = RunLock::take(fixture.dir.path()).unwrap();
        assert_eq!(fixture.read(&format!("{text}{{\"ki")).1, "");
        assert!(fixture.read(&[text.clone(), train(2)].concat()).1.contains(
            "1 line of steps that an earlier line \
            records"
        ));
        fixture.manifest.status = RunStatus::Done;
        let (_, problem) = fixture.read(&Fixture::lines().concat());
        assert!(problem.contains("the run has finished 4 steps, but the newest checkpoint records 3"), "{problem}");
    }
}
