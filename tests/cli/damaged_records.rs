//! Damaged and incomplete records: what is lost is named, and nothing uncertain counts without a word.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::sandbox::{RunFolder, Sandbox, names_in};

const STEPS: u64 = 30;

/// A sandbox with an experiment that trains in a moment, and a sweep `s.yaml` of two learning rates with these further lines. The first
/// one is worse.
fn new_sandbox(sweep: &[&str]) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: 8}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 10, loss: {{batches: 1}}}}\ncheckpoint: {{every: 10, keep: 1}}\n"
    );
    let lines = ["base: exp.yaml", "grid: {optimizer.adamw.lr: [1e-4, 1e-3]}"].into_iter().chain(sweep.iter().copied());
    let sweep = format!("sweep:\n  {}\n", lines.collect::<Vec<_>>().join("\n  "));
    Sandbox::new().with_numbers(2000).with("exp.yaml", yaml).with("s.yaml", sweep)
}

const EARLY_STOP: &str = "early_stop: {asha: {min_steps: 10, reduction: 2}}";

/// The run of the sweep's point `point`.
fn run_of_point(sandbox: &Sandbox, point: u64) -> RunFolder {
    let is_point = |run: &RunFolder| run.json("manifest.json")["sweep"]["point"] == point;
    sandbox.runs().into_values().find(is_point).unwrap()
}

/// Replaces the line of `kind` after `step` in the run's metrics; with nothing, removes it.
fn replace_line(run: &RunFolder, kind: &str, step: u64, by: &str) {
    let path = run.path("metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let is_meant = |line: &str| line.starts_with(&format!("{{\"kind\":\"{kind}\",\"step\":{step},"));
    assert_eq!(text.lines().filter(|line| is_meant(line)).count(), 1, "{text}");
    let lines = text.lines().map(|line| if is_meant(line) { by.to_owned() } else { format!("{line}\n") });
    fs::write(path, lines.collect::<String>()).unwrap();
}

fn results(sandbox: &Sandbox) -> (Value, String) {
    let finished = sandbox.run("sweep results --json").expect_code(0);
    (finished.json(), finished.stderr)
}

#[test]
fn a_lost_last_evaluation_is_taken_from_the_summary() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let (whole, stderr) = results(&sandbox);
    assert_eq!((whole["best"]["point"].as_u64(), stderr.as_str()), (Some(2), ""));
    let (run, other) = (run_of_point(&sandbox, 2), run_of_point(&sandbox, 1));
    let text = fs::read(run.path("metrics.jsonl")).unwrap();
    for by in ["", "{\"kind\":\"eval\",\n", "{\"kind\":\"eval\",\"step\":30,\"val_loss\":null}\n"] {
        replace_line(&run, "eval", STEPS, by);
        let (damaged, stderr) = results(&sandbox);
        assert_eq!(damaged, whole, "{by}");
        let lost = "the evaluation after step 30 is missing or has other numbers than summary.json";
        assert!(stderr.contains("point 2: ") && stderr.contains(lost), "{by}: {stderr}");
        let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
        assert!(printed.contains(lost) && printed.contains("up to date"), "{printed}");
        let loss = format!("{:.4}", run.json("summary.json")["last_eval"]["val_loss"].as_f64().unwrap());
        for command in ["compare", "diff"] {
            let printed = sandbox.expect(0, &[command, &other.id(), &run.id()]);
            assert!(printed.contains(lost) && printed.contains(&loss), "{command}: {printed}");
        }
        fs::write(run.path("metrics.jsonl"), &text).unwrap();
    }
    // Neither file has it: the checkpoint of the step has.
    replace_line(&run, "eval", STEPS, "");
    fs::remove_file(run.path("summary.json")).unwrap();
    let (damaged, stderr) = results(&sandbox);
    assert_eq!(damaged["best"]["objective"], whole["best"]["objective"]);
    assert!(stderr.contains("lacks the val_loss after step 30; that of the checkpoint counts"), "{stderr}");
    // Nothing has it.
    fs::remove_dir_all(run.path("checkpoints")).unwrap();
    let (damaged, stderr) = results(&sandbox);
    assert_eq!(damaged["best"]["point"], 1, "no earlier value counts as the last");
    assert!(stderr.contains("lacks the val_loss after step 30"), "{stderr}");
    let printed = sandbox.expect(1, "sweep s.yaml --threads 1");
    assert!(printed.contains(&format!("runner runs rm {} --force", run.id())), "{printed}");
    assert!(
        printed.contains("1 failed in this call, of which 1 cannot go on before you do what the error"),
        "{printed}"
    );
}

