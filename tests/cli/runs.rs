//! Runs that are killed, interrupted, started twice, or whose readers close the pipe.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::sandbox::screens::whole_screen;
use crate::sandbox::{Finished, RunFolder, RunningProcess, Sandbox, names_in, runner_binary, wait_until};

const STEPS: usize = 120;
/// The lines of its metrics: steps, evaluations, and the evaluation before the first step.
const LINES: usize = STEPS + STEPS / 15 + 1;

/// A sandbox with an experiment that trains in under a second and saves often.
fn new_sandbox() -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 32, context_length: 32, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 4}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 15, at_start: true, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 10, keep: 2}}\n"
    );
    Sandbox::new().with_numbers(4000).with("exp.yaml", yaml)
}

/// A sandbox with an experiment whose run does not end on its own.
fn new_endless_sandbox() -> Sandbox {
    let sandbox = new_sandbox();
    sandbox.edit("exp.yaml", &format!("steps: {STEPS}"), "steps: 10000000");
    sandbox
}

/// Starts `apply`, and waits until the run is at the given moment.
fn apply_until(sandbox: &Sandbox, is_at: impl Fn(&RunFolder) -> bool) -> RunningProcess {
    sandbox.spawn_until("apply exp.yaml --threads 2", is_at)
}

fn metric_lines(run: &RunFolder) -> usize {
    run.metrics().len()
}

/// What every run prints, which other snapshots leave out.
#[test]
fn a_run_shows_its_progress_and_its_result() {
    let sandbox = new_sandbox();
    let printed = sandbox.expect(0, "apply exp.yaml --threads 1 --set train.steps=30 --set eval.samples=null");
    insta::assert_snapshot!(whole_screen(&printed));
}

/// A limit on the size of files would end the process with a signal, and leave no message.
#[test]
fn a_limit_on_the_size_of_files_fails_a_save() {
    let sandbox = new_sandbox();
    let mut command = Command::new("sh");
    // Blocks of 512 or of 1,024 bytes: either is less than a checkpoint, and more than the other files.
    command.args(["-c", "ulimit -f 120; exec \"$0\" \"$@\""]).arg(runner_binary());
    command.args(["apply", "exp.yaml", "--threads", "1", "--quiet"]);
    let printed = Finished::of(sandbox.prepare(&mut command)).expect_code(1).text();
    assert!(printed.contains("saving checkpoint step-00000010") && printed.contains("ulimit -f"), "{printed}");
    assert_eq!(sandbox.only_run().summary()["status"], "failed");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
}

