//! Forks from checkpoints: the learning rates that count from a fork, the rows that a fork reads, its totals, and what it says of them.

#![cfg(target_os = "linux")]

use serde_json::Value;

use crate::sandbox::{RunFolder, Sandbox};

const SINGLE: &str = "";
const DP: &str = "parallel: {mode: dp, replicas: 2}\n";
const DDP: &str = "parallel: {mode: ddp, replicas: 2}\n";
const PIPELINE: &str = "parallel: {mode: pipeline, pipeline: {stages: 2}}\n";
const MESH: &str = "parallel: {mode: pipeline, replicas: 2, pipeline: {stages: 2}}\n";

const MODEL: &str = "model: {family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 8}\n";
/// 23 rows of 8 tokens.
const PACKED: &str = "data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: null";
/// 23 documents, one in each row.
const PADDED: &str = "data: {tokenizer: {bytes: {}}, train: {jsonl: {files: [input.jsonl]}}, validation: null, \
                      layout: {padded: {bos: <|endoftext|>, eos: <|endoftext|>, pad: <|endoftext|>}}";
const ROWS: usize = 23;

/// A sandbox with an experiment whose weights do not change, so that the loss of a step shows which rows it read.
fn frozen_experiment(data: &str, parallel: &str, sequences: usize, steps: usize) -> Sandbox {
    let yaml = format!(
        "version: 1\nname: lab\n{MODEL}{data}}}\nbatch: {{sequences: {sequences}, micro_batch: 1}}\ntrain: {{steps: {steps}}}\n\
         optimizer: {{sgd: {{lr: 1e-30}}}}\neval: {{loss: null}}\ncheckpoint: {{every: 1, keep: 9}}\n{parallel}"
    );
    let numbers = (0..200_u32).map(|i| (i * i % 97).to_string() + " ").collect::<String>();
    let documents: Vec<String> =
        (0..ROWS).map(|i| format!("{{\"text\": \"{}\"}}\n", &numbers[7 * i..8 * i + 2])).collect();
    let documents = documents.concat();
    Sandbox::new().with("exp.yaml", yaml).with("input.txt", &numbers[..=8 * ROWS]).with("input.jsonl", documents)
}

/// Losses and tokens of single rows in the order of training: row `place` of `epoch` is at `epoch` · 23 + `place`.
fn losses_of_rows(data: &str) -> Vec<(f64, f64)> {
    let sandbox = frozen_experiment(data, SINGLE, 1, 4 * ROWS);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let line = |line: &Value| (line["loss"].as_f64().unwrap(), line["tokens"].as_f64().unwrap());
    sandbox.only_run().metrics_of("train").iter().map(line).collect()
}

/// The run whose id is not `first`.
fn other(sandbox: &Sandbox, first: &str) -> RunFolder {
    sandbox.runs().into_iter().find(|(id, _)| id != first).unwrap().1
}

/// The numbers of a field in the steps of `run` after `step`.
fn own(run: &RunFolder, step: u64, field: &str) -> Vec<f64> {
    let lines = run.metrics_of("train");
    lines.iter().filter(|line| line["step"].as_u64() > Some(step)).map(|line| line[field].as_f64().unwrap()).collect()
}

/// The mean loss per token over the `sequences` rows from (epoch, place) on, which may continue in the next epoch.
fn mean_loss(rows: &[(f64, f64)], (epoch, place): (usize, usize), sequences: usize) -> f64 {
    let first = epoch * ROWS + place;
    let read = &rows[first..first + sequences];
    read.iter().map(|(loss, tokens)| loss * tokens).sum::<f64>() / read.iter().map(|(_, tokens)| tokens).sum::<f64>()
}

#[track_caller]
fn assert_close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}: {got:?}, expected {expected:?}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{what}: {got:?}, expected {expected:?}");
    }
}

