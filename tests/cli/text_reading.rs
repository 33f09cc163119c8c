//! Runs of versions that read text by another rule are refused with the reason.

use serde_json::json;

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

/// Makes the sessions of `run` have read text by rule 1.
fn make_older(run: &RunFolder) {
    let mut manifest = run.manifest();
    for session in manifest["sessions"].as_array_mut().unwrap() {
        assert_eq!(session["text_reading_rule"], 2);
        session["text_reading_rule"] = 1.into();
    }
    run.write_sealed("manifest.json", manifest);
}

/// The run whose id begins with `name`.
fn named(sandbox: &Sandbox, name: &str) -> RunFolder {
    sandbox.runs().into_values().find(|run| run.id().starts_with(name)).unwrap()
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