/// Under dp each evaluation needs the root's weights.
#[test]
fn each_evaluation_follows_its_own_interval() {
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 16}\n\
                data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.3}, \
                layout: {packed: {length: 8}}}\n\
                batch: {sequences: 2, micro_batch: 1}\ntrain: {steps: 10}\nparallel: {mode: dp, replicas: 2}\n\
                eval: {every: 4, loss: {rows: 3}, hellaswag: {file: items.jsonl, every: 3}, \
                samples: {prompts: [\"1\"], max_tokens: 4, every: 5}}\ncheckpoint: {every: 5}\n";
    let items = "{\"ctx\": \"1 4 9\", \"label\": 0, \"endings\": [\"16\", \"25\", \"36\", \"49\"]}\n";
    let new_sandbox = || Sandbox::new().with("exp.yaml", yaml).with("items.jsonl", items).with_numbers(200);
    let [whole, broken] = [new_sandbox(), new_sandbox()];
    whole.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = whole.only_run();
    let with = |run: &RunFolder, field: &str| -> Vec<u64> {
        let lines = run.metrics_of("eval");
        lines.iter().filter(|line| line[field].is_number()).map(|line| line["step"].as_u64().unwrap()).collect()
    };
    assert_eq!(with(&run, "val_loss"), [4, 8, 10]);
    assert_eq!(with(&run, "hellaswag_acc"), [3, 6, 9, 10]);
    assert_eq!(with(&run, "step"), [3, 4, 6, 8, 9, 10], "one line for each step");
    let samples: Vec<Value> = run.read("samples.jsonl").lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(samples.iter().map(|sample| sample["step"].as_u64().unwrap()).collect::<Vec<u64>>(), [5, 10]);
    whole.expect(0, &format!("runs show {}", run.id()));

    broken.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 7");
    assert_eq!(broken.only_run().summary()["last_eval"]["step"], 4, "the last validation loss");
    broken.expect(0, "apply exp.yaml --threads 1 --quiet");
    assert_eq!(broken.only_run().numbers_and_samples(), run.numbers_and_samples());
}

#[test]
fn killed_at_any_moment_and_resumed_equals_uninterrupted() {
    let (whole, broken) = (new_sandbox(), new_sandbox());
    whole.expect(0, "apply exp.yaml --threads 1");
    let in_save_after = |lines: usize| move |run: &RunFolder| metric_lines(run) > lines && run.is_saving();
    let moments: [&dyn Fn(&RunFolder) -> bool; 6] = [
        &|_| true,
        &|run| metric_lines(run) >= 5,
        &|run| metric_lines(run) >= 27,
        &in_save_after(35),
        &|run| metric_lines(run) >= 77,
        &in_save_after(100),
    ];
    for moment in moments {
        let mut child = apply_until(&broken, moment);
        child.kill();
    }
    let printed = broken.expect(0, "apply exp.yaml");
    assert!(printed.contains("resuming from step"), "{printed}");
    assert_eq!(broken.only_run().numbers(), whole.only_run().numbers());
    assert_eq!(whole.only_run().numbers().len(), LINES);
    let [a, b] = [&whole, &broken].map(|sandbox| sandbox.only_run().summary());
    for key in ["final_hash", "weights_hash", "steps", "tokens", "final_train_loss", "last_eval", "best_eval"] {
        assert_eq!(a[key], b[key], "{key}");
        assert!(!a[key].is_null(), "{key}");
    }
    for name in ["samples.jsonl", "rows.jsonl"] {
        assert_eq!(whole.only_run().read(name), broken.only_run().read(name));
    }
    assert!(names_in(&broken.only_run().path("checkpoints")).len() <= 3, "the newest two and the best");
}

#[test]
fn a_finished_run_is_left_alone() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --quiet");
    let run = sandbox.only_run();
    let state = || {
        let mut files: Vec<_> = fs::read_dir(&run.0).unwrap().map(|e| e.unwrap()).collect();
        files.sort_by_key(fs::DirEntry::path);
        files.iter().map(|e| (e.path(), e.metadata().unwrap().modified().unwrap())).collect::<Vec<_>>()
    };
    let before = state();
    sandbox.show(0, "apply exp.yaml");
    assert_eq!(state(), before, "nothing is written");
    sandbox.show(0, "apply exp.yaml --new --quiet");
    let first = run.manifest();
    assert_eq!(first["status"], "done");
    // An ambiguous and a unique name.
    sandbox.show(2, "runs show la");
    insta::assert_snapshot!(sandbox.screens());
    let id = first["id"].as_str().unwrap();
    let output = sandbox.run(&["runs", "show", id, "--json"]);
    let shown = output.json();
    assert_eq!((&shown["run"]["id"], &shown["summary"]["steps"]), (&Value::from(id), &Value::from(STEPS)));
    let listed = sandbox.run("runs --json").json();
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[test]
fn a_summary_that_is_cut_short_counts_as_a_missing_one() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --quiet");
    let run = sandbox.only_run();
    let cut = || run.write("summary.json", "{\"id\": \"lab");
    let resume = format!("resume {}", run.id());
    for command in ["apply exp.yaml", &resume] {
        cut();
        sandbox.show(0, command);
    }
    cut();
    sandbox.show(0, "runs show lab");
    sandbox.expect(0, "compare lab");
    sandbox.show(0, "reproduce lab --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
#[cfg(unix)]
fn the_first_interrupt_ends_a_finished_run_whose_output_nobody_reads() {
    let sandbox = new_sandbox();
    let mut command = sandbox.command("apply exp.yaml --json --set train.steps=600 --set checkpoint.every=600");
    let mut child = RunningProcess(command.stdout(Stdio::piped()).spawn().unwrap());
    wait_until("the run is done", || sandbox.runs().values().any(|run| run.manifest()["status"] == "done"));
    thread::sleep(Duration::from_millis(500));
    assert!(!child.has_ended(), "the output fits into the pipe");
    child.signal("INT");
    wait_until("the signal ends the process", || child.has_ended());
    assert_eq!(child.wait(), Some(130));
}

#[test]
#[cfg(unix)]
fn an_interrupted_run_saves_and_resumes() {
    for (signal, code) in [("INT", 130), ("TERM", 75), ("USR1", 75)] {
        let sandbox = new_sandbox();
        let mut child = apply_until(&sandbox, |run| metric_lines(run) >= 33);
        child.signal(signal);
        assert_eq!(child.wait(), Some(code), "{signal}");
        let summary = sandbox.only_run().summary();
        assert_eq!(summary["status"], "interrupted");
        let step = summary["steps"].as_u64().unwrap();
        assert!(sandbox.only_run().checkpoint(step).is_dir(), "saved at {step}");
        let printed = sandbox.expect(0, "apply exp.yaml");
        assert!(printed.contains(&format!("resuming from step {step} of {STEPS}")), "{printed}");
        assert_eq!(sandbox.only_run().manifest()["sessions"].as_array().unwrap().len(), 2);
        assert_eq!(sandbox.only_run().numbers().len(), LINES);
    }
}

#[test]
fn the_second_of_two_at_once_is_refused() {
    let sandbox = new_endless_sandbox();
    let mut child = apply_until(&sandbox, |run| metric_lines(run) >= 3);
    let output = sandbox.keep(sandbox.run("apply exp.yaml"));
    assert!(!child.has_ended(), "the first is not disturbed");
    child.kill();
    output.expect_code(2);
    insta::assert_snapshot!(sandbox.screens());
}

/// Started at the same moment, on nothing: one of them makes the run, the others are refused.
#[test]
fn simultaneous_starts_make_one_run() {
    let sandbox = new_endless_sandbox();
    let mut children: Vec<RunningProcess> = (0..3).map(|_| sandbox.spawn("apply exp.yaml --threads 1")).collect();
    let mut codes = Vec::new();
    wait_until("two have ended", || {
        codes = children.iter_mut().filter_map(|c| c.0.try_wait().unwrap()).map(|status| status.code()).collect();
        codes.len() >= 2
    });
    drop(children);
    assert_eq!(codes, [Some(2), Some(2)]);
    let runs = fs::read_dir(sandbox.path("runs")).unwrap().map(|e| e.unwrap().path());
    assert_eq!(runs.filter(|path| path.is_dir()).count(), 1);
}

#[test]
fn a_number_that_is_not_finite_stops_the_run_and_keeps_the_checkpoint() {
    let sandbox = new_sandbox();
    let diverges = [
        "apply",
        "exp.yaml",
        "--set",
        "optimizer={sgd: {lr: 10000}}",
        "--set",
        "train.clip_norm=null",
        "--set",
        "checkpoint.every=1",
    ];
    let printed = sandbox.expect(1, &diverges);
    assert!(printed.contains("not finite") && printed.contains("is kept"), "{printed}");
    assert_eq!(sandbox.only_run().summary()["status"], "failed");
    assert!(sandbox.only_run().manifest()["error"].as_str().unwrap().contains("not finite"));
    assert!(!names_in(&sandbox.only_run().path("checkpoints")).is_empty());
    let printed = sandbox.expect(1, &diverges);
    assert!(printed.contains("resuming from step"), "{printed}");
    let listed = sandbox.run("runs").text();
    assert!(listed.contains("failed"), "{listed}");
}

#[test]
fn a_truncated_checkpoint_is_reported_and_the_one_before_serves() {
    let (whole, broken) = (new_sandbox(), new_sandbox());
    whole.run("apply exp.yaml --quiet");
    let mut child = apply_until(&broken, |run| metric_lines(run) >= 60);
    child.kill();
    let checkpoints = broken.only_run().path("checkpoints");
    let newest = names_in(&checkpoints).into_iter().rfind(|name| name.starts_with("step-")).unwrap();
    let newest = checkpoints.join(newest).join("model.safetensors");
    let file = fs::File::options().write(true).open(&newest).unwrap();
    file.set_len(100).unwrap();
    let printed = broken.expect(0, "apply exp.yaml");
    assert!(printed.contains("model.safetensors is cut short"), "{printed}");
    assert_eq!(broken.only_run().numbers(), whole.only_run().numbers());
    assert_eq!(broken.only_run().final_hash(), whole.only_run().final_hash());
}

#[test]
fn json_is_json_and_errors_are_not_on_standard_output() {
    let sandbox = new_sandbox();
    let output = sandbox.run("apply exp.yaml --json --set train.steps=20");
    let kinds: Vec<String> = output.json_lines().iter().map(|line| line["kind"].as_str().unwrap().to_owned()).collect();
    assert_eq!((kinds[0].as_str(), kinds[kinds.len() - 1].as_str()), ("start", "summary"));
    assert_eq!(kinds.iter().filter(|k| *k == "train").count(), 20);
    let output = sandbox.run("apply missing.yaml --json");
    assert_eq!((output.code, output.stdout.len()), (2, 0), "{}", output.text());
    sandbox.show(2, "apply exp.yaml --set batch.micro_bach=4");
    sandbox.expect(2, "runs show nothing");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
#[cfg(unix)]
fn readers_may_go_away() {
    let sandbox = new_sandbox();
    let binary = runner_binary();
    for command in ["schema", "runs", "apply exp.yaml", "validate exp.yaml --explain"] {
        let line = format!("{{ {} {command}; echo rc=$? >&2; }} | true", binary.display());
        let stderr = Finished::of(sandbox.prepare(Command::new("sh").args(["-c", &line]))).stderr;
        assert!(stderr.contains("rc=0") && !stderr.contains("panicked"), "{command}: {stderr}");
    }
    assert_eq!(sandbox.only_run().summary()["status"], "done");
}

#[test]
fn broken_folders_are_listed_as_broken() {
    let sandbox = new_sandbox();
    sandbox.run("apply exp.yaml --quiet --set train.steps=5");
    fs::create_dir(sandbox.path("runs/empty")).unwrap();
    sandbox.write("runs/odd/manifest.json", "[1, 2");
    let printed = sandbox.show(0, "runs");
    assert_eq!(printed.matches("broken").count(), 2, "{printed}");
    sandbox.show(1, "runs show odd");
    insta::assert_snapshot!(sandbox.screens());
}
