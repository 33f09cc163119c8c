//! Stages: a batch, a row length and windows that change during one run.

use serde_json::Value;

use crate::sandbox::{RunFolder, Sandbox, read_json};

const MODEL: &str = "model: {family: gpt2, layers: 2, heads: 2, d_model: 32, context_length: 32, window: 24, dropout: 0.1}\n\
    data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}, layout: {packed: {length: 32}}}\n\
    optimizer: {adamw: {lr: 1e-3}}\neval: {every: 10, loss: {rows: 16}}\ncheckpoint: {every: 10, keep: 9}\n";

fn sandbox(batch: &str, stages: &str) -> Sandbox {
    let stages = if stages.is_empty() { String::new() } else { format!(", stages: [{stages}]") };
    let yaml = format!("name: s\n{MODEL}batch: {batch}\ntrain: {{steps: 40{stages}}}\n");
    Sandbox::new().with_squares(3000).with("exp.yaml", yaml)
}

/// All that can change, twice.
const TWO: &str =
    "{until: {steps: 12}, sequences: 4, length: 16, windows: [8]}, {until: {share: 0.6}, sequences: 6, windows: [12]}";

fn trained(batch: &str, stages: &str) -> (Sandbox, RunFolder) {
    let sandbox = sandbox(batch, stages);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    (sandbox, run)
}

#[test]
fn stages_are_planned_and_shown() {
    let sandbox = sandbox("{sequences: 8, micro_batch: 4}", TWO);
    sandbox.show(0, "plan exp.yaml --threads 1 --plot --instructions");
    sandbox.show(0, "apply exp.yaml --threads 1");
    let run = sandbox.only_run();
    let lines = run.metrics_of("train");
    let tokens: Vec<u64> = lines.iter().map(|line| line["tokens"].as_u64().unwrap()).collect();
    assert_eq!(tokens, [[64; 12].as_slice(), &[192; 12], &[256; 16]].concat());
    let counted: u64 = tokens.iter().sum();
    assert_eq!(run.json("plan.json")["totals"]["tokens"], counted);
    // 2, 6 and 8 rows a step.
    let position = read_json(&run.checkpoint(40).join("state.json"))["position"].clone();
    assert_eq!(
        (&position["rows"], &position["tokens"]),
        (&Value::from(12 * 2 + 12 * 6 + 16 * 8), &Value::from(counted))
    );
    insta::assert_snapshot!(sandbox.screens());
}

/// A stage computes what a fork with its settings does.
#[test]
fn stages_have_the_bits_of_forks() {
    let (_folder, staged) = trained("{sequences: 8, micro_batch: 2}", "{until: {steps: 20}, sequences: 4}");
    let sandbox = sandbox("{sequences: 4, micro_batch: 2}", "");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 20");
    let first = sandbox.only_run();
    sandbox.expect(
        0,
        &["fork", &first.id(), "--threads", "1", "--quiet", "--from", "latest", "--set", "batch.sequences=8"],
    );
    let fork = sandbox.runs().into_values().find(|run| run.id() != first.id()).unwrap();
    assert_eq!(fork.final_hash(), staged.final_hash());
}

/// A stop before, at and after the end of a stage changes no bit, under several layouts.
#[test]
fn a_run_resumes_in_the_stage_of_its_step() {
    for parallel in [
        "",
        "parallel: {mode: ddp, replicas: 2, shard: optimizer}\n",
        "parallel: {mode: pipeline, pipeline: {stages: 2, microbatches: 2}}\n",
    ] {
        let all = |stops: &[u64]| {
            let sandbox = sandbox("{sequences: 8}", TWO);
            sandbox.edit("exp.yaml", "batch:", &format!("{parallel}batch:"));
            for stop in stops {
                sandbox
                    .expect(0, &["apply", "exp.yaml", "--threads", "1", "--quiet", "--until-step", &stop.to_string()]);
            }
            sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
            sandbox.only_run().final_hash()
        };
        let whole = all(&[]);
        assert_eq!(all(&[11, 12, 13, 24]), whole, "{parallel}");
    }
}

