//! Sweeps of the binary: done once, whatever kills, edits and failures come in between.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot be set up has failed")]
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const STEPS: u64 = 60;

/// A folder with an experiment that trains in a moment.
struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    /// With a sweep file whose `sweep` has these lines beside its `base`.
    fn new(sweep: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let text: String = (0..4000u32).flat_map(|i| [(i * i % 997).to_string(), " ".to_owned()]).collect();
        fs::write(dir.path().join("input.txt"), text).unwrap();
        let yaml = format!(
            "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
             data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 16, micro_batch: 8}}\ntrain: {{steps: {STEPS}}}\n\
             eval: {{every: 10, loss: {{batches: 2}}}}\ncheckpoint: {{every: 20, keep: 1}}\n"
        );
        fs::write(dir.path().join("exp.yaml"), yaml).unwrap();
        let lab = Self { dir };
        lab.sweep(sweep);
        lab
    }

    fn sweep(&self, lines: &[&str]) {
        let lines = lines.join("\n  ");
        fs::write(self.file("s.yaml"), format!("sweep:\n  base: exp.yaml\n  {lines}\n")).unwrap();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces `from` in the file `name`.
    fn edit(&self, name: &str, from: &str, to: &str) {
        let text = fs::read_to_string(self.file(name)).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(self.file(name), text.replace(from, to)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_runner"));
        command.args(arguments).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", self.file("cache"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn go(&self) -> Output {
        self.run(&["sweep", "s.yaml", "--threads", "1"])
    }

    /// Starts the sweep and waits until `moment` has come, given the steps recorded in all runs.
    fn until(&self, moment: u64) -> Child {
        let mut child = self.command(&["sweep", "s.yaml", "--threads", "1"]);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while self.runs().values().map(|run| run.steps).sum::<u64>() < moment {
            assert!(started.elapsed() < Duration::from_mins(1), "the moment never came");
            if child.try_wait().unwrap().is_some() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
        child
    }

    /// All runs by the hash of their plan.
    fn runs(&self) -> BTreeMap<String, Run> {
        let Ok(entries) = fs::read_dir(self.file("runs")) else { return BTreeMap::new() };
        entries.filter_map(|entry| Run::read(&entry.unwrap().path())).collect()
    }

    /// The only sweep there is.
    fn folder(&self) -> PathBuf {
        let all: Vec<PathBuf> = fs::read_dir(self.file("runs/sweeps"))
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| !p.file_name().unwrap().to_string_lossy().starts_with('.'))
            .collect();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].clone()
    }

    fn results(&self) -> Value {
        let output = self.run(&["sweep", "results", "--json"]);
        assert_eq!(code(&output), 0, "{}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Point, status and steps of each row.
    fn rows(&self) -> Vec<(u64, String, u64)> {
        let results = self.results();
        let row = |row: &Value| {
            (row["point"].as_u64().unwrap(), row["status"].as_str().unwrap().to_owned(), row["steps"].as_u64().unwrap())
        };
        let mut rows: Vec<_> = results["results"]["rows"].as_array().unwrap().iter().map(row).collect();
        rows.sort();
        rows
    }
}

/// What a run directory says.
#[derive(Debug)]
struct Run {
    /// Lines of training steps, and whether each is of another step.
    steps: u64,
    distinct: bool,
    manifest: Value,
    summary: Value,
}

impl Run {
    fn read(path: &Path) -> Option<(String, Self)> {
        let json =
            |name: &str| -> Option<Value> { serde_json::from_str(&fs::read_to_string(path.join(name)).ok()?).ok() };
        let manifest = json("manifest.json")?;
        let metrics = fs::read_to_string(path.join("metrics.jsonl")).unwrap_or_default();
        let lines = metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let steps: Vec<u64> = lines.filter(|l| l["kind"] == "train").map(|l| l["step"].as_u64().unwrap()).collect();
        let distinct = steps.is_sorted_by(|a, b| a < b);
        let summary = json("summary.json").unwrap_or_default();
        let hash = manifest["plan_hash"].as_str()?.to_owned();
        Some((hash, Self { steps: steps.len() as u64, distinct, manifest, summary }))
    }

    /// First and last step of each session.
    fn sessions(&self) -> Vec<(u64, Option<u64>)> {
        let all = self.manifest["sessions"].as_array().unwrap();
        all.iter().map(|s| (s["from_step"].as_u64().unwrap(), s["to_step"].as_u64())).collect()
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("an exit code")
}

fn hashes(lab: &Lab) -> BTreeMap<String, String> {
    let hash = |run: &Run| run.summary["final_hash"].as_str().unwrap_or("none").to_owned();
    lab.runs().iter().map(|(plan, run)| (plan.clone(), hash(run))).collect()
}

/// Every file below a folder, and when it was written.
fn state(folder: &Path) -> BTreeMap<PathBuf, std::time::SystemTime> {
    let mut out = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        out.insert(path.clone(), entry.metadata().unwrap().modified().unwrap());
        if path.is_dir() {
            out.extend(state(&path));
        }
    }
    out
}

const GRID: [&str; 2] = ["grid: {optimizer.adamw.lr: [1e-4, 1e-3, 1e-2, 3e-2]}", "parallel: 2"];

#[test]
fn a_sweep_is_done_once() {
    let lab = Lab::new(&[
        // How often it is logged makes no other run.
        "grid: {model.d_model: [16, 32], optimizer.adamw.lr: [1e-4, 1e-3], log.every: [10, 20]}",
        "exclude: [\"model.d_model == 32 and optimizer.adamw.lr < 5e-4\"]",
        "parallel: 2",
    ]);
    let output = lab.run(&["sweep", "s.yaml", "--threads", "1", "--dry-run"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("6 points, 3 runs") && text(&output).contains("2 left out"), "{}", text(&output));
    assert!(!lab.file("runs").exists(), "nothing is written");
    let output = lab.run(&["sweep", "s.yaml", "--threads", "1", "--json"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    let lines: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert_eq!((of("sweep"), of("started"), of("finished"), of("failed"), of("summary")), (1, 3, 3, 0, 1));
    assert_eq!(lab.runs().len(), 3);
    let rows = lab.rows();
    assert_eq!(rows.iter().filter(|(_, status, _)| status == "done").count(), 3, "{rows:?}");
    assert_eq!(
        rows.iter().filter(|(_, status, steps)| status == "duplicate" && *steps == STEPS).count(),
        3,
        "{rows:?}"
    );
    for run in lab.runs().values() {
        assert_eq!((run.steps, run.sessions()), (STEPS, vec![(0, Some(STEPS))]));
        assert_eq!(run.manifest["sweep"]["id"], lab.folder().file_name().unwrap().to_str().unwrap());
    }
    // Sweeps are no runs.
    let listed: Value = serde_json::from_slice(&lab.run(&["runs", "--json"]).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 3);

    let before = state(&lab.file("runs"));
    let output = lab.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(
        text(&output).contains("up to date") && text(&output).contains("runner reproduce lab-"),
        "{}",
        text(&output)
    );
    let turn = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with('.');
    let after: BTreeMap<_, _> = state(&lab.file("runs")).into_iter().filter(|(path, _)| !turn(path)).collect();
    assert_eq!(after, before.into_iter().filter(|(path, _)| !turn(path)).collect(), "nothing is written");
    // The best has the smallest loss, and the table as CSV has all rows.
    let csv = String::from_utf8(lab.run(&["sweep", "results", "--csv"]).stdout).unwrap();
    assert_eq!(csv.lines().count(), 7, "{csv}");
    let results = lab.results();
    let losses: Vec<f64> =
        results["results"]["rows"].as_array().unwrap().iter().map(|r| r["objective"].as_f64().unwrap()).collect();
    assert!(losses.is_sorted(), "{losses:?}");
    assert_eq!(results["best"]["objective"].as_f64().unwrap(), losses[0]);
    assert!(text(&lab.run(&["sweep", "status"])).contains("not running"));
}

#[test]
fn killed_again_and_again_it_ends_as_an_undisturbed_one() {
    let (whole, broken) = (Lab::new(&GRID), Lab::new(&GRID));
    assert_eq!(code(&whole.go()), 0);
    for moment in [25, 90, 150] {
        let mut child = broken.until(moment);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = broken.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert_eq!(hashes(&broken), hashes(&whole));
    let runs = broken.runs();
    assert!(runs.values().any(|run| run.sessions().len() > 1), "no kill came in between: {runs:?}");
    for run in runs.values() {
        assert!(run.steps == STEPS && run.distinct);
        // A process whose sweep is killed saves and ends, so that no step is done twice.
        let mut at = 0;
        for (from, to) in run.sessions() {
            assert_eq!(from, at, "{:?}", run.sessions());
            at = to.expect("it ended by itself");
        }
        assert_eq!(at, STEPS);
    }
}

#[test]
fn an_interrupt_saves_and_the_sweep_goes_on() {
    let lab = Lab::new(&GRID);
    let mut child = lab.until(40);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let before: u64 = lab.runs().values().map(|run| run.steps).sum();
    assert!(before < 4 * STEPS);
    let listed: Value = serde_json::from_slice(&lab.run(&["runs", "--json"]).stdout).unwrap();
    assert!(
        listed.as_array().unwrap().iter().all(|run| run["status"] != "running"),
        "nothing is left at work: {listed}"
    );
    let status = text(&lab.run(&["sweep", "status"]));
    assert!(status.contains("interrupted"), "{status}");
    let output = lab.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(lab.runs().values().all(|run| run.steps == STEPS && run.distinct));
}

#[test]
fn what_is_edited_after_the_start_does_not_leak() {
    let (whole, edited) = (Lab::new(&GRID), Lab::new(&GRID));
    assert_eq!(code(&whole.go()), 0);
    let stop = |moment| {
        let mut child = edited.until(moment);
        child.kill().unwrap();
        child.wait().unwrap();
    };
    stop(30);
    // The sweep file itself.
    edited.edit("s.yaml", "1e-2, 3e-2", "2e-2, 3e-2");
    let output = edited.go();
    assert_eq!(code(&output), 2, "{}", text(&output));
    assert!(
        text(&output).contains("sweep.grid.optimizer.adamw.lr was") && text(&output).contains("--new"),
        "{}",
        text(&output)
    );
    edited.edit("s.yaml", "2e-2, 3e-2", "1e-2, 3e-2");
    let output = edited.run(&["sweep", "s.yaml", "--set", "seed=5"]);
    assert_eq!(code(&output), 2, "{}", text(&output));
    // How it is run may change; what the points were made of may, too, and counts for nothing.
    edited.edit("s.yaml", "parallel: 2", "parallel: 1");
    edited.edit("exp.yaml", "batch:", "seed: 2\nbatch:");
    let output = edited.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("exp.yaml changed since"), "{}", text(&output));
    assert_eq!(hashes(&edited), hashes(&whole));
}

#[test]
fn data_that_changed_is_told() {
    let lab = Lab::new(&["grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"]);
    let mut child = lab.until(10);
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(lab.file("input.txt"), "1 2 3 4 ".repeat(2000)).unwrap();
    let output = lab.go();
    assert_eq!(code(&output), 1, "{}", text(&output));
    assert!(text(&output).contains("data") && text(&output).contains("has changed"), "{}", text(&output));
    assert!(text(&output).contains("2 failed"), "{}", text(&output));
}

#[test]
fn all_mistakes_of_all_points_come_at_once_and_nothing_starts() {
    let lab = Lab::new(&["grid: {model.d_model: [15, 16], batch.micro_batch: [8, 64], train.steps: [0, 5]}"]);
    let output = lab.go();
    assert_eq!(code(&output), 2, "{}", text(&output));
    let said = text(&output);
    for part in ["model.d_model", "batch.micro_batch", "train.steps", "nothing was started"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(said.contains("points 1, 2, 3 and 4") && said.contains("points 1, 3, 5 and 7"), "{said}");
    assert!(!lab.file("runs").exists());
    // An objective that nobody measures, and rungs at which nobody does.
    let lab = Lab::new(&[
        "grid: {seed: [1, 2]}",
        "objective: {metric: hellaswag_acc}",
        "early_stop: {asha: {min_steps: 55, reduction: 2}}",
    ]);
    let output = lab.go();
    assert_eq!(code(&output), 2, "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("eval.hellaswag") && said.contains("min_steps") && said.contains("all 2 points"), "{said}");
}

#[test]
fn a_point_that_fails_does_not_stop_the_others() {
    let lab = Lab::new(&[
        "grid: {optimizer: [{sgd: {lr: 10000}}, {sgd: {lr: 1e-3}}, {sgd: {lr: 1e-2}}]}",
        "set: {train.clip_norm: null}",
        "retries: 2",
    ]);
    let output = lab.go();
    assert_eq!(code(&output), 1, "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("point 1 ") && said.contains("not finite") && said.contains("2 done, 1 failed"), "{said}");
    let log = || fs::read_to_string(lab.folder().join("points/0001.log")).unwrap();
    assert_eq!(log().matches("--- ").count(), 1, "what would come again is not tried again: {}", log());
    assert!(lab.rows().contains(&(1, "failed".to_owned(), lab.rows()[0].2)));
    assert!(said.contains("runner resume lab-"), "{said}");
    // That is what came out of it; nothing is left to do.
    let output = lab.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    let said = text(&output);
    assert!(said.contains("up to date") && said.contains("1 failed") && said.contains("runner resume lab-"), "{said}");
    assert_eq!(log().matches("--- ").count(), 1, "it is not trained again: {}", log());
}

#[test]
fn a_process_that_dies_is_tried_again() {
    for (retries, then) in [(1, 0), (0, 1)] {
        let lab = Lab::new(&["grid: {seed: [1, 2]}", "set: {train.steps: 600}", &format!("retries: {retries}")]);
        let mut child = lab.until(5);
        let run = lab.runs().into_values().next().unwrap();
        let folder = lab.file("runs").join(run.manifest["id"].as_str().unwrap());
        let pid = fs::read_to_string(folder.join("lock")).unwrap();
        assert!(Command::new("kill").args(["-s", "KILL", pid.trim()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(then));
        let runs = lab.runs();
        let killed = runs.values().find(|r| r.manifest["id"] == run.manifest["id"]).unwrap();
        assert_eq!(killed.sessions()[0].1, None, "it did not end by itself");
        if retries == 0 {
            assert!(lab.rows().contains(&(1, "interrupted".to_owned(), killed.steps)), "{:?}", lab.rows());
            assert_eq!(code(&lab.go()), 0);
        }
        assert!(lab.rows().iter().all(|(_, status, steps)| status == "done" && *steps == 600), "{:?}", lab.rows());
        let log = fs::read_to_string(lab.folder().join("points/0001.log")).unwrap();
        assert_eq!(log.matches("--- ").count(), 2, "{log}");
    }
}

#[test]
fn a_run_that_cannot_be_gone_on_with_is_tried_again_and_told() {
    let lab = Lab::new(&["grid: {seed: [1, 2]}", "retries: 1"]);
    assert_eq!(code(&lab.run(&["sweep", "s.yaml", "--dry-run"])), 0);
    let mut child = lab.until(5);
    child.kill().unwrap();
    child.wait().unwrap();
    let run = lab.runs().into_values().next().unwrap();
    let folder = lab.file("runs").join(run.manifest["id"].as_str().unwrap());
    // Wait for the child of the killed sweep.
    let started = Instant::now();
    while fs::read_to_string(folder.join("manifest.json")).unwrap().contains("\"running\"") {
        assert!(started.elapsed() < Duration::from_mins(1));
        thread::sleep(Duration::from_millis(5));
    }
    // Its record cannot be written.
    fs::rename(folder.join("log.txt"), folder.join("kept.txt")).unwrap();
    fs::create_dir(folder.join("log.txt")).unwrap();
    let output = lab.go();
    assert_eq!(code(&output), 1, "{}", text(&output));
    assert!(
        text(&output).contains("tried again (1 of 1)") && text(&output).contains("1 failed in this call"),
        "{}",
        text(&output)
    );
    fs::remove_dir(folder.join("log.txt")).unwrap();
    assert_eq!(code(&lab.go()), 0);
    assert!(lab.runs().values().all(|run| run.steps == STEPS && run.distinct));
}

const ASHA: [&str; 3] = [
    "grid: {optimizer.adamw.lr: [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2]}",
    "early_stop: {asha: {min_steps: 10, reduction: 2}}",
    "parallel: 2",
];

#[test]
fn what_was_measured_and_not_saved_does_not_count() {
    let lab = Lab::new(&ASHA);
    // Checkpoints are too large to be written; all else is small.
    lab.edit("exp.yaml", "d_model: 16", "d_model: 96");
    assert_eq!(code(&lab.run(&["sweep", "s.yaml", "--dry-run"])), 0);
    let limited = "trap '' XFSZ; ulimit -f 256; exec \"$0\" sweep s.yaml --threads 1";
    let mut command = Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_runner")]).current_dir(lab.dir.path());
    let output = command.env_remove("RUNNER_RUNS").env("RUNNER_CACHE", lab.file("cache")).output().unwrap();
    let said = text(&output);
    assert_eq!(code(&output), 1, "{said}");
    assert!(said.contains("failed") && !said.contains("judged   point"), "{said}");
    let output = lab.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(lab.rows().iter().any(|(_, status, steps)| status == "done" && *steps == STEPS));
}

#[test]
fn early_stopping_goes_on_from_its_own_checkpoints_and_decides_the_same_after_kills() {
    let (whole, broken, full) = (Lab::new(&ASHA), Lab::new(&ASHA), Lab::new(&[ASHA[0], ASHA[2]]));
    let output = whole.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("saved by early stopping"), "{}", text(&output));
    let rungs = [10, 20, 40, STEPS];
    let rows = whole.rows();
    assert!(rows.iter().any(|(_, status, _)| status == "stopped"), "{rows:?}");
    assert!(rows.iter().all(|(_, _, steps)| rungs.contains(steps)), "{rows:?}");
    for run in whole.runs().values() {
        // Each session begins where the one before ended, at a rung, and no step is done twice.
        let sessions = run.sessions();
        assert!(sessions.iter().all(|(from, to)| *from == 0 || rungs.contains(from) && rungs.contains(&to.unwrap())));
        assert!(sessions.windows(2).all(|pair| pair[0].1 == Some(pair[1].0)), "{sessions:?}");
        assert!(run.distinct && run.steps == sessions.last().unwrap().1.unwrap());
    }
    for moment in [15, 60] {
        let mut child = broken.until(moment);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let output = broken.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert_eq!(broken.rows(), rows);
    assert_eq!(hashes(&broken), hashes(&whole));
    // What was done for it is enough for all points to the end, and the best is the same.
    assert_eq!(code(&full.go()), 0);
    assert_eq!(full.results()["best"]["point"], whole.results()["best"]["point"]);
    assert!(text(&whole.go()).contains("up to date"));
}

#[test]
fn runs_that_are_there_already_are_not_run_again() {
    let lab = Lab::new(&["grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"]);
    let output = lab.run(&["apply", "exp.yaml", "--threads", "1", "--quiet", "--set", "optimizer.adamw.lr=1e-4"]);
    assert_eq!(code(&output), 0, "{}", text(&output));
    let output = lab.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(text(&output).contains("1 of 2 runs done"), "{}", text(&output));
    assert!(lab.runs().values().all(|run| run.sessions() == [(0, Some(STEPS))]));
    // Another sweep that shares a point.
    lab.edit("s.yaml", "1e-4, 1e-3", "1e-3, 1e-2");
    let output = lab.go();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert_eq!(lab.runs().len(), 3);
    assert!(lab.runs().values().all(|run| run.sessions() == [(0, Some(STEPS))]));
}

#[test]
fn one_point_alone_is_the_same_run() {
    let (lab, whole) = (Lab::new(&GRID), Lab::new(&GRID));
    assert_eq!(code(&whole.go()), 0);
    let mut child = lab.until(1);
    child.kill().unwrap();
    child.wait().unwrap();
    let folder = lab.folder();
    let folder = folder.to_str().unwrap();
    // Where it is called from does not matter.
    let mut command = lab.command(&["sweep", "point", folder, "3", "--threads", "1"]);
    let output = command.current_dir("/").env("RUNNER_TRAIN__STEPS", "7").output().unwrap();
    assert_eq!(code(&output), 0, "{}", text(&output));
    assert!(lab.rows().contains(&(3, "done".to_owned(), STEPS)));
    assert_eq!(code(&lab.run(&["sweep", "point", folder, "5"])), 2);
    assert_eq!(code(&lab.go()), 0);
    assert_eq!(hashes(&lab), hashes(&whole));
}

#[test]
fn two_processes_do_not_drive_one_sweep() {
    let lab = Lab::new(&["grid: {seed: [1, 2]}", "set: {train.steps: 1000000}"]);
    let mut child = lab.until(5);
    let output = lab.go();
    let status = text(&lab.run(&["sweep", "status"]));
    let first = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.is_none(), "the first is not disturbed");
    assert_eq!(code(&output), 2, "{}", text(&output));
    assert!(text(&output).contains(&format!("pid {}", child.id())), "{}", text(&output));
    assert!(status.contains(", running"), "{status}");
}

#[test]
fn a_sweep_that_is_not_there_is_a_wrong_request() {
    let lab = Lab::new(&GRID);
    for line in ["sweep status", "sweep results --csv", "sweep status abc", "sweep none.yaml", "sweep point runs 1"] {
        let output = lab.run(&line.split(' ').collect::<Vec<_>>());
        let expected = if line == "sweep point runs 1" { 1 } else { 2 };
        assert_eq!(code(&output), expected, "{line}: {}", text(&output));
    }
}
