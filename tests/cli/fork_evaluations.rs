//! The evaluations that a fork inherits, its optimizer's moments, and the tokens that it counts.

use serde_json::Value;

use crate::sandbox::{RunFolder, Sandbox};

const ITEMS: &str = "{\"ctx\": \"1 4 9\", \"label\": 0, \"endings\": [\"16\", \"25\", \"36\", \"49\"]}\n\
                     {\"ctx\": \"0 1 4\", \"label\": 1, \"endings\": [\"16\", \"9\", \"36\", \"49\"]}\n";

/// A sandbox with a run of 8 steps, which is evaluated after each second step and saved after each fourth, and the id of the run.
fn trained() -> (Sandbox, String) {
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 16}\n\
                data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.3}, \
                layout: {packed: {length: 8}}}\n\
                batch: {sequences: 2, micro_batch: 1}\ntrain: {steps: 8}\noptimizer: {adamw: {lr: 1e-3}}\n\
                eval: {every: 2, loss: {rows: 3}, hellaswag: {file: items.jsonl}}\ncheckpoint: {every: 4, keep: 9}\n";
    let sandbox = Sandbox::new().with("exp.yaml", yaml).with("items.jsonl", ITEMS).with_numbers(200);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    (sandbox, id)
}

/// The run whose id begins with `name`.
fn named(sandbox: &Sandbox, name: &str) -> RunFolder {
    sandbox.runs().into_values().find(|run| run.id().starts_with(name)).unwrap()
}

/// The steps of evaluations of `run` that have the number `field`.
fn steps_with(run: &RunFolder, field: &str) -> Vec<u64> {
    let lines = run.metrics_of("eval");
    lines.iter().filter(|line| line[field].is_number()).map(|line| line["step"].as_u64().unwrap()).collect()
}

#[test]
fn a_fork_inherits_only_evaluations_that_compare_with_its_own() {
    let (sandbox, id) = trained();
    let (all, own) = (&[2, 4, 6, 8][..], &[6, 8][..]);
    let items = "eval.hellaswag={file: items.jsonl, limit: 1}";
    for (set, losses, accuracies) in [
        ("optimizer.adamw.lr=2e-3", all, all),
        ("eval.every=2", all, all),
        ("eval.loss.rows=5", own, all),
        ("data.validation.fraction=0.2", own, all),
        ("data.layout.packed.length=16", own, all),
        ("model.causal=false|eval.hellaswag=null", own, &[]),
        ("eval.loss=null", &[], all),
        (items, all, own),
        ("eval.hellaswag=null", all, &[]),
    ] {
        let fork = ["fork", &id, "--from", "4", "--name", "other", "--threads", "1", "--quiet"];
        let sets: Vec<&str> = set.split('|').flat_map(|set| ["--set", set]).collect();
        sandbox.show(0, &[&fork[..], &sets[..]].concat());
        let run = named(&sandbox, "other");
        assert_eq!(steps_with(&run, "val_loss"), losses, "{set}");
        assert_eq!(steps_with(&run, "val_bits_per_byte"), losses, "{set}");
        assert_eq!(steps_with(&run, "hellaswag_acc"), accuracies, "{set}");
        assert_eq!(run.metrics_of("train").len(), 8, "{set}");
        sandbox.show(0, &format!("runs show {}", run.id()));
        // Checkpoints remember the best loss of the same measure alone.
        let state = crate::sandbox::read_json(&run.checkpoint(4).join("state.json"));
        assert_eq!(state["best"].is_null(), losses != all, "{set}: {state}");
        std::fs::remove_dir_all(&run.0).unwrap();
    }
    insta::assert_snapshot!(sandbox.screens());
}

