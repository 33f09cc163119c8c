//! Sweeps: each point is trained once, whatever kills, edits and failures come in between.

#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::sandbox::{Finished, RunFolder, RunningProcess, Sandbox, names_in, runner_binary, send_signal, wait_until};

const STEPS: u64 = 60;

/// A sandbox with an experiment that trains in a moment, and a sweep file `s.yaml` whose `sweep` has these lines beside its `base`.
fn new_sandbox(sweep: &[&str]) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 16, micro_batch: 8}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 10, loss: {{batches: 2}}}}\ncheckpoint: {{every: 20, keep: 1}}\n"
    );
    let sweep = format!("sweep:\n  base: exp.yaml\n  {}\n", sweep.join("\n  "));
    Sandbox::new().with_numbers(4000).with("exp.yaml", yaml).with("s.yaml", sweep)
}

fn run_sweep(sandbox: &Sandbox) -> Finished {
    sandbox.run("sweep s.yaml --threads 1")
}

/// Runs the sweep, which must end with this exit code, and returns everything it printed.
#[track_caller]
fn expect_sweep(sandbox: &Sandbox, code: i32) -> String {
    run_sweep(sandbox).expect_code(code).text()
}

/// The same, and keeps it for the sandbox's screens.
#[track_caller]
fn show_sweep(sandbox: &Sandbox, code: i32) -> String {
    sandbox.show(code, "sweep s.yaml --threads 1")
}

/// Starts the sweep, and waits until all its runs together have recorded this many steps.
fn start_until(sandbox: &Sandbox, steps: u64) -> RunningProcess {
    let mut process = sandbox.spawn("sweep s.yaml --threads 1");
    wait_until("the steps are recorded", || {
        recorded_runs(sandbox).values().map(|run| run.steps).sum::<u64>() >= steps || process.has_ended()
    });
    process
}

/// All runs by the hash of their plan.
fn recorded_runs(sandbox: &Sandbox) -> BTreeMap<String, RecordedRun> {
    sandbox.runs().values().filter_map(RecordedRun::read).collect()
}

/// The folder of the only sweep.
fn sweep_folder(sandbox: &Sandbox) -> PathBuf {
    let sweeps = sandbox.path("runs/sweeps");
    let names: Vec<String> = names_in(&sweeps).into_iter().filter(|name| !name.starts_with('.')).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    sweeps.join(&names[0])
}

fn sweep_results(sandbox: &Sandbox) -> Value {
    sandbox.json_of("sweep results --json")
}

/// Point, status and steps of each row of the results.
fn result_rows(sandbox: &Sandbox) -> Vec<(u64, String, u64)> {
    let results = sweep_results(sandbox);
    let row = |row: &Value| {
        (row["point"].as_u64().unwrap(), row["status"].as_str().unwrap().to_owned(), row["steps"].as_u64().unwrap())
    };
    let mut rows: Vec<_> = results["results"]["rows"].as_array().unwrap().iter().map(row).collect();
    rows.sort();
    rows
}

/// The record of a run.
#[derive(Debug)]
struct RecordedRun {
    /// How many training steps are recorded, and whether each line is of a later step than the one before.
    steps: u64,
    distinct: bool,
    manifest: Value,
    summary: Value,
}

