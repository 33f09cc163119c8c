//! Models read text in the format of the rows that they were trained on: in the run, after it, and as exported weights.

use std::fs;

use candle_core::{DType, Device};
use serde_json::{Value, json};

use crate::sandbox::Sandbox;

const BOT: u32 = 1;
const STOP: u32 = 2;
/// The ids of the words by their frequency, after `<unk>` and the special tokens.
const WORDS: [(&str, u32); 4] = [("a", 4), ("b", 5), ("c", 6), ("d", 7)];
const ITEMS: [(&str, [&str; 3]); 4] = [
    ("a b", ["c d", "d d", "a"]),
    ("a", ["b c d", "d", "b a"]),
    ("a b c", ["d", "b", "a b"]),
    ("d", ["a", "b c", "c d a b"]),
];

/// A trained run `a` with rows `[BOT] … [STOP] [PAD]…`, whose name for the end no other part of the program knows.
fn sandbox_with_padded_run() -> Sandbox {
    let lines =
        |documents: &[&str]| documents.iter().map(|text| json!({"text": text}).to_string() + "\n").collect::<String>();
    let item = |(ctx, endings): &(&str, [&str; 3])| json!({"ctx": ctx, "endings": endings, "label": 0}).to_string();
    let sandbox = Sandbox::new()
        .with("train.jsonl", lines(&["a b c d", "a b c", "a b", "a"].repeat(10)))
        .with("held_out.jsonl", lines(&["a b c d", "a", "a b"]))
        .with("items.jsonl", ITEMS.iter().map(item).collect::<Vec<_>>().join("\n"));
    sandbox.write(
        "a.yaml",
        "model: {family: llama, layers: 2, heads: 2, d_model: 16, context_length: 8}\n\
         data:\n  tokenizer: {words: {special_tokens: ['[BOT]', '[STOP]', '[PAD]']}}\n  \
         layout: {padded: {length: 6, bos: '[BOT]', eos: '[STOP]', pad: '[PAD]'}}\n  \
         train: {jsonl: {files: [train.jsonl]}}\n  validation: {jsonl: {files: [held_out.jsonl]}}\n\
         batch: {sequences: 8}\ntrain: {steps: 60}\noptimizer: {adamw: {lr: 1e-2}}\n\
         eval: {hellaswag: {file: items.jsonl}, samples: {prompts: [a b], temperature: 0, max_tokens: 6}}\n",
    );
    sandbox.expect(0, "apply a.yaml --threads 1 --quiet");
    sandbox
}

fn ids(text: &str) -> Vec<u32> {
    let id = |word: &str| WORDS.iter().find(|(known, _)| *known == word).unwrap().1;
    text.split(' ').map(id).collect()
}

/// The losses in nats of each token of `row` but the first, and the likeliest token after it, from logits alone.
fn losses_and_next(sandbox: &Sandbox, row: &[u32]) -> (Vec<f64>, u32) {
    sandbox.write("row.json", json!([row]).to_string());
    sandbox.expect(0, "logits a --tokens row.json --out logits.safetensors --threads 1");
    let logits = candle_core::safetensors::load(sandbox.path("logits.safetensors"), &Device::Cpu).unwrap();
    let logits: Vec<Vec<f64>> = logits["logits"].squeeze(0).unwrap().to_dtype(DType::F64).unwrap().to_vec2().unwrap();
    let loss = |(logits, &target): (&Vec<f64>, &u32)| {
        logits.iter().map(|x| x.exp()).sum::<f64>().ln() - logits[target as usize]
    };
    let last = logits.last().unwrap();
    let next = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    (logits.iter().zip(&row[1..]).map(loss).collect(), next as u32)
}

/// Holds the losses in `file` against those of rows that begin with `prefix`.
#[track_caller]
fn check_items(sandbox: &Sandbox, file: &str, prefix: &[u32]) {
    let items: Vec<Value> = sandbox.read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(items.len(), ITEMS.len());
    for (item, (context, endings)) in items.iter().zip(ITEMS) {
        for (index, ending) in endings.iter().enumerate() {
            let ending = ids(ending);
            let (losses, _) = losses_and_next(sandbox, &[prefix, &ids(context), &ending].concat());
            let expected: f64 = losses[losses.len() - ending.len()..].iter().sum();
            let loss = item["losses"][index].as_f64().unwrap();
            assert!((loss - expected).abs() < 1e-4, "{context}, {index}: {loss}, {expected}");
        }
    }
}

