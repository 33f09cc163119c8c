//! Losses that compare, and losses that do not: rows of an evaluation, bits per byte, and commands that name a best run.

use std::fs;

use serde_json::Value;

use crate::sandbox::Sandbox;

/// An experiment on `input.txt` that trains in a moment.
fn yaml(name: &str, tokenizer: &str, micro_batch: usize, eval: &str) -> String {
    format!(
        "name: {name}\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
         data: {{tokenizer: {tokenizer}, train: {{text: {{files: [input.txt]}}}}, validation: {{text: {{files: [held.txt]}}}}}}\n\
         batch: {{sequences: 8, micro_batch: {micro_batch}}}\ntrain: {{steps: 4}}\neval: {{every: 4{eval}}}\n"
    )
}

/// A sandbox with texts for training and validation.
fn new_sandbox() -> Sandbox {
    let sandbox = Sandbox::new().with_numbers(3000);
    let held = (7000..8500).map(|n| n.to_string()).collect::<Vec<_>>().join(" ") + " ";
    sandbox.write("held.txt", held);
    sandbox
}

fn plan_of(sandbox: &Sandbox, eval: &str, micro_batch: usize) -> Value {
    sandbox.write("x.yaml", yaml("x", "{bytes: {}}", micro_batch, eval));
    sandbox.json_of("plan x.yaml --json")
}

fn last_evaluation(sandbox: &Sandbox, name: &str) -> Value {
    let prefix = format!("{name}-");
    let run = sandbox.runs().into_iter().find(|(id, _)| id.starts_with(&prefix)).expect("a run").1;
    run.metrics_of("eval").pop().expect("an evaluation")
}

