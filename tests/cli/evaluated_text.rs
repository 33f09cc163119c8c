//! What a validation loss was measured on: text that was trained on, few rows, and text of token shards.

use std::fs;
use std::ops::Range;

use serde_json::Value;

use crate::sandbox::Sandbox;

/// An experiment on `input.txt` that trains in a moment.
fn yaml(validation: &str, eval: &str) -> String {
    format!(
        "name: lab\nmodel: {{family: gpt2, layers: 1, heads: 2, d_model: 16, context_length: 32}}\n\
         data: {{tokenizer: {{bytes: {{}}}}, train: {{text: {{files: [input.txt]}}}}, validation: {validation}}}\n\
         batch: {{sequences: 8}}\ntrain: {{steps: 4}}\neval: {{every: 4{eval}}}\n"
    )
}

const FILE: &str = "{text: {files: [held.txt]}}";
const SWEEP: &str = "sweep: {name: s, base: exp.yaml, grid: {optimizer.adamw.lr: [0.001, 0.002]}}\n";

/// Numbers with a blank after each.
fn numbers(range: Range<u32>) -> String {
    range.flat_map(|n| [n.to_string(), " ".to_owned()]).collect()
}

#[test]
fn validation_text_in_the_training_text_is_named_wherever_a_loss_is() {
    let sandbox = Sandbox::new().with("exp.yaml", yaml(FILE, "")).with("s.yaml", SWEEP);
    let text = numbers(0..3000);
    sandbox.write("held.txt", &text[text.len() - 3200..]);
    sandbox.write("input.txt", text);
    let warning = "validation data: 20 of 20 windows of 160 tokens also occur in the training data (100.0%), so a loss on it also measures \
                   memorization; hold out different text";
    sandbox.show(0, "plan exp.yaml");
    let plan = sandbox.json_of("plan exp.yaml --json");
    assert_eq!(plan["warnings"][0], warning);
    assert_eq!(plan["data"]["validation"]["overlaps"][0]["found"], 20);
    assert!(sandbox.expect(0, "sweep s.yaml --dry-run").contains(warning));
    let printed = sandbox.expect(0, "sweep s.yaml --threads 1");
    for text in [printed, sandbox.expect(0, "sweep results")] {
        assert!(text.contains(&format!("warning: {warning}")), "{text}");
    }
    let [a, b] = &sandbox.runs().into_keys().collect::<Vec<_>>()[..] else { panic!("two runs") };
    assert_eq!(sandbox.json_of(&format!("compare {a} {b} --json"))["notes"][0], warning);
    assert!(sandbox.expect(0, &format!("diff {a} {b}")).contains(warning));
    for command in ["report s -o page.html", &format!("report {a} -o page.html --force")] {
        sandbox.expect(0, command);
        assert!(sandbox.read("page.html").contains(warning), "{command}");
    }
    // Other text of the same kind shares nothing.
    sandbox.write("held.txt", numbers(7000..8000));
    sandbox.show(0, "plan exp.yaml");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_loss_stands_beside_the_rows_that_it_was_measured_on() {
    let sandbox = Sandbox::new().with_numbers(3000).with("s.yaml", SWEEP);
    sandbox.write("held.txt", numbers(7000..8000));
    let sweep = |rows: u64| {
        let _ = fs::remove_dir_all(sandbox.path("runs"));
        sandbox.write("exp.yaml", yaml(FILE, &format!(", loss: {{rows: {rows}}}")));
        sandbox.show(0, "sweep s.yaml --threads 1");
        sandbox.json_of("sweep results --json")
    };
    let results = sweep(1);
    let noise = &results["verdict"]["row_noise"];
    assert!(noise["standard_error"].is_null() && noise["may_hide_difference"] == true, "{noise}");
    let results = sweep(20);
    let measured = &results["results"]["rows"][0]["measured_on"];
    let error = measured["standard_error"].as_f64().unwrap();
    assert!(error > 0.0 && measured["tokens"] == 640 && measured["rows"] == 20, "{measured}");
    assert!(results["verdict"]["row_noise"]["standard_error"].as_f64().unwrap() >= error);
    let runs: Vec<String> = sandbox.runs().into_keys().collect();
    let line = sandbox.runs()[&runs[0]].metrics_of("eval").pop().unwrap();
    assert_eq!((&line["val_tokens"], &line["val_rows"]), (&640.into(), &20.into()));
    sandbox.show(0, &format!("runs show {}", runs[0]));
    let evaluated = sandbox.json_of(&format!("eval {} --threads 1 --json", runs[0]));
    assert_eq!((&evaluated["val_loss_se"], &evaluated["val_rows"]), (&line["val_loss_se"], &20.into()));
    let table = sandbox.json_of(&format!("compare {} {} --json", runs[0], runs[1]));
    assert_eq!(table["runs"][0]["outcomes"]["val_loss_se"], line["val_loss_se"]);
    let words = table["groups"]["verdict"]["words"].to_string();
    assert!(words.contains("measured on 640 tokens in 20 rows, standard error"), "{words}");
}

/// Rows are divided among replicas, and the sums over them have a fixed order. The kept rows are in their own order, and have the recorded mean.
#[test]
fn a_standard_error_and_the_rows_do_not_depend_on_the_layout() {
    let sandbox = Sandbox::new().with_numbers(3000).with("exp.yaml", yaml("{fraction: 0.1}", ", loss: {rows: 30}"));
    let error = |layout: &str| {
        sandbox.expect(0, &format!("apply exp.yaml --threads 1 --quiet --set batch.micro_batch=4 {layout}"));
        let line = sandbox.only_run().metrics_of("eval").pop().unwrap();
        let rows: Value = serde_json::from_str(sandbox.only_run().read("rows.jsonl").lines().last().unwrap()).unwrap();
        fs::remove_dir_all(sandbox.path("runs")).unwrap();
        let numbers = |key: &str| -> Vec<f64> {
            rows[key].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
        };
        let (losses, tokens) = (numbers("losses"), numbers("tokens"));
        let mean = losses.iter().sum::<f64>() / tokens.iter().sum::<f64>();
        assert!((mean - line["val_loss"].as_f64().unwrap()).abs() < 1e-6 * mean, "{mean} {line}");
        assert_eq!((losses.len(), rows["step"].as_u64()), (30, line["step"].as_u64()));
        (line["val_loss_se"].as_f64().unwrap(), losses, tokens)
    };
    let (single, losses, tokens) = error("");
    for layout in ["parallel={\"mode\":\"dp\",\"replicas\":2}", "batch.micro_batch=1"] {
        let divided = error(&format!("--set {layout}"));
        assert!((single - divided.0).abs() < 1e-6 * single, "{single} {}", divided.0);
        // Rounding in training moves the weights a little.
        assert!(losses.iter().zip(&divided.1).all(|(a, b)| (a - b).abs() < 1e-5 * a), "{layout}");
        assert_eq!(tokens, divided.2);
    }
}

#[test]
fn a_fraction_of_different_tokens_does_not_compare_and_the_advice_helps() {
    let sandbox = Sandbox::new().with("exp.yaml", yaml("{fraction: 0.1}", ", loss: {rows: 100000}"));
    // Tokens get longer towards the end, where the words of the tokenizer are.
    let text = numbers(0..2000) + &"abcdefgh ".repeat(2000);
    sandbox.write("input.txt", &text);
    let tokenizers = "[{bytes: {}}, {bpe: {vocab_size: 400}}]";
    sandbox.write("s.yaml", format!("sweep: {{name: s, base: exp.yaml, grid: {{data.tokenizer: {tokenizers}}}}}\n"));
    sandbox.show(0, "sweep s.yaml --dry-run");
    sandbox.write("held.txt", &text[..12_000]);
    sandbox.write("exp.yaml", yaml(FILE, ", loss: {rows: 100000}"));
    sandbox.show(0, "sweep s.yaml --dry-run");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn token_shards_have_bits_per_byte() {
    let sandbox = Sandbox::new().with_numbers(3000);
    sandbox.expect(0, "data prepare input.txt --tokenizer bpe:300 --to npy shards --name s --validation first-shard --shard-tokens 2000");
    let data = "{tokenizer: {file: shards/tokenizer.json}, train: {tokens: {files: [shards/s_train_*.npy]}}, \
                validation: {tokens: {files: [shards/s_val_*.npy]}}}";
    let file = yaml(FILE, ", loss: {rows: 100000}");
    let (before, after) = (file.split("data: ").next().unwrap(), file.split("\nbatch").nth(1).unwrap());
    sandbox.write("exp.yaml", format!("{before}data: {data}\nbatch{after}"));
    sandbox.show(0, "apply exp.yaml --threads 1");
    let plan = sandbox.json_of("plan exp.yaml --json");
    let bytes = plan["data"]["validation"]["text"]["bytes"].as_f64().unwrap();
    let line = sandbox.only_run().metrics_of("eval").pop().unwrap();
    let nats = line["val_loss"].as_f64().unwrap() * line["val_tokens"].as_f64().unwrap();
    let bits = line["val_bits_per_byte"].as_f64().unwrap();
    assert!((bits - nats / bytes / std::f64::consts::LN_2).abs() < 1e-9, "{bits}");
    // The shard is the beginning of the text, whose characters are bytes.
    assert!(bytes > 2000.0 && bytes < sandbox.read("input.txt").len() as f64, "{bytes}");
    insta::assert_snapshot!(sandbox.screens());
}