#[test]
fn early_stopping_does_not_decide_without_the_value_of_a_rung() {
    let sandbox = new_sandbox(&[EARLY_STOP]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let (whole, _) = results(&sandbox);
    // Point 2 was promoted, and the checkpoint of step 10 is gone.
    let run = run_of_point(&sandbox, 2);
    replace_line(&run, "eval", 10, "");
    let printed = sandbox.expect(1, "sweep s.yaml --threads 1");
    let lost = format!("{}/metrics.jsonl lacks the val_loss after step 10", run.id());
    assert!(printed.contains(&lost), "{printed}");
    assert!(!printed.contains("to step 10"), "nothing is trained: {printed}");
    // The way out that the message names.
    sandbox.expect(0, &["runs", "rm", &run.id(), "--force", "--yes"]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    assert_eq!(results(&sandbox).0["best"]["objective"], whole["best"]["objective"]);
    // An unfinished point with its checkpoint of step 10.
    let run = run_of_point(&sandbox, 1);
    assert!(run.path("checkpoints/step-00000010").exists());
    replace_line(&run, "eval", 10, "");
    fs::remove_file(run.path("summary.json")).unwrap();
    let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
    assert!(printed.contains("that of the checkpoint counts") && printed.contains("up to date"), "{printed}");
}

#[test]
fn diff_reports_losses_that_contradict_equal_plans() {
    let sandbox = new_sandbox(&[]);
    for _ in 0..2 {
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --new");
    }
    let ids: Vec<String> = sandbox.runs().into_keys().collect();
    let diff = ["diff", &ids[0], &ids[1], "--exit-code"];
    assert!(sandbox.expect(0, &diff).contains("same run: the plan is the same, so every number should be"));
    let run = sandbox.runs().remove(&ids[1]).unwrap();
    let mut line = run.metrics_of("train")[6].clone();
    line["loss"] = serde_json::json!(9.5);
    replace_line(&run, "train", 7, &format!("{line}\n"));
    let printed = sandbox.expect(3, &diff);
    assert!(printed.contains("losses first differ at step 7") && printed.contains("a record was changed"), "{printed}");
}

#[test]
fn deleted_checkpoints_and_a_missing_manifest_are_told() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let show = ["runs", "show", &run.id()];
    fs::remove_dir_all(run.path("checkpoints")).unwrap();
    let printed = sandbox.expect(0, &show);
    assert!(printed.contains("none: they were deleted"), "{printed}");
    fs::remove_file(run.path("manifest.json")).unwrap();
    let printed = sandbox.run(&show).text();
    assert!(printed.contains("the manifest of the run is missing: restore it from a copy"), "{printed}");
}

#[test]
fn lost_steps_count_and_are_named() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1 --until-step 15");
    let run = sandbox.only_run();
    let text = fs::read_to_string(run.path("metrics.jsonl")).unwrap();
    fs::write(run.path("metrics.jsonl"), text.split_inclusive('\n').take(5).collect::<String>()).unwrap();
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let summary = run.json("summary.json");
    assert_eq!((summary["steps"].as_u64(), summary["tokens"].as_u64()), (Some(STEPS), Some(STEPS * 8 * 32)));
    let lost = "20 of 30 steps are recorded, the others are lost";
    let printed = sandbox.expect(0, &["runs", "show", &run.id()]);
    assert!(printed.contains(lost), "{printed}");
    sandbox.expect(0, &["report", &run.id(), "-o", "r.html"]);
    assert!(sandbox.read("r.html").contains(lost));
}

