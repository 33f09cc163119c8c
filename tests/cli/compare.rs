//! `runner diff` and `runner compare`, on tiny runs and their experiment files.

use std::fs;
use std::sync::OnceLock;

use serde_json::Value;

use crate::sandbox::{Arguments, Finished, Sandbox};

const STEPS: usize = 12;

fn yaml(name: &str, micro_batch: usize, rest: &str) -> String {
    format!(
        "name: {name}\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
         data: {{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 8, micro_batch: {micro_batch}}}\ntrain: {{steps: {STEPS}}}\n\
         eval: {{every: 4, loss: {{batches: 1000}}}}\n{rest}"
    )
}

/// A sandbox with three experiments: `coarse` and `fine` differ in their micro-batches, `other` in its optimizer, too. They
/// evaluate on all validation rows.
fn new_sandbox() -> Sandbox {
    Sandbox::new()
        .with_numbers(3000)
        .with("coarse.yaml", yaml("coarse", 8, ""))
        .with("fine.yaml", yaml("fine", 4, ""))
        .with("other.yaml", yaml("other", 4, "optimizer: {sgd: {lr: 0.05}}\n"))
}

/// A sandbox with all three experiments trained. All tests share it and leave it as it is.
fn trained_sandbox() -> Sandbox {
    static SANDBOX: OnceLock<Sandbox> = OnceLock::new();
    let sandbox = SANDBOX.get_or_init(|| {
        let sandbox = new_sandbox();
        for name in ["coarse", "fine", "other"] {
            sandbox.expect(0, &format!("apply {name}.yaml --threads 1 --quiet"));
        }
        sandbox
    });
    sandbox.share_folder()
}

/// The JSON that a command prints with `--json`, whatever its exit code.
fn json_of(sandbox: &Sandbox, arguments: &(impl Arguments + ?Sized)) -> Value {
    sandbox.run(&[arguments.list(), vec!["--json"]].concat()).json()
}

fn effect<'a>(diff: &'a Value, key: &str) -> &'a str {
    let settings = diff["settings"].as_array().unwrap();
    settings.iter().find(|s| s["key"] == key).map_or("same", |s| s["effect"].as_str().unwrap())
}

