//! Runs of versions that read text by another rule: they are continued as they began, or refused with the reason.

use serde_json::{Value, json};

use crate::sandbox::{RunFolder, Sandbox};

/// A sandbox with an experiment of two documents, whose tokenizer has an end of text of a name that only the files beside it name.
fn new_sandbox() -> Sandbox {
    let token = json!({"id": 3, "content": "[STOP]", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    let tokenizer = json!({"version": "1.0", "added_tokens": [token], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "b": 2, "[STOP]": 3}, "unk_token": "<unk>"}});
    let documents = |text: &str| format!("{}\n", json!({"text": text.repeat(40)}));
    Sandbox::new()
        .with("model/tokenizer.json", tokenizer.to_string())
        .with("train.jsonl", documents("a b b ") + &documents("b a "))
        .with("items.jsonl", "{\"ctx\": \"a\", \"label\": 0, \"endings\": [\"b\", \"a\"]}\n")
        .with(
            "exp.yaml",
            "model: {family: gpt2, layers: 1, heads: 2, d_model: 8, context_length: 8}\n\
             data: {tokenizer: {file: model/tokenizer.json}, train: {jsonl: {files: [train.jsonl]}}, validation: null}\n\
             batch: {sequences: 2}\ntrain: {steps: 4}\ncheckpoint: {every: 2}\neval: {loss: null, hellaswag: {file: items.jsonl}}\n",
        )
}

/// Removes from the record of `run` that its sessions read text by rule 2, as in records of older versions.
fn make_older(run: &RunFolder) {
    let mut manifest = run.manifest();
    for session in manifest["sessions"].as_array_mut().unwrap() {
        assert_eq!(session.as_object_mut().unwrap().remove("text_reading_rule"), Some(Value::from(2)));
    }
    run.write_unsealed("manifest.json", manifest);
}

/// The run whose id begins with `name`.
fn named(sandbox: &Sandbox, name: &str) -> RunFolder {
    sandbox.runs().into_values().find(|run| run.id().starts_with(name)).unwrap()
}

#[test]
fn a_run_that_read_its_tokenizer_alone_is_continued_with_it() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --set name=whole --threads 1 --quiet");
    sandbox.expect(0, "apply exp.yaml --set name=half --until-step 2 --threads 1 --quiet");
    let (whole, half) = (named(&sandbox, "whole"), named(&sandbox, "half"));
    make_older(&half);
    // What this version reads of the folder, and earlier ones did not.
    sandbox.write("model/tokenizer_config.json", "{\"eos_token\": \"[STOP]\"}");
    let drift = sandbox.expect(3, "reproduce half --check --threads 1");
    assert!(
        drift.contains("drift  text reading     changed  rule 2, was rule 1: items of multiple choice, "),
        "{drift}"
    );
    let resumed = sandbox.expect(0, "resume half --threads 1 --quiet");
    let warning = "warning: text reading: rule 2, was rule 1: ";
    assert!(resumed.contains(warning), "{resumed}");
    assert!(
        resumed.contains("; evaluations and samples before and after the change may not be comparable"),
        "{resumed}"
    );
    assert!(!resumed.contains("the final bits may differ"), "{resumed}");
    assert_eq!((half.numbers(), half.final_hash()), (whole.numbers(), whole.final_hash()));
    sandbox.expect(0, "fork half --from 2 --name fork --set optimizer.adamw.lr=1e-4 --threads 1 --quiet");
    assert_eq!(named(&sandbox, "fork").manifest()["data"], half.manifest()["data"]);
    // A new run reads the folder.
    sandbox.expect(0, "apply exp.yaml --set name=new --threads 1 --quiet");
    assert_ne!(named(&sandbox, "new").manifest()["data"]["tokenizer"], half.manifest()["data"]["tokenizer"]);
}

#[test]
fn a_refusal_to_resume_names_the_rule_by_which_text_was_read() {
    let sandbox = new_sandbox();
    sandbox.expect(0, "apply exp.yaml --set name=half --until-step 2 --threads 1 --quiet");
    let refusal = |sandbox: &Sandbox| sandbox.expect(2, "resume half --threads 1 --quiet");
    sandbox.edit("items.jsonl", "\"b\", \"a\"", "\"b\", \"a b\"");
    assert!(refusal(&sandbox).contains("its data has changed (multiple choice)"));
    make_older(&named(&sandbox, "half"));
    let refused = refusal(&sandbox);
    let why = "it was started by a version of runner that reads text by rule 1, but this version reads it by rule \
        2; or the files have changed \
               (multiple choice)";
    assert!(refused.contains(why), "{refused}");
}
