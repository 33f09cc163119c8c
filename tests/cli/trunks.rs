//! Runs that begin alike: a sweep trains their common steps once, and `apply --continue` takes them from another run, with the same bits.

#![cfg(unix)]

use crate::sandbox::{RunFolder, Sandbox, wait_until};

/// A sandbox with an experiment that trains in a moment: the rate stays at its peak until the decay of the last fifth.
fn new_sandbox() -> Sandbox {
    let yaml = "version: 1\nname: lab\n\
        model: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32, dropout: 0.1}\n\
        data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.1}}\n\
        batch: {sequences: 16, micro_batch: 8}\ntrain: {steps: 100}\n\
        schedule: {warmup: {steps: 5}, decay: {linear: {final: 0}}, cooldown: {share: 0.2}}\n\
        eval: {every: 20, loss: {batches: 2}, samples: {prompts: [\"1\"], count: 1, max_tokens: 4}}\n\
        checkpoint: {every: 1000, keep: 1}\nlog: {every: 1}\n";
    let sweep = "sweep:\n  base: exp.yaml\n  grid: {train.steps: [40, 80, 120], optimizer.adamw.lr: [1e-3, 1e-2]}\n";
    Sandbox::new().with_numbers(4000).with("exp.yaml", yaml).with("s.yaml", sweep)
}

/// The run with these settings.
fn run_with(sandbox: &Sandbox, steps: u64, rate: &str) -> RunFolder {
    let has = |run: &RunFolder| {
        let text = run.read("resolved.yaml");
        run.manifest()["steps"] == steps && text.contains(&format!("lr: {rate}"))
    };
    let mut found: Vec<RunFolder> = sandbox.runs().into_values().filter(has).collect();
    assert_eq!(found.len(), 1, "{steps} steps at {rate}");
    found.remove(0)
}

/// What a run computed: the lines of its metrics without times, its samples, and the hash of its end.
fn computed(run: &RunFolder) -> (Vec<String>, String, String) {
    let numbers = |line: &str| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_time = |key: &str| key.ends_with("_ms") || ["tokens_per_second", "mfu", "time"].contains(&key);
        value.as_object_mut().unwrap().retain(|key, _| !is_time(key));
        value.to_string()
    };
    let lines = run.read("metrics.jsonl").lines().map(numbers).collect();
    (lines, run.read("samples.jsonl"), run.final_hash())
}

/// Checks each point of the sweep of `sandbox` against a run that was trained alone.
fn expect_equal_to_alone(sandbox: &Sandbox) {
    for steps in [40, 80, 120] {
        for rate in ["0.001", "0.01"] {
            let alone = new_sandbox();
            let set = [format!("train.steps={steps}"), format!("optimizer.adamw.lr={rate}")];
            alone.expect(0, &["apply", "exp.yaml", "--threads", "1", "--quiet", "--set", &set[0], "--set", &set[1]]);
            let (swept, alone) = (run_with(sandbox, steps, rate), alone.only_run());
            assert_eq!(computed(&swept), computed(&alone), "{steps} steps at {rate}");
            assert_eq!(swept.manifest()["plan_hash"], alone.manifest()["plan_hash"]);
        }
    }
}