#[test]
fn a_run_with_padded_rows_reads_text_as_such_rows() {
    let sandbox = sandbox_with_padded_run();
    let run = sandbox.only_run();
    let last = run.metrics_of("eval").pop().unwrap();

    // Rows: `[BOT] a b c d [STOP]` predicts 5 tokens, `[BOT] a [STOP]` 2, `[BOT] a b [STOP]` 3.
    let text = sandbox.json_of("eval a --text held_out.jsonl --threads 1 --json");
    assert_eq!(text["val_tokens"], 10);
    let documents = ["a b c d", "a", "a b"].map(|text| {
        let row = [&[BOT], &ids(text)[..], &[STOP]].concat();
        losses_and_next(&sandbox, &row).0
    });
    let expected = documents.concat().iter().sum::<f64>() / 10.0;
    for loss in [&text["val_loss"], &last["val_loss"]] {
        assert!((loss.as_f64().unwrap() - expected).abs() < 1e-5, "{loss}, {expected}");
    }
    // 7 words and no token between documents: one row of 6.
    assert_eq!(sandbox.json_of("eval a --text held_out.jsonl --no-bos --threads 1 --json")["val_tokens"], 6);

    let choice = sandbox.json_of("eval a --items with.jsonl --threads 1 --json");
    check_items(&sandbox, "with.jsonl", &[BOT]);
    assert_eq!((&choice["hellaswag_prefix"], &choice["hellaswag_text"]), (&json!("[BOT]"), &json!("raw")));
    for metric in ["hellaswag_acc", "hellaswag_acc_norm", "hellaswag_acc_norm_chars"] {
        assert_eq!(choice[metric], last[metric], "{metric}");
    }
    let choice = sandbox.json_of("eval a --items without.jsonl --no-bos --threads 1 --json");
    check_items(&sandbox, "without.jsonl", &[]);
    assert_eq!(choice["hellaswag_prefix"], Value::Null);
    sandbox.show(0, "eval a --hellaswag items.jsonl --threads 1");

    let mut row = [&[BOT], &ids("a b")[..]].concat();
    let mut expected = Vec::new();
    loop {
        let (_, next) = losses_and_next(&sandbox, &row);
        if next == STOP {
            break;
        }
        expected.push(WORDS.iter().find(|(_, id)| *id == next).unwrap().0);
        row.push(next);
        assert!(expected.len() < 6, "it has learned to stop");
    }
    let sample = |flags: &str| {
        let lines = sandbox.json_of(&format!("sample a --temperature 0 --max-tokens 6 --threads 1 --json {flags}"));
        lines[0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(sample(""), format!(" {}", expected.join(" ")));
    assert_eq!(sample("--prompt [BOT]a"), sample("--prompt a"), "one is enough");
    let recorded: Value = serde_json::from_str(run.read("samples.jsonl").lines().last().unwrap()).unwrap();
    assert_eq!(recorded["text"], sample("").as_str());
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn weights_read_text_as_their_tokenizer_says() {
    let sandbox = sandbox_with_padded_run();
    sandbox.expect(0, "export a --to hf out");
    let flags = "--weights out --hellaswag items.jsonl --threads 1 --json --items";
    sandbox.expect(0, &format!("eval {flags} exported.jsonl"));
    check_items(&sandbox, "exported.jsonl", &[BOT]);
    let tokenizer = sandbox.path("out/tokenizer.json");
    let mut written: Value = serde_json::from_str(&fs::read_to_string(&tokenizer).unwrap()).unwrap();
    let token = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let names = [("[BOT]", BOT), ("[STOP]", STOP)];
    let special = names.map(|(name, id)| (name.to_owned(), json!({"id": name, "ids": [id], "tokens": [name]})));
    written["post_processor"] = json!({
        "type": "TemplateProcessing", "single": [token("[BOT]"), text, token("[STOP]")], "pair": [text, text],
        "special_tokens": serde_json::Map::from_iter(special),
    });
    fs::write(&tokenizer, written.to_string()).unwrap();
    sandbox.expect(0, &format!("eval {flags} with.jsonl"));
    check_items(&sandbox, "with.jsonl", &[BOT]);
    sandbox.expect(0, &format!("eval {flags} without.jsonl --no-bos"));
    check_items(&sandbox, "without.jsonl", &[]);
    written["post_processor"] = Value::Null;
    fs::write(&tokenizer, written.to_string()).unwrap();
    sandbox.expect(0, &format!("eval {flags} none.jsonl"));
    check_items(&sandbox, "none.jsonl", &[]);
}

/// Each line of the training file is one of `a b c d`, `a b c`, `a b` and `a`, ten times.
#[test]
fn clipped_and_cut_text_is_counted() {
    let sandbox = sandbox_with_padded_run();
    let notes = |printed: &str| {
        let lines = printed.lines().filter(|line| line.contains("never read"));
        lines.map(|line| line[line.find("data: ").unwrap_or(0)..].to_owned()).collect::<Vec<_>>()
    };
    let narrow = "--set data.layout.padded.length=3 --set model.context_length=4";
    let clipped = [
        "data: rows of 3 tokens clip 10 of 40 documents, so 10 of 100 tokens are never read",
        "data: rows of 3 tokens clip 1 of 3 documents, so 1 of 7 tokens are never read",
    ];
    assert_eq!(notes(&sandbox.expect(0, "plan a.yaml")), [""; 0]);
    assert_eq!(notes(&sandbox.expect(0, &format!("plan a.yaml {narrow}"))), clipped);

    // The model reads four tokens, and predicts one more: `[BOT]` and four words. Two items have endings with which they have five.
    let applied = sandbox.show(0, &format!("apply a.yaml {narrow} --set name=narrow --threads 1"));
    assert_eq!(notes(&applied), clipped);
    let cut = "eval.hellaswag: 2 of 4 items are longer than model.context_length, 4, and lose their beginning";
    assert_eq!(applied.matches(cut).count(), 1, "{applied}");
    assert!(applied.contains("of 4 (2 cut)") && applied.contains("of 4 items, 2 cut to the context"), "{applied}");
    let (_, run) = sandbox.runs().into_iter().find(|(id, _)| id.starts_with("narrow")).unwrap();
    assert_eq!(run.metrics_of("eval").pop().unwrap()["hellaswag_cut"], 2);
    let whole = sandbox.json_of("eval a --threads 1 --json");
    assert_eq!((&whole["hellaswag_cut"], &whole["hellaswag_n"]), (&json!(0), &json!(4)));
    let printed = sandbox.show(0, "eval narrow --threads 1 --items items.out");
    assert_eq!(notes(&printed), clipped[1..]);
    sandbox.show(0, "eval a --text held_out.jsonl --length 3 --threads 1");

    // `[BOT]` and four words: the later half of the context has two tokens.
    let prompts = ["--set", "eval.samples.prompts=[a b c, a b c d]"];
    let planned = sandbox.show(0, &["plan a.yaml", narrow].join(" ").split(' ').chain(prompts).collect::<Vec<_>>());
    assert_eq!(planned.matches("the prompt").count(), 1, "{planned}");
    let sampled = |prompt: &str| sandbox.expect(0, &["sample", "narrow", "--threads", "1", "--prompt", prompt]);
    assert!(sampled("a b c d").contains("the prompt \"a b c d\"… has 5 tokens and the context 4"));
    assert!(!sampled("a b c").contains("the prompt"));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn lm_evals_text_is_an_option() {
    let sandbox = sandbox_with_padded_run();
    let fields = json!({"activity_label": "a", "ctx_a": "b [x]", "ctx_b": "C", "endings": ["[y] d", "a"], "label": 0});
    sandbox.write("full.jsonl", fields.to_string());
    // `a: b C`, of which the tokenizer drops the colon and lowers the rest.
    let result = sandbox.json_of("eval a --hellaswag full.jsonl --hellaswag-text lm_eval --items i.jsonl --json");
    assert_eq!(result["hellaswag_text"], "lm_eval");
    let item: Value = serde_json::from_str(&sandbox.read("i.jsonl")).unwrap();
    assert_eq!(item["characters"], json!([2, 1]), "` d` without its mark, and `a`");
    let (losses, _) = losses_and_next(&sandbox, &[&[BOT], &ids("a b c d")[..]].concat());
    assert!((item["losses"][0].as_f64().unwrap() - losses[3]).abs() < 1e-4);
    for command in [
        "eval a --hellaswag full.jsonl",
        "eval a --hellaswag items.jsonl --hellaswag-text lm_eval",
        "eval a --text held_out.jsonl --hellaswag-text lm_eval",
    ] {
        sandbox.show(2, command);
    }
    insta::assert_snapshot!(sandbox.screens());
}
