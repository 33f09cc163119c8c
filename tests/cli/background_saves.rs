//! Checkpoints that are written while training continues: nothing that was committed is lost, and the numbers stay the same.

#![cfg(target_os = "linux")]

use std::fs;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::ranks::FAULTS;
use crate::sandbox::{Finished, RunFolder, RunningProcess, Sandbox, read_json, wait_until};

const LAYOUTS: [&str; 5] = [
    "",
    "parallel: {mode: dp, replicas: 2}\n",
    "parallel: {mode: ddp, replicas: 2}\n",
    "parallel: {mode: ddp, replicas: 2, shard: optimizer}\n",
    "parallel: {mode: pipeline, pipeline: {stages: 2}}\n",
];

/// A sandbox with an experiment of `steps` steps, which saves every `every` steps.
fn new_sandbox(parallel: &str, steps: usize, every: u64) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 4, micro_batch: 2}}\ntrain: {{steps: {steps}}}\neval: {{every: 5, loss: {{rows: 8}}}}\n\
         checkpoint: {{every: {every}, keep: 3}}\n{parallel}"
    );
    Sandbox::in_memory().with_numbers(2000).with("exp.yaml", yaml)
}

fn saved_steps(run: &RunFolder) -> Vec<u64> {
    let Ok(entries) = fs::read_dir(run.path("checkpoints")) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut steps: Vec<u64> = names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
    steps.sort_unstable();
    steps
}

#[test]
fn training_continues_while_a_checkpoint_is_written() {
    for layout in LAYOUTS {
        let whole = new_sandbox(layout, 40, 10);
        // Evaluations of later steps come before the commit.
        let delays: Vec<String> = [10, 20, 30].map(|step| format!("save-delay=300@{step}")).into();
        let mut command = whole.command("apply exp.yaml --threads 2");
        let printed = Finished::of(command.env(FAULTS, delays.join(","))).expect_code(0).text();
        let whole = whole.only_run();
        let evaluations = whole.metrics_of("eval");
        for step in [20, 30, 40] {
            let line = evaluations.iter().find(|line| line["step"] == step).unwrap();
            let state: Value = read_json(&whole.checkpoint(step).join("state.json"));
            assert_eq!(state["val_loss"], line["val_loss"], "{layout}, step {step}: {printed}");
        }
        for step in ["10", "20", "30", "40"] {
            assert!(printed.contains(&format!("save   {step}  saved")), "{layout}: {printed}");
        }

        let broken = new_sandbox(layout, 40, 10);
        let mut command = broken.command("apply exp.yaml --threads 2");
        let mut child = RunningProcess(command.env(FAULTS, "save-delay=600000@20").spawn().unwrap());
        let follows = |run: &RunFolder| run.has_step(27);
        wait_until("a step follows", || broken.runs().values().any(follows) || child.has_ended());
        let run = broken.only_run();
        assert!(run.is_saving(), "{layout}");
        assert_eq!(saved_steps(&run), [10], "{layout}");
        child.kill();
        let printed = broken.expect(0, "apply exp.yaml --threads 2");
        assert!(printed.contains("resuming from step 10 of 40"), "{layout}: {printed}");
        let run = broken.only_run();
        assert_eq!((run.numbers(), run.final_hash()), (whole.numbers(), whole.final_hash()), "{layout}");
        assert_eq!(saved_steps(&run), saved_steps(&whole), "{layout}");
    }
}

#[test]
fn an_error_of_the_writing_thread_ends_the_run() {
    for layout in LAYOUTS {
        let sandbox = new_sandbox(layout, 40, 10);
        let mut command = sandbox.command("apply exp.yaml --threads 2");
        let printed = Finished::of(command.env(FAULTS, "full-disk=0@20")).expect_code(1).text();
        assert!(printed.contains("the disk is full") && printed.contains("step-00000020"), "{layout}: {printed}");
        assert!(printed.contains("the last good checkpoint is step-00000010"), "{layout}: {printed}");
        let run = sandbox.only_run();
        assert!(!run.is_saving(), "{layout}: half a checkpoint is left");
        assert!(!run.has_step(31), "{layout}: the next save reports it at the latest");
        let printed = sandbox.expect(0, "apply exp.yaml --threads 2");
        assert!(printed.contains("resuming from step 10 of 40"), "{layout}: {printed}");
        assert_eq!(saved_steps(&sandbox.only_run()), [20, 30, 40], "{layout}");
    }
}