#[test]
fn a_damaged_summary_of_a_finished_run_is_written_again() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "apply exp.yaml --threads 1");
    let run = sandbox.only_run();
    let whole = run.json("summary.json");
    let text = fs::read_to_string(run.path("summary.json")).unwrap();
    fs::write(run.path("summary.json"), &text[..text.len() / 2]).unwrap();
    let printed = sandbox.expect(0, &["resume", &run.id()]);
    assert!(printed.contains("summary.json") && printed.contains("written again"), "{printed}");
    let again = run.json("summary.json");
    for key in ["status", "steps", "tokens", "final_train_loss", "last_eval", "best_eval", "final_hash", "medians"] {
        assert_eq!(again[key], whole[key], "{key}");
    }
    let printed = sandbox.expect(0, &["resume", &run.id()]);
    assert!(!printed.contains("warning"), "{printed}");
}

#[test]
fn gc_keeps_the_checkpoint_from_which_a_fork_is_reproduced() {
    let sandbox = new_sandbox(&[]);
    sandbox.edit("exp.yaml", "keep: 1", "keep: 9");
    sandbox.expect(0, "apply exp.yaml --threads 1");
    let origin = sandbox.only_run().id();
    sandbox.expect(0, &["fork", &origin, "--from", "10", "--set", "optimizer.adamw.lr=2e-3", "--threads", "1"]);
    sandbox.expect(0, &["runs", "rm", &origin, "--yes"]);
    sandbox.expect(0, "gc --checkpoints --yes");
    let fork = sandbox.only_run();
    assert_eq!(names_in(&fork.path("checkpoints")), ["step-00000010", "step-00000030"]);
    let printed = sandbox.expect(0, &["reproduce", &fork.id(), "--threads", "1"]);
    assert!(printed.contains("bitwise: "), "{printed}");
}

#[test]
fn damaged_files_of_points_are_named() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    let run = run_of_point(&sandbox, 2);
    fs::write(run.path("manifest.json"), "{").unwrap();
    let lost = format!("point 2: runs/{}/manifest.json: ", run.id());
    let (_, stderr) = results(&sandbox);
    assert!(stderr.contains(&lost) && stderr.contains("counts as missing"), "{stderr}");
    let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
    assert!(printed.contains(&lost) && printed.contains("trains the point again"), "{printed}");
    // A part of a point's file that is legal YAML.
    fs::remove_dir_all(run.path("")).unwrap();
    fs::remove_dir_all(run_of_point(&sandbox, 2).path("")).unwrap();
    let sweeps = sandbox.path("runs/sweeps");
    let ids: Vec<String> = names_in(&sweeps).into_iter().filter(|name| !name.starts_with('.')).collect();
    let file: PathBuf = sweeps.join(&ids[0]).join("points/0002.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, &text[..text.find("optimizer:").unwrap()]).unwrap();
    let printed = sandbox.expect(1, "sweep s.yaml --threads 1");
    let damaged = "points/0002.yaml: this file of the sweep is damaged or was edited";
    assert!(printed.contains(damaged) && printed.contains("1 done, 1 failed"), "{printed}");
    let printed = sandbox.expect(1, "sweep s.yaml --threads 1 --quiet");
    assert!(printed.contains("point 2 (optimizer.adamw.lr=0.001) failed: runs/sweeps/"), "{printed}");
}

#[test]
fn an_edited_copy_of_the_sweep_file_is_not_a_change_of_the_users_file() {
    let sandbox = new_sandbox(&[]);
    sandbox.expect(0, "sweep s.yaml --threads 1");
    fs::remove_dir_all(run_of_point(&sandbox, 2).path("")).unwrap();
    let sweeps = sandbox.path("runs/sweeps");
    let ids: Vec<String> = names_in(&sweeps).into_iter().filter(|name| !name.starts_with('.')).collect();
    let copy = format!("runs/sweeps/{}/sweep.yaml", ids[0]);
    sandbox.edit(&copy, "1e-4", "2e-4");
    let printed = sandbox.expect(2, "sweep s.yaml --threads 1");
    assert!(printed.contains("sweep.yaml: this file of the sweep was edited: sweep.grid"), "{printed}");
    assert!(printed.contains("copy it there") && !printed.contains("s.yaml has changed since"), "{printed}");
    sandbox.edit(&copy, "2e-4", "1e-4");
    let printed = sandbox.expect(2, "sweep s.yaml --threads 1 --set optimizer.adamw.lr=3");
    assert!(printed.contains("would have no effect: the sweep varies optimizer.adamw.lr"), "{printed}");
}