/// A fork after `step` with batches of another size, under a layout.
struct ChangedBatch {
    name: &'static str,
    parallel: &'static str,
    data: &'static str,
    /// The keys of the data section, of the forked run and, as an override, of the fork.
    keys: &'static str,
    set: &'static str,
    step: u64,
    sequences: usize,
    /// The first row of each step of the fork: epoch and place in its order, both from 0.
    first_rows: &'static [(usize, usize)],
}

/// The forked run has batches of 4. Without `drop_last`, 7 of them end at row 5 of the second epoch. With it, an epoch has 20 rows, and 7
/// batches end at row 8.
const CHANGED_BATCHES: &[ChangedBatch] = {
    const NEXT: &[(usize, usize)] = &[(1, 5), (1, 11), (1, 17), (2, 0), (2, 6)];
    const DROPPING: &[(usize, usize)] = &[(1, 8), (1, 14), (2, 0), (2, 6), (2, 12), (3, 0)];
    const PLAIN: ChangedBatch = ChangedBatch {
        name: "plain",
        parallel: SINGLE,
        data: PACKED,
        keys: "",
        set: "seed=1337",
        step: 7,
        sequences: 6,
        first_rows: NEXT,
    };
    const DROP: ChangedBatch =
        ChangedBatch { name: "drop_last", keys: ", drop_last: true", first_rows: DROPPING, ..PLAIN };
    &[
        PLAIN,
        DROP,
        ChangedBatch {
            name: "an epoch's border",
            step: 5,
            sequences: 7,
            first_rows: &[(1, 0), (1, 7), (1, 14), (2, 0)],
            ..DROP
        },
        ChangedBatch {
            name: "drop_last from the fork on",
            keys: "",
            set: "data.drop_last=true",
            first_rows: NEXT,
            ..DROP
        },
        ChangedBatch {
            name: "no drop_last from the fork on",
            set: "data.drop_last=false",
            first_rows: &[(1, 8), (1, 14), (1, 20), (2, 3)],
            ..DROP
        },
        ChangedBatch { name: "no shuffle", keys: ", shuffle: false", ..PLAIN },
        ChangedBatch { name: "no shuffle, drop_last", keys: ", shuffle: false, drop_last: true", ..DROP },
        ChangedBatch { name: "no shuffle, another seed", keys: ", shuffle: false", set: "seed=3", ..PLAIN },
        ChangedBatch { name: "padded", data: PADDED, ..PLAIN },
        ChangedBatch { name: "padded, drop_last", data: PADDED, ..DROP },
        ChangedBatch { name: "a smaller batch", sequences: 2, first_rows: &[(1, 5), (1, 7), (1, 9)], ..PLAIN },
        ChangedBatch { name: "dp", parallel: DP, ..DROP },
        ChangedBatch { name: "ddp", parallel: DDP, ..DROP },
        ChangedBatch { name: "ddp without drop_last", parallel: DDP, ..PLAIN },
        ChangedBatch { name: "pipeline", parallel: PIPELINE, set: "parallel.pipeline.microbatches=6", ..DROP },
        ChangedBatch { name: "pipelines", parallel: MESH, set: "parallel.pipeline.microbatches=3", ..DROP },
        ChangedBatch { name: "padded under ddp", parallel: DDP, data: PADDED, ..DROP },
    ]
};

#[test]
fn a_fork_with_a_different_batch_reads_exactly_the_next_rows() {
    let mut references: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for case in CHANGED_BATCHES {
        let ChangedBatch { name, parallel, data, keys, set, step, sequences, first_rows } = case;
        let sandbox = frozen_experiment(&format!("{data}{keys}"), parallel, 4, 7);
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
        let id = sandbox.only_run().id();
        let steps = step + first_rows.len() as u64;
        let fork = format!(
            "fork {id} --from {step} --set batch.sequences={sequences} --set {set} --set train.steps={steps} --threads 1"
        );
        sandbox.expect(0, &fork);
        let run = other(&sandbox, &id);
        // Single rows in the same order.
        let order = format!("{data}{}", if keys.contains("shuffle") { ", shuffle: false" } else { "" });
        if !references.iter().any(|(known, _)| *known == order) {
            references.push((order.clone(), losses_of_rows(&order)));
        }
        let rows = &references.iter().find(|(known, _)| *known == order).unwrap().1;
        let expected: Vec<f64> = first_rows.iter().map(|first| mean_loss(rows, *first, *sequences)).collect();
        assert_close(&own(&run, *step, "loss"), &expected, name);
        // The losses identify the rows: the rows after them have different ones.
        let shifted = first_rows.iter().map(|&(epoch, place)| mean_loss(rows, (epoch, place + 1), *sequences));
        assert!(expected.iter().zip(shifted).all(|(a, b)| (a - b).abs() > 1e-5 * a), "{name}: {expected:?}");
    }
}

