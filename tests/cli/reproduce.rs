//! Runs that stop at a step, that are resumed from their folders and reproduced, and that are forks of one another.

#![cfg(target_os = "linux")]

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::sandbox::{RunFolder, RunningProcess, Sandbox, wait_until};

const STEPS: u64 = 12;

const SINGLE: &str = "";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";
const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";

/// A sandbox with an experiment of a tiny model.
fn new_sandbox(parallel: &str) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\nmodel: {{family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16, dropout: 0.1}}\n\
         data: {{tokenizer: {{chars: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 4, micro_batch: 1}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 4, loss: {{batches: 2}}, samples: {{prompts: [\"1\"], count: 1, max_tokens: 4}}}}\n\
         checkpoint: {{every: 4, keep: 9}}\n{parallel}"
    );
    Sandbox::new().with_numbers(2000).with("exp.yaml", yaml)
}

/// Adds `text` at the beginning of the training text.
fn change_data(sandbox: &Sandbox, text: &str) {
    sandbox.write("input.txt", text.to_owned() + &sandbox.read("input.txt"));
}

/// The only run, and its id.
#[track_caller]
fn id_and_run(sandbox: &Sandbox) -> (String, RunFolder) {
    let run = sandbox.only_run();
    (run.id(), run)
}

/// What must not depend on how often a run stopped: its record without times, its samples, and its final hash.
fn recorded_end(run: &RunFolder) -> Vec<String> {
    [run.numbers_and_samples(), vec![run.final_hash()]].concat()
}

#[test]
fn a_run_stops_after_the_step_asked_for_and_goes_on_to_the_same_bits() {
    for (layout, name) in [(SINGLE, "single"), (DP, "dp"), (DDP, "ddp"), (PIPELINE, "pipeline"), (MESH, "mesh")] {
        let (whole, broken) = (new_sandbox(layout), new_sandbox(layout));
        whole.expect(0, "apply exp.yaml --threads 1 --quiet");
        // Between checkpoints, at one, and at what is there already.
        for step in [3, 8] {
            broken.show(0, &format!("apply exp.yaml --threads 1 --until-step {step}"));
            let run = broken.only_run();
            let summary = run.summary();
            assert_eq!((summary["status"].as_str(), summary["steps"].as_u64()), (Some("interrupted"), Some(step)));
            assert!(run.checkpoint(step).is_dir(), "{name}");
        }
        broken.show(0, "apply exp.yaml --threads 1 --until-step 5");
        broken.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 12");
        assert_eq!(recorded_end(&broken.only_run()), recorded_end(&whole.only_run()), "{name}");
        broken.show(0, "apply exp.yaml --threads 1 --until-step 5");
        if layout == MESH {
            insta::assert_snapshot!(broken.screens());
        }
    }
}

#[test]
fn a_run_is_resumed_from_its_folder() {
    let (whole, broken) = (new_sandbox(DP), new_sandbox(DP));
    whole.expect(0, "apply exp.yaml --threads 1 --quiet");
    broken.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 5");
    fs::remove_file(broken.path("exp.yaml")).unwrap();
    let (id, run) = id_and_run(&broken);
    broken.show(0, &format!("resume {id} --threads 1"));
    assert_eq!(recorded_end(&run), recorded_end(&whole.only_run()));
    broken.show(0, "resume lab");
    // A run whose plan has changed is not resumed.
    let other = new_sandbox(SINGLE);
    other.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 5");
    change_data(&other, "7 ");
    other.show(2, "resume lab --threads 1");
    fs::remove_file(other.path("input.txt")).unwrap();
    other.show(2, "resume lab --threads 1");
    insta::assert_snapshot!(broken.screens());
    insta::assert_snapshot!(other.screens());
}

#[test]
fn starts_nothing_if_the_plan_is_not_the_expected_one() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.show(2, "apply exp.yaml --threads 1 --expect-plan 0123456789abcdef");
    assert!(!sandbox.path("runs").exists());
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --sweep-point lr-abc:3");
    let (_, run) = id_and_run(&sandbox);
    let manifest = run.manifest();
    assert_eq!((manifest["sweep"]["id"].as_str(), manifest["sweep"]["point"].as_u64()), (Some("lr-abc"), Some(3)));
    let hash = manifest["plan_hash"].as_str().unwrap();
    sandbox.show(0, &format!("apply exp.yaml --threads 1 --expect-plan {hash}"));
    // The message says what differs if a run has the expected plan.
    sandbox.show(2, &format!("apply exp.yaml --threads 1 --set seed=7 --expect-plan {hash}"));
    change_data(&sandbox, "7 ");
    sandbox.show(2, &format!("apply exp.yaml --threads 1 --expect-plan {hash}"));
    assert_eq!(sandbox.runs().len(), 1);
    insta::assert_snapshot!(sandbox.screens());
}

/// The run that is not `first`.
fn other(sandbox: &Sandbox, first: &str) -> (String, RunFolder) {
    sandbox.runs().into_iter().find(|(id, _)| id != first).unwrap()
}

#[test]
fn a_run_of_each_mode_is_reproduced_bit_for_bit() {
    for (layout, name) in [(SINGLE, "single"), (DP, "dp"), (DDP, "ddp"), (PIPELINE, "pipeline"), (MESH, "mesh")] {
        let sandbox = new_sandbox(layout);
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --trace");
        // File and defaults no longer matter.
        fs::write(sandbox.path("exp.yaml"), "version: 1\n").unwrap();
        let (id, run) = id_and_run(&sandbox);
        sandbox.show(0, &format!("reproduce {id} --threads 2 --trace"));
        let (_, again) = other(&sandbox, &id);
        assert_eq!(recorded_end(&again), recorded_end(&run), "{name}");
        let verdict = again.json("verdict.json");
        assert_eq!((verdict["verdict"].as_str(), verdict["traced"].as_bool()), (Some("bitwise"), Some(true)), "{name}");
        let origin = &again.manifest()["origin"]["reproduction"];
        assert_eq!(origin["id"].as_str(), Some(id.as_str()), "{name}");
        // The reproduction is not the run of its plan.
        sandbox.show(0, &format!("resume {id}"));
        assert!(!run.path("verdict.json").exists(), "{name}");
        if layout == MESH {
            insta::assert_snapshot!(sandbox.screens());
        }
    }
}

#[test]
fn a_different_number_of_threads_gives_the_same_result() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let printed = sandbox.show(0, "reproduce lab --threads 3");
    assert!(printed.contains("threads          differs  3, was 1"), "{printed}");
    sandbox.expect(0, &format!("reproduce {} --check --threads 3", sandbox.runs().keys().next().unwrap()));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn changed_data_is_named_and_diverges() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (id, _) = id_and_run(&sandbox);
    sandbox.show(0, &format!("reproduce {id} --threads 1 --check"));
    change_data(&sandbox, "7 8 9 ");
    sandbox.show(3, &format!("reproduce {id} --threads 1 --check"));
    assert_eq!(sandbox.runs().len(), 1, "only looked at");
    sandbox.show(3, &format!("reproduce {id} --threads 1"));
    let verdict = other(&sandbox, &id).1.json("verdict.json");
    assert_eq!((verdict["verdict"].as_str(), verdict["diverged"]["step"].as_u64()), (Some("diverged"), Some(1)));
    fs::remove_file(sandbox.path("input.txt")).unwrap();
    sandbox.show(2, &format!("reproduce {id} --threads 1"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_changed_seed_in_the_stored_settings_is_named_and_diverges() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --trace");
    let (id, run) = id_and_run(&sandbox);
    let resolved = run.read("resolved.yaml");
    assert!(resolved.contains("\nseed: 1337\n"), "{resolved}");
    run.write("resolved.yaml", resolved.replace("seed: 1337", "seed: 7"));
    let printed = sandbox.expect(3, &format!("reproduce {id} --threads 1 --trace"));
    assert!(
        printed.contains("resolved.yaml gives a different plan: seed)") && printed.contains("diverged at step 1"),
        "{printed}"
    );
    assert!(printed.contains("the first that differs: output of the embedding of step 1"), "{printed}");
    // Another learning rate: the same outputs and gradients, other weights after them.
    run.write("resolved.yaml", resolved.replace("lr: 0.0006", "lr: 0.0005"));
    let printed = sandbox.expect(3, &format!("reproduce {id} --threads 1 --trace --json --quiet"));
    let verdict: Value = serde_json::from_str(printed.lines().next_back().unwrap()).unwrap();
    assert_eq!(verdict["kind"], "verdict", "{printed}");
    let first = &verdict["verdict"]["first_tensor"];
    assert_eq!((first["step"].as_u64(), first["traced"].as_str()), (Some(1), Some("parameter")), "{printed}");
    // A wide tolerance.
    sandbox.show(0, &format!("reproduce {id} --threads 1 --tolerance 1"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn an_edited_plan_is_named() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (id, run) = id_and_run(&sandbox);
    let plan = run.read("plan.json");
    assert!(plan.contains("\"steps\": 12"), "{plan}");
    run.write("plan.json", plan.replace("\"steps\": 12", "\"steps\": 999999999999"));
    let printed = sandbox.expect(3, &format!("reproduce {id} --threads 1 --check"));
    assert!(printed.contains("plan             changed") && printed.contains("plan.json was edited"), "{printed}");
}

#[test]
fn reproduces_the_steps_of_an_interrupted_run() {
    for layout in [SINGLE, DDP] {
        let sandbox = new_sandbox(layout);
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 3");
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --until-step 6");
        let (id, _) = id_and_run(&sandbox);
        sandbox.show(0, &format!("reproduce {id} --threads 1"));
        // A second one is a different run, because the first has its verdict.
        sandbox.expect(0, &format!("reproduce {id} --threads 1 --quiet"));
        assert_eq!(sandbox.runs().len(), 3);
        // One that was stopped is resumed.
        let (_, run) = sandbox.runs().pop_last().unwrap();
        fs::remove_file(run.path("verdict.json")).unwrap();
        sandbox.show(0, &format!("reproduce {id} --threads 1"));
        assert_eq!(sandbox.runs().len(), 3);
        insta::assert_snapshot!(sandbox.screens());
    }
}

#[test]
fn a_trace_has_no_step_twice() {
    let (whole, broken) = (new_sandbox(PIPELINE), new_sandbox(PIPELINE));
    whole.expect(0, "apply exp.yaml --threads 1 --quiet --trace");
    broken.expect(0, "apply exp.yaml --threads 1 --quiet --trace --until-step 7");
    let run = broken.only_run();
    // Lines of steps that are done again, as a killed process leaves them.
    let mut text = run.read("trace.jsonl");
    text += &text.lines().last().unwrap().replace("\"step\":7", "\"step\":8");
    run.write("trace.jsonl", text + "\n");
    broken.expect(0, "apply exp.yaml --threads 1 --quiet");
    let lines = |sandbox: &Sandbox| {
        let text = sandbox.only_run().read("trace.jsonl");
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        // Stages report theirs in any order.
        lines.sort();
        lines
    };
    assert_eq!(lines(&broken), lines(&whole));
    // 4 outputs; of 2 layers' 12 parameters each, and 5 others with the tied copy, gradient and value.
    assert_eq!(lines(&whole).len(), 12 * (4 + 2 * (2 * 12 + 5)));
}

#[test]
fn a_fork_begins_with_other_settings() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (id, run) = id_and_run(&sandbox);
    sandbox.show(2, &format!("fork {id} --threads 1 --set optimizer.adamw.lr=1e-4"));
    let fork = format!("fork {id} --threads 1 --from start --set optimizer.adamw.lr=1e-4 --name other");
    sandbox.show(0, &format!("{fork} --until-step 5"));
    sandbox.show(0, &fork);
    sandbox.show(0, &fork);
    let (copy, again) = other(&sandbox, &id);
    assert!(copy.starts_with("other-"), "{copy}");
    let manifest = again.manifest();
    let origin = &manifest["origin"]["fork"];
    assert_eq!((origin["id"].as_str(), origin["step"].as_u64()), (Some(id.as_str()), None));
    assert!(manifest["continued_from"].is_null());
    // The file with those settings would do the same: it finds the fork.
    sandbox.show(0, "apply exp.yaml --threads 1 --set optimizer.adamw.lr=1e-4 --set name=other");
    sandbox.expect(0, &format!("{fork} --new --quiet"));
    assert_eq!(sandbox.runs().len(), 3);
    sandbox.show(2, &format!("fork {id} --from start"));
    sandbox.show(2, &format!("fork {id} --from start --set optimizer.adamw.lrr=1"));
    sandbox.show(0, &format!("runs show {copy}"));
    assert_eq!(recorded_end(&run).len(), 12 + 3 + 3);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_fork_begins_with_a_checkpoint() {
    for (layout, name) in [(SINGLE, "single"), (PIPELINE, "pipeline")] {
        let sandbox = new_sandbox(layout);
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
        let (id, run) = id_and_run(&sandbox);
        let fork = format!("fork {id} --threads 1 --from 8 --set train.steps=16 --set optimizer.adamw.lr=2e-4");
        sandbox.show(0, &format!("{fork} --until-step 10"));
        let (copy, again) = other(&sandbox, &id);
        sandbox.show(0, &format!("resume {copy} --threads 1"));
        sandbox.show(0, &fork);
        let steps: Vec<u64> = again.metrics_of("train").iter().map(|line| line["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, (1..=16).collect::<Vec<u64>>(), "{name}");
        let at = |run: &RunFolder, step: u64| run.metrics().into_iter().find(|l| l["step"] == step).unwrap();
        assert_eq!(at(&again, 8), at(&run, 8), "{name}: taken over");
        // The fork's first step has the old weights under a different learning rate.
        assert_eq!(at(&again, 9)["loss"], at(&run, 9)["loss"], "{name}");
        assert_ne!(at(&again, 9)["lr"], at(&run, 9)["lr"], "{name}");
        // The best checkpoint is chosen among the fork's evaluations.
        let best = again.summary()["best_eval"]["step"].as_u64().unwrap();
        assert!(best > 8, "{name}: {best}");
        let manifest = again.manifest();
        assert_eq!(
            (manifest["origin"]["fork"]["step"].as_u64(), manifest["continued_from"]["step"].as_u64()),
            (Some(8), Some(8))
        );
        sandbox.show(0, &format!("runs show {copy}"));
        // A fork of the fork, and both reproduced.
        sandbox.show(0, &format!("fork {copy} --threads 1 --from latest --set train.steps=18 --name third"));
        sandbox.show(0, "runs show third");
        sandbox.show(0, &format!("reproduce {copy} --threads 1"));
        // Where the beginning is gone it cannot be done again; the fork keeps the checkpoint that it began with, as it may.
        fs::remove_dir_all(&run.0).unwrap();
        sandbox.show(0, "runs show third");
        sandbox.expect(0, &format!("reproduce {copy} --threads 1 --quiet"));
        fs::remove_dir_all(again.path("checkpoints/step-00000008")).unwrap();
        sandbox.show(2, &format!("reproduce {copy} --threads 1"));
        insta::assert_snapshot!(sandbox.screens());
    }
}

#[test]
fn a_fork_that_cannot_begin_is_refused() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (id, _) = id_and_run(&sandbox);
    let refused = |changes: &str| sandbox.show(2, &format!("fork {id} --threads 1 --from latest {changes}"));
    refused("--set seed=3");
    refused("--set train.steps=20 --set model.d_model=32");
    refused("--set train.steps=20 --set model.layers=3");
    refused("--set train.steps=20 --set optimizer={\"sgd\":{\"lr\":0.1,\"momentum\":0.9}}");
    refused("--set train.steps=20 --set data.tokenizer={\"bytes\":{}}");
    sandbox.show(2, &format!("fork {id} --threads 1 --from 5 --set train.steps=20"));
    assert_eq!(sandbox.runs().len(), 1);
    // Without moments it continues.
    let sgd = "--set train.steps=14 --set optimizer={\"sgd\":{\"lr\":0.1,\"momentum\":0}}";
    sandbox.expect(0, &format!("fork {id} --threads 1 --quiet --from latest {sgd}"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_run_can_be_sampled_from_without_its_data() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (id, run) = id_and_run(&sandbox);
    let sample =
        || sandbox.stdout_of(&["sample", &id, "--threads", "1", "--prompt", "1 2", "--max-tokens", "8", "--json"]);
    let kept = sample();
    let tokenizer = fs::read(run.path("tokenizer.json")).unwrap();
    // One that was altered is not used.
    run.write("tokenizer.json", "{}");
    assert_eq!(sample(), kept);
    let errors = sandbox.run(&["sample", &id, "--threads", "1", "--prompt", "1 2"]).stderr;
    assert!(errors.contains("tokenizer.json: ") && errors.contains("is built from the data again"), "{errors}");
    run.write("tokenizer.json", tokenizer);
    fs::remove_file(sandbox.path("input.txt")).unwrap();
    fs::remove_dir_all(sandbox.path("cache")).unwrap();
    assert_eq!(sample(), kept);
}

#[test]
fn resumes_a_killed_reproduction() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --set train.steps=1200");
    let (id, _) = id_and_run(&sandbox);
    let mut process = sandbox.spawn(&format!("reproduce {id} --threads 1"));
    // Until it has a checkpoint, and some steps after it.
    let mut copy = None;
    wait_until("the reproduction has some steps", || {
        assert!(!process.has_ended(), "it ended before it could be killed");
        copy = sandbox.runs().into_values().find(|run| run.id() != id && run.metrics().len() > 20);
        copy.is_some()
    });
    let copied_run = copy.unwrap();
    let copy = copied_run.id();
    // A second one waits for it to be done: there is no other to begin.
    let printed = sandbox.expect(2, &format!("reproduce {id} --threads 1"));
    let locked = printed.contains(&format!("is working on {copy}, which repeats {id}"));
    assert!(locked && !printed.contains("--new"), "{printed}");
    process.kill();
    assert_eq!(copied_run.manifest()["status"], "running");
    // The beginning of both ids means the original.
    let printed = sandbox.expect(0, "reproduce lab --threads 1");
    assert!(
        printed.contains(&format!("continues with {copy}")) && printed.contains("resuming from step "),
        "{printed}"
    );
    assert!(printed.contains("bitwise: ") && printed.contains("1,200 steps, 300 evaluations"), "{printed}");
    assert_eq!(sandbox.runs().len(), 2);
}

#[test]
fn a_value_missing_on_one_side_is_not_bitwise_equal() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let (id, run) = id_and_run(&sandbox);
    let resolved = run.read("resolved.yaml");
    let metrics = run.read("metrics.jsonl");
    // Fewer steps than the run has.
    assert!(resolved.contains("steps: 12"), "{resolved}");
    run.write("resolved.yaml", resolved.replace("steps: 12", "steps: 3"));
    sandbox.show(3, &format!("reproduce {id} --threads 1"));
    // The shorter one evaluates at its end; of steps it has three.
    run.write("resolved.yaml", &resolved);
    // Lines that are gone from the run's record.
    let kept: Vec<&str> = metrics.lines().filter(|line| !line.contains("\"step\":7,")).collect();
    run.write("metrics.jsonl", kept.join("\n") + "\n");
    sandbox.show(3, &format!("reproduce {id} --threads 1"));
    // Neither checkpoints nor the hash of the end.
    run.write("metrics.jsonl", &metrics);
    fs::remove_dir_all(run.path("checkpoints")).unwrap();
    fs::remove_file(run.path("summary.json")).unwrap();
    sandbox.show(0, &format!("reproduce {id} --threads 1"));
    // No record at all.
    fs::remove_file(run.path("metrics.jsonl")).unwrap();
    sandbox.show(1, &format!("reproduce {id} --threads 1"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_run_that_is_removed_while_it_is_done_again_is_compared_all_the_same() {
    let sandbox = new_sandbox(SINGLE);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet --set train.steps=400");
    let (id, run) = id_and_run(&sandbox);
    let mut command = sandbox.command(&format!("reproduce {id} --threads 1"));
    let mut process = RunningProcess(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    wait_until("the reproduction has started", || sandbox.runs().len() == 2);
    sandbox.expect(0, &format!("runs rm {id} --yes"));
    assert!(!process.has_ended() && !run.0.exists(), "it was removed before the end");
    let (code, printed) = process.finish();
    assert_eq!(code, Some(0), "{printed}");
    assert!(
        printed.contains("bitwise: ") && printed.contains("400 steps, 100 evaluations and the weights after step 400")
    );
}

/// Data parts that change one by one, each of the same size, time and inode as before.
#[test]
fn every_part_of_the_data_is_compared() {
    let sandbox = Sandbox::new().with_numbers(3000);
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 16}\n\
                data: {tokenizer: {bytes: {}}, train: {text: {files: [train.txt]}}, validation: {text: {files: [val.txt]}}}\n\
                batch: {sequences: 4}\ntrain: {steps: 2}\n\
                eval: {test: {text: {files: [test.txt]}}, hellaswag: {file: items.jsonl}}\n";
    sandbox.write("exp.yaml", yaml);
    let item =
        |word: &str| format!("{{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"{word}\", \"b\", \"c\", \"d\"]}}\n");
    let parts = [("training data", "train.txt"), ("validation data", "val.txt"), ("test data", "test.txt")];
    let texts = |word: &str| parts.map(|(part, _)| format!("{part} {word} ").repeat(100));
    let write = |name: &str, text: &str| {
        sandbox.write(name, text);
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_577_836_801);
        fs::File::options().write(true).open(sandbox.path(name)).unwrap().set_modified(time).unwrap();
    };
    for ((_, name), text) in parts.iter().zip(texts("one")) {
        write(name, &text);
    }
    write("items.jsonl", &item("one"));
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    let lines = || sandbox.run(&["reproduce", &id, "--check", "--threads", "1"]).text();
    let changed = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("drift") && line.contains(" changed "));
        lines.map(|line| line[7..23].trim().to_owned()).filter(|what| what != "plan").collect()
    };
    assert_eq!(changed(&lines()), [""; 0], "{}", lines());
    for ((part, name), (old, new)) in parts.iter().zip(texts("one").iter().zip(texts("two"))) {
        write(name, &new);
        assert_eq!(changed(&lines()), [*part], "{}", lines());
        sandbox.show(0, "apply exp.yaml --threads 1 --quiet --until-step 1");
        write(name, old);
    }
    write("items.jsonl", &item("two"));
    assert_eq!(changed(&lines()), ["multiple choice"], "{}", lines());
    insta::assert_snapshot!(sandbox.screens());
}