#[test]
fn a_comparison_fits_the_terminal() {
    let sandbox = trained_sandbox();
    let text = |columns: &str| {
        Finished::of(sandbox.command("compare coarse fine other").env("COLUMNS", columns)).expect_code(0).stdout
    };
    let whole = sandbox.show(0, "compare coarse fine other");
    assert!(whole.lines().next().unwrap().len() > 80, "{whole}");
    for columns in ["80", "60"] {
        let text = text(columns);
        let (left_out, table): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with("left out"));
        let rows = table.iter().take(4);
        assert!(rows.clone().all(|row| row.chars().count() <= columns.parse().unwrap()), "{text}");
        assert!(left_out.len() == 1 && left_out[0].contains("time") && text.contains("val loss"), "{text}");
        // The settings in which the runs differ are what a reader compares.
        assert!(text.starts_with("run") && text.lines().next().unwrap().contains("micro_batch"), "{text}");
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn two_runs_are_compared_as_text_and_as_json() {
    let sandbox = trained_sandbox();
    let out = sandbox.run("diff coarse fine");
    let text = out.text();
    assert_eq!(out.code, 0, "{text}");
    for line in [
        "same mathematics, different rounding\n",
        "    ~ batch.micro_batch  8 → 4  rounding\n",
        "    ~ name               coarse → fine  bookkeeping\n",
        "~ micro-batches a step  1 → 2\n",
        "the same: data, program, machine",
        "losses first differ at step",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "no colours in a pipe");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let found = json_of(&sandbox, "diff coarse fine");
    assert_eq!(found["class"], "rounding");
    assert_eq!((&found["training"], &found["data_read"]), (&"rounding".into(), &true.into()));
    let outcomes = &found["outcomes"];
    assert_eq!(outcomes["common_steps"], STEPS);
    assert_eq!(outcomes["losses"].as_array().unwrap().last().unwrap()["step"], STEPS);
    // Twelve steps of sums in another order: far below the tolerance.
    assert_eq!(outcomes["first_beyond"], Value::Null, "{outcomes}");
    assert_eq!(outcomes["same_weights"], false);

    let found = json_of(&sandbox, "diff fine other");
    assert_eq!((&found["class"], &found["parts"]), (&"mathematics".into(), &serde_json::json!(["optimizer"])));
    assert_eq!(effect(&found, "optimizer"), "mathematics");
    assert_eq!(found["outcomes"]["first_beyond"], 2, "the first loss is before the first update");

    let found = json_of(&sandbox, "diff fine fine");
    assert_eq!((&found["class"], &found["outcomes"]["same_state"]), (&"same_run".into(), &true.into()));
    assert_eq!(found["outcomes"]["first_difference"], Value::Null);
}

#[test]
fn exit_codes_say_whether_it_is_the_same_run() {
    let sandbox = trained_sandbox();
    for (a, b, expected) in [("fine.yaml", "fine", 0), ("fine", "coarse", 3), ("other.yaml", "fine.yaml", 3)] {
        assert_eq!(sandbox.run(&["diff", a, b, "--exit-code"]).code, expected, "{a} {b}");
        assert_eq!(sandbox.run(&["diff", a, b]).code, 0, "without the flag");
    }
    // Another name, log or checkpoint is not the same run.
    let bookkeeping = ["diff", "fine.yaml", "fine", "--set", "log.every=3", "--exit-code"];
    sandbox.expect(3, &bookkeeping);
    assert_eq!(json_of(&sandbox, &bookkeeping)["class"], "bookkeeping");
}

#[test]
fn a_file_is_compared_with_its_run_and_what_was_changed_since() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply fine.yaml --threads 1 --quiet");
    let found = json_of(&sandbox, "diff fine.yaml fine");
    assert_eq!(
        (&found["class"], &found["a"]["kind"], &found["b"]["kind"]),
        (&"same_run".into(), &"file".into(), &"run".into())
    );
    assert_eq!(found["outcomes"], Value::Null, "a file has none");
    let found = json_of(&sandbox, "diff fine.yaml fine --set seed=5 --set parallel.bucket_mb=3");
    assert_eq!((&found["class"], &found["parts"]), (&"mathematics".into(), &serde_json::json!(["seed"])));
    assert_eq!(effect(&found, "parallel.bucket_mb"), "none");

    // The same file name with other content.
    let text = fs::read_to_string(sandbox.path("input.txt")).unwrap();
    fs::write(sandbox.path("input.txt"), text.replacen('4', "5", 3)).unwrap();
    let found = json_of(&sandbox, "diff fine.yaml fine");
    assert_eq!((&found["class"], &found["settings"]), (&"mathematics".into(), &serde_json::json!([])));
    assert_eq!(found["parts"][0], "data");

    // Without the file, by its name alone.
    fs::remove_file(sandbox.path("input.txt")).unwrap();
    let found = json_of(&sandbox, "diff fine.yaml fine");
    assert_eq!((&found["class"], &found["data_read"]), (&"same_run".into(), &false.into()));
    let note = found["notes"][0].as_str().unwrap();
    assert!(note.contains("data was not read") && note.contains("fine.yaml"), "{note}");

    // The program reports a record that was edited.
    let run = fs::read_dir(sandbox.path("runs")).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_dir());
    let resolved = run.unwrap().join("resolved.yaml");
    let text = fs::read_to_string(&resolved).unwrap();
    fs::write(&resolved, text.replace("seed: 1337", "seed: 7")).unwrap();
    let found = json_of(&sandbox, "diff fine fine");
    let notes: Vec<&str> = found["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    let [same, changed, edited] = notes.as_slice() else { panic!("each note once: {notes:?}") };
    assert!(*same == "A and B name the same run" && edited.contains("or the file was edited"), "{notes:?}");
    assert!(changed.contains("resolved.yaml changed since the run started"), "{notes:?}");
}

