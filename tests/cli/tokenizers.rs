//! `runner tokenizer`; the tokens around a text, from a tokenizer's folder to an export; and files that are not what their names say.

use std::fs;

use serde_json::{Value, json};

use crate::data::npy;
use crate::sandbox::{Sandbox, read_json, repository_path};

/// A sandbox with 40 documents of 20 words, and the experiment `exp.yaml` with `tokenizer`.
fn sandbox(tokenizer: &str) -> Sandbox {
    let line = format!("{{\"text\": \"{}\"}}\n", "a b ".repeat(10).trim());
    Sandbox::new().with("docs.jsonl", line.repeat(40)).with(
        "exp.yaml",
        format!(
            "name: exp\nmodel: {{family: llama, layers: 1, heads: 1, d_model: 8, context_length: 8}}\n\
             data: {{tokenizer: {tokenizer}, train: {{jsonl: {{files: [docs.jsonl]}}}}, validation: {{fraction: 0.1}}}}\n\
             batch: {{sequences: 4}}\ntrain: {{steps: 1}}\noptimizer: {{adamw: {{lr: 1e-2}}}}\n"
        ),
    )
}

#[test]
fn documents_without_a_separator_are_reported_everywhere() {
    let commands = [
        "validate exp.yaml",
        "plan exp.yaml",
        "apply exp.yaml --quiet",
        "export exp --to hf out",
        "eval exp --text docs.jsonl",
        "data prepare --from exp.yaml --to llmc shards",
    ];
    let (without, with) = (sandbox("{chars: {}}"), sandbox("{bytes: {}}"));
    for command in commands {
        without.show(0, command);
        with.show(0, command);
    }
    insta::assert_snapshot!(without.screens());
    insta::assert_snapshot!(with.screens());
}

#[test]
fn the_tokens_of_a_tokenizers_folder_come_back_in_an_export() {
    let sandbox = sandbox("{file: folder/tokenizer.json}");
    let token = |id: u32, name: &str| json!({"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let template = |id: &str| json!({"SpecialToken": {"id": id, "type_id": 0}});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [token(3, "<begin>"), token(4, "<done>")],
        "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"}, "decoder": null,
        "post_processor": {"type": "TemplateProcessing", "pair": [],
            "single": [template("<begin>"), {"Sequence": {"id": "A", "type_id": 0}}, template("<done>")],
            "special_tokens": {"<begin>": {"id": "<begin>", "ids": [3], "tokens": ["<begin>"]},
                               "<done>": {"id": "<done>", "ids": [4], "tokens": ["<done>"]}}},
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "[UNK]": 2, "<begin>": 3, "<done>": 4}, "unk_token": "[UNK]"},
    });
    let names = json!({"bos_token": "<begin>", "eos_token": {"content": "<done>"}});
    sandbox.write("folder/tokenizer.json", format!("\u{feff}{tokenizer}"));
    sandbox.write("folder/tokenizer_config.json", names.to_string());
    sandbox.show(0, "apply exp.yaml --quiet");
    let run = sandbox.only_run();
    // 40 documents of 20 words, each after its token: 90% of 840 tokens.
    assert_eq!(read_json(&run.0.join("plan.json"))["data"]["train"]["tokens"], 756);

    fs::remove_dir_all(sandbox.path("folder")).unwrap();
    sandbox.expect(0, "export exp --to hf out");
    let read = |name: &str| read_json(&sandbox.path("out").join(name));
    let config = read("config.json");
    assert_eq!((&config["bos_token_id"], &config["eos_token_id"]), (&json!(3), &json!(4)));
    assert_eq!(read("generation_config.json")["eos_token_id"], 4);
    let names = read("tokenizer_config.json");
    assert_eq!((&names["bos_token"], &names["eos_token"]), (&json!("<begin>"), &json!("<done>")));
    assert_eq!(read("tokenizer.json")["post_processor"], json!(null));

    // The run's own file is a tokenizer, too.
    for file in [run.0.join("tokenizer.json"), sandbox.path("out/tokenizer.json")] {
        let tokenizer = runner_data::load_tokenizer(&runner_spec::experiment::Tokenizer::File(file)).unwrap();
        assert_eq!(tokenizer.encode_document("a b x").unwrap(), [0, 1, 2]);
    }
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn compressed_files_say_how_to_decompress_them() {
    let sandbox = sandbox("{bytes: {}}")
        .with("docs.jsonl.gz", b"\x1f\x8b\x08\x00\x00")
        .with("docs.jsonl.zst", b"\x28\xb5\x2f\xfd\x04");
    sandbox.show(2, "data prepare docs.jsonl.gz --tokenizer bytes --to llmc out --name x");
    sandbox.show(2, "data prepare docs.jsonl.zst --tokenizer bytes --to llmc out --name x");
    sandbox.edit("exp.yaml", "docs.jsonl", "docs.jsonl.gz");
    sandbox.show(2, "plan exp.yaml");
    // By its content, whatever its name.
    fs::copy(sandbox.path("docs.jsonl.gz"), sandbox.path("docs.jsonl")).unwrap();
    sandbox.edit("exp.yaml", "docs.jsonl.gz", "docs.jsonl");
    sandbox.show(2, "plan exp.yaml");
    insta::assert_snapshot!(sandbox.screens());
}