#[test]
fn a_stop_waits_for_the_checkpoint_that_is_being_written() {
    for layout in LAYOUTS {
        let sandbox = new_sandbox(layout, 1_000_000, 10);
        let mut command = sandbox.command("apply exp.yaml --threads 2");
        let mut child = RunningProcess(command.env(FAULTS, "save-delay=500@10").spawn().unwrap());
        wait_until("a step follows", || sandbox.runs().values().any(|run| run.has_step(12)) || child.has_ended());
        child.signal("TERM");
        assert_eq!(child.wait(), Some(75), "{layout}");
        let run = sandbox.only_run();
        let steps = run.summary()["steps"].as_u64().unwrap();
        let saved = saved_steps(&run);
        assert!(
            saved.first() == Some(&10) && saved.last() == Some(&steps),
            "{layout}: {saved:?}, stopped after {steps}"
        );
    }
}

/// Kills a run that saves after every step `kills` times at random moments. Each time everything that it had reported as saved must be there
/// and readable. Then it ends like a run that was not killed.
fn kill_at_random_moments(parallel: &str, kills: usize) {
    let mut random = u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos()) | 1;
    eprintln!("seed {random}");
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let steps = 24 * kills + 40;
    let whole = new_sandbox(parallel, steps, 1);
    whole.expect(0, "apply exp.yaml --threads 1 --quiet");
    let sandbox = new_sandbox(parallel, steps, 1);
    let (mut found_unfinished, mut checked) = (0, 0);
    for kill in 0..kills {
        let from = sandbox.runs().values().next().and_then(|run| saved_steps(run).pop()).unwrap_or(0);
        let progress = from + 1 + below(20);
        let mut child = sandbox.spawn_until("apply exp.yaml --threads 1", |run| {
            saved_steps(run).last().is_some_and(|newest| *newest >= progress)
        });
        sleep(Duration::from_micros(below(4000)));
        assert!(!child.has_ended(), "it ended before kill {kill}, from step {from}");
        child.kill();
        let run = sandbox.only_run();
        found_unfinished += usize::from(run.is_saving());
        let log = run.read("log.txt");
        let reported =
            log.lines().filter_map(|line| line.split_once("save ")?.1.strip_suffix("  saved")?.trim().parse().ok());
        let reported: Vec<u64> = reported.collect();
        let present = saved_steps(&run);
        let newest = *reported.last().unwrap();
        assert!(present.last().is_some_and(|step| *step >= newest), "kill {kill}: {present:?}, but {newest} was saved");
        // The newest three are kept.
        for step in reported.iter().rev().take(3).filter(|step| **step + 3 > *present.last().unwrap()) {
            assert!(present.contains(step), "kill {kill}: {present:?}, but {step} was saved");
        }
        for step in &present[present.len().saturating_sub(3)..] {
            let id = run.id();
            sandbox.expect(0, &format!("export {id} --step {step} --to safetensors out --force"));
            checked += 1;
        }
    }
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (run, whole) = (sandbox.only_run(), whole.only_run());
    assert_eq!(run.numbers(), whole.numbers(), "{parallel}");
    assert_eq!(run.final_hash(), whole.final_hash(), "{parallel}");
    eprintln!("{kills} kills, {found_unfinished} of them during a save; {checked} checkpoints were read");
}

#[test]
fn kills_lose_nothing_that_was_saved() {
    kill_at_random_moments("", 6);
    kill_at_random_moments("parallel: {mode: ddp, replicas: 2, shard: optimizer}\n", 3);
    kill_at_random_moments("optimizer: {muon: {adamw: {lr: 3e-3}}}\n", 3);
}

#[test]
#[ignore = "takes minutes: 200 kills"]
fn many_kills_lose_nothing_that_was_saved() {
    kill_at_random_moments("", 120);
    kill_at_random_moments("parallel: {mode: ddp, replicas: 2, shard: optimizer}\n", 80);
}