#[test]
fn rows_that_are_assumed_need_no_data() {
    let sandbox = new_sandbox();
    fs::remove_file(sandbox.path("input.txt")).unwrap();
    let found = json_of(&sandbox, "diff coarse.yaml fine.yaml --rows 1000");
    assert_eq!(
        (&found["class"], &found["data_read"], &found["data"]),
        (&"rounding".into(), &false.into(), &serde_json::json!([]))
    );
    assert!(fs::metadata(sandbox.path("cache")).is_err(), "nothing was prepared");
    sandbox.expect(2, "diff coarse.yaml fine.yaml --rows 5 --set data.drop_last=true");
}

#[test]
fn several_runs_are_compared_in_a_table() {
    let sandbox = trained_sandbox();
    let out = sandbox.run("compare coarse fine other --sort val_loss");
    let text = out.text();
    assert_eq!(out.code, 0, "{text}");
    let head: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(head[..4], ["run", "micro_batch", "optimizer", "steps"], "{text}");
    assert!(text.lines().skip(1).take(3).any(|line| line.contains('*')), "the best is marked: {text}");
    let found = json_of(&sandbox, "compare coarse fine other fine --sort val_loss");
    let runs = found["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3, "one that is named twice is there once");
    let losses: Vec<f64> = runs.iter().map(|r| r["outcomes"]["val_loss"].as_f64().unwrap()).collect();
    assert!(losses.is_sorted(), "{losses:?}");
    assert!(found["differing"].as_array().unwrap().contains(&"batch.micro_batch".into()));
    assert!(!found["differing"].as_array().unwrap().contains(&"seed".into()));
}

#[test]
fn wrong_requests_are_refused() {
    let sandbox = trained_sandbox();
    let cases: [(&[&str], &str); 6] = [
        (&["diff", "fine", "nothing"], "no experiment file nothing, and no run nothing"),
        (&["diff", "fine", "nothing.yaml"], "no experiment file nothing.yaml"),
        (&["diff", "input.txt", "fine"], "input.txt"),
        (&["diff", "fine.yaml", "fine", "--set", "optimizer.lr=1"], "optimizer"),
        (&["compare", "fine", "nothing"], "no run nothing"),
        (&["compare", "fine", "--sort", "speed"], "tokens_per_second"),
    ];
    for (arguments, message) in cases {
        let printed = sandbox.expect(2, arguments);
        assert!(printed.contains(message), "{arguments:?}: {printed}");
    }
}

#[test]
fn a_run_that_started_from_a_checkpoint_of_different_mathematics_is_not_the_same() {
    let sandbox = new_sandbox();
    let done = |line: &str| {
        sandbox.expect(0, &line.split(' ').collect::<Vec<_>>());
    };
    let sets = "--set optimizer={\"adamw\":{\"lr\":2e-4}} --set checkpoint.every=4 --set checkpoint.keep=9";
    done("apply fine.yaml --threads 1 --quiet --set checkpoint.every=4 --set checkpoint.keep=9");
    done("fork fine --threads 1 --quiet --from 4 --set optimizer={\"adamw\":{\"lr\":2e-4}} --set name=forked");
    done(&format!("apply fine.yaml --threads 1 --quiet --set name=fresh {sets}"));
    let found = json_of(&sandbox, "diff forked fresh");
    assert_eq!(
        (&found["class"], &found["parts"]),
        (&"mathematics".into(), &serde_json::json!(["beginning"])),
        "{found}"
    );
    assert_eq!(found["training"], "other");
    let fact = found["plan"].as_array().unwrap().iter().find(|fact| fact["name"] == "began with").unwrap();
    assert!(fact["a"].as_str().unwrap().starts_with("step 4 of fine-") && fact["b"].is_null(), "{fact}");
    sandbox.keep(sandbox.run("diff forked fresh"));
    sandbox.expect(3, "diff forked fresh --exit-code");
    let found = json_of(&sandbox, "diff fine forked");
    assert_eq!(found["parts"], serde_json::json!(["optimizer", "beginning"]));
    // Two of the same beginning are alike.
    assert_eq!(json_of(&sandbox, "diff forked forked")["class"], "same_run");
    // Under another layout the same was computed.
    done("apply coarse.yaml --threads 1 --quiet --continue fine --continue-step 8 --set name=continued");
    done("apply coarse.yaml --threads 1 --quiet");
    assert_eq!(json_of(&sandbox, "diff continued coarse")["class"], "rounding");
    insta::assert_snapshot!(sandbox.screens());
}
