//! Tasks of multiple choice that a file names.

use serde_json::json;

use crate::sandbox::Sandbox;

const YAML: &str = "version: 1\nname: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 16}\n\
    data: {tokenizer: {bytes: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.3}, \
    layout: {packed: {length: 8}}}\n\
    batch: {sequences: 2, micro_batch: 1}\ntrain: {steps: 4}\noptimizer: {adamw: {lr: 1e-3}}\n";

/// The same two items in HellaSwag's form, and with fields of their own: a list with labels, and a field for each answer.
const HELLASWAG: &str = "{\"ctx\": \"Q 1 4\", \"label\": 0, \"endings\": [\"9\", \"25\"]}\n\
    {\"ctx\": \"Q 0 1\", \"label\": 1, \"endings\": [\"16\", \"4\"]}\n";
const LISTS: &str = "{\"q\": {\"stem\": \"1 4\"}, \"key\": \"A\", \"c\": {\"text\": [\"9\", \"25\"], \"label\": [\"A\", \"B\"]}}\n\
    {\"q\": {\"stem\": \"0 1\"}, \"key\": \"B\", \"c\": {\"text\": [\"16\", \"4\"], \"label\": [\"A\", \"B\"]}}\n";
const FIELDS: &str = "{\"q\": \"Q 1 4\", \"one\": \"9\", \"two\": \"25\", \"right\": \"1\"}\n\
    {\"q\": \"Q 0 1\", \"one\": \"16\", \"two\": \"4\", \"right\": \"2\"}\n";

const EVAL: &str = "eval:\n  every: 2\n  loss: {rows: 3}\n  hellaswag: {file: items.jsonl}\n  tasks:\n    \
    lists: {file: lists.jsonl, context: 'Q {{ q.stem }}', choices: [c.text], answer: key, labels: [c.label], every: 4}\n    \
    pairs: {file: pairs.jsonl, context: q, choices: [one, two], answer: right, labels: ['1', '2']}\n";

fn sandbox(eval: &str) -> Sandbox {
    Sandbox::new()
        .with("exp.yaml", format!("{YAML}{eval}"))
        .with("items.jsonl", HELLASWAG)
        .with("lists.jsonl", LISTS)
        .with("pairs.jsonl", FIELDS)
        .with_numbers(200)
}

#[test]
fn tasks_of_a_file_are_scored_like_hellaswag() {
    let sandbox = sandbox(EVAL);
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    let lines = run.metrics_of("eval");
    assert_eq!(lines.iter().map(|line| &line["step"]).collect::<Vec<_>>(), [&json!(2), &json!(4)]);
    assert!(lines[0]["lists_acc"].is_null() && lines[0]["pairs_n"] == 2, "{}", lines[0]);
    for score in ["acc", "acc_norm", "acc_norm_chars", "n"] {
        let of = |task: &str| &lines[1][format!("{task}_{score}")];
        assert!(of("hellaswag").is_number(), "{score}");
        assert_eq!([of("lists"), of("pairs")], [of("hellaswag"); 2], "{score}");
    }
    // The scores have their places wherever numbers of runs are read.
    let id = run.id();
    let page = sandbox.expect(0, &format!("runs show {id}"));
    let rows = ["hellaswag", "lists", "pairs"].map(|task| format!("  {task:<12}acc "));
    assert!(rows.iter().all(|row| page.contains(row)), "{page}");
    let listed = sandbox.expect(0, &["runs", "--where", "lists_acc >= 0 and pairs_n == 2", "--sort", "lists_acc"]);
    assert!(listed.contains(&id), "{listed}");
    let refused = sandbox.expect(2, &["runs", "--where", "list_acc >= 0"]);
    assert!(refused.contains("did you mean `lists_acc`?"), "{refused}");
    sandbox.expect(0, &format!("export-metrics {id} --csv a.csv"));
    let header = sandbox.read("a.csv");
    assert!(header.lines().next().unwrap().contains("lists_n,lists_cut,pairs_n,pairs_cut"), "{header}");
    let evaluated = sandbox.json_of(&format!("eval {id} --json --items scored.jsonl"));
    assert_eq!(evaluated["lists_acc"], lines[1]["lists_acc"], "{evaluated}");
    assert_eq!((&evaluated["pairs_text"], &evaluated["hellaswag_text"]), (&json!("raw"), &json!("raw")));
    let items = sandbox.read("scored.jsonl");
    assert_eq!(items.matches("\"task\":\"lists\"").count(), 2, "{items}");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_sweep_may_compare_its_points_by_a_task() {
    let sandbox = sandbox(EVAL).with(
        "sweep.yaml",
        "sweep: {base: exp.yaml, grid: {optimizer.adamw.lr: [1e-3, 1e-2]}, objective: {metric: pairs_acc_norm}}\n",
    );
    let printed = sandbox.expect(0, "sweep sweep.yaml --threads 1");
    assert!(printed.contains("pairs_acc_norm"), "{printed}");
    let refused =
        sandbox.with("sweep.yaml", "sweep: {base: exp.yaml, grid: {seed: [1, 2]}, objective: {metric: other_acc}}\n");
    refused.show(2, "sweep sweep.yaml --dry-run");
    insta::assert_snapshot!(refused.screens());
}

#[test]
fn mistakes_of_tasks_are_named_at_their_place() {
    let mut screens = String::new();
    for task in [
        "1st: {file: lists.jsonl}",
        "hellaswag: {file: items.jsonl}",
        "quiz: {limit: 3}",
        "quiz: {file: absent.jsonl}",
        "quiz: {file: lists.jsonl, contxt: q}",
        "quiz: {file: lists.jsonl, context: 'Q {{ q.stem '}",
        "quiz: {builtin: stories, answer: key}",
    ] {
        let sandbox = sandbox(&format!("eval:\n  tasks:\n    {task}\n"));
        sandbox.show(2, "validate exp.yaml");
        screens += &sandbox.screens();
    }
    for task in [
        "{file: lists.jsonl}",
        "{file: items.jsonl, labels: [A, B]}",
        "{file: items.jsonl, labels: [A, B, C]}",
        "{file: lists.jsonl, context: q.stem, choices: [c.text], answer: key}",
        "{file: pairs.jsonl, context: q, choices: [one], answer: right}",
    ] {
        let sandbox = sandbox(&format!("eval:\n  tasks:\n    quiz: {task}\n"));
        sandbox.show(2, "plan exp.yaml");
        screens += &sandbox.screens();
    }
    insta::assert_snapshot!(screens);
}