/// The epochs of a fork with `drop_last`: two batches of 6 are left of the second epoch, whose 20 rows they end, then an epoch has 18.
#[test]
fn a_fork_records_its_position_epochs_and_tokens() {
    let sandbox = frozen_experiment(&format!("{PACKED}, drop_last: true"), SINGLE, 4, 7);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let first = sandbox.only_run();
    let id = first.id();
    let state = |run: &RunFolder, step: u64| crate::sandbox::read_json(&run.checkpoint(step).join("state.json"));
    let position = serde_json::json!({"step": 7, "epoch": 1, "row": 8, "rows": 28, "tokens": 224});
    assert_eq!(state(&first, 7)["position"], position);
    sandbox.show(0, &format!("fork {id} --from 7 --set batch.sequences=6 --set train.steps=11 --threads 1"));
    let run = other(&sandbox, &id);
    assert_close(&own(&run, 7, "epoch"), &[1.7, 2.0, 2.0 + 6.0 / 18.0, 2.0 + 12.0 / 18.0], "epochs");
    assert_eq!(
        state(&run, 11)["position"],
        serde_json::json!({"step": 11, "epoch": 2, "row": 12, "rows": 52, "tokens": 416})
    );
    let summary = run.summary();
    let amounts = ["steps", "own_steps", "tokens", "own_tokens"].map(|field| summary[field].as_u64().unwrap());
    assert_eq!(amounts, [11, 4, 416, 192]);
    let seconds = |run: &RunFolder, after: u64| own(run, after, "step_ms").iter().sum::<f64>() / 1e3;
    let [total, own_time] = ["wall_seconds", "own_wall_seconds"].map(|field| summary[field].as_f64().unwrap());
    assert!((total - own_time - seconds(&first, 0)).abs() < 1e-9, "{summary}");
    // Every other output has the same amounts.
    let compared = sandbox.json_of(&format!("compare {} {id} --json", run.id()));
    let outcomes = &compared["runs"][0]["outcomes"];
    for field in ["steps", "own_steps", "tokens", "own_tokens", "wall_seconds", "own_wall_seconds"] {
        assert_eq!(outcomes[field], summary[field], "{field}: {compared}");
    }
    assert!(!compared.to_string().contains("position null"), "{compared}");
    let table = sandbox.show(0, &format!("compare {} {id}", run.id()));
    assert!(!table.lines().next().unwrap().contains("row"), "the position is no column: {table}");
    sandbox.expect(0, &format!("export-metrics {} --csv out.csv", run.id()));
    let last = sandbox.read("out.csv").lines().last().unwrap().to_owned();
    let head = sandbox.read("out.csv").lines().next().unwrap().to_owned();
    let column = head.split(',').position(|name| name == "cumulative_tokens").unwrap();
    assert_eq!(last.split(',').nth(column), Some("416"), "{last}");
    sandbox.expect(0, &format!("report {} {id} -o page.html", run.id()));
    let page = sandbox.read("page.html");
    assert!(page.contains("\"tokens\":416,\"own_tokens\":192"), "{page}");
    assert!(!page.contains("position null"), "{page}");
    // Its plan counts as the record does.
    let resolved = run.path("resolved.yaml").display().to_string();
    let plan = sandbox.json_of(&["plan", &resolved, "--json"]);
    let totals = &plan["totals"];
    assert_eq!((totals["tokens"].as_u64(), plan["hash"].as_str()), (Some(416), run.manifest()["plan_hash"].as_str()));
    assert_close(&[totals["epochs"].as_f64().unwrap()], &[2.0 + 12.0 / 18.0], "epochs of the plan");
    let listed = sandbox.json_of(&["runs", "--json"]);
    let listed = listed.as_array().unwrap().iter().find(|listed| listed["id"] == run.id().as_str()).unwrap().clone();
    assert_eq!((&listed["step"], &listed["own_steps"]), (&11.into(), &4.into()));
    assert_eq!((&listed["tokens"], &listed["own_tokens"]), (&416.into(), &192.into()));
    assert_eq!((&listed["seconds"], &listed["own_seconds"]), (&summary["wall_seconds"], &summary["own_wall_seconds"]));
    sandbox.show(0, &format!("runs show {}", run.id()));
    // A file with its position starts at step 0, where the position means nothing.
    sandbox.show(2, &["apply", &resolved, "--threads", "1"]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_killed_and_resumed_fork_ends_in_the_bits_of_an_uninterrupted_one() {
    for (parallel, name, set) in [
        (SINGLE, "single", "seed=1337"),
        (DDP, "ddp", "seed=1337"),
        (PIPELINE, "pipeline", "parallel.pipeline.microbatches=6"),
    ] {
        let sandbox = frozen_experiment(&format!("{PACKED}, drop_last: true"), parallel, 4, 7);
        sandbox.edit("exp.yaml", "sgd: {lr: 1e-30}", "adamw: {lr: 1e-2}");
        sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
        let id = sandbox.only_run().id();
        let fork = format!(
            "fork {id} --from 7 --set batch.sequences=6 --set schedule.start=fork --set train.steps=40 --threads 1 \
             --set schedule.decay={{\"linear\":{{\"final\":0}}}} --set {set} --quiet"
        );
        let mut process = sandbox.spawn_until(&fork, |run| run.id() != id && run.has_step(12));
        process.kill();
        let broken = other(&sandbox, &id);
        sandbox.expect(0, &format!("resume {} --until-step 20 --threads 1 --quiet", broken.id()));
        sandbox.expect(0, &format!("resume {} --threads 1 --quiet", broken.id()));
        sandbox.expect(0, &format!("{fork} --new"));
        let whole = sandbox.runs().into_values().find(|run| ![&id, &broken.id()].contains(&&run.id())).unwrap();
        assert_eq!((broken.numbers(), broken.final_hash()), (whole.numbers(), whole.final_hash()), "{name}");
        let printed = sandbox.expect(0, &format!("reproduce {} --threads 1", broken.id()));
        assert!(printed.contains("bitwise: "), "{name}: {printed}");
        // 1e-2 · (1 - n/33) in the fork's step n, counted from 0.
        let rates: Vec<f64> = (0..33).map(|n| 1e-2 * (1.0 - f64::from(n) / 33.0)).collect();
        assert_close(&own(&whole, 7, "lr"), &rates, name);
    }
}

#[test]
fn other_data_is_read_from_its_first_row() {
    let sandbox = frozen_experiment(PACKED, SINGLE, 4, 7);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    for set in ["seed=3", "data.shuffle=false", "data.layout.packed.length=4"] {
        let name = set.split('=').next().unwrap().replace('.', "-");
        let fork = format!("fork {id} --from 7 --name {name} --set {set} --set train.steps=9 --threads 1");
        sandbox.show(0, &fork);
        let run = sandbox.runs().into_values().find(|run| run.id().starts_with(&name)).unwrap();
        // The experiment with this change reads the same rows in its first steps.
        sandbox.expect(
            0,
            &format!("apply exp.yaml --set {set} --set name=from-start --set train.steps=2 --threads 1 --quiet"),
        );
        let fresh = sandbox.runs().into_values().find(|run| run.id().starts_with("from-start")).unwrap();
        let losses = |run: &RunFolder, step: u64| own(run, step, "loss");
        // Another seed draws other weights, too: their order alone can be compared by the epochs.
        if !set.starts_with("seed") {
            assert_close(&losses(&run, 7), &losses(&fresh, 0), set);
        }
        assert_close(&own(&run, 7, "epoch"), &own(&fresh, 0, "epoch"), set);
        std::fs::remove_dir_all(&fresh.0).unwrap();
    }
    // A fork of a fork continues from there.
    let first = sandbox.runs().into_values().find(|run| run.id().starts_with("data-shuffle")).unwrap();
    sandbox.expect(0, &format!("fork {} --from 9 --name again --set train.steps=11 --threads 1 --quiet", first.id()));
    let again = sandbox.runs().into_values().find(|run| run.id().starts_with("again")).unwrap();
    let rows = losses_of_rows(&format!("{PACKED}, shuffle: false"));
    assert_close(
        &own(&again, 9, "loss"),
        &[mean_loss(&rows, (0, 8), 4), mean_loss(&rows, (0, 12), 4)],
        "a fork of a fork",
    );
    insta::assert_snapshot!(sandbox.screens());
}

/// Lengths in tokens and epochs count what the forked run read: 28 rows of 8 tokens, 224 tokens.
#[test]
fn lengths_in_tokens_and_epochs_count_the_steps_before_the_fork() {
    let sandbox = frozen_experiment(PACKED, SINGLE, 4, 7);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    // 416 tokens are 4 steps of 48 more. Two epochs are 46 rows: 18 more, 3 steps of 6.
    for (set, steps) in [("train.tokens=416", 11), ("train.tokens=463", 11), ("train.epochs=2", 10)] {
        let name = format!("to-{steps}-{}", set.len());
        sandbox.expect(
            0,
            &format!("fork {id} --from 7 --name {name} --set batch.sequences=6 --set {set} --threads 1 --quiet --new"),
        );
        let run = sandbox.runs().into_values().rfind(|run| run.id().starts_with(&name)).unwrap();
        assert_eq!(run.manifest()["steps"], steps, "{set}");
        std::fs::remove_dir_all(&run.0).unwrap();
    }
    sandbox.show(2, &format!("fork {id} --from 7 --set batch.sequences=6 --set train.tokens=224 --threads 1 --quiet"));
    insta::assert_snapshot!(sandbox.screens());
}

/// A sandbox with a run of 12 steps, of which each fourth has a checkpoint, and its id.
fn trained(schedule: &str) -> (Sandbox, String) {
    let sandbox = frozen_experiment(PACKED, SINGLE, 4, 12);
    sandbox.edit("exp.yaml", "sgd: {lr: 1e-30}}", &format!("adamw: {{lr: 1e-3}}}}\n{schedule}"));
    sandbox.edit("exp.yaml", "every: 1,", "every: 4,");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    (sandbox, id)
}

#[test]
fn a_decay_from_the_rate_of_the_checkpoint_keeps_its_rates_under_another_layout() {
    let decay = |share: f64| {
        let decay = format!("schedule.decay={{linear: {{final: {share:?}, steps: 4}}}}");
        ["schedule.start=fork".to_owned(), "schedule.warmup.steps=0".to_owned(), decay, "train.steps=12".to_owned()]
    };
    for (schedule, share, rates) in [
        ("", 0.0, [1e-3, 0.75e-3, 0.5e-3, 0.25e-3]),
        ("schedule: {warmup: {steps: 4}}\n", 0.2, [1e-3, 0.8e-3, 0.6e-3, 0.4e-3]),
    ] {
        let (sandbox, id) = trained(schedule);
        let sets = decay(share);
        let sets = sets.iter().flat_map(|set| ["--set", set.as_str()]);
        let fork = ["fork", &id, "--from", "8", "--name", "cool", "--threads", "1"];
        let printed = sandbox.expect(0, &fork.into_iter().chain(sets).collect::<Vec<_>>()[..]);
        assert!(!printed.contains("warning"), "{printed}");
        let run = sandbox.runs().into_values().find(|run| run.id().starts_with("cool")).unwrap();
        assert_close(&own(&run, 8, "lr"), &rates, schedule);
        assert_eq!(run.manifest()["steps"], 12);
        let resolved = run.path("resolved.yaml").display().to_string();
        for name in [&resolved, &run.id()] {
            assert_eq!(sandbox.json_of(&["plan", name, "--json"])["hash"], run.manifest()["plan_hash"], "{name}");
        }
        // The same training under another layout has the same rates.
        let continued = [
            "apply",
            &resolved,
            "--continue",
            &run.id(),
            "--continue-step",
            "8",
            "--set",
            "parallel.mode=ddp",
            "--set",
            "parallel.replicas=2",
            "--set",
            "name=layout",
            "--threads",
            "1",
            "--quiet",
        ];
        sandbox.expect(0, &continued);
        let layout = sandbox.runs().into_values().find(|run| run.id().starts_with("layout")).unwrap();
        assert_close(&own(&layout, 8, "lr"), &rates, &format!("{schedule} under ddp"));
    }
}

#[test]
fn a_warmup_can_count_from_a_fork() {
    let (sandbox, id) = trained("");
    let sets = ["--set", "schedule.start=fork", "--set", "schedule.warmup.steps=4", "--set", "train.steps=14"];
    let fork = [&["fork", &id, "--from", "8", "--name", "warm", "--threads", "1"], &sets[..]].concat();
    sandbox.show(0, &fork);
    let run = sandbox.runs().into_values().find(|run| run.id().starts_with("warm")).unwrap();
    assert_close(&own(&run, 8, "lr"), &[2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3], "a warmup");
    assert!(run.read("resolved.yaml").contains("start: 8"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_fork_warns_of_rates_that_are_zero_or_jump() {
    let (sandbox, id) = trained("schedule: {decay: {cosine: {final: 0.1}}}\n");
    let fork = |name: &str, set: &str, steps: u64| {
        let steps = format!("train.steps={steps}");
        let fork = ["fork", &id, "--from", "8", "--name", name, "--threads", "1", "--set", set, "--set", &steps];
        sandbox.show(0, &fork)
    };
    fork("zero", "schedule.decay={linear: {final: 0, steps: 4}}", 12);
    let zero = sandbox.runs().into_values().find(|run| run.id().starts_with("zero")).unwrap();
    for name in [zero.id(), zero.path("resolved.yaml").display().to_string()] {
        sandbox.show(0, &["plan", &name]);
    }
    // A decay that ended with the run that is forked.
    let decay = "schedule.decay={linear: {final: 0.0, steps: 2}}";
    let cooling = ["fork", &id, "--from", "8", "--name", "cool", "--threads", "1", "--quiet", "--set", decay];
    let sets = ["schedule.start=fork", "schedule.warmup.steps=0", "optimizer.adamw.lr=3.25e-4", "train.steps=10"];
    let sets = sets.iter().flat_map(|set| ["--set", set]);
    let printed = sandbox.expect(0, &cooling.into_iter().chain(sets).collect::<Vec<_>>()[..]);
    assert!(!printed.contains("warning"), "{printed}");
    let cool = sandbox.runs().into_values().find(|run| run.id().starts_with("cool")).unwrap().id();
    sandbox.show(0, &format!("fork {cool} --from 10 --set train.steps=12 --threads 1 --quiet"));
    // A longer run stretches the cosine: (0.1 + 0.9 · (1 + cos(8π/24)) / 2) / 0.325 = 0.775 / 0.325 = 2.385.
    fork("longer", "seed=1337", 24);
    // 1.4 times the peak is 1.4 times the rate.
    fork("near", "optimizer.adamw.lr=1.4e-3", 12);
    fork("far", "optimizer.adamw.lr=1.6e-3", 12);
    // A plan without a fork warns as well.
    sandbox.show(0, &["plan", "exp.yaml", "--set", "schedule.decay={linear: {final: 0, steps: 4}}"]);
    sandbox.show(2, &["validate", "exp.yaml", "--set", "schedule.start=fork"]);
    insta::assert_snapshot!(sandbox.screens());
}