#[test]
fn a_trained_tokenizer_encodes_and_decodes() {
    let sandbox = Sandbox::new();
    sandbox.write("a.txt", "the cat sat on the mat, the cat sat on the mat. ".repeat(40));
    sandbox.stdout_of(
        "tokenizer train a.txt --vocab-size 280 --special-token <|endoftext|> --special-token [PAD] --out t.json",
    );
    let file = runner_spec::experiment::Tokenizer::File(sandbox.path("t.json"));
    let tokenizer = runner_data::load_tokenizer(&file).unwrap();
    assert!(tokenizer.encode_document("the<|endoftext|>").unwrap().len() > 3, "as text");
    assert_eq!(*tokenizer.encode_prompt("the<|endoftext|>").unwrap().last().unwrap(), 0);
    assert_eq!(tokenizer.decode(&tokenizer.encode_document("cat,mat").unwrap()), "cat,mat");
    assert!(sandbox.expect(2, "tokenizer train a.txt --vocab-size 280 --out t.json").contains("--force"));
    assert!(sandbox.expect(2, "tokenizer train a.txt --vocab-size 256 --out u.json").contains("must be from 257"));
}

/// The experiment names the tokenizer's file, which the command makes of the experiment's own text.
#[test]
fn a_tokenizer_is_trained_on_the_text_of_an_experiment() {
    let sandbox = Sandbox::new();
    sandbox.write("a.jsonl", "{\"body\": \"the cat sat on the mat, the cat sat on the mat.\"}\n".repeat(40));
    let text = "model: {preset: llama-nano}\n\
         data: {tokenizer: {file: t.json}, train: {jsonl: {files: [a.jsonl], field: body}}, validation: null}\n\
         batch: {sequences: 4}\ntrain: {steps: 1}\n";
    sandbox.write("exp.yaml", text);
    sandbox.stdout_of("tokenizer train --from exp.yaml --vocab-size 280 --special-token [PAD] --out t.json");
    sandbox.stdout_of("tokenizer train a.jsonl --field body --vocab-size 280 --special-token [PAD] --out u.json");
    assert_eq!(fs::read(sandbox.path("t.json")).unwrap(), fs::read(sandbox.path("u.json")).unwrap());
    sandbox.stdout_of("plan exp.yaml");
    // The end of the text, which is held out, has words that the tokenizer must not learn.
    let learned = |from: &str| {
        sandbox.stdout_of(&format!(
            "tokenizer train --from {from} --vocab-size 290 --special-token [PAD] --out v.json --force"
        ));
        let tokenizer = sandbox.read("v.json");
        fs::remove_file(sandbox.path("v.json")).unwrap();
        (tokenizer.contains("zebra"), tokenizer.contains("mat"))
    };
    let line = |word: &str| format!("{{\"body\": \"{}\"}}\n", format!("{word} ").repeat(8));
    sandbox.write("a.jsonl", line("mat").repeat(54) + &line("zebra").repeat(6));
    assert_eq!(learned("exp.yaml"), (true, true));
    sandbox.write("held_out.yaml", text.replace("validation: null", "validation: {fraction: 0.2}"));
    assert_eq!(learned("held_out.yaml"), (false, true));
    sandbox.show(2, "tokenizer train --from none.yaml --vocab-size 280");
    sandbox.write("absent.yaml", text.replace("a.jsonl", "absent.jsonl"));
    sandbox.show(2, "tokenizer train --from absent.yaml --vocab-size 280 --out w.json");
    sandbox.write("a.npy", npy(&[1, 2, 3, 4]));
    sandbox
        .write("shards.yaml", text.replace("{jsonl: {files: [a.jsonl], field: body}}", "{tokens: {files: [a.npy]}}"));
    sandbox.show(2, "tokenizer train --from shards.yaml --vocab-size 280 --out w.json");
    insta::assert_snapshot!(sandbox.screens());
}

/// What Python's `tokenizers` makes of hostile text with a tokenizer that it trained (tests/golden/tokenizers_compare.py).
#[test]
fn ids_are_those_of_python() {
    let folder = repository_path("tests/fixtures/tokenizer");
    let file = runner_spec::experiment::Tokenizer::File(folder.join("tokenizer.json"));
    let tokenizer = runner_data::load_tokenizer(&file).unwrap();
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(folder.join("cases.json")).unwrap()).unwrap();
    assert!(cases.len() > 120);
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let expected: Vec<u32> = case["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(tokenizer.encode_document(text).unwrap(), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected), text);
    }
}
