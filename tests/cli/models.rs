//! Models without a run: weights of other programs that are evaluated and sampled from, and runs whose tokens have no tokenizer.

use std::fs;

use serde_json::Value;

use crate::sandbox::{Finished, Sandbox, repository_path};

const MODEL: &str = "family: gpt2, layers: 2, heads: 2, d_model: 16, context_length: 16";

/// A sandbox with a text, another one for validation, HellaSwag items, and the experiment `a`, trained and exported to `out`.
pub(super) fn with_trained_model() -> Sandbox {
    let sandbox = Sandbox::new().with_numbers(1500).with("other.txt", "11 22 33 44 55 66 77 88 99 ".repeat(20));
    let item = |ctx: &str, label: usize| {
        format!("{{\"ctx\": \"{ctx}\", \"label\": {label}, \"endings\": [\"3 4\", \"x\", \"12\"]}}\n")
    };
    sandbox.write("items.jsonl", (0..5).map(|i| item(&format!("1 2 {i}"), i % 3)).collect::<String>());
    sandbox.write(
        "a.yaml",
        format!(
            "model: {{{MODEL}}}\ndata: {{train: {{text: {{files: [input.txt]}}}}, validation: {{text: {{files: [other.txt]}}}}}}\n\
             batch: {{sequences: 8}}\ntrain: {{steps: 3}}\noptimizer: {{adamw: {{lr: 1e-2}}}}\neval: {{loss: {{batches: 1000}}}}\n"
        ),
    );
    sandbox.expect(0, "apply a.yaml --threads 1 --quiet");
    sandbox.expect(0, "export a --to hf out");
    sandbox
}