/// A fork of a run with stages continues with them, and with another batch after its checkpoint.
#[test]
fn a_run_with_stages_is_forked() {
    let (sandbox, run) = trained("{sequences: 8, micro_batch: 2}", TWO);
    let id = run.id();
    sandbox.expect(0, &["fork", &id, "--from", "10", "--threads", "1", "--quiet", "--set", "optimizer.adamw.lr=2e-3"]);
    let fork = sandbox.runs().into_values().find(|other| other.id() != id).unwrap();
    let experiment = fork.read("resolved.yaml");
    assert!(experiment.contains("stages:") && !experiment.contains("position:\n"), "{experiment}");
    // Of its two stages the first is over at the checkpoint.
    sandbox.show(
        0,
        &["fork", &id, "--from", "20", "--threads", "1", "--set", "train.stages=[{until: {steps: 30}, sequences: 2}]"],
    );
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn the_micro_batch_of_a_run_with_stages_is_found() {
    let sandbox = sandbox("{sequences: 8, micro_batch: auto}", TWO);
    let plan = sandbox.json_of("plan exp.yaml --threads 1 --json");
    let program = &plan["ranks"][0]["program"];
    assert_eq!(
        (&program["batch"]["micro_batch"], &program["earlier"][0]["batch"]["micro_batch"]),
        (&8.into(), &4.into())
    );
}

/// A checkpoint is evaluated with the windows of the step that made it: with the loss that its run had.
#[test]
fn checkpoints_are_evaluated_with_the_windows_of_their_stage() {
    let (sandbox, run) = trained("{sequences: 8, micro_batch: 4}", TWO);
    let recorded = run.metrics_of("eval");
    for step in [10, 20, 40] {
        let line = recorded.iter().find(|line| line["step"] == step).unwrap();
        let step = step.to_string();
        let result = sandbox.json_of(&["eval", &run.id(), "--step", &step, "--threads", "1", "--json"]);
        let (found, right) = (result["val_loss"].as_f64().unwrap(), line["val_loss"].as_f64().unwrap());
        assert!((found - right).abs() < 1e-6, "{step}: {found} {right}");
    }
}

/// A fork's own windows apply after the checkpoint from which it starts, and that of a fork of a fork has the first run's.
#[test]
fn the_checkpoint_from_which_a_fork_starts_has_the_windows_that_trained_it() {
    let (sandbox, run) = trained("{sequences: 8, micro_batch: 4}", TWO);
    let mut last = run.id();
    for name in ["one", "two"] {
        let set = ["--set", "train.stages=[]", "--set", "model.window=4", "--threads", "1", "--quiet"];
        sandbox.expect(0, [["fork", &last, "--from", "10", "--name", name].as_slice(), &set].concat().as_slice());
        last = sandbox.runs().into_values().map(|run| run.id()).find(|id| id.starts_with(name)).unwrap();
        let loss = |id: &str| {
            let result = sandbox.json_of(&["eval", id, "--step", "10", "--threads", "1", "--json"]);
            result["val_loss"].as_f64().unwrap()
        };
        assert_eq!(loss(&last).to_bits(), loss(&run.id()).to_bits());
    }
}

#[test]
fn a_batch_warms_up() {
    let sandbox = sandbox("{sequences: 8, micro_batch: 2, warmup: {from: 2, until: {tokens: 1000}}}", "");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let tokens: Vec<u64> =
        sandbox.only_run().metrics_of("train").iter().map(|line| line["tokens"].as_u64().unwrap()).collect();
    // 333 tokens each: 5 steps of 64, 3 of 128 (704 of 667), and 2 of 192.
    assert_eq!(tokens, [[64; 5].as_slice(), &[128; 3], &[192; 2], &[256; 30]].concat());
}

#[test]
fn mistakes_in_stages_are_located() {
    let sandbox = sandbox("{sequences: 8, micro_batch: 4}", TWO);
    for (from, to) in [
        ("length: 16", "length: 15"),
        ("sequences: 4", "sequences: 3"),
        ("windows: [8]", "windows: [8, 9]"),
        ("sequences: 4,", "sequences: 4, micro_batch: 5,"),
        ("{share: 0.6}", "{steps: 12}"),
        ("{share: 0.6}", "{share: 1}"),
        ("{share: 0.6}", "0.6"),
        ("micro_batch: 4}", "micro_batch: 4, warmup: {from: 2, until: {steps: 4}}}"),
        ("sequences: 4,", "sequence: 4,"),
        ("sequences: 4, length: 16, windows: [8]", "windows: []"),
        ("{packed: {length: 32}}", "{columns: {length: 32}}"),
    ] {
        sandbox.edit("exp.yaml", from, to);
        sandbox.show(2, "plan exp.yaml --threads 1");
        sandbox.edit("exp.yaml", to, from);
    }
    let plain = self::sandbox("{sequences: 8, micro_batch: 4}", "");
    for warmup in ["{from: 8, until: {steps: 4}}", "{from: 3, until: {steps: 4}}", "{from: 1, until: {steps: 4}}"] {
        let set = format!("batch.warmup={warmup}");
        plain.show(2, &["plan", "exp.yaml", "--threads", "1", "--set", &set]);
    }
    insta::assert_snapshot!(sandbox.screens() + &plain.screens());
}