impl RecordedRun {
    /// The hash of the run's plan, and its record; None while the record is being written.
    fn read(run: &RunFolder) -> Option<(String, Self)> {
        let json =
            |name: &str| -> Option<Value> { serde_json::from_str(&fs::read_to_string(run.path(name)).ok()?).ok() };
        let manifest = json("manifest.json")?;
        let steps: Vec<u64> = run.metrics_of("train").iter().map(|line| line["step"].as_u64().unwrap()).collect();
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

fn hashes(sandbox: &Sandbox) -> BTreeMap<String, String> {
    let hash = |run: &RecordedRun| run.summary["final_hash"].as_str().unwrap_or("none").to_owned();
    recorded_runs(sandbox).iter().map(|(plan, run)| (plan.clone(), hash(run))).collect()
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
    let sandbox = new_sandbox(&[
        // How often it is logged makes no other run.
        "grid: {model.d_model: [16, 32], optimizer.adamw.lr: [1e-4, 1e-3], log.every: [10, 20]}",
        "exclude: [\"model.d_model == 32 and optimizer.adamw.lr < 5e-4\"]",
        "parallel: 2",
    ]);
    sandbox.show(0, "sweep s.yaml --threads 1 --dry-run");
    assert!(!sandbox.path("runs").exists(), "nothing is written");
    let lines = sandbox.run("sweep s.yaml --threads 1 --json").expect_code(0).json_lines();
    let count = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).count();
    assert_eq!(
        (count("sweep"), count("started"), count("finished"), count("failed"), count("summary")),
        (1, 3, 3, 0, 1)
    );
    assert_eq!(recorded_runs(&sandbox).len(), 3);
    let rows = result_rows(&sandbox);
    assert_eq!(rows.iter().filter(|(_, status, _)| status == "done").count(), 3, "{rows:?}");
    assert_eq!(
        rows.iter().filter(|(_, status, steps)| status == "duplicate" && *steps == STEPS).count(),
        3,
        "{rows:?}"
    );
    for run in recorded_runs(&sandbox).values() {
        assert_eq!((run.steps, run.sessions()), (STEPS, vec![(0, Some(STEPS))]));
        assert_eq!(run.manifest["sweep"]["id"], sweep_folder(&sandbox).file_name().unwrap().to_str().unwrap());
    }
    // Sweeps are not runs.
    let listed = sandbox.run("runs --json").json();
    assert_eq!(listed.as_array().unwrap().len(), 3);

    let before = state(&sandbox.path("runs"));
    show_sweep(&sandbox, 0);
    let turn = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with('.');
    let after: BTreeMap<_, _> = state(&sandbox.path("runs")).into_iter().filter(|(path, _)| !turn(path)).collect();
    assert_eq!(after, before.into_iter().filter(|(path, _)| !turn(path)).collect(), "nothing is written");
    // The best has the smallest loss, and the table as CSV has all rows.
    let csv = sandbox.stdout_of("sweep results --csv");
    assert_eq!(csv.lines().count(), 7, "{csv}");
    let results = sweep_results(&sandbox);
    let losses: Vec<f64> =
        results["results"]["rows"].as_array().unwrap().iter().map(|r| r["objective"].as_f64().unwrap()).collect();
    assert!(losses.is_sorted(), "{losses:?}");
    // One seed does not show that the first is the best.
    assert_eq!((&results["best"], &results["verdict"]["conclusion"]["kind"]), (&Value::Null, &"one_seed".into()));
    assert_eq!(results["verdict"]["settings"][0]["sample"]["mean"].as_f64().unwrap(), losses[0]);
    assert!(sandbox.run("sweep status").text().contains("not running"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn killed_again_and_again_it_ends_as_an_undisturbed_one() {
    let (whole, broken) = (new_sandbox(&GRID), new_sandbox(&GRID));
    expect_sweep(&whole, 0);
    for moment in [25, 90, 150] {
        let mut child = start_until(&broken, moment);
        child.kill();
    }
    expect_sweep(&broken, 0);
    assert_eq!(hashes(&broken), hashes(&whole));
    let runs = recorded_runs(&broken);
    assert!(runs.values().any(|run| run.sessions().len() > 1), "no kill came in between: {runs:?}");
    for run in runs.values() {
        assert!(run.steps == STEPS && run.distinct);
        // A process whose sweep is killed saves and ends, so that no step is done twice.
        let mut at = 0;
        for (from, to) in run.sessions() {
            assert_eq!(from, at, "{:?}", run.sessions());
            at = to.expect("it ended on its own");
        }
        assert_eq!(at, STEPS);
    }
}

#[test]
fn an_interrupted_sweep_saves_and_resumes() {
    let sandbox = new_sandbox(&GRID);
    let mut child = start_until(&sandbox, 40);
    assert!(Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait(), Some(130));
    let before: u64 = recorded_runs(&sandbox).values().map(|run| run.steps).sum();
    assert!(before < 4 * STEPS);
    let listed = sandbox.run("runs --json").json();
    assert!(
        listed.as_array().unwrap().iter().all(|run| run["status"] != "running"),
        "nothing is left at work: {listed}"
    );
    let status = sandbox.run("sweep status").text();
    assert!(status.contains("interrupted"), "{status}");
    expect_sweep(&sandbox, 0);
    assert!(recorded_runs(&sandbox).values().all(|run| run.steps == STEPS && run.distinct));
}

#[test]
fn edits_after_the_start_do_not_leak() {
    let (whole, edited) = (new_sandbox(&GRID), new_sandbox(&GRID));
    expect_sweep(&whole, 0);
    let stop = |moment| {
        let mut child = start_until(&edited, moment);
        child.kill();
    };
    stop(30);
    // The sweep file itself.
    edited.edit("s.yaml", "1e-2, 3e-2", "2e-2, 3e-2");
    let printed = expect_sweep(&edited, 2);
    assert!(printed.contains("has changed since it started: sweep.grid") && printed.contains("--new"), "{printed}");
    edited.edit("s.yaml", "2e-2, 3e-2", "1e-2, 3e-2");
    edited.expect(2, "sweep s.yaml --set seed=5");
    // How it is run may change; what the points were made of may, too, and counts for nothing.
    edited.edit("s.yaml", "parallel: 2", "parallel: 1");
    edited.edit("exp.yaml", "batch:", "seed: 2\nbatch:");
    show_sweep(&edited, 3);
    assert_eq!(hashes(&edited), hashes(&whole));
    // A program notices it, too, also once nothing is left to do.
    let summary = |code: i32| {
        let lines = edited.run("sweep s.yaml --threads 1 --json").expect_code(code).json_lines();
        lines.into_iter().find(|line| line["kind"] == "summary").unwrap()
    };
    let found = summary(3);
    assert_eq!(found["up_to_date"], false);
    assert!(found["changed_inputs"][0].as_str().unwrap().ends_with("exp.yaml"), "{found}");
    let printed = show_sweep(&edited, 3);
    assert!(!printed.lines().any(|line| line.starts_with("up to date")), "{printed}");
    edited.edit("exp.yaml", "seed: 2\nbatch:", "batch:");
    let found = summary(0);
    assert_eq!((&found["up_to_date"], &found["changed_inputs"]), (&true.into(), &serde_json::json!([])));
    insta::assert_snapshot!(edited.screens());
}

#[test]
fn data_that_changed_is_reported() {
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"]);
    let mut child = start_until(&sandbox, 10);
    child.kill();
    fs::write(sandbox.path("input.txt"), "1 2 3 4 ".repeat(2000)).unwrap();
    let printed = expect_sweep(&sandbox, 1);
    assert!(printed.contains("data") && printed.contains("has changed"), "{printed}");
    assert!(printed.contains("2 failed"), "{printed}");
}

#[test]
fn all_mistakes_of_all_points_come_at_once_and_nothing_starts() {
    let sandbox = new_sandbox(&["grid: {model.d_model: [15, 16], batch.micro_batch: [8, 64], train.steps: [0, 5]}"]);
    let printed = show_sweep(&sandbox, 2);
    // They stand in the sweep file.
    assert_eq!(sandbox.expect(2, "validate s.yaml"), printed);
    insta::assert_snapshot!(sandbox.screens());
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-3, -0.00010]}"]);
    show_sweep(&sandbox, 2);
    assert!(!sandbox.path("runs").exists());
    insta::assert_snapshot!(sandbox.screens());
    // An objective that nobody measures, and rungs at which nobody does.
    let sandbox = new_sandbox(&[
        "grid: {seed: [1, 2]}",
        "objective: {metric: hellaswag_acc}",
        "early_stop: {asha: {min_steps: 55, reduction: 2}}",
    ]);
    assert_eq!(sandbox.stdout_of("validate s.yaml"), "s.yaml: `s` is a valid sweep of 2 points\n");
    sandbox.show(2, "validate s.yaml --explain");
    show_sweep(&sandbox, 2);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn damaged_files_of_a_sweep_are_named() {
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"]);
    start_until(&sandbox, 5).kill();
    let damaged = |name: &str, code: i32| {
        let file = sweep_folder(&sandbox).join(name);
        let content = fs::read_to_string(&file).unwrap();
        // Half of a file, or its first sections.
        let end = content.find("\nbatch:\n").unwrap_or(content.len() / 2);
        fs::write(&file, &content[..end]).unwrap();
        show_sweep(&sandbox, code);
        let status = sandbox.run("sweep status").text();
        assert!(!status.contains("nothing was started"), "{status}");
        fs::write(&file, content).unwrap();
        status
    };
    let status = damaged("sweep.json", 2);
    assert!(status.contains("/sweep.json: ") && status.contains("name a sweep"), "{status}");
    let status = damaged("sweep.yaml", 2);
    assert!(status.contains("not running"), "the results need no copy of the file: {status}");
    damaged("points/0002.yaml", 1);
    expect_sweep(&sandbox, 0);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_point_that_fails_does_not_stop_the_others() {
    let sandbox = new_sandbox(&[
        "grid: {optimizer: [{sgd: {lr: 10000}}, {sgd: {lr: 1e-3}}, {sgd: {lr: 1e-2}}]}",
        "set: {train.clip_norm: null}",
        "retries: 2",
    ]);
    let printed = expect_sweep(&sandbox, 1);
    assert!(
        printed.contains("point 1 ") && printed.contains("not finite") && printed.contains("2 done, 1 failed"),
        "{printed}"
    );
    let log = || fs::read_to_string(sweep_folder(&sandbox).join("points/0001.log")).unwrap();
    assert_eq!(log().matches("--- ").count(), 1, "what would come again is not tried again: {}", log());
    assert!(result_rows(&sandbox).contains(&(1, "failed".to_owned(), result_rows(&sandbox)[0].2)));
    assert!(printed.contains("runner resume lab-"), "{printed}");
    // Nothing is left to do, and the sweep is still one with a failed point.
    let printed = expect_sweep(&sandbox, 1);
    assert!(
        printed.contains("up to date") && printed.contains("1 failed") && printed.contains("runner resume lab-"),
        "{printed}"
    );
    assert_eq!(log().matches("--- ").count(), 1, "it is not trained again: {}", log());
}

#[test]
fn a_process_that_dies_is_tried_again() {
    for (retries, then) in [(1, 0), (0, 1)] {
        let sandbox = new_sandbox(&["grid: {seed: [1, 2]}", "set: {train.steps: 600}", &format!("retries: {retries}")]);
        let mut child = start_until(&sandbox, 5);
        let run = recorded_runs(&sandbox).into_values().next().unwrap();
        let folder = sandbox.path("runs").join(run.manifest["id"].as_str().unwrap());
        let pid = fs::read_to_string(folder.join("lock")).unwrap();
        send_signal("KILL", pid.trim().parse().unwrap());
        assert_eq!(child.wait(), Some(then));
        let runs = recorded_runs(&sandbox);
        let killed = runs.values().find(|r| r.manifest["id"] == run.manifest["id"]).unwrap();
        assert_eq!(killed.sessions()[0].1, None, "it did not end on its own");
        if retries == 0 {
            assert!(
                result_rows(&sandbox).contains(&(1, "interrupted".to_owned(), killed.steps)),
                "{:?}",
                result_rows(&sandbox)
            );
            expect_sweep(&sandbox, 0);
        }
        assert!(
            result_rows(&sandbox).iter().all(|(_, status, steps)| status == "done" && *steps == 600),
            "{:?}",
            result_rows(&sandbox)
        );
        let log = fs::read_to_string(sweep_folder(&sandbox).join("points/0001.log")).unwrap();
        assert_eq!(log.matches("--- ").count(), 2, "{log}");
    }
}

#[test]
fn a_run_that_cannot_be_resumed_is_tried_again_and_reported() {
    let sandbox = new_sandbox(&["grid: {seed: [1, 2]}", "retries: 1"]);
    sandbox.expect(0, "sweep s.yaml --dry-run");
    let mut child = start_until(&sandbox, 5);
    child.kill();
    let run = recorded_runs(&sandbox).into_values().next().unwrap();
    let folder = sandbox.path("runs").join(run.manifest["id"].as_str().unwrap());
    wait_until("the run of the killed sweep has saved and ended", || {
        !fs::read_to_string(folder.join("manifest.json")).unwrap().contains("\"running\"")
    });
    // Its record cannot be written.
    fs::rename(folder.join("log.txt"), folder.join("kept.txt")).unwrap();
    fs::create_dir(folder.join("log.txt")).unwrap();
    let printed = expect_sweep(&sandbox, 1);
    assert!(printed.contains("retrying (1 of 1)") && printed.contains("1 failed in this call"), "{printed}");
    fs::remove_dir(folder.join("log.txt")).unwrap();
    expect_sweep(&sandbox, 0);
    assert!(recorded_runs(&sandbox).values().all(|run| run.steps == STEPS && run.distinct));
}

const ASHA: [&str; 3] = [
    "grid: {optimizer.adamw.lr: [1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2]}",
    "early_stop: {asha: {min_steps: 10, reduction: 2}}",
    "parallel: 2",
];

#[test]
fn unsaved_measurements_do_not_count() {
    let sandbox = new_sandbox(&ASHA);
    // Checkpoints are too large to be written; all else is small.
    sandbox.edit("exp.yaml", "d_model: 16", "d_model: 96");
    sandbox.expect(0, "sweep s.yaml --dry-run");
    let limited = "trap '' XFSZ; ulimit -f 256; exec \"$0\" sweep s.yaml --threads 1";
    let mut command = Command::new("sh");
    command.args(["-c", limited]).arg(runner_binary());
    let printed = Finished::of(sandbox.prepare(&mut command)).expect_code(1).text();
    assert!(printed.contains("failed") && !printed.contains("judged   point"), "{printed}");
    expect_sweep(&sandbox, 0);
    assert!(result_rows(&sandbox).iter().any(|(_, status, steps)| status == "done" && *steps == STEPS));
}

#[test]
fn early_stopping_resumes_from_its_checkpoints_and_decides_the_same_after_kills() {
    let (whole, broken, full) = (new_sandbox(&ASHA), new_sandbox(&ASHA), new_sandbox(&[ASHA[0], ASHA[2]]));
    let printed = expect_sweep(&whole, 0);
    assert!(printed.contains("saved by early stopping"), "{printed}");
    let rungs = [10, 20, 40, STEPS];
    let rows = result_rows(&whole);
    assert!(rows.iter().any(|(_, status, _)| status == "stopped"), "{rows:?}");
    assert!(rows.iter().all(|(_, _, steps)| rungs.contains(steps)), "{rows:?}");
    let stopped = rows.iter().filter(|(_, status, _)| status == "stopped").count();
    let listed = whole.stdout_of("runs --status stopped");
    assert_eq!(listed.matches("stopped early").count(), stopped, "{listed}");
    assert!(whole.stdout_of("runs --status interrupted").contains("no run in"), "nothing is left to resume");
    for run in recorded_runs(&whole).values() {
        // Each session begins where the one before ended, at a rung, and no step is done twice.
        let sessions = run.sessions();
        assert!(sessions.iter().all(|(from, to)| *from == 0 || rungs.contains(from) && rungs.contains(&to.unwrap())));
        assert!(sessions.windows(2).all(|pair| pair[0].1 == Some(pair[1].0)), "{sessions:?}");
        assert!(run.distinct && run.steps == sessions.last().unwrap().1.unwrap());
    }
    for moment in [15, 60] {
        let mut child = start_until(&broken, moment);
        child.kill();
    }
    expect_sweep(&broken, 0);
    assert_eq!(result_rows(&broken), rows);
    assert_eq!(hashes(&broken), hashes(&whole));
    // What was done for it is enough for all points to the end, and the best is the same.
    expect_sweep(&full, 0);
    let leader = |sandbox: &Sandbox| sweep_results(sandbox)["verdict"]["settings"][0]["points"].clone();
    assert_eq!(leader(&full), leader(&whole));
    assert!(run_sweep(&whole).text().contains("up to date"));
}

/// Batches of 8 and of 16 rows have as many tokens after 20 steps as after 10.
#[test]
fn early_stopping_compares_batches_at_equal_tokens() {
    let sweep = [
        "grid: {batch.sequences: [8, 16], optimizer.adamw.lr: [1e-5, 1e-3, 1e-2]}",
        "budget: {tokens: 30720}",
        "early_stop: {asha: {min_tokens: 10240, reduction: 2}}",
    ];
    let [whole, broken] = [new_sandbox(&sweep), new_sandbox(&sweep)];
    let printed = whole.expect(0, "sweep s.yaml --dry-run");
    assert!(printed.contains("early stopping after 10,240, 20,480 tokens"), "{printed}");
    let printed = expect_sweep(&whole, 0);
    assert!(printed.contains(" of 184,320 tokens were done"), "{printed}");
    let results = sweep_results(&whole);
    let rows = results["results"]["rows"].as_array().unwrap();
    for row in rows {
        let (steps, tokens) = (row["steps"].as_u64().unwrap(), row["tokens"].as_u64().unwrap());
        assert_eq!(tokens, steps * 32 * row["values"]["batch.sequences"].as_u64().unwrap(), "{row}");
        assert!([10240, 20480, 30720].contains(&tokens), "{row}");
    }
    let stopped = |batch: u64| {
        let of_batch = rows.iter().filter(|row| row["values"]["batch.sequences"] == batch);
        of_batch.filter(|row| row["status"] == "stopped").count()
    };
    assert!(stopped(8) > 0 && stopped(16) > 0, "the worst rate of each batch: {results}");
    assert!(rows.iter().any(|row| row["status"] == "done"));
    start_until(&broken, 25).kill();
    expect_sweep(&broken, 0);
    assert_eq!(result_rows(&broken), result_rows(&whole));

    // One point ends before the second milestone, which the other reaches; an evaluation may be two milestones.
    whole.edit("s.yaml", "budget: {tokens: 30720}", "set: {train.steps: 60}");
    show_sweep(&whole, 2);
    whole.edit("s.yaml", "train.steps: 60", "train.steps: 200, eval.every: 100");
    show_sweep(&whole, 2);
    insta::assert_snapshot!(whole.screens());
}

#[test]
fn runs_that_are_there_already_are_not_run_again() {
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --set optimizer.adamw.lr=1e-4");
    assert!(show_sweep(&sandbox, 0).contains("1 of 2 runs done"));
    assert!(recorded_runs(&sandbox).values().all(|run| run.sessions() == [(0, Some(STEPS))]));
    // Another sweep that shares a point.
    sandbox.edit("s.yaml", "1e-4, 1e-3", "1e-3, 1e-2");
    show_sweep(&sandbox, 0);
    assert_eq!(recorded_runs(&sandbox).len(), 3);
    assert!(recorded_runs(&sandbox).values().all(|run| run.sessions() == [(0, Some(STEPS))]));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn one_point_alone_is_the_same_run() {
    let (sandbox, whole) = (new_sandbox(&GRID), new_sandbox(&GRID));
    expect_sweep(&whole, 0);
    let mut child = start_until(&sandbox, 1);
    child.kill();
    let folder = sweep_folder(&sandbox);
    let folder = folder.to_str().unwrap();
    // Where it is called from does not matter.
    let mut command = sandbox.command(&["sweep", "point", folder, "3", "--threads", "1"]);
    Finished::of(command.current_dir("/").env("RUNNER_TRAIN__STEPS", "7")).expect_code(0);
    assert!(result_rows(&sandbox).contains(&(3, "done".to_owned(), STEPS)));
    sandbox.expect(2, &["sweep", "point", folder, "5"]);
    expect_sweep(&sandbox, 0);
    assert_eq!(hashes(&sandbox), hashes(&whole));
}

#[test]
fn two_processes_do_not_drive_one_sweep() {
    let sandbox = new_sandbox(&["grid: {seed: [1, 2]}", "set: {train.steps: 1000000}"]);
    let mut child = start_until(&sandbox, 5);
    let output = run_sweep(&sandbox);
    let status = sandbox.run("sweep status").text();
    assert!(!child.has_ended(), "the first is not disturbed");
    child.kill();
    let printed = output.expect_code(2).text();
    assert!(printed.contains(&format!("pid {}", child.id())), "{printed}");
    assert!(status.contains(", running"), "{status}");
}

#[test]
fn a_sweep_that_is_not_there_is_a_wrong_request() {
    let sandbox = new_sandbox(&GRID);
    for line in ["sweep status", "sweep results --csv", "sweep status abc", "sweep none.yaml", "sweep point runs 1"] {
        sandbox.expect(if line == "sweep point runs 1" { 1 } else { 2 }, line);
    }
}

#[test]
fn a_started_sweep_needs_neither_its_file_nor_its_base() {
    let sandbox = new_sandbox(&GRID);
    let mut child = start_until(&sandbox, 40);
    child.kill();
    fs::rename(sandbox.path("exp.yaml"), sandbox.path("moved.yaml")).unwrap();
    sandbox.show(2, "sweep s.yaml --new");
    sandbox.expect(0, "sweep status");
    sandbox.expect(0, "sweep results");
    // By the file, whose base is missing; then by name and by the file that is missing, too.
    show_sweep(&sandbox, 0);
    fs::rename(sandbox.path("s.yaml"), sandbox.path("other.yaml")).unwrap();
    let id = sweep_folder(&sandbox).file_name().unwrap().to_str().unwrap().to_owned();
    for name in ["s", &id, &format!("runs/sweeps/{id}")] {
        sandbox.show(0, &["sweep", name, "--threads", "1"]);
    }
    let printed = expect_sweep(&sandbox, 0);
    assert!(
        printed.contains(&format!("there is no file s.yaml; resuming {id}, which was started from it")),
        "{printed}"
    );
    for (arguments, message) in [
        ("sweep s --new", "--new needs the sweep file, which was"),
        ("sweep s --set seed=3", "the points of sweep s-"),
        ("sweep none", "there is no sweep file none, and no sweep of that name in runs"),
    ] {
        let printed = sandbox.expect(2, arguments);
        assert!(printed.contains(message), "{arguments}: {printed}");
    }
    assert_eq!(recorded_runs(&sandbox).len(), 4);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn an_interrupted_point_has_bits_per_byte_only_with_its_objective() {
    let sandbox = new_sandbox(&GRID);
    sandbox.edit("exp.yaml", "{chars: {}}", "{bytes: {}}");
    let mut child = start_until(&sandbox, 45);
    child.signal("INT");
    child.wait();
    let results = sweep_results(&sandbox);
    let rows = results["results"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["status"] == "interrupted"), "{rows:?}");
    for row in rows {
        assert_eq!(row["objective"].is_null(), row.get("val_bits_per_byte").is_none_or(Value::is_null), "{row}");
    }
    expect_sweep(&sandbox, 0);
    for row in sweep_results(&sandbox)["results"]["rows"].as_array().unwrap() {
        assert!(row["val_bits_per_byte"].is_number(), "{row}");
    }
}

#[test]
fn tables_of_sweeps_fit_the_terminal() {
    let sandbox = new_sandbox(&GRID);
    expect_sweep(&sandbox, 0);
    for command in ["sweep list", "sweep status", "sweep results"] {
        for columns in [40, 60] {
            let mut command = sandbox.command(command);
            let text = Finished::of(command.env("COLUMNS", columns.to_string())).expect_code(0).stdout;
            let table: Vec<&str> = text.lines().take_while(|line| !line.starts_with("left out")).collect();
            assert!(table.len() < text.lines().count() && table.len() > 1, "{text}");
            assert!(table.iter().all(|line| line.chars().count() <= columns), "{text}");
            assert!(table[0].contains("status"), "{text}");
        }
    }
}

#[test]
fn a_diverged_point_is_not_recommended_and_the_best_is_not_overstated() {
    let sandbox =
        new_sandbox(&["grid: {optimizer.sgd.lr: [0.02, 0.1, 10000], train.clip_norm: [null, 1.0], seed: [1, 2]}"]);
    expect_sweep(&sandbox, 1);
    let results = sweep_results(&sandbox);
    let rows = results["results"]["rows"].as_array().unwrap();
    let diverged: Vec<&Value> = rows.iter().filter(|row| row["diverged"] == true).collect();
    assert!(!diverged.is_empty() && diverged.iter().all(|row| row["values"]["optimizer.sgd.lr"] == 10000), "{rows:?}");
    // The settings are ranked by the means of their seeds, those with a diverged one last.
    let settings = results["verdict"]["settings"].as_array().unwrap();
    let mean = |setting: &Value| {
        let points = setting["points"].as_array().unwrap();
        let own: Vec<f64> = rows
            .iter()
            .filter(|row| points.contains(&row["point"]))
            .map(|row| row["objective"].as_f64().unwrap())
            .collect();
        own.iter().sum::<f64>() / own.len() as f64
    };
    let leader = &settings[0];
    assert!((leader["sample"]["mean"].as_f64().unwrap() - mean(leader)).abs() < 1e-12, "{leader}");
    assert_eq!((&leader["values"]["optimizer.sgd.lr"], &leader["measured"]), (&0.1.into(), &2.into()));
    assert!(settings.iter().rev().take(1).all(|setting| setting["state"] == "diverged"), "{settings:?}");
    // 0.1 is the best of three rates, and one that diverged is higher: it is not at the edge.
    assert_eq!(results["verdict"]["edges"], Value::Null);
    let words = results["verdict"]["words"][0].as_str().unwrap();
    for command in ["sweep results", "sweep status", "sweep s.yaml --threads 1"] {
        let printed = sandbox.run(command).text();
        assert!(printed.contains(words) && printed.contains("  diverged  "), "{command}: {printed}");
    }
    let listed = sandbox.json_of("sweep list --json");
    assert_eq!(listed[0]["best"], Value::Null, "{listed}");
    assert_eq!(sandbox.json_of("sweep status --json")["verdict"], results["verdict"]);
}

#[test]
fn seeds_make_settings_whose_differences_are_paired() {
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-5, 3e-2]}", "seeds: 3", "parallel: 2"]);
    show_sweep(&sandbox, 0);
    assert_eq!(recorded_runs(&sandbox).len(), 6);
    let results = sweep_results(&sandbox);
    let settings = results["verdict"]["settings"].as_array().unwrap();
    assert_eq!((&settings[0]["points"], &settings[1]["points"]), (&vec![4, 5, 6].into(), &vec![1, 2, 3].into()));
    let comparison = &settings[1]["comparison"];
    let loss = |point: usize| {
        let rows = results["results"]["rows"].as_array().unwrap();
        rows.iter().find(|row| row["point"] == point).unwrap()["objective"].as_f64().unwrap()
    };
    let difference = (1..=3).map(|point| loss(point) - loss(point + 3)).sum::<f64>() / 3.0;
    assert!((comparison["difference"].as_f64().unwrap() - difference).abs() < 1e-12, "{comparison}");
    assert_eq!((&comparison["test"], &comparison["n"]), (&"paired_t".into(), &3.into()));
    assert_eq!(results["verdict"]["conclusion"]["kind"], "best", "{comparison}");
    assert_eq!((&settings[0]["label"], &settings[1]["label"]), (&"best".into(), &"worse".into()));
    sandbox.show(0, "sweep list");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn seeds_that_were_judged_do_not_count_again() {
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-5, 3e-2]}", "seeds: 2", "parallel: 2"]);
    expect_sweep(&sandbox, 0);
    let first = sandbox.json_of("sweep results --json")["verdict"].clone();
    assert_eq!((&first["reused_seeds"], &first["settings"][0]["sample"]["n"]), (&Value::Null, &2.into()));
    sandbox.edit("s.yaml", "seeds: 2", "seeds: 5");
    show_sweep(&sandbox, 0);
    assert_eq!(recorded_runs(&sandbox).len(), 10, "the runs of the first sweep are not trained again");
    let second = sweep_results(&sandbox)["verdict"].clone();
    assert_eq!(second["reused_seeds"][0]["seeds"], serde_json::json!([{"seed": 1}, {"seed": 2}]), "{second}");
    let leader = &second["settings"][0];
    assert_eq!((&leader["sample"]["n"], &leader["measured"]), (&3.into(), &5.into()));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn seeds_set_the_key_of_a_template_and_equal_numbers_are_the_same() {
    let sandbox = new_sandbox(&[]);
    let experiment = fs::read_to_string(sandbox.path("exp.yaml")).unwrap();
    let template = experiment.replace(&format!("steps: {STEPS}"), "steps: 10, clip_norm: {{ clip }}");
    sandbox.write("t.yaml.j2", &template);
    // Gradients are never so large, so both values give the same numbers.
    sandbox.write("s.yaml", "sweep: {template: t.yaml.j2, grid: {clip: [1e8, 1e9]}, seeds: [5, 3]}\n");
    let printed = show_sweep(&sandbox, 0);
    let seeds: Vec<Value> = recorded_runs(&sandbox).values().map(|run| run.manifest["plan_hash"].clone()).collect();
    assert_eq!(seeds.len(), 4, "{printed}");
    let results = sweep_results(&sandbox);
    let rows = results["results"]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().map(|row| row["values"]["seed"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 3, 5, 3]);
    assert!(rows[0]["objective"] == rows[2]["objective"] && rows[0]["objective"] != rows[1]["objective"], "{rows:?}");
    assert_eq!(results["verdict"]["conclusion"]["kind"], "same");
    assert!(
        printed.contains("same: clip=100000000 and clip=1000000000 have the same val_loss with every seed"),
        "{printed}"
    );
}

#[test]
fn early_stopping_judges_settings_by_the_means_of_their_seeds() {
    let sandbox = new_sandbox(&[
        "grid: {optimizer.adamw.lr: [1e-5, 1e-3, 1e-2, 2e-2]}",
        "seeds: 2",
        "early_stop: {asha: {min_steps: 20, reduction: 2}}",
        "parallel: 2",
    ]);
    expect_sweep(&sandbox, 0);
    // The seeds of a setting go the same way.
    let rows = result_rows(&sandbox);
    assert!(rows.chunks(2).all(|pair| pair[0].1 == pair[1].1 && pair[0].2 == pair[1].2), "{rows:?}");
    assert!(rows.iter().any(|(_, status, _)| status == "stopped") && rows.iter().any(|(.., steps)| *steps == STEPS));
}

#[test]
fn values_without_effect_are_refused_before_the_start() {
    let sandbox = new_sandbox(&["grid: {train.steps: [5], train.epochs: [1], seed: [1, 2]}"]);
    for command in ["sweep s.yaml --threads 1", "sweep s.yaml --dry-run", "validate s.yaml"] {
        sandbox.show(2, command);
    }
    insta::assert_snapshot!(sandbox.screens());
    let sandbox = new_sandbox(&["grid: {optimizer.adamw.lr: [1e-3, 1e-4]}"]);
    sandbox.show(2, "sweep s.yaml --dry-run --set optimizer.sgd.lr=1");
    sandbox.show(0, "validate exp.yaml --set train.steps=5 --set train.epochs=1");
    insta::assert_snapshot!(sandbox.screens());
    let sandbox = new_sandbox(&["grid: {log.every: [1, 2], seed: [1, 2]}"]);
    assert!(sandbox.expect(0, "sweep s.yaml --dry-run").contains("4 points, 2 runs: 2 the same as another"));
    sandbox.edit("s.yaml", ", seed: [1, 2]", "");
    let printed = sandbox.expect(2, "sweep s.yaml --dry-run");
    assert!(printed.contains("all points are the same run"), "{printed}");
}