#[test]
fn rows_are_the_same_under_every_micro_batch() {
    let sandbox = new_sandbox();
    // By default, and where the rows fill no whole micro-batch.
    for eval in ["", ", loss: {rows: 13}"] {
        let losses: Vec<f64> = [1, 2, 8]
            .into_iter()
            .map(|micro_batch| {
                sandbox.write("m.yaml", yaml(&format!("m{micro_batch}"), "{bytes: {}}", micro_batch, eval));
                sandbox.expect(0, "apply m.yaml --threads 1 --quiet --new");
                last_evaluation(&sandbox, &format!("m{micro_batch}"))["val_loss"].as_f64().unwrap()
            })
            .collect();
        assert!(losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4), "{eval}: {losses:?}");
        fs::remove_dir_all(sandbox.path("runs")).unwrap();
    }
    let table = |eval: &str| {
        let (rows, batches) = (plan_of(&sandbox, eval, 4), plan_of(&sandbox, ", loss: {batches: 5}", 4));
        (rows["hash"] == batches["hash"], rows["notes"].to_string(), batches["notes"].to_string())
    };
    let (same, rows_notes, batches_notes) = table(", loss: {rows: 20}");
    assert!(same && !rows_notes.contains("eval.loss"), "{rows_notes}");
    assert!(batches_notes.contains("write eval.loss: {rows: 20}, which gives the same plan"), "{batches_notes}");
    assert!(!table(", loss: {rows: 19}").0);
    sandbox.show(2, "plan x.yaml --set eval.loss={\"rows\":1,\"batches\":1}");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn micro_batches_are_compared_on_the_same_rows() {
    let sandbox = new_sandbox();
    let sweep = "sweep: {name: s, base: exp.yaml, grid: {batch.micro_batch: [2, 8]}}\n";
    sandbox.write("s.yaml", sweep);
    sandbox.write("exp.yaml", yaml("lab", "{bytes: {}}", 8, ""));
    let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
    assert!(!printed.contains("not comparable"), "{printed}");
    fs::remove_dir_all(sandbox.path("runs")).unwrap();
    sandbox.write("exp.yaml", yaml("lab", "{bytes: {}}", 8, ", loss: {batches: 2}"));
    sandbox.show(0, "sweep s.yaml --threads 1");
    let reason = "point 2 reads 16 validation rows, but point 1 reads 4";
    let results = sandbox.json_of("sweep results --json");
    assert_eq!(results["results"]["incomparable"], reason);
    // Early stopping would compare them.
    sandbox.edit("s.yaml", "grid:", "early_stop: {asha: {min_steps: 1, reduction: 2}}, grid:");
    sandbox.show(2, "sweep s.yaml --dry-run --set eval.every=1");
    // Both runs stand side by side.
    let runs: Vec<String> = sandbox.runs().into_keys().collect();
    sandbox.show(0, &format!("compare {} {}", runs[0], runs[1]));
    let table = sandbox.json_of(&format!("compare {} {} --json", runs[0], runs[1]));
    let figures = &table["incomparable"][0]["figures"];
    assert_eq!(figures.to_string(), r#"["best_val_loss","val_loss","val_bits_per_byte"]"#);
    sandbox.expect(0, &format!("report {} {} -o page.html", runs[0], runs[1]));
    assert!(sandbox.read("page.html").contains("not comparable: val loss, bits/byte: "));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn bits_per_byte_are_those_of_the_text() {
    let sandbox = new_sandbox();
    for (name, tokenizer) in [
        ("bytes", "{bytes: {}}"),
        ("chars", "{chars: {}}"),
        ("bpe", "{bpe: {vocab_size: 300, special_tokens: [\"<|endoftext|>\"]}}"),
        ("words", "{words: {}}"),
    ] {
        sandbox.write("exp.yaml", yaml(name, tokenizer, 8, ", loss: {rows: 100000}"));
        let printed = sandbox.show(0, "apply exp.yaml --threads 1");
        let evaluation = last_evaluation(&sandbox, name);
        let (loss, bits) = (evaluation["val_loss"].as_f64().unwrap(), evaluation["val_bits_per_byte"].as_f64());
        let plan = sandbox.json_of("plan exp.yaml --json");
        let validation = &plan["data"]["validation"];
        if name == "words" {
            assert!(bits.is_none(), "{printed}");
            continue;
        }
        let bits = bits.unwrap();
        let (rows, bytes) = (validation["rows"].as_f64().unwrap(), validation["text"]["bytes"].as_f64().unwrap());
        let expected = loss * rows * 32.0 / bytes / std::f64::consts::LN_2;
        assert!((bits - expected).abs() < 1e-9 * expected, "{name}: {bits}, not {expected}");
        // Five bytes for each number; a last part fills no row.
        let text = 1500.0 * 5.0;
        assert!(bytes < text && bytes > 0.97 * text, "{name}: {bytes}");
        if name != "bpe" {
            assert_eq!(bytes, rows * 32.0, "{name}: each token is a byte");
        }
        for command in ["runs show", "eval"] {
            sandbox.show(0, &format!("{command} {name}"));
        }
        let listed = sandbox.json_of(&format!("runs show {name} --json"));
        assert_eq!(listed["run"]["val_bits_per_byte"], bits);
    }
    let printed = sandbox.show(0, "compare bytes bpe");
    let starred = printed.lines().filter(|line| line.starts_with("bytes") || line.starts_with("bpe"));
    assert!(starred.map(|line| line.matches('*').count()).sum::<usize>() > 0, "{printed}");
    sandbox.show(0, "diff bytes bpe");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn tokenizers_are_compared_by_bits_per_byte() {
    let sandbox = new_sandbox();
    sandbox.write("exp.yaml", yaml("lab", "{bytes: {}}", 8, ""));
    let sweep = "sweep: {name: s, base: exp.yaml, grid: {data.tokenizer: [{bytes: {}}, {bpe: {vocab_size: 300}}]}}\n";
    sandbox.write("s.yaml", sweep);
    sandbox.show(0, "sweep s.yaml --threads 1 --dry-run");
    sandbox.write("exp.yaml", yaml("lab", "{bytes: {}}", 8, ", loss: {rows: 1000}"));
    sandbox.show(0, "sweep s.yaml --threads 1");
    // A loss per token names no winner.
    let per_token = sweep.replace("grid:", "objective: {metric: val_loss}, grid:").replace("name: s", "name: t");
    sandbox.write("t.yaml", per_token);
    sandbox.show(0, "sweep t.yaml --threads 1");
    let words = sweep.replace("{bpe: {vocab_size: 300}}", "{words: {}}").replace("name: s", "name: u");
    sandbox.write("u.yaml", words);
    sandbox.show(2, "sweep u.yaml --threads 1 --dry-run");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn weights_bring_their_tokenizer() {
    let sandbox = new_sandbox();
    sandbox.write("exp.yaml", yaml("lab", "{bpe: {vocab_size: 300, special_tokens: [\"<|endoftext|>\"]}}", 8, ""));
    sandbox.expect(0, "apply exp.yaml --threads 1 --quiet");
    sandbox.expect(0, "export lab --to hf out");
    let file = yaml("tuned", "{bytes: {}}", 8, "")
        .replace("tokenizer: {bytes: {}}, ", "")
        .replace("{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}", "{init: {from: out}}");
    sandbox.write("tuned.yaml", &file);
    sandbox.show(0, "validate tuned.yaml --explain");
    assert_eq!(sandbox.json_of("plan tuned.yaml --json")["data"]["tokenizer_vocab"], 300);
    // The file's own value wins, with a warning if most rows have no token.
    sandbox.show(0, "plan tuned.yaml --set data.tokenizer={\"bytes\":{}} --set model.vocab_size=1000");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_vocabulary_without_tokens_gets_a_warning() {
    let sandbox = new_sandbox();
    sandbox.write(
        "exp.yaml",
        yaml("lab", "{bytes: {}}", 8, "").replace("context_length", "vocab_size: 1000, context_length"),
    );
    sandbox.show(0, "apply exp.yaml --threads 1");
    sandbox.show(0, "plan exp.yaml --set model.vocab_size=320");
    sandbox.show(0, "plan exp.yaml --set precision=tf32 --set device=cpu");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_sorted_list_says_which_losses_compare() {
    let yaml = "name: lab\nmodel: {family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 16}\n\
                data: {tokenizer: {chars: {}}, train: {text: {files: [input.txt]}}, validation: {fraction: 0.2}}\n\
                batch: {sequences: 2}\ntrain: {steps: 2}\neval: {loss: {rows: 100000}}\n";
    let sandbox = Sandbox::new().with_numbers(300).with("exp.yaml", yaml);
    let id = |name: &str, set: &str| {
        sandbox.expect(
            0,
            &["apply", "exp.yaml", "--set", &format!("name={name}"), "--set", set, "--threads", "1", "--quiet"],
        );
        sandbox.runs().into_keys().find(|id| id.starts_with(name)).unwrap()
    };
    let (a, b) = (id("a", "seed=1"), id("b", "seed=2"));
    for (field, warned) in [("val_loss", false), ("-val_loss", false), ("step", false)] {
        assert_eq!(sandbox.expect(0, &format!("runs --sort {field}")).contains("warning"), warned, "{field}");
    }
    let c = id("c", "data.tokenizer={bytes: {}}");
    let printed = sandbox.show(0, "runs --sort=-best_val_loss");
    // The order in which groups are named is that of the list.
    let reason = "and losses per token of different tokens are not comparable; it is comparable within each of \
        these groups: ";
    let groups = printed.split(reason).nth(1).unwrap().lines().next().unwrap();
    let mut groups: Vec<Vec<&str>> = groups.split(" | ").map(|group| group.split(", ").collect()).collect();
    for group in &mut groups {
        group.sort_unstable();
    }
    groups.sort();
    assert_eq!(groups, [vec![a.as_str(), b.as_str()], vec![c.as_str()]]);
    sandbox.show(0, "runs --sort val_bits_per_byte");
    sandbox.show(0, "runs c-* --sort val_loss");
    // Other rows are not measured alike, in bits per byte either.
    id("d", "eval.loss.rows=1");
    sandbox.show(0, "runs --sort val_bits_per_byte");
    insta::assert_snapshot!(sandbox.screens());
}