#[test]
fn a_sweep_trains_a_common_beginning_once() {
    let sandbox = new_sandbox();
    sandbox.show(0, "sweep s.yaml --threads 1 --dry-run");
    // 40 steps share 33 with 80, which share 65 with 120: the decay's first step still has the peak.
    let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
    assert_eq!(printed.matches("branch   point ").count(), 4, "{printed}");
    expect_equal_to_alone(&sandbox);
    // Only the steps that were not there were trained.
    let began = |steps| run_with(&sandbox, steps, "0.01").manifest()["sessions"][0]["from_step"].as_u64().unwrap();
    assert_eq!([40, 80, 120].map(began), [0, 33, 65]);
    // The shared checkpoint is gone, and the run repeats all of its steps.
    let run = run_with(&sandbox, 120, "0.01");
    sandbox.show(0, &["reproduce", &run.id(), "--threads", "1"]);
    sandbox.show(0, "sweep s.yaml --threads 1");
    // Nothing needs the run that trained the beginning.
    let trunk = run_with(&sandbox, 40, "0.01");
    sandbox.show(0, &["runs", "rm", &trunk.id(), "--yes"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn several_runs_at_once_and_kills_change_no_bit() {
    let sandbox = new_sandbox().with("s.yaml", {
        let grid = "{train.steps: [40, 80, 120], optimizer.adamw.lr: [1e-3, 1e-2]}";
        format!("sweep:\n  base: exp.yaml\n  parallel: 2\n  grid: {grid}\n")
    });
    for steps in [10, 60, 150, 250] {
        let mut process = sandbox.spawn("sweep s.yaml --threads 2 --quiet");
        let recorded = || sandbox.runs().values().map(|run| run.metrics_of("train").len()).sum::<usize>();
        wait_until("steps are recorded", || recorded() >= steps || process.has_ended());
        process.signal("KILL");
        process.finish();
    }
    sandbox.expect(0, "sweep s.yaml --threads 2 --quiet");
    expect_equal_to_alone(&sandbox);
}

#[test]
fn a_longer_run_continues_the_steps_that_it_computes_itself() {
    let sandbox = new_sandbox();
    let apply = |steps: &str, more: &[&str]| {
        let words = ["apply", "exp.yaml", "--threads", "1", "--set", steps];
        [&words[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let expect = |code, arguments: &[String]| {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        sandbox.expect(code, &arguments)
    };
    expect(0, &apply("train.steps=40", &["--until-step", "30"]));
    let short = sandbox.only_run();
    expect(0, &apply("train.steps=80", &["--continue", &short.id()]));
    let long = run_with(&sandbox, 80, "0.0006");
    let alone = new_sandbox();
    alone.expect(0, "apply exp.yaml --threads 1 --quiet --set train.steps=80");
    assert_eq!(computed(&long), computed(&alone.only_run()));
    assert_eq!(long.manifest()["continued_from"]["is_same_computation"], true);
    // The whole short run has decayed.
    sandbox.expect(0, &["resume", &short.id(), "--threads", "1", "--quiet"]);
    // The run that began with it is found without the checkpoint.
    let again = expect(0, &apply("train.steps=80", &["--continue", &short.id()]));
    assert!(again.contains("up to date"), "{again}");
    let error = expect(2, &apply("train.steps=100", &["--continue", &short.id()]));
    assert!(error.contains("compute the same up to step 33, and the checkpoint is of step 40"), "{error}");
    let error = expect(2, &apply("train.steps=100", &["--continue", &short.id(), "--set", "seed=3"]));
    assert!(error.contains("computes something else") && error.contains("seed"), "{error}");
}

#[test]
fn a_point_whose_trunk_cannot_serve_trains_its_steps_itself() {
    // Another layout computed the trunk's first steps.
    let sandbox = new_sandbox().with("s.yaml", "sweep: {base: exp.yaml, grid: {train.steps: [40, 80]}}\n");
    sandbox.expect(0, "apply exp.yaml --threads 2 --quiet --set train.steps=40 --until-step 20");
    let trunk = sandbox.only_run();
    let layout = "{mode: ddp, replicas: 2}";
    sandbox
        .expect(0, &["resume", &trunk.id(), "--parallel", layout, "--threads", "2", "--quiet", "--until-step", "25"]);
    sandbox.show(0, "sweep s.yaml --threads 2");
    insta::assert_snapshot!(sandbox.screens());
    let alone = new_sandbox();
    alone.expect(0, "apply exp.yaml --threads 1 --quiet --set train.steps=80");
    assert_eq!(computed(&run_with(&sandbox, 80, "0.0006")), computed(&alone.only_run()));
    // A trunk that diverged in an earlier call is not waited for.
    let sandbox = new_sandbox().with("s.yaml", "sweep: {base: exp.yaml, grid: {train.steps: [40, 80]}}\n");
    let adamw = "schedule: {warmup: {steps: 5}";
    sandbox.edit("exp.yaml", adamw, &format!("optimizer: {{sgd: {{lr: 1e4, momentum: 0.9}}}}\n{adamw}"));
    sandbox.edit("exp.yaml", "train: {steps: 100}", "train: {steps: 100, clip_norm: null}");
    sandbox.expect(1, "apply exp.yaml --threads 1 --quiet --set train.steps=40");
    let printed = sandbox.expect(1, "sweep s.yaml --threads 1");
    assert!(printed.contains("2 diverged") || printed.contains("2 failed"), "{printed}");
}

#[test]
fn a_longer_point_begins_with_the_whole_of_a_shorter_one() {
    let sandbox = new_sandbox().with("s.yaml", "sweep: {base: exp.yaml, grid: {train.steps: [40, 80]}}\n");
    let schedule = "schedule: {warmup: {steps: 5}, decay: {linear: {final: 0}}, cooldown: {share: 0.2}}";
    sandbox.edit("exp.yaml", schedule, "schedule: {warmup: {steps: 5}}");
    sandbox.show(0, "sweep s.yaml --threads 1");
    let alone = new_sandbox();
    alone.edit("exp.yaml", schedule, "schedule: {warmup: {steps: 5}}");
    alone.expect(0, "apply exp.yaml --threads 1 --quiet --set train.steps=80");
    assert_eq!(computed(&run_with(&sandbox, 80, "0.0006")), computed(&alone.only_run()));
    insta::assert_snapshot!(sandbox.screens());
}
