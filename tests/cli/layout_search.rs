//! `runner plan --search`, and the files that it writes.

use crate::sandbox::Sandbox;

const FILE: &str = "\
# A small model on a cluster.
name: small
model: {family: gpt2, layers: 4, heads: 4, d_model: 128, context_length: 64, vocab_size: 257}   # sizes
data:
  tokenizer: {bytes: {}}
  train: {builtin: {corpus: stories}}
  layout: {packed: {length: 64}}
# Rows of a step.
batch: {sequences: 64, micro_batch: 2}
train:
  # Few steps.
  steps: 4
  recompute: block
optimizer: {adamw: {lr: 1e-3}}
parallel: {mode: single}
eval: {every: 100, loss: {batches: 3}}
";

const CLUSTER: &str = "--cluster 1x4xA100 --rows 1000";

#[test]
fn the_written_file_has_the_numbers_of_the_search() {
    let sandbox = Sandbox::new().with("exp.yaml", FILE);
    let found = sandbox.json_of(&format!("plan exp.yaml --search {CLUSTER} --json --write best.yaml"));
    let best = &found["shortest_forecasts"][0];
    let plan = sandbox.json_of(&format!("plan best.yaml {CLUSTER} --json"));
    assert_eq!(plan["forecast"]["step_seconds"], best["step_seconds"]);
    let ranks = plan["ranks"].as_array().unwrap();
    let total = |rank: &serde_json::Value| -> u64 {
        let memory = rank["memory"].as_object().unwrap();
        memory.values().filter_map(serde_json::Value::as_u64).sum()
    };
    assert_eq!(ranks.iter().map(total).max(), best["memory_bytes"].as_u64());
    assert_eq!((&plan["math_hash"], &plan["hash"]), (&found["math_hash"], &best["hash"]));
    let before = sandbox.json_of(&format!("plan exp.yaml {CLUSTER} --json"));
    assert_eq!(before["math_hash"], plan["math_hash"]);
    assert_eq!(before["hash"], found["current"]["hash"]);
    assert!(sandbox.read("best.yaml").contains("name: small"));
    let valid = sandbox.stdout_of("validate best.yaml");
    assert!(valid.contains("is a valid experiment"), "{valid}");
}

#[test]
fn a_search_shows_the_best_the_front_and_what_fell_out() {
    let sandbox = Sandbox::new().with("exp.yaml", FILE);
    sandbox.show(0, &format!("plan exp.yaml --search {CLUSTER}"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_written_file_replaces_none_and_has_every_setting_of_the_search() {
    let sandbox = Sandbox::new().with("exp.yaml", FILE).with("best.yaml", "mine");
    sandbox.show(2, &format!("plan exp.yaml --search {CLUSTER} --write best.yaml"));
    assert_eq!(sandbox.read("best.yaml"), "mine");
    let said = sandbox.expect(0, &format!("plan exp.yaml --search {CLUSTER} --write best.yaml --force --set seed=7"));
    let written = "wrote best.yaml: all settings of exp.yaml with the layout of the shortest forecast";
    assert!(said.contains(written), "{said}");
    assert!(sandbox.read("best.yaml").contains("seed: 7"));
    sandbox.show(2, "plan exp.yaml --write other.yaml");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_machine_without_speeds_is_not_searched() {
    let sandbox = Sandbox::new().with("exp.yaml", FILE);
    sandbox.show(2, "plan exp.yaml --search --set device=cpu --rows 1000");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn the_largest_micro_batch_is_recorded_as_a_number() {
    let sandbox = Sandbox::new().with("exp.yaml", FILE.replace("micro_batch: 2", "micro_batch: auto"));
    sandbox.show(0, "plan exp.yaml");
    sandbox.expect(0, "apply exp.yaml --quiet");
    let run = sandbox.only_run();
    assert!(std::fs::read_to_string(run.path("resolved.yaml")).unwrap().contains("micro_batch: 64"));
    assert!(sandbox.expect(0, "apply exp.yaml").contains("up to date") || sandbox.runs().len() == 1);
    sandbox.expect(0, "apply exp.yaml --quiet --set batch.micro_batch=64");
    assert_eq!(sandbox.runs().len(), 1, "a file with the number is the same run");
    sandbox.show(2, &["validate", "exp.yaml", "--set", "parallel={mode: pipeline, pipeline: {stages: 2}}"]);
    insta::assert_snapshot!(sandbox.screens());
}