/// Padded rows put `bos` in front of the context of a multiple-choice item, and packed rows put nothing there.
#[test]
fn a_fork_does_not_inherit_accuracies_of_contexts_that_start_with_a_different_token() {
    let (sandbox, id) = trained();
    let padded = "data.layout={padded: {length: 8, bos: '<|endoftext|>', eos: '<|endoftext|>', pad: '<|endoftext|>'}}";
    let train = "data.train={jsonl: {files: [docs.jsonl]}}";
    sandbox.write("docs.jsonl", "{\"text\": \"1 4 9\"}\n".repeat(20));
    let fork =
        ["fork", &id, "--from", "4", "--name", "other", "--threads", "1", "--quiet", "--set", train, "--set", padded];
    sandbox.show(0, &fork);
    assert_eq!(steps_with(&named(&sandbox, "other"), "hellaswag_acc"), [6, 8]);
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_fork_says_that_rows_keep_their_length_in_a_changed_context() {
    let (sandbox, id) = trained();
    let fork = |set: &str| {
        let fork = ["fork", &id, "--from", "4", "--new", "--name", "other", "--threads", "1", "--quiet"];
        sandbox.keep(sandbox.run(&[&fork[..], &["--set", "model.context_length=24", "--set", set]].concat()));
    };
    fork("train.steps=8");
    fork("data.layout.packed.length=24");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_fork_warns_of_validation_data_that_the_forked_run_trained_on() {
    let (sandbox, id) = trained();
    let text = sandbox.read("input.txt");
    sandbox.write("other.txt", text.repeat(2));
    for set in [
        "data.validation.fraction=0.4",
        "data.validation.fraction=0.2",
        "data.validation.fraction=0.3",
        "data.train.text.files=[other.txt]",
        "data.validation={text: {files: [other.txt]}}",
    ] {
        sandbox.show(0, &["fork", &id, "--from", "4", "--new", "--threads", "1", "--quiet", "--set", set]);
    }
    // From its start a run has trained on nothing.
    sandbox.show(
        0,
        &["fork", &id, "--from", "start", "--threads", "1", "--quiet", "--set", "data.validation.fraction=0.4"],
    );
    insta::assert_snapshot!(sandbox.screens());
}

/// A fork whose steps make the weights worse: the best checkpoint is the one that it began with, and its test is named as that.
#[test]
fn the_test_of_an_inherited_checkpoint_is_named_as_such() {
    let (sandbox, id) = trained();
    sandbox.write("test.txt", &sandbox.read("input.txt")[..200]);
    let run = |lr: &str| {
        let test = "eval.test={text: {files: [test.txt]}}";
        let fork =
            ["fork", &id, "--from", "8", "--threads", "1", "--set", test, "--set", "train.steps=12", "--set", lr];
        sandbox.expect(0, &fork)
    };
    let printed = run("optimizer.adamw.lr=100");
    assert!(printed.contains("(inherited checkpoint of step 8, "), "{printed}");
    let printed = run("optimizer.adamw.lr=1e-2");
    assert!(printed.contains("(checkpoint of step 12, ") && !printed.contains("(inherited"), "{printed}");
}

#[test]
fn a_run_that_continues_another_with_different_measurements_starts_without_its_evaluations() {
    let (sandbox, id) = trained();
    sandbox
        .expect(0, &format!("fork {id} --from 4 --name first --set train.steps=12 --until-step 6 --threads 1 --quiet"));
    let first = named(&sandbox, "first");
    let resolved = first.path("resolved.yaml").display().to_string();
    let continued =
        ["apply", &resolved, "--continue", &first.id(), "--set", "name=second", "--threads", "1", "--quiet"];
    let sets = ["--set", "batch.micro_batch=2", "--set", "eval.loss.rows=5"];
    sandbox.show(0, &[&continued[..], &sets[..]].concat());
    let run = named(&sandbox, "second");
    assert_eq!(steps_with(&run, "val_loss"), [8, 10, 12]);
    assert_eq!(steps_with(&run, "hellaswag_acc"), [2, 4, 6, 8, 10, 12]);
    // A comparison has the time of all steps.
    let compared = sandbox.json_of(&format!("compare {} {id} --json", run.id()));
    let (summary, time) = (run.summary(), &compared["runs"][0]["outcomes"]["wall_seconds"]);
    let seconds = |value: &Value| value.as_f64().unwrap();
    assert_eq!(*time, summary["wall_seconds"], "{compared}");
    assert!(seconds(&summary["wall_seconds"]) > seconds(&summary["own_wall_seconds"]), "{compared}");
    // What other programs get, and the repetition of the run.
    sandbox.expect(0, &format!("export-metrics {} --csv out.csv", run.id()));
    let csv = sandbox.read("out.csv");
    let column = csv.lines().next().unwrap().split(',').position(|name| name == "val_loss").unwrap();
    let exported = csv.lines().skip(1).filter(|row| !row.split(',').nth(column).unwrap().is_empty()).count();
    assert_eq!(exported, 3, "{csv}");
    sandbox.show(0, &format!("reproduce {} --threads 1", run.id()));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_fork_keeps_the_optimizers_moments_where_the_new_one_has_them() {
    let (sandbox, id) = trained();
    for (name, set) in [
        ("sgd", "optimizer={sgd: {lr: 1e-3, momentum: 0}}"),
        ("betas", "optimizer.adamw.betas=[0.8, 0.9]"),
        ("rate", "optimizer.adamw.lr=1.1e-3"),
    ] {
        sandbox.expect(0, &["fork", &id, "--from", "4", "--name", name, "--threads", "1", "--set", set]);
        let saved = std::fs::read(named(&sandbox, name).checkpoint(8).join("optimizer.safetensors")).unwrap();
        assert_eq!(String::from_utf8_lossy(&saved).contains("wte.weight.v"), name != "sgd", "{name}");
    }
    sandbox.show(
        2,
        &["fork", &id, "--from", "4", "--threads", "1", "--set", "optimizer={sgd: {lr: 1e-3, momentum: 0.9}}"],
    );
    insta::assert_snapshot!(sandbox.screens());
}

/// Checkpoints have Lion's moment: a fork with the same settings computes the same. SGD with momentum cannot use it, although it has one, too.
#[test]
fn a_fork_continues_with_lions_moment() {
    let (sandbox, id) = trained();
    let fork = |code, [id, from, name, set]: [&str; 4]| {
        sandbox.show(code, &["fork", id, "--from", from, "--name", name, "--threads", "1", "--set", set])
    };
    let lion = "optimizer={lion: {lr: 1e-3, weight_decay: 0.1}}";
    fork(0, [&id, "start", "lion", lion]);
    let first = named(&sandbox, "lion");
    fork(0, [&first.id(), "4", "again", "optimizer.lion.weight_decay=0.1"]);
    let again = named(&sandbox, "again");
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let [a, b] = [&first, &again].map(|run| std::fs::read(run.checkpoint(8).join(file)).unwrap());
        assert!(a == b, "{file}");
        assert_eq!(String::from_utf8_lossy(&a).contains("wte.weight.m"), file == "optimizer.safetensors", "{file}");
    }
    fork(2, [&first.id(), "4", "sgd", "optimizer={sgd: {lr: 1e-3, momentum: 0.9}}"]);
    insta::assert_snapshot!(sandbox.screens());
}

/// Documents of 1 to 6 bytes in rows of 8 tokens: each has its bytes and the end of the text as targets.
#[test]
fn a_fork_counts_tokens_without_padding() {
    let yaml = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 8}\n\
                data: {tokenizer: {bytes: {}}, train: {jsonl: {files: [input.jsonl]}}, validation: null, shuffle: false, \
                layout: {padded: {bos: <|endoftext|>, eos: <|endoftext|>, pad: <|endoftext|>}}}\n\
                batch: {sequences: 2}\ntrain: {steps: 2}\noptimizer: {adamw: {lr: 1e-3}}\neval: {loss: null}\n";
    let documents: Vec<String> = (1..=6).map(|n| format!("{{\"text\": \"{}\"}}\n", "a".repeat(n))).collect();
    let sandbox = Sandbox::new().with("exp.yaml", yaml).with("input.jsonl", documents.concat());
    // (1 + 1) + (2 + 1) + (3 + 1) + (4 + 1) = 14, and (5 + 1) + (6 + 1) = 13.
    sandbox.show(0, "plan exp.yaml");
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let id = sandbox.only_run().id();
    sandbox.show(0, &format!("fork {id} --from 2 --set train.steps=3 --threads 1"));
    let run = sandbox.runs().into_values().find(|run| run.id() != id).unwrap();
    let tokens = |line: &Value| line["tokens"].as_u64().unwrap();
    assert_eq!(run.metrics_of("train").iter().map(tokens).collect::<Vec<_>>(), [5, 9, 13]);
    insta::assert_snapshot!(sandbox.screens());
}