/// The lines of a file of JSON.
fn json_lines(sandbox: &Sandbox, file: &str) -> Vec<Value> {
    sandbox.read(file).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `result` without the keys that a run and its weights do not share.
fn numbers(mut result: Value) -> Value {
    let keys = result.as_object_mut().unwrap();
    keys.remove("eval_ms");
    keys.remove("step");
    result
}

#[test]
fn weights_are_evaluated_as_the_run_they_are_from() {
    let sandbox = with_trained_model();
    let run = sandbox.json_of("eval a --hellaswag items.jsonl --items run.jsonl --threads 1 --json");
    assert_eq!(run["step"], 3);
    // 540 bytes make 33 rows of 16 tokens, and each predicts the token after it.
    assert_eq!(run["val_tokens"], 33 * 16);
    let flags = "--text other.txt --hellaswag items.jsonl --threads 1 --json";
    let mut text = None;
    let all = [("eval a", "text.jsonl"), ("eval --weights out", "hf.jsonl")];
    for (command, items) in all {
        let result = sandbox.json_of(&format!("{command} {flags} --items {items}"));
        assert_eq!(numbers(result.clone()), text.get_or_insert(numbers(result.clone())).clone(), "{command}");
        assert_eq!(sandbox.read(items), sandbox.read("run.jsonl"), "{command}");
        // Rows in larger batches: products of f32 in another order.
        assert_eq!((&result["val_tokens"], &result["hellaswag_acc"]), (&run["val_tokens"], &run["hellaswag_acc"]));
        let (a, b) = (result["val_loss"].as_f64().unwrap(), run["val_loss"].as_f64().unwrap());
        assert!((a - b).abs() < 1e-7, "{command}: {a}, {b}");
    }
    let bits = run["val_loss"].as_f64().unwrap() / std::f64::consts::LN_2;
    assert!((run["val_bits_per_byte"].as_f64().unwrap() - bits).abs() < 1e-9, "a token is a byte");

    let items = json_lines(&sandbox, "run.jsonl");
    assert_eq!(items.len(), 5);
    let right = |choice: &str| items.iter().filter(|item| item[choice] == item["label"]).count() as f64;
    assert_eq!(run["hellaswag_acc"].as_f64().unwrap(), right("choice") / 5.0);
    assert_eq!(run["hellaswag_acc_norm"].as_f64().unwrap(), right("choice_norm") / 5.0);
    for (index, item) in items.iter().enumerate() {
        assert_eq!((item["index"].as_u64(), item["label"].as_u64()), (Some(index as u64), Some(index as u64 % 3)));
        // The tokens of a blank and the ending.
        assert_eq!(item["tokens"], serde_json::json!([4, 2, 3]));
        let list =
            |key: &str| -> Vec<f64> { item[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect() };
        let (losses, means) = (list("losses"), list("mean_losses"));
        for (i, tokens) in [4.0, 2.0, 3.0].into_iter().enumerate() {
            assert!((losses[i] / tokens - means[i]).abs() < 1e-12);
            assert!(losses[item["choice"].as_u64().unwrap() as usize] <= losses[i]);
            assert!(means[item["choice_norm"].as_u64().unwrap() as usize] <= means[i]);
        }
    }

    let sample = |model: &str| {
        let lines = sandbox.json_of(&format!("sample {model} --prompt 12 --count 2 --max-tokens 9 --threads 1 --json"));
        lines.as_array().unwrap().iter().map(|line| line["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sample("--weights out"), sample("a"));
    // Without a tokenizer, a prompt is ids: those of `12`.
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        fs::remove_file(sandbox.path("out").join(name)).unwrap();
    }
    assert_eq!(sample("--weights out --tokenizer bytes"), sample("a"));
    let printed = sandbox.stdout_of(&["sample", "--weights", "out", "--prompt", "49 50", "--max-tokens", "3"]);
    let ids: Vec<usize> = printed.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert!(ids.starts_with(&[49, 50]) && ids.len() == 5 && ids.iter().all(|&id| id < 257), "{printed}");
}

#[test]
fn rows_lengths_and_precisions_are_chosen() {
    let sandbox = with_trained_model();
    let eval =
        |flags: &str| sandbox.json_of(&format!("eval --weights out --text other.txt --threads 1 --json {flags}"));
    assert_eq!(eval("--length 7 --rows 3")["val_tokens"], 21);
    let (fp32, bf16) = (eval(""), eval("--precision bf16"));
    let loss = |result: &Value| result["val_loss"].as_f64().unwrap();
    let difference = (loss(&fp32) - loss(&bf16)).abs();
    assert!(difference > 0.0 && difference < 0.01, "{difference}");
    sandbox.write("two.jsonl", "{\"body\": \"one text here\"}\n{\"body\": \"another text here\"}\n");
    // Two documents, each after the token between documents: 13 + 17 bytes and 2 tokens, of which 31 are predicted.
    let two = sandbox.json_of("eval --weights out --text two.jsonl --field body --length 1 --threads 1 --json");
    assert_eq!(two["val_tokens"], 31);
    sandbox.show(0, "eval --weights out --text other.txt --rows 1 --threads 1");
    assert_eq!(eval("--rows 1")["text"], serde_json::json!(["other.txt"]));
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn wrong_requests_say_what_is_missing() {
    let sandbox = with_trained_model();
    let fixture = repository_path("tests/fixtures/hf/llama-tied").display().to_string();
    let foreign = format!("eval --weights {fixture} --tokenizer bytes --text other.txt");
    fs::create_dir(sandbox.path("empty")).unwrap();
    for arguments in [
        "eval --weights nowhere --builtin",
        "eval --weights empty --builtin",
        "eval --weights hub:a//b --builtin",
        "eval --weights out",
        "eval --weights out --limit 3 --text other.txt",
        "eval a --items i.jsonl",
        "eval --weights out --text other.txt --length 17",
        "eval --weights out --text none.txt",
        "eval --weights out --text a.yaml",
        foreign.as_str(),
        "eval --weights out --tokenizer chars --text other.txt",
        "sample --weights out",
        "eval a --weights out",
        "eval a --tokenizer bytes --text other.txt",
        "eval a --hellaswag items.jsonl --items items.jsonl --force",
        "eval a --hellaswag items.jsonl --items /dev/null --force",
        "eval --weights out --best --builtin",
        "eval",
    ] {
        sandbox.show(2, arguments);
    }
    sandbox.write("short.txt", "12345");
    sandbox.show(2, "eval --weights out --text short.txt");
    sandbox.expect(0, "eval --weights out --hellaswag items.jsonl --items i.jsonl --threads 1");
    sandbox.show(2, "eval --weights out --hellaswag items.jsonl --items i.jsonl");
    sandbox.expect(0, "eval --weights out --hellaswag items.jsonl --items i.jsonl --force --threads 1");
    insta::assert_snapshot!(sandbox.screens());
}

/// Tokens of 16 bits, whose tokenizer nothing tells.
fn shards(highest: u8) -> Vec<u8> {
    (0..600_u32).flat_map(|i| [(i * 7 % u32::from(highest)) as u8, 0]).collect()
}

#[test]
fn the_vocabulary_is_enough_for_token_shards() {
    let yaml = format!(
        "name: ids\nmodel: {{{MODEL}, vocab_size: 60, pad_vocab_to: 64}}\n\
         data: {{train: {{tokens: {{files: [train.bin]}}}}, validation: {{fraction: 0.1}}}}\n\
         batch: {{sequences: 4}}\ntrain: {{steps: 2}}\neval: {{every: 2, samples: {{prompts: [\"1 2 3\"], max_tokens: 5}}}}\n"
    );
    let sandbox = Sandbox::new().with("ids.yaml", &yaml).with("train.bin", shards(60));
    let printed = sandbox.keep(sandbox.run("validate --explain ids.yaml")).expect_code(0);
    assert!(printed.stderr.is_empty(), "{}", printed.text());
    sandbox.expect(0, "apply ids.yaml --threads 1 --quiet");
    let run = sandbox.only_run();
    assert!(run.read("resolved.yaml").contains("ids: {}"), "{}", run.read("resolved.yaml"));
    let sample: Value = serde_json::from_str(run.read("samples.jsonl").lines().next_back().unwrap()).unwrap();
    let ids: Vec<usize> = sample["text"].as_str().unwrap().split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert!(ids.len() == 5 && ids.iter().all(|&id| id < 60), "{sample}");
    assert!(run.metrics_of("eval").iter().all(|line| line.get("val_bits_per_byte").is_none()));
    // The same data again, with the tokenizer of the record.
    let again = sandbox.json_of("eval ids --threads 1 --json");
    assert_eq!(again["val_loss"], run.metrics_of("eval").last().unwrap()["val_loss"]);
    assert!(sandbox.stdout_of(&["sample", "ids", "--prompt", "5,6", "--max-tokens", "2"]).starts_with("5,6 "));

    sandbox.show(0, "export ids --to hf out");
    assert!(!sandbox.path("out/tokenizer.json").exists() && sandbox.path("out/config.json").exists());
    for arguments in [
        "sample ids --prompt Once",
        "eval ids --builtin",
        "eval ids --text ids.txt",
        "eval ids --tokenizer bytes --text ids.txt",
    ] {
        sandbox.write("ids.txt", "a text of more than sixteen characters");
        sandbox.show(2, arguments);
    }

    sandbox.write("h.jsonl", "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"c\"]}\n");
    sandbox.write("t.txt", "a text");
    for (key, value) in [
        ("eval.hellaswag", "{file: h.jsonl}"),
        ("data.validation", "{text: {files: [t.txt]}}"),
        ("eval.test", "{text: {files: [t.txt]}}"),
    ] {
        sandbox.show(2, &["validate", "ids.yaml", "--set", &format!("{key}={value}")]);
    }
    let edited = yaml.replace("eval: {", "eval: {hellaswag: {file: h.jsonl}, ");
    sandbox.write("h.yaml", edited);
    sandbox.show(2, "validate h.yaml");
    sandbox.write("train.bin", shards(62));
    sandbox.show(2, "apply ids.yaml --quiet");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn initial_weights_say_the_vocabulary_too() {
    let folder = repository_path("tests/fixtures/hf/gpt2").display().to_string();
    let yaml = format!(
        "name: a\nmodel: {{init: {{from: {folder}}}}}\ndata: {{train: {{tokens: {{files: [train.bin]}}}}}}\n\
         batch: {{sequences: 4}}\ntrain: {{steps: 1}}\n"
    );
    let sandbox = Sandbox::new().with("a.yaml", &yaml).with("train.bin", shards(40));
    sandbox.expect(0, "apply a.yaml --threads 1 --quiet");
    assert!(sandbox.only_run().read("resolved.yaml").contains("ids: {}"));
}

/// The folder of the weights has the tokenizer, too.
#[test]
fn a_checkpoint_needs_nothing_of_the_folder_that_the_run_started_from() {
    let sandbox = with_trained_model();
    sandbox.write(
        "b.yaml",
        "model: {init: {from: out}}\ndata: {train: {text: {files: [input.txt]}}}\nbatch: {sequences: 8}\ntrain: {steps: 4}\n\
         checkpoint: {every: 1}\neval: {every: 2}\n",
    );
    sandbox.expect(0, "apply b.yaml --threads 1 --quiet --until-step 2");
    sandbox.expect(0, "fork b --from 2 --name kept --set train.steps=5 --threads 1 --quiet");
    fs::remove_dir_all(sandbox.path("out")).unwrap();
    sandbox.show(2, "fork b --from start --name c --set seed=5");
    sandbox.expect(0, "fork b --from 2 --name gone --set train.steps=5 --threads 1 --quiet");
    // The recorded tokenizer does not stand for another one.
    sandbox.show(2, "fork b --from 2 --name other --set data.tokenizer.file=gone.json --set train.steps=5");
    let run = |name: &str| {
        let prefix = format!("{name}-");
        sandbox.runs().into_iter().find(|(id, _)| id.starts_with(&prefix)).expect("a run").1
    };
    assert_eq!(run("gone").final_hash(), run("kept").final_hash(), "the folder changes no bit");
    let plan_hash = |name: &str| run(name).manifest()["plan_hash"].clone();
    assert_eq!(plan_hash("gone"), plan_hash("kept"));
    // The file does not load without them; the run resumes.
    sandbox.show(2, "apply b.yaml --threads 1 --quiet");
    // Other initial weights have no part in a fork from a checkpoint, but its tokenizer does.
    sandbox.expect(0, "fork b --from 2 --name drawn --set model.init=null --set train.steps=5 --threads 1 --quiet");
    assert_eq!(run("drawn").final_hash(), run("kept").final_hash());
    sandbox.show(0, "fork b --from 2 --name rounded --set precision=bf16 --set master_weights=false --set train.steps=3 --threads 1");
    sandbox.show(0, "fork rounded --from latest --name again --set train.steps=4 --threads 1");
    // A folder that is there and cannot be read is not taken for absent.
    sandbox.write("out/config.json", "{");
    sandbox.show(2, "fork b --from 2 --name bad --threads 1");
    sandbox.show(2, "fork b --from start --name bad --set seed=5");
    fs::remove_dir_all(sandbox.path("out")).unwrap();
    let tokenizer = run("b").path("tokenizer.json");
    let text = fs::read_to_string(&tokenizer).unwrap();
    fs::write(&tokenizer, &text[..text.len() / 2]).unwrap();
    for arguments in ["fork b --from 2 --name bad --threads 1", "resume b --threads 1"] {
        sandbox.show(2, arguments);
    }
    fs::write(&tokenizer, text).unwrap();
    sandbox.expect(0, "resume b --threads 1 --quiet");
    assert_eq!(run("b").summary()["steps"], 4);
    sandbox.expect(0, "eval b --threads 1");
    sandbox.expect(0, "fork b --from latest --name ranks --set train.steps=6 --set parallel.mode=ddp --set parallel.replicas=2 --set batch.micro_batch=4 --quiet");
    sandbox.show(2, "reproduce b");
    insta::assert_snapshot!(sandbox.screens());
}

/// The cache of Python's huggingface_hub has the model, so that no hub is asked.
#[test]
fn a_model_of_the_hub_is_evaluated() {
    let sandbox = with_trained_model();
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let snapshot = format!("hub/models--own--small/snapshots/{commit}");
    for (name, content) in sandbox.files_in("out") {
        sandbox.write(&format!("{snapshot}/{name}"), content);
    }
    sandbox.write("hub/models--own--small/refs/main", commit);
    let run = |weights: &str| {
        let flags = format!("eval --weights {weights} --text other.txt --threads 1 --json");
        let mut command = sandbox.command(&flags);
        Finished::of(command.env("HF_HUB_CACHE", sandbox.path("hub")).env("HF_HUB_OFFLINE", "1"))
    };
    let local = numbers(run("out").expect_code(0).json());
    assert_eq!(numbers(run("hub:own/small").expect_code(0).json()), local);
    assert_eq!(numbers(run(&format!("hub:own/small@{commit}")).expect_code(0).json()), local);
    let missing = run("hub:own/none").expect_code(2);
    assert!(missing.stderr.contains("own/none") && missing.stderr.contains("HF_HUB_OFFLINE"), "{}", missing.text());
}
