//! Sweeps that compare speeds, as experiments/sweeps/ladder.yaml does: points in a list, tokens per second, and MFU where a peak is known.

use serde_json::Value;

use crate::sandbox::{Finished, Sandbox};

fn new_sandbox() -> Sandbox {
    let experiment = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
         data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: null}\n\
         batch: {sequences: 8, micro_batch: 4}\ntrain: {steps: 4}\n";
    let sweep = "sweep:\n  base: exp.yaml\n  zip:\n    precision: [fp32, bf16, bf16]\n    batch.micro_batch: [4, 4, 8]\n  \
         objective: {metric: tokens_per_second}\n";
    Sandbox::new().with_numbers(2000).with("exp.yaml", experiment).with("s.yaml", sweep)
}

fn rows(sandbox: &Sandbox) -> Vec<Value> {
    let results = sandbox.json_of("sweep results --json");
    results["results"]["rows"].as_array().unwrap().clone()
}

#[test]
fn speed_is_compared_and_an_unknown_peak_is_named() {
    let sandbox = new_sandbox();
    let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
    for printed in [printed, sandbox.stdout_of("sweep results")] {
        assert!(printed.contains("mfu is unknown") && printed.contains("RUNNER_PEAK_FLOPS=400e9"), "{printed}");
    }
    let rows = rows(&sandbox);
    assert_eq!(rows.len(), 3);
    let speed = |row: &Value| row["tokens_per_second"].as_f64().unwrap();
    assert!(rows.is_sorted_by(|a, b| speed(a) >= speed(b)), "the fastest first: {rows:?}");
    for row in &rows {
        assert_eq!(row["objective"], row["tokens_per_second"], "both are the median over the steps");
        assert!(row.get("mfu").is_none(), "{row}");
    }
}

#[test]
fn a_known_peak_gives_mfu() {
    let sandbox = new_sandbox();
    let mut command = sandbox.command("sweep s.yaml --threads 1");
    let printed = Finished::of(command.env("RUNNER_PEAK_FLOPS", "1e9")).expect_code(0).text();
    assert!(!printed.contains("mfu is unknown"), "{printed}");
    let header = printed.lines().rfind(|line| line.starts_with("point")).unwrap();
    assert!(header.contains("tokens_per_second") && header.contains("mfu"), "{header}");
    for row in rows(&sandbox) {
        let run = sandbox.runs().remove(row["run"].as_str().unwrap()).unwrap();
        assert_eq!(row["mfu"], run.summary()["medians"]["mfu"]);
        assert!(row["mfu"].as_f64().unwrap() > 0.0, "{row}");
    }
    // If points are compared by something else, the speed has a separate column.
    sandbox.edit("s.yaml", "tokens_per_second", "train_loss");
    let other = Finished::of(sandbox.command("sweep s.yaml --threads 1").env("RUNNER_PEAK_FLOPS", "1e9"));
    let printed = other.expect_code(0).text();
    let header = printed.lines().rfind(|line| line.starts_with("point")).unwrap();
    assert!(header.contains("tokens/s") && header.contains("mfu"), "{header}");
}
